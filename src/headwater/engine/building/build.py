"""From a pipeline's function to a streaming DataFrame that is known to be runnable, and how it has to be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.building import plans, refusals
from headwater.engine.building.after_spark import AfterSpark, together
from headwater.engine.building.inputs import ARRIVAL, Input, Reading, Rows, streaming
from headwater.engine.building.places import HIDDEN_PREFIX
from headwater.engine.building.placing import Stage, after_spark_of, stage
from headwater.engine.building.pruning import needed_columns
from headwater.engine.building.tables import (
    changes_after_spark,
    history_after_spark,
    kept_by_tables,
    tables_after_spark,
)
from headwater.engine.building.weighted import weighted
from headwater.engine.keyed.operator import SINCE, WEIGHT
from headwater.engine.source.log_source import LogSource
from headwater.engine.spark.translation import translated
from headwater.errors import BadPipelineError
from headwater.pipelines import Correct, Kind, Pipeline, Table

__all__ = ["Built", "build", "called", "session_for"]


@dataclass(frozen=True)
class Built:
    """A pipeline as Spark will run it.

    Attributes:
        mode: "update" gives rows that may still change, "append" only rows that are final.
        stateful: The steps that keep state, in words.
        schema: Its columns.
        window: The column that holds windows, if there is one.
        time: The column that holds the event time, if there is one.
        state: What the state looks like to Spark, as text; a query can only go on with equal text.
        weighted: Whether its rows carry weights (see `weighted`).
        delay: How much older than the watermark its rows may be, in microseconds: the range of its joins.
        after_spark: What runs at the sink; None when Spark does all.
        keyed: What operators of ours keep in Spark's state, in words.
        refusing: The names under which operators in Spark say which events they gave back.
        keeping: The names under which they say how much they keep.
        before_state: What the user's own code makes of its inputs before any operator of ours, on any DataFrames; None
            where there is none.
    """

    pipeline: Pipeline
    inputs: tuple[Input, ...]
    reading: Reading
    frame: DataFrame
    mode: plans.Mode
    stateful: tuple[str, ...]
    schema: pa.Schema
    window: str | None
    time: str | None
    state: str
    weighted: bool
    delay: int = 0
    after_spark: AfterSpark | None = None
    keyed: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    keeping: tuple[str, ...] = ()
    before_state: Callable[[Mapping[str, DataFrame]], DataFrame] | None = None

    @property
    def reads(self) -> tuple[Input, ...]:
        """The inputs as Spark reads them: a view under a view twice, before and after each change."""
        if not self.weighted or self.after_spark is not None:
            return self.inputs
        return tuple(read for i in self.inputs for read in ((i.after(), i.before()) if i.rows else (i,)))

    @property
    def timed(self) -> bool:
        """Whether late events are left out: some step waits for event time."""
        return self.reading.late

    @property
    def dated(self) -> bool:
        """Whether its changes say since when they hold, each version of a row by itself."""
        return self.after_spark is not None and SINCE in self.after_spark.steps.schema.names

    @property
    def finals(self) -> bool:
        """Whether rows are shown before they are final, so that they have to be told apart."""
        return self.mode == "update" and self.window is not None

    @property
    def trailing(self) -> bool:
        """Whether rows leave Spark one batch after the watermark has passed them, since it keeps them until then."""
        if self.after_spark is not None:
            return bool(self.keyed)
        return self.mode == "append" and bool(self.stateful)

    @property
    def rows(self) -> Rows:
        """How its rows behave, for pipelines behind it."""
        if self.finals:
            return Rows.OPEN
        changing = self.mode == "update" or self.weighted or self.after_spark is not None
        return Rows.CHANGING if changing else Rows.FINAL


def session_for(spark: SparkSession, *, empty_batches: bool) -> SparkSession:
    """A session of its own for one query: it shares Spark, not temporary names and settings."""
    session = spark.newSession()
    session.dataSource.register(LogSource)
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(empty_batches).lower())
    return session


def build(spark: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], reading: Reading) -> Built:
    """Call the function and look at what came out; twice, because how inputs are read depends on it.

    Raises:
        BadPipelineError: The function failed, gave no streaming DataFrame, or Spark cannot run it.
    """
    if isinstance(pipeline.late, Correct):
        reading = replace(reading, correction=pipeline.late.for_)
    if pipeline.of_changes:
        return _of_changes(spark, pipeline, inputs, reading)
    sql = _query_of_tables(pipeline, inputs)
    if sql is not None:
        return _over_tables(spark, pipeline, sql, inputs, reading)
    refusals.refuse_history(pipeline)
    inputs = tuple(input_.as_table() if input_.name in pipeline.tables else input_ for input_ in inputs)
    probing = session_for(spark, empty_batches=True)
    first, asked = _staged(probing, pipeline, inputs, reading, None)
    if asked.words:
        inputs = tuple(replace(input_, placed=True) for input_ in inputs)
        if after_spark_of(first) is not None:
            return _ending_after_spark(probing, pipeline, inputs, reading, len(asked.words) - 1)
        refusals.refuse_following(pipeline, asked.last_only)
        first, asked = _staged(probing, pipeline, inputs, reading)
    operators = tuple(plans.stateful(plans.plan_of(first)))
    if kept_by_tables(pipeline, inputs, operators):
        return _over_tables(spark, pipeline, pipeline.sql or "", inputs, reading)
    _refuse(first, pipeline, inputs, operators)
    return _in_spark(spark, pipeline, inputs, reading, (first, asked))


def _in_spark(
    spark: SparkSession,
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    reading: Reading,
    tried: tuple[DataFrame, Stage],
) -> Built:
    """A pipeline of which Spark does all; `tried` is what its function gave when inputs were read in any way."""
    first, asked = tried
    plan = plans.plan_of(first)
    operators = tuple(plans.stateful(plan))
    mode = _mode(first, pipeline, operators)
    weighs = pipeline.kind is Kind.VIEW and not operators and any(input_.rows for input_ in inputs)
    reading = replace(
        reading,
        late=bool(operators) and plans.refusal(first, "append") is None,
        decided=_decided(plan, inputs, reading, weighs=weighs),
        packed=True,
    )
    # What waits for the watermark comes in a batch of its own, once the watermark is known.
    waits = bool(asked.words) or (mode == "append" and bool(operators))
    session = session_for(spark, empty_batches=waits)
    whole = weighs or bool(asked.words)
    reading = replace(reading, columns={} if whole else needed_columns(session, pipeline.apply, inputs))
    frame = (
        _weighted(session, pipeline, inputs, reading)
        if weighs
        else _without_hidden(_staged(session, pipeline, inputs, reading)[0])
    )

    def before(frames: Mapping[str, DataFrame]) -> DataFrame:
        return together(_in_stage(pipeline, inputs, frames, None)[1].entered)

    shown = frame.drop(WEIGHT).schema
    schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(shown, timezone="UTC")])
    refusals.check_columns(pipeline, schema)
    return Built(
        pipeline, inputs, reading, frame, mode, operators, schema, plans.window_of(shown), plans.time_of(shown),
        "\n".join((plans.state_text(plan), *asked.forms)), weighs, plans.join_delay(first), keyed=tuple(asked.words),
        refusing=tuple(asked.refusing), keeping=tuple(asked.keeping),
        before_state=before if asked.words else pipeline.apply,
    )  # fmt: skip


def _staged(
    session: SparkSession,
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    reading: Reading,
    apart: tuple[int, ...] | None = (),
) -> tuple[DataFrame, Stage]:
    """What the function makes of streams and tables, and the operators it asked for; `apart` as in `Stage`."""
    result, asked = _in_stage(pipeline, inputs, streaming(session, inputs, reading), apart)
    return _checked(pipeline, result), asked


def _in_stage(
    pipeline: Pipeline,
    inputs: tuple[Input, ...],
    frames: Mapping[str, DataFrame],
    apart: tuple[int, ...] | None,
) -> tuple[DataFrame, Stage]:
    tables = {input_.name: (input_, frames[input_.name]) for input_ in inputs if input_.of_table}
    given: dict[str, Any] = {**frames, **{name: Table.named(name) for name in tables}}
    with stage(tables, final=pipeline.kind is not Kind.VIEW, apart=apart) as asked:
        return _applied(pipeline, given), asked


def _ending_after_spark(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], reading: Reading, last: int
) -> Built:
    """A pipeline whose last step is an operator of ours: Spark does what is before it."""

    def before(frames: Mapping[str, DataFrame]) -> tuple[AfterSpark, Stage]:
        result, asked = _in_stage(pipeline, inputs, frames, (last,))
        after = after_spark_of(result)
        assert after is not None
        return after, asked

    plan = plans.plan_of(before(streaming(session, inputs, reading))[0].frame())
    reading = replace(
        reading,
        columns=needed_columns(session, lambda tables: before(tables)[0].frame(), inputs),
        decided=_decided(plan, inputs, reading, weighs=False),
        packed=True,
    )
    after, asked = before(streaming(session, inputs, reading))
    if WEIGHT in after.steps.schema.names:
        refusals.refuse_corrections(pipeline, asked.last_only[-1] if asked.last_only else "its last step")
    frame = after.frame()
    operators = tuple(plans.stateful(plans.plan_of(frame)))
    _refuse(frame, pipeline, inputs, operators)
    if (refusal := plans.refusal(frame, "append")) is not None:
        raise refusals.unrunnable(pipeline, refusal)
    schema = pa.schema(
        [f.with_nullable(True) for f in after.steps.schema if not f.name.startswith(HIDDEN_PREFIX)]
    )
    refusals.check_columns(pipeline, schema)
    time = after.arrivals[0].time
    return Built(
        pipeline, inputs, reading, frame, "append", (*operators, *asked.words), schema,
        plans.window_of(from_arrow_schema(schema)), time if time in schema.names else None,
        "\n".join((plans.state_text(plans.plan_of(frame)), *asked.forms[:-1], after.steps.form)),
        WEIGHT in after.steps.schema.names, after_spark=after, keyed=tuple(asked.words[:-1]),
        refusing=tuple(asked.refusing), keeping=tuple(asked.keeping),
        before_state=lambda frames: before(frames)[0].frame(),
    )  # fmt: skip


def _without_hidden(frame: DataFrame) -> DataFrame:
    return frame.drop(*(name for name in frame.columns if name.startswith(HIDDEN_PREFIX)))


def _query_of_tables(pipeline: Pipeline, inputs: tuple[Input, ...]) -> str | None:
    """The query of a view that is made of tables alone; None for all other pipelines."""
    if pipeline.sql is not None:
        return pipeline.sql if kept_by_tables(pipeline, inputs) else None
    if not pipeline.tables or len(pipeline.tables) < len(inputs):
        return None
    made = _applied(pipeline, {input_.name: Table.named(input_.name) for input_ in inputs})
    if not isinstance(made, Table):
        what = f"{pipeline} returned {type(made).__name__}, not a table"
        raise BadPipelineError(what, fix="return the table", place=pipeline.place, pipeline=pipeline.name)
    return made.sql


def _over_tables(
    spark: SparkSession, pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], reading: Reading
) -> Built:
    session = session_for(spark, empty_batches=False)
    inputs = tuple(input_.as_table() for input_ in inputs)
    reading = replace(reading, late=False, packed=True)
    compiled = tables_after_spark if pipeline.history is None else history_after_spark
    return _at_the_sink(pipeline, inputs, reading, compiled(session, pipeline, sql, inputs, reading))


def _of_changes(
    spark: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], reading: Reading
) -> Built:
    """The table that a topic of changes is about; the topic itself says since when each change holds."""
    session = session_for(spark, empty_batches=False)
    (changes,) = (input_.as_table() for input_ in inputs)
    reading = replace(reading, late=False, packed=True)
    after = changes_after_spark(session, pipeline, changes, reading)
    return _at_the_sink(pipeline, (changes,), reading, after)


def _at_the_sink(pipeline: Pipeline, inputs: tuple[Input, ...], reading: Reading, after: AfterSpark) -> Built:
    """A pipeline of which Spark does nothing but read."""
    schema = pa.schema([f for f in after.steps.schema if not f.name.startswith(HIDDEN_PREFIX)])
    refusals.check_columns(pipeline, schema)
    window = plans.window_of(from_arrow_schema(schema))
    return Built(
        pipeline, inputs, reading, after.frame(), "append", after.words, schema, window, None, after.steps.form, True,
        after_spark=after,
    )  # fmt: skip


def _applied(pipeline: Pipeline, given: Mapping[str, Any]) -> Any:
    try:
        return pipeline.apply(given)
    except Exception as error:
        raise translated(error, pipeline) from error


def called(pipeline: Pipeline, frames: Mapping[str, Any]) -> DataFrame:
    """What the pipeline's function makes of streams.

    Raises:
        BadPipelineError: It failed, or gave no streaming DataFrame.
    """
    return _checked(pipeline, _applied(pipeline, frames))


def _checked(pipeline: Pipeline, frame: Any) -> DataFrame:
    if not isinstance(frame, DataFrame):
        what = f"{pipeline} returned {type(frame).__name__}, not a DataFrame"
        raise BadPipelineError(what, fix="return the DataFrame", place=pipeline.place, pipeline=pipeline.name)
    if not frame.isStreaming:
        what = f"{pipeline} returned a DataFrame that does not come from its inputs"
        fix = f"start from {pipeline.inputs[0]}"
        raise BadPipelineError(what, fix=fix, place=pipeline.place, pipeline=pipeline.name)
    return frame


def _weighted(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], reading: Reading
) -> DataFrame:
    """A view over views, as changes; when a change was made is no part of the row."""
    after = streaming(session, tuple(input_.after() if input_.rows else input_ for input_ in inputs), reading)
    before = streaming(
        session, tuple(input_.before() if input_.rows else input_ for input_ in inputs), reading
    )
    timeless = {
        input_.name for input_ in inputs if input_.rows and input_.rows is not Rows.OPEN and input_.dated
    }
    views = {input_.name for input_ in inputs if input_.rows}

    def bare(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return {name: frame.drop(ARRIVAL) if name in timeless else frame for name, frame in frames.items()}

    old = {name: frame for name, frame in bare(before).items() if name in views}
    return weighted(lambda frames: called(pipeline, frames), bare(after), old)


def _refuse(
    frame: DataFrame, pipeline: Pipeline, inputs: tuple[Input, ...], operators: tuple[str, ...]
) -> None:
    plan: Any = plans.plan_of(frame)
    refusals.refuse_chance(pipeline, plan)
    refusals.refuse_waiting(frame, pipeline)
    if operators:
        refusals.refuse_changing(pipeline, inputs)


def _mode(frame: DataFrame, pipeline: Pipeline, operators: tuple[str, ...]) -> plans.Mode:
    """Rows as early as possible for a view, final rows for everything else."""
    if pipeline.kind is Kind.VIEW and operators and plans.refusal(frame, "update") is None:
        return "update"
    refusal = plans.refusal(frame, "append")
    if refusal is None:
        return "append"
    raise refusals.unrunnable(pipeline, refusal)


def _decided(plan: Any, inputs: tuple[Input, ...], reading: Reading, *, weighs: bool) -> dict[str, str]:
    """The inputs that Spark reads more than once, each with the file that keeps its uses together."""
    return {
        input_.name: f"{reading.skips[input_.name]}.decided"
        for number, input_ in enumerate(inputs)
        if weighs or plans.uses(plan, number) > 1
    }
