"""Static checks of a pipeline's plan, and column pruning for its inputs.

The `refuse_*` functions reject pipelines that Spark would accept and then run incorrectly, silently or without bound.

`prune_columns` finds the columns of its inputs that a function needs. Spark prunes columns of its own sources but not
of a Python source. So the optimiser runs over the same function on batch tables of the same type, and the result is
used for the stream.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headwater.engine.build.inputs import Input, RowBehaviour
from headwater.engine.build.plan_analysis import WATERMARK_DELAY_KEY, join_wait_times
from headwater.engine.source.visible_rows import HIDDEN_COLUMNS
from headwater.errors import BadPipelineError
from headwater.pipelines import Pipeline, PipelineKind

__all__ = [
    "check_columns",
    "prune_columns",
    "refuse_changing_rows",
    "refuse_corrections",
    "refuse_following_steps",
    "refuse_history",
    "refuse_nondeterminism",
    "refuse_unbounded_join",
    "streaming_error",
]

logger = logging.getLogger("headwater.engine")
_LEAF: Final = "Relation"
_PASS_THROUGH: Final = ("Filter", "Join", "Sort", "GlobalLimit", "LocalLimit", "BatchEvalPython", "ArrowEvalPython")
"""Steps that pass on the columns they are given."""
_PROJECTING: Final = ("Project", "Aggregate")
"""Steps that pass on nothing but what they name."""


def prune_columns(
    session: SparkSession, apply: Callable[[Mapping[str, DataFrame]], DataFrame], inputs: tuple[Input, ...]
) -> dict[str, tuple[str, ...]]:
    """Returns the columns of each input that are needed, in order, with event time and hidden columns.

    All columns of an input, where the optimiser cannot tell.

    Args:
        session: The session.
        apply: What is made of the inputs.
        inputs: The inputs.
    """
    wholes = {input_.name: tuple(input_.schema.names) for input_ in inputs}
    if any(not name.isidentifier() for names in wholes.values() for name in names):
        return wholes  # plans are read as text
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-") as nothing:
            tables = {
                input_.name: session.read.schema(_schema_with_watermark(input_)).parquet(nothing) for input_ in inputs
            }
            plan = apply(tables)._jdf.queryExecution().optimizedPlan()
            used = set(_read_attributes(plan, _parse_attributes(plan.outputSet())))
    except Exception:  # what works on streams only; the stream itself will tell
        logger.debug("all columns are read", exc_info=True)
        return wholes
    if None in used:
        return wholes
    names = {attribute.rpartition("#")[0] for attribute in used if attribute is not None}
    return {
        input_.name: tuple(
            name for name in wholes[input_.name] if name in names or name == input_.time or name in HIDDEN_COLUMNS
        )
        for input_ in inputs
    }


def _schema_with_watermark(input_: Input) -> StructType:
    """Returns the columns of an input, with the metadata that marks its event time."""
    schema = from_arrow_schema(input_.schema)
    schema[input_.time].metadata = {WATERMARK_DELAY_KEY: 0}
    return schema


def _read_attributes(plan: Any, wanted: set[str]) -> Iterator[str | None]:
    """Returns the attributes that the plan reads from its leaves; None if unknown."""
    name = plan.nodeName()
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    if not children:
        yield from wanted & _parse_attributes(plan.outputSet()) if _LEAF in name else ()
        return
    named = _parse_attributes(plan.references())
    if name == "Union":
        yield from (None for _ in children)
        return
    if name not in _PROJECTING + _PASS_THROUGH:
        yield None
        return
    for child in children:
        yield from _read_attributes(child, named if name in _PROJECTING else wanted | named)


def _parse_attributes(found: Any) -> set[str]:
    """Parse names with Spark's expression ids from the text of an attribute set."""
    return set(re.findall(r"[^\s,{}]+#\d+", found.toString()))


_NONDETERMINISTIC: Final = re.compile(
    r"\b(rand|randn|uuid|shuffle|current_timestamp|current_date|localtimestamp|now)\("
)


