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
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import EVENT_TIME, HIDDEN_PREFIX, event_time_column, plan_of, restore_position
from headwater.engine.build.sink_stage import SinkStage, StageInput
from headwater.engine.state.spark_host import apply_in_spark
from headwater.engine.state.state import OFFSET, PARTITION, QUARANTINE_REASON, TIME, WEIGHT, Operator
from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines import Table

__all__ = [
    "KEY_GROUPS",
    "BuildScope",
    "OperatorFactory",
    "build_scope",
    "place_operator",
    "sink_stage_of",
    "stream_input",
    "table_input",
    "visible_schema",
]

KEY_GROUPS: Final = 8
"""The number of key groups of an operator in Spark; part of the format of its state.

It bounds the number of parallel tasks. Each key group costs about a millisecond of CPU per batch.
"""
_SINK_STAGE: Final = "_hw_after_spark"
_POSITION_HELP: Final = (
    "select, where and union keep it; groupBy, distinct, explode, mapInArrow and joins of streams do not"
)
_EARLIER_FIX: Final = "call {} before that step, or make that step a pipeline of its own and read it"


@dataclass
class BuildScope:
    """The state of one call of a user's function: its tables and the operators it requests.

    Attributes:
        tables: The tables it was given, by name.
        final: Whether its rows must be final when they come, because nobody could correct them.
        outside_spark: Which operators are not to be put into Spark's query, by number; None for all of them.
        descriptions: What the operators keep in state, for messages.
        state_forms: What their states look like.
        last_only: Those that must be the last step.
        entry_inputs: What reaches operators from the inputs, and not from another operator.
        quarantine_metrics: Of those in Spark's query that give events back, the names under which they say which.
        state_metrics: Of all that are in Spark's query, the names under which they say how much they keep.
    """

    tables: Mapping[str, tuple[Input, DataFrame]]
    final: bool
    outside_spark: tuple[int, ...] | None = None
    descriptions: list[str] = field(default_factory=list)
    state_forms: list[str] = field(default_factory=list)
    last_only: list[str] = field(default_factory=list)
    entry_inputs: list[StageInput] = field(default_factory=list)
    quarantine_metrics: list[str] = field(default_factory=list)
    state_metrics: list[str] = field(default_factory=list)


class OperatorFactory(Protocol):
    """Creates an operator for a host."""

    def __call__(self, *, final: bool) -> Operator:
        """Create the operator.

        Args:
            final: Whether its rows must be final when they come.
        """


_current_scope: ContextVar[BuildScope | None] = ContextVar("stage", default=None)


@contextmanager
def build_scope(
    tables: Mapping[str, tuple[Input, DataFrame]], *, final: bool, outside_spark: tuple[int, ...] | None
) -> Iterator[BuildScope]:
    """Accept requests for operators while the block runs."""
    scope = BuildScope(tables, final, outside_spark)
    token = _current_scope.set(scope)
    try:
        yield scope
    finally:
        _current_scope.reset(token)


def table_input(table: Any, operator_name: str) -> StageInput:
    """Returns the changes of a table that the user's function received.

    Raises:
        BadPipelineError: It is no table, or one that the function has made itself.
    """
    known = _require_scope(operator_name).tables
    name = table.inputs[0] if isinstance(table, Table) and len(table.inputs) == 1 else None
    if name is None or name not in known or table != Table.named(name):
        what = f"{operator_name} needs a table as the function was given it, not {type(table).__name__}"
        fix = "annotate the parameter: products: hw.Table; of a table that you filter or join, make a view first"
        raise BadPipelineError(what, fix=fix, location=SourceLocation.of_caller())
    input_, frame = known[name]
    return StageInput(frame, input_.time)


def stream_input(events: Any, operator_name: str) -> StageInput:
    """Returns the events that an operator reads.

    Raises:
        BadPipelineError: They have no time any more, or are no events.
    """
    if not isinstance(events, DataFrame):
        what = f"{operator_name} takes events, not {type(events).__name__}"
        raise BadPipelineError(what, fix="a parameter annotated DataFrame", location=SourceLocation.of_caller())
    events = restore_position(events)
    time = event_time_column(events.schema)
    if time is None:
        what = f"{operator_name} orders events by event time; an earlier step has dropped that column"
        raise BadPipelineError(
            what, detail=_POSITION_HELP, fix=_EARLIER_FIX.format(operator_name), location=SourceLocation.of_caller()
        )
    return StageInput(events, time)


