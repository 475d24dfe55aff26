"""Builds a pipeline: calls the user's function and returns a `BuiltQuery`.

`build` chooses between four forms: a plain Spark query, a Spark query followed by an operator at the sink, a query over
tables that is compiled to a dataflow, and a table that applies a topic of changes. It checks the plan and chooses the
output mode. Nothing is started here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.build import checks, plan_analysis
from headwater.engine.build.checks import prune_columns
from headwater.engine.build.inputs import DEFAULT_EVENT_TIME, Input, InputOptions, RowBehaviour, stream_inputs
from headwater.engine.build.placement import BuildScope, build_scope, sink_stage_of
from headwater.engine.build.plan_analysis import HIDDEN_PREFIX
from headwater.engine.build.sink_stage import SinkStage, union_inputs
from headwater.engine.build.table_views import (
    build_changes_stage,
    build_history_stage,
    build_table_stage,
    is_table_query,
)
from headwater.engine.source.log_source import LogSource
from headwater.engine.spark.error_translation import translate_error
from headwater.engine.state.state import SINCE, WEIGHT
from headwater.engine.tables.zset import apply_with_weights
from headwater.errors import BadPipelineError
from headwater.pipelines import CorrectLate, Pipeline, PipelineKind, Table

__all__ = ["BuiltQuery", "build", "call_function", "new_session"]


@dataclass(frozen=True)
class BuiltQuery:
    """A pipeline in the form in which Spark runs it.

    Attributes:
        mode: "update" gives rows that may still change, "append" only rows that are final.
        stateful: Descriptions of the steps that keep state.
        schema: Its columns.
        window: The column that holds windows, if there is one.
        time: The column that holds the event time, if there is one.
        state: What the state looks like to Spark, as text; a query can only go on with equal text.
        has_weights: Whether its rows carry weights (see `apply_with_weights`).
        delay: How much older than the watermark its rows may be, in microseconds: the range of its joins.
        sink_stage: What runs at the sink; None when Spark does all.
        spark_operators: Descriptions of what Headwater's operators keep in Spark's state.
        quarantine_metrics: The names under which operators in Spark say which events they gave back.
        state_metrics: The names under which they say how much they keep.
        before_state: What the user's own code makes of its inputs before any operator of ours, on any DataFrames; None
            where there is none.
    """

    pipeline: Pipeline
    inputs: tuple[Input, ...]
    input_options: InputOptions
    frame: DataFrame
    mode: plan_analysis.Mode
    stateful: tuple[str, ...]
    schema: pa.Schema
    window: str | None
    time: str | None
    state: str
    has_weights: bool
    delay: int = 0
    sink_stage: SinkStage | None = None
    spark_operators: tuple[str, ...] = ()
    quarantine_metrics: tuple[str, ...] = ()
    state_metrics: tuple[str, ...] = ()
    before_state: Callable[[Mapping[str, DataFrame]], DataFrame] | None = None

    @property
    def source_inputs(self) -> tuple[Input, ...]:
        """The inputs as Spark reads them: a view below a view twice, before and after each change."""
        if not self.has_weights or self.sink_stage is not None:
            return self.inputs
        return tuple(
            read for i in self.inputs for read in ((i.as_new_rows(), i.as_old_rows()) if i.row_behaviour else (i,))
        )

    @property
    def drops_late(self) -> bool:
        """Whether late events are dropped, because some step waits for event time."""
        return self.input_options.drop_late

    @property
    def emits_versions(self) -> bool:
        """Whether its changes carry the time from which each version of a row is valid."""
        return self.sink_stage is not None and SINCE in self.sink_stage.operator.schema.names

    @property
    def marks_final_rows(self) -> bool:
        """Whether rows are emitted before they are final, so that final rows must be marked."""
        return self.mode == "update" and self.window is not None

    @property
    def lags_one_batch(self) -> bool:
        """Whether rows leave Spark one batch after the watermark has passed them."""
        if self.sink_stage is not None:
            return bool(self.spark_operators)
        return self.mode == "append" and bool(self.stateful)

    @property
    def row_behaviour(self) -> RowBehaviour:
        """The behaviour of its rows, for downstream pipelines."""
        if self.marks_final_rows:
            return RowBehaviour.OPEN
        changing = self.mode == "update" or self.has_weights or self.sink_stage is not None
        return RowBehaviour.CHANGING if changing else RowBehaviour.FINAL


def new_session(spark: SparkSession, *, empty_batches: bool) -> SparkSession:
    """Returns a session for one query: it shares Spark, but not temporary names and settings."""
    session = spark.newSession()
    session.dataSource.register(LogSource)
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(empty_batches).lower())
    return session


def build(
    spark: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions
) -> BuiltQuery:
    """Call the function and analyse its result; called twice, because the result decides how inputs are read.

    Raises:
        BadPipelineError: The function failed, gave no streaming DataFrame, or Spark cannot run it.
    """
    if isinstance(pipeline.late, CorrectLate):
        input_options = replace(input_options, extra_lateness=pipeline.late.for_)
    if pipeline.of_changes:
        return _build_from_changes(spark, pipeline, inputs, input_options)
    sql = _table_query(pipeline, inputs)
    if sql is not None:
        return _build_over_tables(spark, pipeline, sql, inputs, input_options)
    checks.refuse_history(pipeline)
    inputs = tuple(input_.as_table() if input_.name in pipeline.tables else input_ for input_ in inputs)
    probing = new_session(spark, empty_batches=True)
    first, scope = _call_on_streams(probing, pipeline, inputs, input_options, None)
    if scope.descriptions:
        inputs = tuple(replace(input_, has_position=True) for input_ in inputs)
        if sink_stage_of(first) is not None:
            return _build_with_sink_stage(probing, pipeline, inputs, input_options, len(scope.descriptions) - 1)
        checks.refuse_following_steps(pipeline, scope.last_only)
        first, scope = _call_on_streams(probing, pipeline, inputs, input_options)
    operators = tuple(plan_analysis.stateful_steps(plan_analysis.plan_of(first)))
    if is_table_query(pipeline, inputs, operators):
        return _build_over_tables(spark, pipeline, pipeline.sql or "", inputs, input_options)
    _refuse_unsafe(first, pipeline, inputs, operators)
    return _build_in_spark(spark, pipeline, inputs, input_options, (first, scope))


def _build_in_spark(
    spark: SparkSession,
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    input_options: InputOptions,
    trial: tuple[DataFrame, BuildScope],
) -> BuiltQuery:
    """Build a pipeline that runs in Spark alone; `trial` is the result of the first call of its function."""
    first, scope = trial
    plan = plan_analysis.plan_of(first)
    operators = tuple(plan_analysis.stateful_steps(plan))
    mode = _choose_mode(first, pipeline, operators)
    has_weights = (
        pipeline.kind is PipelineKind.VIEW and not operators and any(input_.row_behaviour for input_ in inputs)
    )
    input_options = replace(
        input_options,
        drop_late=bool(operators) and plan_analysis.output_mode_error(first, "append") is None,
        alignment_files=_alignment_files(plan, inputs, input_options, has_weights=has_weights),
        ipc_batches=True,
    )
    # Rows that wait for the watermark come in a separate batch, once the watermark is known.
    waits = bool(scope.descriptions) or (mode == "append" and bool(operators))
    session = new_session(spark, empty_batches=waits)
    whole = has_weights or bool(scope.descriptions)
    input_options = replace(input_options, columns={} if whole else prune_columns(session, pipeline.apply, inputs))
    frame = (
        _build_weighted_frame(session, pipeline, inputs, input_options)
        if has_weights
        else _drop_hidden(_call_on_streams(session, pipeline, inputs, input_options)[0])
    )

    def before_state(frames: Mapping[str, DataFrame]) -> DataFrame:
        return union_inputs(_call_in_scope(pipeline, inputs, frames, None)[1].entry_inputs)

    shown = frame.drop(WEIGHT).schema
    schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(shown, timezone="UTC")])
    checks.check_columns(pipeline, schema)
    return BuiltQuery(
        pipeline, inputs, input_options, frame, mode, operators, schema, plan_analysis.window_column(shown),
        plan_analysis.event_time_column(shown),
        "\n".join((plan_analysis.state_text(plan), *scope.state_forms)), has_weights,
        plan_analysis.join_delay(first), spark_operators=tuple(scope.descriptions),
        quarantine_metrics=tuple(scope.quarantine_metrics), state_metrics=tuple(scope.state_metrics),
        before_state=before_state if scope.descriptions else pipeline.apply,
    )  # fmt: skip


def _call_on_streams(
    session: SparkSession,
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    input_options: InputOptions,
    outside_spark: tuple[int, ...] | None = (),
) -> tuple[DataFrame, BuildScope]:
    """Returns the function's result over streams and tables, and the scope with the operators it requested.

    `outside_spark` has the same meaning as in `BuildScope`.
    """
    result, scope = _call_in_scope(pipeline, inputs, stream_inputs(session, inputs, input_options), outside_spark)
    return _require_stream(pipeline, result), scope


def _call_in_scope(
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    frames: Mapping[str, DataFrame],
    outside_spark: tuple[int, ...] | None,
) -> tuple[DataFrame, BuildScope]:
    tables = {input_.name: (input_, frames[input_.name]) for input_ in inputs if input_.is_table}
    given: dict[str, Any] = {**frames, **{name: Table.named(name) for name in tables}}
    with build_scope(tables, final=pipeline.kind is not PipelineKind.VIEW, outside_spark=outside_spark) as scope:
        return _apply_function(pipeline, given), scope


def _build_with_sink_stage(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions, last: int
) -> BuiltQuery:
    """Build a pipeline whose last step is an operator at the sink; Spark runs the steps before it."""

    def split(frames: Mapping[str, DataFrame]) -> tuple[SinkStage, BuildScope]:
        result, scope = _call_in_scope(pipeline, inputs, frames, (last,))
        sink_stage = sink_stage_of(result)
        assert sink_stage is not None
        return sink_stage, scope

    plan = plan_analysis.plan_of(split(stream_inputs(session, inputs, input_options))[0].frame())
    input_options = replace(
        input_options,
        columns=prune_columns(session, lambda tables: split(tables)[0].frame(), inputs),
        alignment_files=_alignment_files(plan, inputs, input_options, has_weights=False),
        ipc_batches=True,
    )
    sink_stage, scope = split(stream_inputs(session, inputs, input_options))
    if WEIGHT in sink_stage.operator.schema.names:
        checks.refuse_corrections(pipeline, scope.last_only[-1] if scope.last_only else "its last step")
    frame = sink_stage.frame()
    operators = tuple(plan_analysis.stateful_steps(plan_analysis.plan_of(frame)))
    _refuse_unsafe(frame, pipeline, inputs, operators)
    if (refusal := plan_analysis.output_mode_error(frame, "append")) is not None:
        raise checks.streaming_error(pipeline, refusal)
    schema = pa.schema(
        [f.with_nullable(True) for f in sink_stage.operator.schema if not f.name.startswith(HIDDEN_PREFIX)]
    )
    checks.check_columns(pipeline, schema)
    time = sink_stage.inputs[0].time
    return BuiltQuery(
        pipeline, inputs, input_options, frame, "append", (*operators, *scope.descriptions), schema,
        plan_analysis.window_column(from_arrow_schema(schema)), time if time in schema.names else None,
        "\n".join((plan_analysis.state_text(plan_analysis.plan_of(frame)), *scope.state_forms[:-1],
        sink_stage.operator.form)),
        WEIGHT in sink_stage.operator.schema.names, sink_stage=sink_stage,
        spark_operators=tuple(scope.descriptions[:-1]),
        quarantine_metrics=tuple(scope.quarantine_metrics), state_metrics=tuple(scope.state_metrics),
        before_state=lambda frames: split(frames)[0].frame(),
    )  # fmt: skip


def _drop_hidden(frame: DataFrame) -> DataFrame:
    return frame.drop(*(name for name in frame.columns if name.startswith(HIDDEN_PREFIX)))


def _table_query(pipeline: Pipeline, inputs: tuple[Input, ...]) -> str | None:
    """Returns the query of a view over tables alone; None for all other pipelines."""
    if pipeline.sql is not None:
        return pipeline.sql if is_table_query(pipeline, inputs) else None
    if not pipeline.tables or len(pipeline.tables) < len(inputs):
        return None
    made = _apply_function(pipeline, {input_.name: Table.named(input_.name) for input_ in inputs})
    if not isinstance(made, Table):
        what = f"{pipeline} returned {type(made).__name__}, not a table"
        raise BadPipelineError(what, fix="return the table", location=pipeline.location, pipeline=pipeline.name)
    return made.sql


def _build_over_tables(
    spark: SparkSession, pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], input_options: InputOptions
) -> BuiltQuery:
    session = new_session(spark, empty_batches=False)
    inputs = tuple(input_.as_table() for input_ in inputs)
    input_options = replace(input_options, drop_late=False, ipc_batches=True)
    build_stage = build_table_stage if pipeline.history is None else build_history_stage
    return _build_at_sink(pipeline, inputs, input_options, build_stage(session, pipeline, sql, inputs, input_options))


def _build_from_changes(
    spark: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions
) -> BuiltQuery:
    """Build the table that a topic of changes describes; each change has its own valid-from time."""
    session = new_session(spark, empty_batches=False)
    (changes,) = (input_.as_table() for input_ in inputs)
    input_options = replace(input_options, drop_late=False, ipc_batches=True)
    sink_stage = build_changes_stage(session, pipeline, changes, input_options)
    return _build_at_sink(pipeline, (changes,), input_options, sink_stage)


def _build_at_sink(
    pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions, sink_stage: SinkStage
) -> BuiltQuery:
    """Build a pipeline for which Spark only reads."""
    schema = pa.schema([f for f in sink_stage.operator.schema if not f.name.startswith(HIDDEN_PREFIX)])
    checks.check_columns(pipeline, schema)
    window = plan_analysis.window_column(from_arrow_schema(schema))
    return BuiltQuery(
        pipeline, inputs, input_options, sink_stage.frame(), "append", sink_stage.descriptions, schema, window, None,
        sink_stage.operator.form, True,
        sink_stage=sink_stage,
    )  # fmt: skip


def _apply_function(pipeline: Pipeline, given: Mapping[str, Any]) -> Any:
    try:
        return pipeline.apply(given)
    except Exception as error:
        raise translate_error(error, pipeline) from error


def call_function(pipeline: Pipeline, frames: Mapping[str, Any]) -> DataFrame:
    """Returns the result of the pipeline's function over streams.

    Raises:
        BadPipelineError: It failed, or gave no streaming DataFrame.
    """
    return _require_stream(pipeline, _apply_function(pipeline, frames))


def _require_stream(pipeline: Pipeline, frame: Any) -> DataFrame:
    if not isinstance(frame, DataFrame):
        what = f"{pipeline} returned {type(frame).__name__}, not a DataFrame"
        raise BadPipelineError(what, fix="return the DataFrame", location=pipeline.location, pipeline=pipeline.name)
    if not frame.isStreaming:
        what = f"{pipeline} returned a DataFrame that does not come from its inputs"
        fix = f"start from {pipeline.inputs[0]}"
        raise BadPipelineError(what, fix=fix, location=pipeline.location, pipeline=pipeline.name)
    return frame


def _build_weighted_frame(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions
) -> DataFrame:
    """Build a view over views, as Z-set rows; the time of a change is not part of the row."""
    after = stream_inputs(
        session, tuple(input_.as_new_rows() if input_.row_behaviour else input_ for input_ in inputs), input_options
    )
    before = stream_inputs(
        session, tuple(input_.as_old_rows() if input_.row_behaviour else input_ for input_ in inputs), input_options
    )
    timeless = {
        input_.name
        for input_ in inputs
        if input_.row_behaviour and input_.row_behaviour is not RowBehaviour.OPEN and input_.lacks_event_time
    }
    views = {input_.name for input_ in inputs if input_.row_behaviour}

    def without_event_time(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return {name: frame.drop(DEFAULT_EVENT_TIME) if name in timeless else frame for name, frame in frames.items()}

    old = {name: frame for name, frame in without_event_time(before).items() if name in views}
    return apply_with_weights(lambda frames: call_function(pipeline, frames), without_event_time(after), old)


def _refuse_unsafe(frame: DataFrame, pipeline: Pipeline, inputs: tuple[Input, ...], operators: tuple[str, ...]) -> None:
    plan: Any = plan_analysis.plan_of(frame)
    checks.refuse_nondeterminism(pipeline, plan)
    checks.refuse_unbounded_join(frame, pipeline)
    if operators:
        checks.refuse_changing_rows(pipeline, inputs)


def _choose_mode(frame: DataFrame, pipeline: Pipeline, operators: tuple[str, ...]) -> plan_analysis.Mode:
    """Choose the output mode: rows as early as possible for a view, final rows for everything else."""
    if pipeline.kind is PipelineKind.VIEW and operators and plan_analysis.output_mode_error(frame, "update") is None:
        return "update"
    refusal = plan_analysis.output_mode_error(frame, "append")
    if refusal is None:
        return "append"
    raise checks.streaming_error(pipeline, refusal)


def _alignment_files(
    plan: Any, inputs: tuple[Input, ...], input_options: InputOptions, *, has_weights: bool
) -> dict[str, str]:
    """Returns the inputs that Spark reads more than once, each with the file that aligns its uses."""
    return {
        input_.name: f"{input_options.skip_files[input_.name]}.decided"
        for number, input_ in enumerate(inputs)
        if has_weights or plan_analysis.count_reads(plan, number) > 1
    }
