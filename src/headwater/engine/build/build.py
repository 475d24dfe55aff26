"""Builds a pipeline: calls the user's function and returns a `BuiltQuery`.

`build` chooses between four forms: a plain Spark query, a Spark query followed by an operator at the sink, a query over
tables that is compiled to a dataflow, and a table that applies a topic of changes. It checks the plan and chooses the
output mode. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.build import checks, plan_analysis
from headwater.engine.build.checks import prune_columns
from headwater.engine.build.inputs import DEFAULT_EVENT_TIME, Input, InputOptions, RowBehaviour, stream_inputs
from headwater.engine.build.placement import BuildScope, build_scope, sink_stage_of, without_hidden
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
from headwater.engine.spark.refusals import Refusal, explain_final_rows, explain_refusal
from headwater.engine.state.state import SINCE, WEIGHT
from headwater.engine.tables.zset import apply_with_weights
from headwater.events import storage_schema
from headwater.pipelines import CorrectLate, Pipeline, PipelineKind, Table
from headwater.units import format_duration

__all__ = ["BuiltQuery", "build", "call_function", "new_session"]


@dataclass(frozen=True)
class BuiltQuery:
    """A pipeline in the form in which Spark runs it.

    Attributes:
        pipeline: The pipeline.
        inputs: Its inputs.
        input_options: The options with which it reads them.
        frame: The streaming DataFrame.
        mode: "update" emits rows that may still change, "append" only rows that are final.
        stateful: Descriptions of the steps that keep state.
        schema: The columns of the result.
        window: The column that holds windows, if there is one.
        time: The column that holds the event time, if there is one.
        state: A description of Spark's state; a query can only continue if it is unchanged.
        has_weights: Whether its rows carry weights (see `apply_with_weights`).
        delay: How much older than the watermark its rows may be, in microseconds: by the range of its joins, and after
            the wait of `hw.enrich`.
        sink_stage: The operator at the sink; None if all steps run in Spark.
        spark_operators: Descriptions of the state of Headwater's operators in Spark.
        quarantine_metrics: The names of the metrics with which operators in Spark report rejected events.
        state_metrics: The names of the metrics with which they report the size of their state.
        checks_key: Whether its rows carry weights and the plan does not prove that the key identifies them; every
            batch is then checked.
        event_time_steps: The steps whose result depends on the watermark. If there are any, late events are left out.
        before_state: Applies the user's code up to the first operator, to any DataFrames; None if there is no such
            code.
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
    checks_key: bool = False
    event_time_steps: tuple[str, ...] = ()
    before_state: Callable[[Mapping[str, DataFrame]], DataFrame] | None = None

    @property
    def source_inputs(self) -> tuple[Input, ...]:
        """The inputs as Spark reads them: a view over views reads each change twice, as the old and as the new row."""
        if not self.has_weights or self.sink_stage is not None:
            return self.inputs
        return tuple(
            read for i in self.inputs for read in ((i.as_new_rows(), i.as_old_rows()) if i.row_behaviour else (i,))
        )

    @property
    def spark_steps(self) -> int:
        """The highest possible number of steps that keep state in Spark."""
        at_sink = self.sink_stage.descriptions if self.sink_stage is not None else ()
        return len(self.stateful) - len(at_sink)

    @property
    def lateness_facts(self) -> dict[str, str]:
        """The lateness of its topics as facts for the manifest, if its rows depend on it."""
        waits = bool(self.stateful) and self.input_options.drop_late
        if not waits and self.pipeline.history is None:
            return {}
        topics = {input_.name: input_.topic for input_ in self.inputs if input_.row_behaviour is None}
        return {f"lateness.{name}": format_duration(topic.lateness) for name, topic in topics.items()}

    @property
    def overwrites_rows(self) -> bool:
        """Whether the row of a key is that of its newest event: no step combines the events of a key."""
        combined = any(step == "aggregate" or step.startswith("states of ") for step in self.stateful)
        return self.pipeline.kind is PipelineKind.VIEW and not self.has_weights and not combined

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
        # Headwater's operators in Spark hold events until then in every output mode.
        if self.spark_operators or self.sink_stage is not None:
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
    """Returns a session for one query: sessions share Spark, but not temporary views and settings."""
    session = spark.newSession()
    session.dataSource.register(LogSource)
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(empty_batches).lower())
    return session


