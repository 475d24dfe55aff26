"""From a pipeline's function to a streaming DataFrame, and what Spark's own analysis says about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from headwater.engine.inputs import Input, Reading, streaming
from headwater.engine.source import LogSource
from headwater.engine.translation import translated
from headwater.errors import BadPipelineError
from headwater.pipelines import Correct, Kind, Pipeline

__all__ = ["Built", "Mode", "build", "session_for"]

Mode = Literal["append", "update"]
_STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "deduplicate",
    "DeduplicateWithinWatermark": "deduplicate",
    "Distinct": "distinct",
    "FlatMapGroupsInPandasWithState": "state per key",
    "GlobalLimit": "limit",
    "Join": "join",
    "TransformWithStateInPySpark": "state per key",
}
_CHANGING: Final = re.compile(
    r"\b(rand|randn|uuid|shuffle|current_timestamp|current_date|localtimestamp|now)\("
)
_MARK: Final = "spark.watermarkDelayMs"
_UNMATCHED: Final = {"LeftOuter": (0,), "RightOuter": (1,), "FullOuter": (0, 1)}
"""Of which sides a join gives rows that found no partner."""
_SOME_TIME: Final = 1_000_000_000_000


@dataclass(frozen=True)
class Built:
    """A pipeline as Spark will run it.

    Attributes:
        mode: "update" gives rows that may still change, "append" only rows that are final.
        stateful: The steps that keep state, in words.
        timed: Whether late events are left out: some step waits for event time.
        schema: Its columns.
        window: The column that holds windows, if there is one.
        time: The column that holds the event time, if there is one.
        state: What the state looks like to Spark, as text; a query can only go on with equal text.
    """

    pipeline: Pipeline
    inputs: tuple[Input, ...]
    reading: Reading
    frame: DataFrame
    mode: Mode
    stateful: tuple[str, ...]
    timed: bool
    schema: pa.Schema
    window: str | None
    time: str | None
    state: str

    @property
    def finals(self) -> bool:
        """Whether rows are shown before they are final, so that they have to be told apart."""
        return self.mode == "update" and self.window is not None


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
    first = _called(session_for(spark, empty_batches=True), pipeline, inputs, replace(reading, late=True))
    plan = _plan(first)
    _refuse_chance(pipeline, plan)
    _refuse_waiting(first, pipeline, plan)
    operators = tuple(_stateful(plan))
    mode = _mode(first, pipeline, operators)
    timed = bool(operators) and _allowed(first, "append") is None
    reading = replace(reading, late=timed, decided=_used_twice(plan, inputs, reading))
    session = session_for(spark, empty_batches=mode == "append" and bool(operators))
    frame = _called(session, pipeline, inputs, reading)
    schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")])
    _check_columns(pipeline, schema)
    return Built(
        pipeline, inputs, reading, frame, mode, operators, timed, schema,
        _window_of(frame.schema), _time_of(frame.schema), _state_text(plan),
    )  # fmt: skip


def _called(
    session: SparkSession, pipeline: Pipeline, inputs: tuple[Input, ...], reading: Reading
) -> DataFrame:
    frames = streaming(session, inputs, reading)
    try:
        frame = pipeline.apply(frames)
    except Exception as error:
        raise translated(error, pipeline) from error
    if not isinstance(frame, DataFrame):
        what = f"{pipeline} returned {type(frame).__name__}, not a DataFrame"
        raise BadPipelineError(what, fix="return the DataFrame", place=pipeline.place, pipeline=pipeline.name)
    if not frame.isStreaming:
        what = f"{pipeline} returned a DataFrame that does not come from its inputs"
        fix = f"start from {pipeline.inputs[0]}"
        raise BadPipelineError(what, fix=fix, place=pipeline.place, pipeline=pipeline.name)
    return frame


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _stateful(plan: Any) -> Iterator[str]:
    """The stateful steps of a plan, from the last to the first."""
    name = plan.nodeName()
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    streams = [child for child in children if child.isStreaming()]
    if name in _STATEFUL and (name != "Join" or len(streams) == 2):
        yield _STATEFUL[name]
    for child in streams:
        yield from _stateful(child)


def _used_twice(plan: Any, inputs: tuple[Input, ...], reading: Reading) -> dict[str, str]:
    """The inputs that a plan reads more than once, each with the file that keeps its uses together."""
    text = plan.toString()
    uses = {
        input_.name: len(re.findall(rf"\bnumber={number}\b", text)) for number, input_ in enumerate(inputs)
    }
    return {name: f"{reading.skips[name]}.decided" for name, count in uses.items() if count > 1}


def _mode(frame: DataFrame, pipeline: Pipeline, operators: tuple[str, ...]) -> Mode:
    """Rows as early as possible for a view, final rows for everything else."""
    if pipeline.kind is Kind.VIEW and operators and _allowed(frame, "update") is None:
        return "update"
    refusal = _allowed(frame, "append")
    if refusal is None:
        return "append"
    raise _unrunnable(pipeline, refusal)


def _allowed(frame: DataFrame, mode: Mode) -> str | None:
    """None when Spark takes the plan in this mode, else what it says."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        checker.checkForStreaming(_plan(frame), modes.Append() if mode == "append" else modes.Update())
    except PySparkException as error:
        return str(error).splitlines()[0]
    return None


