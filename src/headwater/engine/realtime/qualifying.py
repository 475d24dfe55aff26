"""Whether real-time mode can run a pipeline, by Spark's analysis of it; what cannot is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

from headwater.engine.building import plans, refusals
from headwater.pipelines import Pipeline
from headwater.pipelines.realtime import not_realtime

__all__ = ["require_realtime"]

_RUN: Final = (
    *("Project", "Filter", "Aggregate", "Generate", "SubqueryAlias", "Subquery", "EventTimeWatermark"),
    *("View", "WithCTE", "CTERelationDef", "CTERelationRef", "StreamingRelation", "StreamingRelationV2"),
)
"""Steps that real-time mode runs, or that are no steps of their own."""
_NAMED: Final = {
    "Deduplicate": "distinct or dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "GlobalLimit": "limit",
    "Join": "a join",
    "LocalLimit": "limit",
    "Sort": "a sort order",
    "Union": "a union",
    "Window": "a window function",
}
_PYTHON: Final = ("Pandas", "Arrow", "PySpark", "Python")
_SQL: Final = 'write it with functions of Spark SQL, or leave out latency="realtime"'


def require_realtime(frame: DataFrame, pipeline: Pipeline) -> None:
    """Let only pass what real-time mode runs.

    Args:
        frame: What the pipeline's function made of a stand-in for its topic.
        pipeline: The pipeline.

    Raises:
        NotRealtimeError: It contains something else; the message says what.
    """
    plan = plans.plan_of(frame)
    refusals.refuse_chance(pipeline, plan)
    for step in _steps(plan):
        name = step.nodeName()
        if any(word in name for word in _PYTHON):
            raise not_realtime(pipeline, f"it contains a Python function ({name})", None, _SQL)
        for function in _python(step):
            raise not_realtime(pipeline, f"it contains the Python function {function}", None, _SQL)
        if name not in _RUN:
            part = _NAMED.get(name, f"the step {name}")
            raise not_realtime(pipeline, f"it contains {part}", "real-time mode has no such step")
        if step.subqueries().nonEmpty():
            raise not_realtime(pipeline, "it contains a query inside an expression")
    refusal = plans.refusal(frame, "update")
    if refusal is not None:
        detail = f"rows go out whenever they change, and cannot wait until they are final\nSpark: {refusal}"
        raise not_realtime(pipeline, "it cannot run in update mode", detail)


def _steps(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _all(plan.children()):
        yield from _steps(child)


def _python(node: Any) -> Iterator[str]:
    """The names of Python functions in a step's expressions."""
    for expression in _all(node.expressions()):
        yield from _python_in(expression)


def _python_in(expression: Any) -> Iterator[str]:
    if expression.getClass().getSimpleName().startswith("PythonUD"):
        yield expression.name()
    for child in _all(expression.children()):
        yield from _python_in(child)


def _all(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]
