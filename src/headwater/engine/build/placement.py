"""Decides where a stateful operator runs: at the sink, if it is the last step, or inside Spark's query.

A user's function requests operators through `headwater.engine.dsl`. Whether an operator is the last step is known only
after the function has returned, so the function is called twice. In the first call every operator returns a placeholder
with the right schema. If the function returns such a placeholder unchanged, that operator runs at the sink in the
second call, and all others run in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import (
    EVENT_TIME,
    HIDDEN_PREFIX,
    STATE_METRIC_PREFIX,
    contains_operator,
    event_time_column,
    plan_of,
    restore_position,
)
from headwater.engine.build.sink_stage import SinkStage, StageInput
from headwater.engine.operators.arguments import refuse
from headwater.engine.state.spark_host import apply_in_spark
from headwater.engine.state.state import (
    OFFSET,
    PARTITION,
    QUARANTINE_REASON,
    TABLE_INPUT,
    TIME,
    WEIGHT,
    Operator,
    TableJoin,
)
from headwater.events import storage_schema
from headwater.pipelines import Table

__all__ = [
    "KEY_GROUPS",
    "WAIT_DETAIL",
    "WAIT_FIX",
    "WAIT_PROBLEM",
    "BuildScope",
    "OperatorFactory",
    "build_scope",
    "late_correction",
    "place_operator",
    "sink_stage_of",
    "stream_input",
    "table_input",
    "visible_schema",
    "without_hidden",
]

KEY_GROUPS: Final = 8
"""The number of key groups of an operator in Spark; part of the format of its state.