def _unrunnable(pipeline: Pipeline, refusal: str) -> BadPipelineError:
    if pipeline.kind is not Kind.VIEW:
        detail = f"its rows would change after they were written\nSpark: {refusal}"
        fix = "make it a view, or group by a window of the event time"
    else:
        detail, fix = f"Spark: {refusal}", "headwater help BAD_PIPELINE"
    what = f"{pipeline} cannot run on a stream"
    return BadPipelineError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)


def _refuse_chance(pipeline: Pipeline, plan: Any) -> None:
    """Rows must be the same when a range runs again."""
    found = _CHANGING.search(plan.toString())
    if found:
        what = f"{pipeline} uses {found[1]}(), which gives another answer each time"
        detail = "a batch that is run again after a crash must give the same rows"
        fix = "take the time from the event" if found[1] not in ("rand", "randn", "uuid", "shuffle") else None
        raise BadPipelineError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)


def _refuse_waiting(frame: DataFrame, pipeline: Pipeline, plan: Any) -> None:
    """An outer join must know when no partner can come any more; Spark would wait for ever and say nothing."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    moment = jvm.scala.Option.apply(_SOME_TIME)
    for join in _joins(plan):
        sides = (join.left(), join.right())
        for number in _UNMATCHED.get(join.joinType().toString(), ()):
            mine, other = sides[number].outputSet(), sides[1 - number].outputSet()
            border = helper.getStateValueWatermark(mine, other, join.condition(), moment)
            if border.isEmpty() and not helper.isWatermarkInJoinKeys(join):
                raise _endless(pipeline, ("left", "right")[number])


def _joins(plan: Any) -> Iterator[Any]:
    """The joins of two streams in a plan."""
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    streams = [child for child in children if child.isStreaming()]
    if plan.nodeName() == "Join" and len(streams) == 2:
        yield plan
    for child in streams:
        yield from _joins(child)


def _endless(pipeline: Pipeline, side: str) -> BadPipelineError:
    what = f"{pipeline} has an outer join that never knows when a row of its {side} side stays alone"
    detail = (
        "its condition sets no limit to how much later the other side may come, so unmatched rows would never "
        "be given and nothing would ever be forgotten"
    )
    fix = "limit both times: paid_at between placed_at and placed_at + interval 10 minutes"
    return BadPipelineError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)


def _check_columns(pipeline: Pipeline, schema: pa.Schema) -> None:
    double = {name for name in schema.names if schema.names.count(name) > 1}
    if double:
        what = f'{pipeline} returns two columns named "{sorted(double)[0]}"'
        fix = "drop one, or give it another name with alias"
        raise BadPipelineError(what, fix=fix, place=pipeline.place, pipeline=pipeline.name)
    missing = [column for column in pipeline.key if column not in schema.names]
    if missing:
        what = f'{pipeline} returns no column "{missing[0]}", which is its key'
        detail = f"it returns: {', '.join(schema.names)}"
        raise BadPipelineError(what, detail=detail, place=pipeline.place, pipeline=pipeline.name)


def _window_of(schema: StructType) -> str | None:
    """The first column that is a window: a start and an end."""
    for field in schema:
        kind = field.dataType
        if not isinstance(kind, StructType) or kind.names != ["start", "end"]:
            continue
        if all(isinstance(part.dataType, TimestampType) for part in kind):
            return field.name
    return None


def _time_of(schema: StructType) -> str | None:
    marked = [f.name for f in schema if _MARK in f.metadata and isinstance(f.dataType, TimestampType)]
    return marked[0] if marked else None


def _state_text(plan: Any) -> str:
    """The stateful steps with their expressions, without the numbers Spark gives out anew each time."""
    lines = [line.lstrip(" +-:|~!'") for line in plan.toString().splitlines()]
    kept = [line for line in lines if line.split(" ")[0].rstrip(",") in _STATEFUL]
    return "\n".join(re.sub(r"#\d+L?|-T\d+ms", "", line) for line in kept)