def build(
    spark: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions
) -> BuiltQuery:
    """Call the user's function and build the query from its result.

    The function is called at least twice, because the result of the first call decides how inputs are read and where
    operators run.

    Raises:
        BadPipelineError: The function failed, returned no streaming DataFrame, or Spark cannot run it.
    """
    if isinstance(pipeline.late, CorrectLate):
        input_options = replace(input_options, extra_lateness=pipeline.late.for_)
    sql = None if pipeline.of_changes else _table_query(pipeline, inputs)
    if pipeline.of_changes or sql is not None:
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
        return _build_over_tables(spark, pipeline, pipeline.sql, inputs, input_options)
    _refuse_unsafe(first, pipeline, inputs, operators)
    if scope.delays:
        checks.refuse_waited_rows(
            pipeline, plan_analysis.event_time_steps_after_operators(plan_analysis.plan_of(first))
        )
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
    mode_error = partial(plan_analysis.output_mode_error, first)
    explain = partial(_explain, first, pipeline, inputs, operators)
    mode = checks.choose_mode(pipeline, stateful=bool(operators), mode_error=mode_error, explain=explain)
    event_time_steps = _event_time_steps(plan, scope)
    view = pipeline.kind is PipelineKind.VIEW
    has_weights = view and not operators and any(input_.row_behaviour for input_ in inputs)
    # Rows that wait for the watermark come in a separate batch, once the watermark is known.
    waits = bool(scope.descriptions) or (mode == "append" and bool(operators))
    session = new_session(spark, empty_batches=waits)
    whole = has_weights or bool(scope.descriptions)
    input_options = replace(
        input_options,
        drop_late=bool(event_time_steps),
        final_tables=frozenset(scope.final_tables),
        after_1970=scope.waits_in_spark or any(plan_analysis.event_time_steps(plan)),
        alignment_files=_alignment_files(plan, inputs, input_options, has_weights=has_weights),
        ipc_batches=True,
        columns={} if whole else prune_columns(session, pipeline.apply, inputs),
    )
    if has_weights:
        frame = _build_weighted_frame(session, pipeline, inputs, input_options)
    else:
        frame = _call_on_streams(session, pipeline, inputs, input_options)[0]
        frame = frame.drop(*(name for name in frame.columns if name.startswith(HIDDEN_PREFIX)))

    def before_state(frames: Mapping[str, DataFrame]) -> DataFrame:
        return union_inputs(_call_in_scope(pipeline, inputs, frames, None)[1].entry_inputs)

    shown = frame.drop(WEIGHT).schema
    schema = storage_schema(to_arrow_schema(shown, timezone="UTC"))
    checks.check_columns(pipeline, schema)
    return BuiltQuery(
        pipeline, inputs, input_options, frame, mode, operators, schema, plan_analysis.window_column(shown),
        plan_analysis.event_time_column(shown),
        "\n".join((plan_analysis.state_text(plan), *scope.state_forms)), has_weights,
        plan_analysis.join_delay(first) + sum(scope.delays), spark_operators=tuple(scope.descriptions),
        quarantine_metrics=tuple(scope.quarantine_metrics), state_metrics=tuple(scope.state_metrics),
        checks_key=has_weights and not _is_key_proved(first, pipeline, inputs), event_time_steps=event_time_steps,
        before_state=before_state if scope.descriptions else pipeline.apply,
    )  # fmt: skip


def _call_on_streams(
    session: SparkSession,
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    input_options: InputOptions,
    outside_spark: tuple[int, ...] | None = (),
) -> tuple[DataFrame, BuildScope]:
    """Returns the function's result over streams and tables, and the scope with the operators it requested."""
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
    final = pipeline.kind is not PipelineKind.VIEW
    correction = pipeline.late.for_ // timedelta(microseconds=1) if isinstance(pipeline.late, CorrectLate) else 0
    with build_scope(tables, final=final, outside_spark=outside_spark, correction=correction) as scope:
        return _apply_function(pipeline, given), scope