It limits the number of parallel tasks. Each key group costs about a millisecond of CPU per batch.
"""
WAIT_PROBLEM: Final = "waits for event time, and follows hw.enrich(wait=…)"
WAIT_DETAIL: Final = "an event that has waited for its row is older than the watermark, and would be dropped"
WAIT_FIX: Final = "return the result of hw.enrich in an @app.stream, and read that stream in another pipeline"
_SINK_STAGE: Final = "_hw_after_spark"
_POSITION_HELP: Final = (
    "select, where and union keep it; groupBy, distinct, explode, mapInArrow and joins of streams do not"
)
_EARLIER_FIX: Final = "call {} before that step, or make that step a pipeline of its own and read it"


@dataclass
class BuildScope:
    """The state of one call of a user's function: its tables and the operators it requests.

    Attributes:
        tables: The tables that the function receives, by name.
        final: Whether result rows must be final, because a stream cannot correct them.
        outside_spark: The numbers of the operators that are not placed in Spark's query; None for all of them.
        descriptions: Descriptions of the state of each operator, for messages.
        state_forms: Descriptions of the format of each state, which are stored and compared.
        last_only: The operators that must be the last step.
        event_time_operators: The operators whose result depends on the watermark.
        waits_in_spark: Whether one of them runs in Spark.
        correction: How much longer than their lateness the pipeline waits for late events, in microseconds.
        final_tables: The tables that are joined with events whose result must be final when it is emitted.
        delays: How much older than the watermark the rows of operators may be, in microseconds; only those above 0.
        entry_inputs: The inputs of operators that do not come from another operator.
        quarantine_metrics: The names of the metrics with which operators in Spark report rejected events.
        state_metrics: The names of the metrics with which operators in Spark report the size of their state.
    """

    tables: Mapping[str, tuple[Input, DataFrame]]
    final: bool
    outside_spark: tuple[int, ...] | None = None
    descriptions: list[str] = field(default_factory=list)
    state_forms: list[str] = field(default_factory=list)
    last_only: list[str] = field(default_factory=list)
    event_time_operators: list[str] = field(default_factory=list)
    waits_in_spark: bool = False
    correction: int = 0
    final_tables: set[str] = field(default_factory=set)
    delays: list[int] = field(default_factory=list)
    entry_inputs: list[StageInput] = field(default_factory=list)
    quarantine_metrics: list[str] = field(default_factory=list)
    state_metrics: list[str] = field(default_factory=list)

    def runs_in_spark(self, number: int) -> bool:
        """Returns whether an operator is placed in Spark's query.

        Example:
            >>> [BuildScope({}, final=True, outside_spark=o).runs_in_spark(1) for o in (None, (), (1,))]
            [False, True, False]
        """
        return self.outside_spark is not None and number not in self.outside_spark


class OperatorFactory(Protocol):
    """Creates an operator for a host."""

    def __call__(self, *, final: bool) -> Operator:
        """Create the operator.

        Args:
            final: Whether it must emit final rows only.
        """


_current_scope: ContextVar[BuildScope | None] = ContextVar("stage", default=None)


@contextmanager
def build_scope(
    tables: Mapping[str, tuple[Input, DataFrame]],
    *,
    final: bool,
    outside_spark: tuple[int, ...] | None,
    correction: int = 0,
) -> Iterator[BuildScope]:
    """Accept requests for operators while the block runs."""
    scope = BuildScope(tables, final, outside_spark, correction=correction)
    token = _current_scope.set(scope)
    try:
        yield scope
    finally:
        _current_scope.reset(token)


def table_input(table: Any, operator_name: str) -> StageInput:
    """Returns the changes of a table that the user's function received.

    Raises:
        BadPipelineError: It is not a table, or not one that the function received.
    """
    known = _require_scope(operator_name).tables
    name = table.inputs[0] if isinstance(table, Table) and len(table.inputs) == 1 else None
    if name is None or name not in known or table != Table.named(name):
        what = f"{operator_name} needs a table that the function receives as a parameter, not {type(table).__name__}"
        fix = "annotate the parameter: products: hw.Table; for a filtered or joined table, create a view first"
        refuse(what, fix)
    input_, frame = known[name]
    return StageInput(frame, input_.time, name)


def stream_input(events: Any, operator_name: str) -> StageInput:
    """Returns the events that an operator reads.

    Raises:
        BadPipelineError: It is not a DataFrame, or has no event time.
    """
    if not isinstance(events, DataFrame):
        refuse(f"{operator_name} takes events, not {type(events).__name__}", "a parameter annotated DataFrame")
    events = restore_position(events)
    time = event_time_column(events.schema)
    if time is None:
        what = f"{operator_name} orders events by event time; an earlier step has dropped that column"
        refuse(what, _EARLIER_FIX.format(operator_name), detail=_POSITION_HELP)
    return StageInput(events, time)


def late_correction(operator_name: str) -> int:
    """Returns how much longer than their lateness the pipeline waits for late events, in microseconds."""
    return _require_scope(operator_name).correction


def visible_schema(input_: StageInput) -> pa.Schema:
    """Returns the columns of an input without the hidden ones."""
    return storage_schema(without_hidden(input_.schema))


def without_hidden(schema: pa.Schema) -> pa.Schema:
    """Returns a schema without the columns that Headwater has added."""
    return pa.schema([field for field in schema if not field.name.startswith(HIDDEN_PREFIX)])


def place_operator(
    make: OperatorFactory, inputs: tuple[StageInput, ...], description: str, operator_name: str, *, delay: int = 0
) -> DataFrame:
    """Returns the result of an operator.

    Args:
        make: Creates the operator.
        inputs: Its inputs.
        description: A description of its state, for messages.
        operator_name: The name of the function that the user called.
        delay: How much older than the watermark its rows may be, in microseconds.
    """
    scope = _require_scope(operator_name)
    # Equal events differ only in partition and offset.
    positions = (one.frame.columns.count(name) for one in inputs for name in (PARTITION, OFFSET))
    if scope.outside_spark is not None and any(count != 1 for count in positions):
        what = f"{operator_name} identifies events by partition and offset; an earlier step has dropped these columns"
        refuse(what, _EARLIER_FIX.format(operator_name), detail=_POSITION_HELP)
    inside, beside = make(final=True), make(final=scope.final)
    in_spark = scope.runs_in_spark(len(scope.descriptions))
    scope.descriptions.append(description)
    scope.entry_inputs.extend(
        one for one in inputs if _operator_placeholder.__name__ not in plan_of(one.frame).toString()
    )
    # This text is stored in manifests and compared at start: changing its wording would refuse existing state.
    scope.state_forms.append(f"{KEY_GROUPS} buckets by checksum of {inside.form}")
    _record_delay(scope, inside, inputs, operator_name, delay)
    if isinstance(inside, TableJoin) and (in_spark or scope.final):
        scope.final_tables.add(inputs[TABLE_INPUT].table or "")
    if WEIGHT in inside.schema.names:
        scope.last_only.append(operator_name)
    if inside.uses_event_time:
        scope.event_time_operators.append(operator_name)
        scope.waits_in_spark |= in_spark
    frames, times = [one.frame for one in inputs], [one.time for one in inputs]
    time = times[0] if times[0] in inside.schema.names else None
    event_time = frames[0].schema[times[0]].metadata
    if in_spark:
        scope.state_metrics.append(f"{STATE_METRIC_PREFIX}{len(scope.descriptions)}")
        result = apply_in_spark(
            inside, frames, times=times, key_groups=KEY_GROUPS, time=time, metric=scope.state_metrics[-1]
        )
        result = _drop_quarantined(result, scope)
    else:
        result = frames[0].mapInArrow(_operator_placeholder, from_arrow_schema(inside.schema))
        result = result if time is None else result.withMetadata(time, event_time)
    if event_time_column(result.schema) is None and TIME in result.columns:
        result = result.withColumn(EVENT_TIME, F.timestamp_micros(TIME)).withMetadata(EVENT_TIME, event_time)
    if not in_spark:
        setattr(result, _SINK_STAGE, SinkStage(beside, inputs, (description,)))
    return result


def _record_delay(
    scope: BuildScope, operator: Operator, inputs: tuple[StageInput, ...], operator_name: str, delay: int
) -> None:
    if delay:
        scope.delays.append(delay)
    elif operator.uses_event_time and scope.delays and any(_follows_operator(one.frame) for one in inputs):
        refuse(f"{operator_name} {WAIT_PROBLEM}", WAIT_FIX, detail=WAIT_DETAIL)


def _follows_operator(frame: DataFrame) -> bool:
    plan = plan_of(frame)
    return _operator_placeholder.__name__ in plan.toString() or contains_operator(plan)


def _operator_placeholder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand for an operator in a plan that is analysed and never run."""
    return batches


def _drop_quarantined(result: DataFrame, scope: BuildScope) -> DataFrame:
    """Returns the operator's result without rejected events; a metric reports these to the sink."""
    if QUARANTINE_REASON not in result.columns:
        return result
    name = f"refused.{len(scope.descriptions)}"
    scope.quarantine_metrics.append(name)
    refused = F.when(F.col(QUARANTINE_REASON).isNotNull(), F.struct(PARTITION, OFFSET, QUARANTINE_REASON))
    kept = result.observe(name, F.collect_list(refused).alias("events")).where(F.col(QUARANTINE_REASON).isNull())
    # Without an event time, rows are not events, and have no position.
    return kept.drop(QUARANTINE_REASON) if TIME in result.columns else kept.drop(QUARANTINE_REASON, PARTITION, OFFSET)


def sink_stage_of(result: DataFrame) -> SinkStage | None:
    """Returns the operator that returned exactly this DataFrame, to run at the sink; None if a step followed it."""
    return vars(result).get(_SINK_STAGE)


def _require_scope(operator_name: str) -> BuildScope:
    scope = _current_scope.get()
    if scope is None:
        fix = "call it in a function under @app.view or @app.stream"
        refuse(f"{operator_name} was called outside a pipeline's function", fix)
    return scope
