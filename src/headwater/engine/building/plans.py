"""What Spark's own analysis says about a query: which steps keep state, what it may emit, where its time is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampType

__all__ = [
    "MARK",
    "Mode",
    "join_delay",
    "join_waits",
    "plan_of",
    "refusal",
    "state_text",
    "stateful",
    "time_of",
    "uses",
    "window_of",
]

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
_SOME_TIME: Final = 1_000_000_000_000
MARK: Final = "spark.watermarkDelayMs"
"""The word in a column's metadata by which Spark knows the event time."""


def plan_of(frame: DataFrame) -> Any:
    """The analysed plan, an object of Java."""
    return frame._jdf.queryExecution().analyzed()


def stateful(plan: Any) -> Iterator[str]:
    """The steps that keep state, in words, from the last to the first."""
    return (_STATEFUL[step.nodeName()] for step in _steps(plan) if step.nodeName() in _STATEFUL)


def join_waits(frame: DataFrame) -> Iterator[tuple[str, int | None]]:
    """For each side of each join of two streams: how long its rows wait for a partner, in milliseconds.

    None when its condition sets no limit: rows wait for ever, and the unmatched rows of an outer join never come.
    """
    jvm: Any = frame.sparkSession.sparkContext._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    moment = jvm.scala.Option.apply(_SOME_TIME)
    for join in (step for step in _steps(plan_of(frame)) if step.nodeName() == "Join"):
        by_time = helper.isWatermarkInJoinKeys(join)
        sides = (join.left().outputSet(), join.right().outputSet())
        for name, mine, other in (("left", *sides), ("right", *reversed(sides))):
            border = helper.getStateValueWatermark(mine, other, join.condition(), moment)
            if border.isDefined():
                yield name, max(0, _SOME_TIME - border.get())
            else:
                yield name, 0 if by_time else None


def join_delay(frame: DataFrame) -> int:
    """How much older than the watermark rows of the result may be because of joins, in microseconds."""
    return sum(wait for _, wait in join_waits(frame) if wait) * 1_000


def _steps(plan: Any) -> Iterator[Any]:
    """All steps that streams pass through; a join counts if both sides are streams."""
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    streams = [child for child in children if child.isStreaming()]
    if plan.nodeName() != "Join" or len(streams) == 2:
        yield plan
    for child in streams:
        yield from _steps(child)


def uses(plan: Any, number: int) -> int:
    """How often a plan reads the input of this number."""
    return len(re.findall(rf"\bnumber={number}\b", plan.toString()))


def refusal(frame: DataFrame, mode: Mode) -> str | None:
    """None when Spark takes the plan in this mode, else what it says."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        checker.checkForStreaming(plan_of(frame), modes.Append() if mode == "append" else modes.Update())
    except PySparkException as error:
        return str(error).splitlines()[0]
    return None


def state_text(plan: Any) -> str:
    """The stateful steps with their expressions, without the numbers Spark gives out anew each time."""
    lines = [line.lstrip(" +-:|~!'") for line in plan.toString().splitlines()]
    kept = [line for line in lines if line.split(" ")[0].rstrip(",") in _STATEFUL]
    # Of an operator of ours the columns that it gives stand there, too, which are no state.
    kept = [re.sub(r"(, \d+, \[).*(\], Append, EventTime)", r"\1\2", line) for line in kept]
    return "\n".join(re.sub(r"#\d+L?|-T\d+ms", "", line) for line in kept)


def window_of(schema: StructType) -> str | None:
    """The first column that is a window: a start and an end."""
    for field in schema:
        kind = field.dataType
        if not isinstance(kind, StructType) or kind.names != ["start", "end"]:
            continue
        if all(isinstance(part.dataType, TimestampType) for part in kind):
            return field.name
    return None


def time_of(schema: StructType) -> str | None:
    """The column that carries the event time, if one still does."""
    marked = [f.name for f in schema if MARK in f.metadata and isinstance(f.dataType, TimestampType)]
    return marked[0] if marked else None