def _build_with_sink_stage(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions, last: int
) -> BuiltQuery:
    """Build a pipeline whose last operator runs at the sink; Spark runs the steps before it.

    `last` is the number of that operator.
    """

    def split(frames: Mapping[str, DataFrame]) -> tuple[SinkStage, BuildScope]:
        result, scope = _call_in_scope(pipeline, inputs, frames, (last,))
        sink_stage = sink_stage_of(result)
        assert sink_stage is not None
        return sink_stage, scope

    trial, scope = split(stream_inputs(session, inputs, input_options))
    plan = plan_analysis.plan_of(trial.frame())
    event_time_steps = _event_time_steps(plan, scope)
    input_options = replace(
        input_options,
        drop_late=bool(event_time_steps),
        final_tables=frozenset(scope.final_tables),
        after_1970=scope.waits_in_spark or any(plan_analysis.event_time_steps(plan)),
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
    checks.choose_mode(pipeline, stateful=False, mode_error=partial(plan_analysis.output_mode_error, frame))
    schema = storage_schema(without_hidden(sink_stage.operator.schema))
    checks.check_columns(pipeline, schema)
    time = sink_stage.inputs[0].time
    return BuiltQuery(
        pipeline, inputs, input_options, frame, "append", (*operators, *scope.descriptions), schema,
        plan_analysis.window_column(from_arrow_schema(schema)), time if time in schema.names else None,
        "\n".join((plan_analysis.state_text(plan_analysis.plan_of(frame)), *scope.state_forms[:-1],
        sink_stage.operator.form)),
        WEIGHT in sink_stage.operator.schema.names, sum(scope.delays), sink_stage=sink_stage,
        spark_operators=tuple(scope.descriptions[:-1]),
        quarantine_metrics=tuple(scope.quarantine_metrics), state_metrics=tuple(scope.state_metrics),
        checks_key=WEIGHT in sink_stage.operator.schema.names, event_time_steps=event_time_steps,
        before_state=lambda frames: split(frames)[0].frame(),
    )  # fmt: skip


def _table_query(pipeline: Pipeline, inputs: tuple[Input, ...]) -> str | None:
    """Returns the SQL of a pipeline that reads only tables; None for all others."""
    if pipeline.sql is not None:
        return pipeline.sql if is_table_query(pipeline, inputs) else None
    if not pipeline.tables or len(pipeline.tables) < len(inputs):
        return None
    made = _apply_function(pipeline, {input_.name: Table.named(input_.name) for input_ in inputs})
    if not isinstance(made, Table):
        what = f"{pipeline} returned {type(made).__name__}, not a table"
        raise checks.pipeline_error(pipeline, what, fix="return the table")
    return made.sql


def _build_over_tables(
    spark: SparkSession, pipeline: Pipeline, sql: str | None, inputs: tuple[Input, ...], input_options: InputOptions
) -> BuiltQuery:
    """Build a pipeline over tables, or over a topic of changes if `sql` is None. Spark only reads its inputs."""
    session = new_session(spark, empty_batches=False)
    inputs = tuple(input_.as_table() for input_ in inputs)
    input_options = replace(input_options, drop_late=False, ipc_batches=True)
    if sql is None:
        stage = build_changes_stage(session, pipeline, inputs[0], input_options)
    else:
        build_stage = build_table_stage if pipeline.history is None else build_history_stage
        stage = build_stage(session, pipeline, sql, inputs, input_options)
    schema = without_hidden(stage.operator.schema)
    checks.check_columns(pipeline, schema)
    window = plan_analysis.window_column(from_arrow_schema(schema))
    return BuiltQuery(
        pipeline, inputs, input_options, stage.frame(), "append", stage.descriptions, schema, window, None,
        stage.operator.form, True, sink_stage=stage,
    )  # fmt: skip


def _apply_function(pipeline: Pipeline, given: Mapping[str, Any]) -> Any:
    try:
        return pipeline.apply(given)
    except Exception as error:
        raise translate_error(error, pipeline) from error


def call_function(pipeline: Pipeline, frames: Mapping[str, Any]) -> DataFrame:
    """Returns the result of the pipeline's function over streams.

    Raises:
        BadPipelineError: It failed, or returned no streaming DataFrame.
    """
    return _require_stream(pipeline, _apply_function(pipeline, frames))


def _require_stream(pipeline: Pipeline, frame: Any) -> DataFrame:
    if not isinstance(frame, DataFrame):
        what = f"{pipeline} returned {type(frame).__name__}, not a DataFrame"
        raise checks.pipeline_error(pipeline, what, fix="return the DataFrame")
    if not frame.isStreaming:
        what = f"{pipeline} returned a DataFrame that does not depend on its inputs"
        raise checks.pipeline_error(pipeline, what, fix=f"start from {pipeline.inputs[0]}")
    return frame


def _build_weighted_frame(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], input_options: InputOptions
) -> DataFrame:
    """Build a view over views, as Z-set rows. The time of a change is not part of the row."""
    views = [input_ for input_ in inputs if input_.row_behaviour]
    timeless = {i.name for i in views if i.row_behaviour is not RowBehaviour.OPEN and i.lacks_event_time}

    def read(view_rows: Callable[[Input], Input]) -> dict[str, DataFrame]:
        sides = tuple(view_rows(input_) if input_.row_behaviour else input_ for input_ in inputs)
        frames = stream_inputs(session, sides, input_options)
        return {name: frame.drop(DEFAULT_EVENT_TIME) if name in timeless else frame for name, frame in frames.items()}

    new, old = read(Input.as_new_rows), read(Input.as_old_rows)
    return apply_with_weights(
        lambda frames: call_function(pipeline, frames), new, {view.name: old[view.name] for view in views}
    )