def refuse_nondeterminism(pipeline: Pipeline, plan: Any) -> None:
    """Refuse nondeterministic expressions: a range that runs again must give the same rows."""
    found = _NONDETERMINISTIC.search(plan.toString())
    if found:
        what = f"{pipeline} uses {found[1]}(), which gives another answer each time"
        detail = "a batch that is run again after a crash must give the same rows"
        fix = "take the time from the event" if found[1] not in ("rand", "randn", "uuid", "shuffle") else None
        raise _pipeline_error(pipeline, what, detail, fix)


def refuse_unbounded_join(frame: DataFrame, pipeline: Pipeline) -> None:
    """Refuse a stream join without a time bound: Spark would keep its rows for ever."""
    for side, wait in join_wait_times(frame):
        if wait is None:
            what = f"{pipeline} joins two streams without a range of time: its {side} side waits for ever"
            detail = "nothing would ever be forgotten, and an outer join would never give the rows that find no partner"
            fix = "add a range to the condition: paid_at between placed_at and placed_at + interval 10 minutes"
            raise _pipeline_error(pipeline, what, detail, fix)


def refuse_changing_rows(pipeline: Pipeline, inputs: tuple[Input, ...]) -> None:
    """Refuse a stateful step over rows that change for ever: it would count every version."""
    for input_ in inputs:
        if input_.row_behaviour is RowBehaviour.CHANGING:
            what = f'{pipeline} keeps state over view "{input_.name}", whose rows change for ever'
            detail = "it would count each version of a row as a row of its own"
            fix = f"take it as a table: {input_.name}: hw.Table, or write the view in SQL"
            raise _pipeline_error(pipeline, what, detail, fix)


def refuse_following_steps(pipeline: Pipeline, operators: list[str]) -> None:
    """Refuse steps after an operator that corrects its rows: they could not process corrections."""
    if operators:
        what = f"{pipeline} goes on after {operators[0]}, whose rows are corrected"
        fix = f"return what {operators[0]} gives in a view, and go on in a pipeline that reads the view"
        raise _pipeline_error(pipeline, what, None, fix)


def refuse_corrections(pipeline: Pipeline, operator_name: str) -> None:
    """Refuse corrections in a stream: its rows are final."""
    if pipeline.kind is not PipelineKind.VIEW:
        what = f"{pipeline} cannot take back rows, and {operator_name} corrects what it has given"
        raise _pipeline_error(pipeline, what, None, "make it a view: @app.view(key=…)")


def refuse_history(pipeline: Pipeline) -> None:
    """Refuse a history of events: only a table has one."""
    if pipeline.history is not None:
        what = f"{pipeline} asks for history, and is not made of a table"
        annotated, declared = (
            f"annotate its parameter: {pipeline.inputs[0]}: hw.Table",
            f'app.table("{pipeline.inputs[0]}", …, key=…)',
        )
        raise _pipeline_error(pipeline, what, None, annotated if pipeline.sql is None else declared)


def streaming_error(pipeline: Pipeline, reason: str) -> BadPipelineError:
    """Returns the error of a plan that Spark cannot run as a stream in any output mode."""
    if pipeline.kind is not PipelineKind.VIEW:
        detail = f"its rows would change after they were written\nSpark: {reason}"
        fix = "make it a view, or group by a window of the event time"
    else:
        detail, fix = f"Spark: {reason}", "headwater help BAD_PIPELINE"
    return _pipeline_error(pipeline, f"{pipeline} cannot run on a stream", detail, fix)


def check_columns(pipeline: Pipeline, schema: pa.Schema) -> None:
    """Check that column names are unique and include the key."""
    double = {name for name in schema.names if schema.names.count(name) > 1}
    if double:
        what = f'{pipeline} returns two columns named "{sorted(double)[0]}"'
        raise _pipeline_error(pipeline, what, None, "drop one, or give it another name with alias")
    missing = [column for column in pipeline.key if column not in schema.names]
    if missing:
        what = f'{pipeline} returns no column "{missing[0]}", which is its key'
        raise _pipeline_error(pipeline, what, f"it returns: {', '.join(schema.names)}", None)


def _pipeline_error(pipeline: Pipeline, what: str, detail: str | None, fix: str | None) -> BadPipelineError:
    return BadPipelineError(what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name)
