"""Static checks of a pipeline, and column pruning for its inputs.

The `refuse_*` functions reject pipelines that Spark would accept and then run incorrectly, silently or without bound.
They take plain data, such as the text of a plan, and need no Spark.

`prune_columns` finds the columns that a function needs of its inputs. Spark prunes columns of its own sources but not
of a Python source. So the function is applied to empty batch tables of the same type, Spark's optimiser prunes their
columns, and the stream reads the same columns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headwater.engine.build.inputs import Input, RowBehaviour
from headwater.engine.build.placement import WAIT_DETAIL, WAIT_FIX, WAIT_PROBLEM
from headwater.engine.build.plan_analysis import WATERMARK_DELAY_KEY, Mode, scala_items
from headwater.engine.source.visible_rows import HIDDEN_COLUMNS
from headwater.engine.spark.refusals import Refusal
from headwater.errors import BadPipelineError
from headwater.pipelines import Pipeline, PipelineKind

__all__ = [
    "check_columns",
    "choose_mode",
    "pipeline_error",
    "prune_columns",
    "refuse_changing_rows",
    "refuse_corrections",
    "refuse_deduplication_within_watermark",
    "refuse_following_steps",
    "refuse_history",
    "refuse_nondeterminism",
    "refuse_unbounded_join",
    "refuse_waited_rows",
]

logger = logging.getLogger("headwater.engine")
_LEAVES: Final = ("LogicalRDD", "LocalRelation")
_PASS_THROUGH: Final = ("Filter", "Join", "Sort", "GlobalLimit", "LocalLimit", "BatchEvalPython", "ArrowEvalPython")
"""Steps that keep all columns of their input."""
_PROJECTING: Final = ("Project", "Aggregate")
"""Steps that keep only the columns they name."""


def prune_columns(
    session: SparkSession, apply: Callable[[Mapping[str, DataFrame]], DataFrame], inputs: tuple[Input, ...]
) -> dict[str, tuple[str, ...]]:
    """Returns the needed columns of each input, in order, with event time and hidden columns.

    Returns all columns if the plan does not tell which are needed.

    Args:
        session: The session.
        apply: The function over the inputs.
        inputs: The inputs.
    """
    wholes = {input_.name: tuple(input_.schema.names) for input_ in inputs}
    if any(not name.isidentifier() for names in wholes.values() for name in names):
        return wholes  # attribute sets are parsed from text
    tables = {}
    try:
        for input_ in inputs:
            schema = from_arrow_schema(input_.schema)
            schema[input_.time].metadata = {WATERMARK_DELAY_KEY: 0}
            tables[input_.name] = _empty_table(session, schema)
        plan = apply(tables)._jdf.queryExecution().optimizedPlan()
        used = set(_read_attributes(plan, _parse_attributes(plan.outputSet())))
        if None in used:
            return wholes
        names = {attribute.rpartition("#")[0] for attribute in used if attribute is not None} | set(HIDDEN_COLUMNS)
        needed = {i.name: tuple(name for name in wholes[i.name] if name in names or name == i.time) for i in inputs}
        # The function may also name a column that its result does not need. It then cannot run without it.
        if needed != wholes:
            apply({i.name: tables[i.name].select(*needed[i.name]) for i in inputs})
    except Exception:  # the function may use steps that exist only for streams
        logger.debug("all columns are read", exc_info=True)
        return wholes
    return needed


def _empty_table(session: SparkSession, schema: StructType) -> DataFrame:
    """Returns a table whose emptiness Spark does not know, or it would remove all steps on it."""
    # PySpark's createDataFrame also makes the session that of the thread, where Spark then finds the source registered.
    context: Any = session.sparkContext
    columns = context._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return DataFrame(session._jsparkSession.createDataFrame(context._jsc.emptyRDD(), columns), session)


def _read_attributes(plan: Any, wanted: set[str]) -> Iterator[str | None]:
    """Yields the attributes that a plan reads from its leaves; None if a step does not tell."""
    name = plan.nodeName()
    children = scala_items(plan.children())
    if not children:
        yield from wanted & _parse_attributes(plan.outputSet()) if name in _LEAVES else ()
        return
    if name not in _PROJECTING + _PASS_THROUGH:
        yield None
        return
    named = _parse_attributes(plan.references())
    for child in children:
        yield from _read_attributes(child, named if name in _PROJECTING else wanted | named)


def _parse_attributes(found: Any) -> set[str]:
    """Returns the names and expression ids of an attribute set, such as `amount#17`, from its text."""
    return set(re.findall(r"[^\s,{}]+#\d+", found.toString()))


_NONDETERMINISTIC: Final = re.compile(
    r"\b(rand|randn|uuid|shuffle|current_timestamp|current_date|localtimestamp|now)\("
)


def refuse_nondeterminism(pipeline: Pipeline, plan: str) -> None:
    """Refuse nondeterministic functions in the text of a plan: a batch that runs again must return the same rows."""
    found = _NONDETERMINISTIC.search(plan)
    if found:
        what = f"{pipeline} uses {found[1]}(), which returns another value each time"
        detail = "a batch that runs again after a crash must return the same rows"
        fix = "take the time from the event" if found[1] not in ("rand", "randn", "uuid", "shuffle") else None
        raise pipeline_error(pipeline, what, detail, fix, function=found[1])


def refuse_unbounded_join(
    pipeline: Pipeline, wait_times: Iterable[tuple[str, int | None]], inputs: tuple[Input, ...] = ()
) -> None:
    """Refuse a stream join without a time range: Spark would keep its rows for ever.

    Args:
        pipeline: The pipeline.
        wait_times: How long rows of each side of each join wait for a match, as `join_wait_times` returns it.
        inputs: Its inputs; one of them may be a table that is read as a stream by mistake.
    """
    for side, wait in wait_times:
        if wait is None:
            _refuse_table_as_stream(pipeline, inputs)
            what = f"{pipeline} joins two streams without a time range: rows of the {side} side wait for ever"
            detail = "state would grow without bound, and an outer join would never emit unmatched rows"
            fix = "add a range to the condition: paid_at between placed_at and placed_at + interval 10 minutes"
            raise pipeline_error(pipeline, what, detail, fix, side=side)


def _refuse_table_as_stream(pipeline: Pipeline, inputs: tuple[Input, ...]) -> None:
    tables = [input_ for input_ in inputs if input_.key and not input_.is_table]
    tables = [input_ for input_ in tables if input_.topic.compact or input_.row_behaviour is RowBehaviour.CHANGING]
    events = [input_ for input_ in inputs if input_ not in tables]
    if pipeline.sql is not None or not tables or not events:
        return
    table, columns = tables[0], tables[0].key
    on = f'"{columns[0]}"' if len(columns) == 1 else f"[{', '.join(repr(name) for name in columns)}]"
    what = f'{pipeline} joins "{events[0].name}" with the changes of the table "{table.name}", not with its rows'
    detail = f"a parameter annotated DataFrame is a stream of changes: annotate it as {table.name}: hw.Table"
    fix = f"hw.enrich({events[0].name}, {table.name}, on={on})"
    raise pipeline_error(pipeline, what, detail, fix, table=table.name)


def refuse_deduplication_within_watermark(pipeline: Pipeline, deduplications: Iterable[tuple[str, ...]]) -> None:
    """Refuse `dropDuplicatesWithinWatermark`, whose state would never expire.

    It forgets a row when the watermark has passed the row's time plus Spark's watermark delay. That delay is 10,000
    years here, because watermark rows set the watermark (`engine.source.log_source`). No other step adds the delay.

    Args:
        pipeline: The pipeline.
        deduplications: The key columns of each such step.
    """
    for columns in deduplications:
        by = ", ".join(f'"{name}"' for name in columns)
        by = by if len(columns) == 1 else f"[{by}]"
        what = f"{pipeline} uses dropDuplicatesWithinWatermark, whose state would grow without bound"
        detail = "Spark expires it by the delay of its own watermark; Headwater's watermark comes from the log"
        fix = f'hw.deduplicate(…, by={by}, within="10 minutes")'
        raise pipeline_error(pipeline, what, detail, fix, function="dropDuplicatesWithinWatermark", columns=columns)


def refuse_waited_rows(pipeline: Pipeline, steps: Iterable[str]) -> None:
    """Refuse a step that waits for event time after `hw.enrich(wait=…)`: Spark would drop rows that have waited.

    Args:
        pipeline: The pipeline.
        steps: The steps that wait for event time and follow the operator.
    """
    for step in steps:
        raise pipeline_error(pipeline, f"{pipeline}: {step} {WAIT_PROBLEM}", WAIT_DETAIL, WAIT_FIX, step=step)


def refuse_changing_rows(pipeline: Pipeline, inputs: tuple[Input, ...]) -> None:
    """Refuse a stateful step over rows that change for ever: it would count every version."""
    for input_ in inputs:
        if input_.row_behaviour is RowBehaviour.CHANGING:
            what = f'{pipeline} keeps state over view "{input_.name}", whose rows may change at any time'
            detail = "it would count each version of a row as a separate row"
            fix = f"read it as a table: {input_.name}: hw.Table, or write the view in SQL"
            raise pipeline_error(pipeline, what, detail, fix, view=input_.name)


def refuse_following_steps(pipeline: Pipeline, operators: list[str]) -> None:
    """Refuse steps after an operator that corrects its rows: they could not process corrections."""
    if operators:
        what = f"{pipeline} has a step after {operators[0]}, whose rows are corrected"
        fix = f"return the result of {operators[0]} in a view, and read that view in another pipeline"
        raise pipeline_error(pipeline, what, fix=fix, operator=operators[0])


def refuse_corrections(pipeline: Pipeline, operator_name: str) -> None:
    """Refuse corrections in a stream: its rows are final."""
    if pipeline.kind is not PipelineKind.VIEW:
        what = f"{pipeline} cannot retract rows, and {operator_name} corrects earlier rows"
        raise pipeline_error(pipeline, what, fix="make it a view: @app.view(key=…)", operator=operator_name)


def refuse_history(pipeline: Pipeline) -> None:
    """Refuse a history of events: only a table has one."""
    if pipeline.history is not None:
        first = pipeline.inputs[0]
        annotate, declare = f"annotate its parameter: {first}: hw.Table", f'app.table("{first}", …, key=…)'
        what = f"{pipeline} requests history, but does not read a table"
        raise pipeline_error(pipeline, what, fix=annotate if pipeline.sql is None else declare)


def choose_mode(
    pipeline: Pipeline,
    *,
    stateful: bool,
    mode_error: Callable[[Mode], str | None],
    explain: Callable[[str], Refusal | None] = lambda _: None,
) -> Mode:
    """Choose the output mode: rows as early as possible for a view, final rows for everything else.

    Args:
        pipeline: The pipeline.
        stateful: Whether a step of its plan keeps state.
        mode_error: Returns why Spark refuses the plan in a mode; None if it accepts it.
        explain: Returns the refusal for a message of Spark, if it is known.

    Raises:
        BadPipelineError: Spark can run it in no mode.
    """
    view = pipeline.kind is PipelineKind.VIEW
    if view and stateful and mode_error("update") is None:
        return "update"
    reason = mode_error("append")
    if reason is None:
        return "append"
    # What no mode accepts says more than "not in append mode".
    reasons = (mode_error("update") or "", reason)
    refusal = next(filter(None, map(explain, reasons)), None)
    if refusal is not None:
        raise pipeline_error(pipeline, refusal.what, refusal.detail, refusal.fix)
    detail = f"Spark: {reason}" if view else f"its rows would change after they were written\nSpark: {reason}"
    fix = "headwater help BAD_PIPELINE" if view else "make it a view, or group by a window of the event time"
    raise pipeline_error(pipeline, f"{pipeline} cannot run on a stream", detail, fix)


def check_columns(pipeline: Pipeline, schema: pa.Schema) -> None:
    """Check that column names are unique and include the key."""
    double = sorted(name for name in schema.names if schema.names.count(name) > 1)
    if double:
        what = f'{pipeline} returns two columns named "{double[0]}"'
        raise pipeline_error(pipeline, what, fix="drop one, or rename it with alias", column=double[0])
    missing = [column for column in pipeline.key if column not in schema.names]
    if missing:
        what = f'{pipeline} does not return its key column "{missing[0]}"'
        raise pipeline_error(pipeline, what, f"it returns: {', '.join(schema.names)}", column=missing[0])


def pipeline_error(
    pipeline: Pipeline, what: str, detail: str | None = None, fix: str | None = None, **data: object
) -> BadPipelineError:
    """Returns an error about a pipeline, with its location in the user's file."""
    return BadPipelineError(what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name, **data)