def _event_time_steps(plan: Any, scope: BuildScope) -> tuple[str, ...]:
    """Returns the steps of Spark and the operators whose result depends on the watermark, each once."""
    return tuple(dict.fromkeys((*plan_analysis.event_time_steps(plan), *scope.event_time_operators)))


def _is_key_proved(frame: DataFrame, pipeline: Pipeline, inputs: tuple[Input, ...]) -> bool:
    """Returns whether the key of a view over a view contains the key of that view, row by row."""
    sources = plan_analysis.source_columns(frame, pipeline.key)
    return len(inputs) == 1 and bool(inputs[0].view_key) and set(inputs[0].view_key) <= set(sources)


def _explain(
    frame: DataFrame, pipeline: Pipeline, inputs: tuple[Input, ...], operators: tuple[str, ...], message: str
) -> Refusal | None:
    """Returns the refusal for a message of Spark about the plan of a pipeline, if it is known."""
    found = explain_refusal(message, pipeline, plan_analysis.plan_of(frame).toString())
    if found is not None or "without watermark" not in message:
        return found
    times = [field.name for field in inputs[0].topic.schema if pa.types.is_timestamp(field.type)]
    return explain_final_rows(pipeline, operators, plan_analysis.window_column(frame.schema), times)


def _refuse_unsafe(frame: DataFrame, pipeline: Pipeline, inputs: tuple[Input, ...], operators: tuple[str, ...]) -> None:
    plan = plan_analysis.plan_of(frame)
    checks.refuse_nondeterminism(pipeline, plan.toString())
    checks.refuse_deduplication_within_watermark(pipeline, plan_analysis.deduplications_within_watermark(plan))
    checks.refuse_unbounded_join(pipeline, plan_analysis.join_wait_times(frame), inputs)
    if operators:
        checks.refuse_changing_rows(pipeline, inputs)


def _alignment_files(
    plan: Any, inputs: tuple[Input, ...], input_options: InputOptions, *, has_weights: bool
) -> dict[str, str]:
    """Returns the inputs that Spark reads more than once, each with the file that aligns the reads."""
    return {
        input_.name: f"{input_options.skip_files[input_.name]}.decided"
        for number, input_ in enumerate(inputs)
        if has_weights or plan_analysis.count_reads(plan, number) > 1
    }