def visible_schema(input_: StageInput) -> pa.Schema:
    """Returns the columns that a user sees of a frame."""
    schema = to_arrow_schema(input_.frame.schema, timezone="UTC")
    return pa.schema([f.with_nullable(True) for f in schema if not f.name.startswith(HIDDEN_PREFIX)])


def place_operator(
    make: OperatorFactory, inputs: tuple[StageInput, ...], description: str, operator_name: str
) -> DataFrame:
    """Returns the result of an operator.

    Args:
        make: Makes the operator.
        inputs: Its inputs.
        description: What it keeps in state, for messages.
        operator_name: The name of the function that the user called.
    """
    scope = _require_scope(operator_name)
    if scope.outside_spark is not None:
        _require_position(inputs, operator_name)
    inside, beside = make(final=True), make(final=scope.final)
    deferred = scope.outside_spark is None or len(scope.descriptions) in scope.outside_spark
    scope.descriptions.append(description)
    scope.entry_inputs.extend(
        one for one in inputs if _operator_placeholder.__name__ not in plan_of(one.frame).toString()
    )
    # This text is stored in manifests and compared at start: changing its wording would refuse existing state.
    scope.state_forms.append(f"{KEY_GROUPS} buckets by checksum of {inside.form}")
    if WEIGHT in inside.schema.names:
        scope.last_only.append(operator_name)
    frames, times = [one.frame for one in inputs], [one.time for one in inputs]
    time = times[0] if times[0] in inside.schema.names else None
    if not deferred:
        scope.state_metrics.append(f"kept.{len(scope.descriptions)}")
        result = apply_in_spark(
            inside, frames, times=times, key_groups=KEY_GROUPS, time=time, metric=scope.state_metrics[-1]
        )
        return _add_event_time(_drop_quarantined(result, scope), inputs[0])
    result = frames[0].mapInArrow(_operator_placeholder, from_arrow_schema(inside.schema))
    result = _add_event_time(result if time is None else _set_event_time(result, time, inputs[0]), inputs[0])
    setattr(result, _SINK_STAGE, SinkStage(beside, inputs, (description,)))
    return result


def _require_position(inputs: tuple[StageInput, ...], operator_name: str) -> None:
    """Check for partition and offset: equal events are distinguished only by their position."""
    if not all(one.frame.columns.count(name) == 1 for one in inputs for name in (PARTITION, OFFSET)):
        what = f"{operator_name} identifies events by partition and offset; an earlier step has dropped these columns"
        raise BadPipelineError(
            what, detail=_POSITION_HELP, fix=_EARLIER_FIX.format(operator_name), location=SourceLocation.of_caller()
        )


def _operator_placeholder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns a placeholder for an operator in a plan that is analysed and never run."""
    return batches


def _drop_quarantined(result: DataFrame, scope: BuildScope) -> DataFrame:
    """Returns the operator's result without rejected events, which the sink reads from the observed metric."""
    if QUARANTINE_REASON not in result.columns:
        return result
    name = f"refused.{len(scope.descriptions)}"
    scope.quarantine_metrics.append(name)
    refused = F.when(F.col(QUARANTINE_REASON).isNotNull(), F.struct(PARTITION, OFFSET, QUARANTINE_REASON))
    kept = result.observe(name, F.collect_list(refused).alias("events")).where(F.col(QUARANTINE_REASON).isNull())
    # A row that is not an event has no position; only rejected events had one.
    return kept.drop(QUARANTINE_REASON) if TIME in result.columns else kept.drop(QUARANTINE_REASON, PARTITION, OFFSET)


def _add_event_time(result: DataFrame, input_: StageInput) -> DataFrame:
    """Returns the result of an operator with its event time added, if no column has it."""
    if event_time_column(result.schema) is not None or TIME not in result.columns:
        return result
    return _set_event_time(result.withColumn(EVENT_TIME, F.timestamp_micros(TIME)), EVENT_TIME, input_)


def _set_event_time(result: DataFrame, column: str, input_: StageInput) -> DataFrame:
    """Returns a result in which one column carries the event time."""
    return result.withMetadata(column, input_.frame.schema[input_.time].metadata)


def sink_stage_of(result: DataFrame) -> SinkStage | None:
    """Returns the operator that made exactly this result, to run at the sink."""
    return vars(result).get(_SINK_STAGE)


def _require_scope(operator_name: str) -> BuildScope:
    scope = _current_scope.get()
    if scope is None:
        what = f"{operator_name} describes a step of a pipeline, and is called outside of one"
        raise BadPipelineError(
            what, fix="call it in a function under @app.view or @app.stream", location=SourceLocation.of_caller()
        )
    return scope
