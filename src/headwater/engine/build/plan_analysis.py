"""Analysis and rewriting of Spark's logical plan.

The first part answers questions about a plan: which steps keep state, which output modes are allowed, which column has
the event time.

The second part restores the event position. Operators identify events by partition and offset and process them in order
of event time. A user's `select` usually drops these columns. For steps that return one row per event (`select`,
`where`, a union of these), `restore_position` walks down the plan to a step that still has the columns and rebuilds
every step above it with the hidden columns appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from headwater.engine.state.state import INPUT_SHIFT, OFFSET, PARTITION

__all__ = [
    "EVENT_TIME",
    "HIDDEN_PREFIX",
    "STATE_METRIC_PREFIX",
    "WATERMARK_DELAY_KEY",
    "Mode",
    "append_all",
    "contains_operator",
    "count_reads",
    "deduplications_within_watermark",
    "event_time_column",
    "event_time_steps",
    "event_time_steps_after_operators",
    "frame_of",
    "join_delay",
    "join_wait_times",
    "output_mode_error",
    "plan_of",
    "restore_position",
    "scala_items",
    "source_columns",
    "split_partition",
    "state_text",
    "stateful_steps",
    "tag_input",
    "window_column",
]

Mode = Literal["append", "update"]
_STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "deduplicate",
    "Distinct": "distinct",
    "FlatMapGroupsInPandasWithState": "state per key",
    "GlobalLimit": "limit",
    "Join": "join",
    "TransformWithStateInPySpark": "state per key",
}
_SOME_TIME: Final = 1_000_000_000_000  # any watermark will do: only differences count
WATERMARK_DELAY_KEY: Final = "spark.watermarkDelayMs"
"""The key in a column's metadata by which Spark knows the event time."""


def plan_of(frame: DataFrame) -> Any:
    """Returns the analysed plan, a Java object."""
    return frame._jdf.queryExecution().analyzed()


def stateful_steps(plan: Any) -> Iterator[str]:
    """Yields descriptions of the steps that keep state, from the last to the first."""
    return (_STATEFUL[step.nodeName()] for step in _steps(plan) if step.nodeName() in _STATEFUL)


def join_wait_times(frame: DataFrame) -> Iterator[tuple[str, int | None]]:
    """Yields how long rows of each side of each stream join wait for a match, in milliseconds.

    The time is None if the join condition sets no limit: rows wait for ever, and an outer join never emits unmatched
    rows.
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
    """Returns how much older than the watermark result rows may be because of joins, in microseconds."""
    return sum(wait for _, wait in join_wait_times(frame) if wait) * 1_000


def event_time_steps(plan: Any) -> Iterator[str]:
    """Yields descriptions of the steps whose result depends on the watermark, from the last to the first.

    Spark drops late rows there, so these are left out before they reach it. Headwater's operators are not included:
    they tell by themselves whether they use event time (`Operator.uses_event_time`).
    """
    # A step that has one step below comes directly before it, as the metrics of an operator do.
    for above, step in pairwise(chain([None], _steps(plan))):
        if not (above and _is_operator(above)) and _uses_event_time(step):
            yield _STATEFUL[step.nodeName()]


def _uses_event_time(step: Any) -> bool:
    """Returns whether a step of Spark drops rows or ends state by the watermark."""
    match step.nodeName():
        case "Aggregate":  # by a window, or by the event time itself
            return _has_event_time(step.groupingExpressions())
        case "Deduplicate" | "Distinct":
            return _has_event_time(step.child().output())
        case "FlatMapGroupsInPandasWithState":
            return "EventTime" in step.timeout().toString()
        case "TransformWithStateInPySpark":
            return "EventTime" in step.timeMode().toString()
        case "Join":
            return True
    return False


def _has_event_time(columns: Any) -> bool:
    named = [one for one in scala_items(columns) if one.nodeName() in ("AttributeReference", "Alias")]
    return any(one.metadata().contains(WATERMARK_DELAY_KEY) for one in named)


_ONE_TO_ONE: Final = ("Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark", "CollectMetrics")
"""Steps each of whose rows comes from one row of the only step below; no two come from the same."""


def source_columns(frame: DataFrame, columns: Sequence[str]) -> list[str]:
    """Returns the source columns that some columns of a plan copy; none if a row is not exactly one source row."""
    plan = plan_of(frame)
    wanted = {column.exprId().id() for column in scala_items(plan.output()) if column.name() in columns}
    while (below := scala_items(plan.children())) and plan.nodeName() in _ONE_TO_ONE:
        if plan.nodeName() == "Project":
            items = [item for item in scala_items(plan.projectList()) if item.exprId().id() in wanted]
            copied = [item.child() if item.nodeName() == "Alias" else item for item in items]
            wanted = {item.exprId().id() for item in copied if item.nodeName() == "AttributeReference"}
        plan = below[0]
    return [] if below else [column.name() for column in scala_items(plan.output()) if column.exprId().id() in wanted]


def deduplications_within_watermark(plan: Any) -> Iterator[tuple[str, ...]]:
    """Yields the key columns of each `dropDuplicatesWithinWatermark`."""
    for step in _steps(plan):
        if step.nodeName() == "DeduplicateWithinWatermark":
            yield tuple(column.name() for column in scala_items(step.keys()))


def _steps(plan: Any) -> Iterator[Any]:
    """Yields all steps on streams; a join is included if both sides are streams."""
    streams = [child for child in scala_items(plan.children()) if child.isStreaming()]
    if plan.nodeName() != "Join" or len(streams) == 2:
        yield plan
    for child in streams:
        yield from _steps(child)


def count_reads(plan: Any, number: int) -> int:
    """Returns how often a plan reads the input with this number."""
    return len(re.findall(rf"\bnumber={number}\b", plan.toString()))


def output_mode_error(frame: DataFrame, mode: Mode) -> str | None:
    """Returns Spark's error for the plan in this output mode; None if Spark accepts it."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        checker.checkForStreaming(plan_of(frame), modes.Append() if mode == "append" else modes.Update())
    except PySparkException as error:
        return str(error).splitlines()[0]
    return None


def state_text(plan: Any) -> str:
    """Returns the stateful steps with their expressions, without the ids that Spark assigns anew each time."""
    lines = [line.lstrip(" +-:|~!'") for line in plan.toString().splitlines()]
    kept = [line for line in lines if line.split(" ")[0].rstrip(",") in _STATEFUL]
    # For Headwater's operators the text also has the result columns, which are not state.
    kept = [re.sub(r"(, \d+, \[).*(\], Append, EventTime)", r"\1\2", line) for line in kept]
    return "\n".join(re.sub(r"#\d+L?|-T\d+ms", "", line) for line in kept)


def window_column(schema: StructType) -> str | None:
    """Returns the first column that is a window: a struct of start and end."""
    for field in schema:
        kind = field.dataType
        if not isinstance(kind, StructType) or kind.names != ["start", "end"]:
            continue
        if all(isinstance(part.dataType, TimestampType) for part in kind):
            return field.name
    return None


def event_time_column(schema: StructType) -> str | None:
    """Returns the column that carries the event time, if there is one."""
    marked = [f.name for f in schema if WATERMARK_DELAY_KEY in f.metadata and isinstance(f.dataType, TimestampType)]
    return marked[0] if marked else None


HIDDEN_PREFIX: Final = "_hw_"
STATE_METRIC_PREFIX: Final = "kept."
"""The names of the metrics with which Headwater's operators in Spark report the size of their state begin so."""
EVENT_TIME: Final = "_hw_at"
"""The event time, if the user's columns do not include it."""
_CARRIED: Final = {"_hw_carried_partition": PARTITION, "_hw_carried_offset": OFFSET, "_hw_carried_at": EVENT_TIME}
"""Temporary names of hidden columns: a user's `select("*")` may include those of the source as well."""
_ROW_PRESERVING: Final = (
    "Filter",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
)
"""Steps each of whose rows comes from one row of the step below."""
_BRANCH_SHIFT: Final = 48
"""The bits of `PARTITION` from this one up hold the number of a branch of a union; see `INPUT_SHIFT`."""


def tag_input(frame: DataFrame, number: int) -> DataFrame:
    """Encode the input's number in the partition, so that positions stay unique in a union."""
    return frame.withColumn(PARTITION, F.col(PARTITION).cast("bigint") + F.lit(number << INPUT_SHIFT))


def split_partition(partition: int) -> tuple[int, int]:
    """Returns the number of the input, and the partition there.

    Example:
        >>> split_partition(3), split_partition((2 << 32) + 3), split_partition((7 << 48) + (2 << 32) + 3)
        ((0, 3), (2, 3), (2, 3))
    """
    return partition >> INPUT_SHIFT & 0xFFFF, partition & 0xFFFFFFFF


def restore_position(events: DataFrame) -> DataFrame:
    """Returns the events with partition, offset and time, where these can be recovered.

    They cannot be recovered if a row is not exactly one event: after a join of streams or an aggregate, after
    `explode`, or after Python code that Spark does not analyse. Then the rows have no position.
    """
    walk = _PlanRewriter(events)
    jvm: Any = events.sparkSession.sparkContext._jvm
    inline_ctes = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)  # WITH queries
    carried = walk.rewrite(inline_ctes.apply(plan_of(events)))
    frame = events if carried is None else frame_of(events, carried)
    found = {name: hidden for name, hidden in _CARRIED.items() if name in frame.columns}
    known = {PARTITION, OFFSET} & set(events.columns)
    if not found or not known <= set(found.values()):
        return events.drop(*known)  # a position that several rows share identifies none
    timed = event_time_column(events.schema) is not None
    if timed and (known or len(found) == 1) and walk.branches < 2:
        return events
    if timed:
        frame = frame.drop("_hw_carried_at")
        del found["_hw_carried_at"]
    return frame.drop(*found.values()).withColumnsRenamed(found)


class _PlanRewriter:
    """Rewrites one plan from its root down to the hidden columns."""

    def __init__(self, events: DataFrame) -> None:
        self._events = events
        self._logical: Any = events.sparkSession.sparkContext._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
        self.branches = 0
        self._lost = False  # the position is missing in one branch of a union, so the other branches cannot use it

    def rewrite(self, plan: Any) -> Any | None:
        """Returns the plan with the hidden columns appended; None if they cannot be recovered."""
        kind, children = plan.nodeName(), scala_items(plan.children())
        if kind == "View":  # of a SQL query: an alias
            return self.rewrite(children[0])
        if kind not in _ROW_PRESERVING or not _preserves_rows(plan):
            return self._rewrite_leaf(plan)
        below = [self.rewrite(child) for child in children]
        if None in below or len({len(_hidden_columns(one)) for one in below}) > 1:
            self._lost |= kind == "Union"
            return None if self._lost else self._rewrite_leaf(plan)
        if kind == "Project":
            return self._logical.Project(append_all(plan.projectList(), _hidden_columns(below[0])), below[0])
        if kind == "Union":
            both = zip(children, below, strict=True)
            below = [self._logical.Project(append_all(old.output(), _hidden_columns(new)), new) for old, new in both]
        return plan.withNewChildren(append_all(plan.children().take(0), below))

    def _rewrite_leaf(self, plan: Any) -> Any | None:
        """Returns a leaf step with its own hidden columns under their temporary names."""
        frame = frame_of(self._events, plan)
        time = event_time_column(frame.schema)
        if time is None:
            return None
        branch, self.branches = self.branches, self.branches + 1
        columns = {"_hw_carried_at": F.col(f"`{time}`")}
        if all(frame.columns.count(name) == 1 for name in (PARTITION, OFFSET)) and _preserves_rows(plan, deep=True):
            # The same event may come through two branches of a union; the number of the branch tells them apart.
            partition = F.col(PARTITION).cast("bigint") + F.lit(branch << _BRANCH_SHIFT)
            columns |= {"_hw_carried_partition": partition, "_hw_carried_offset": F.col(OFFSET)}
        return plan_of(frame.withColumns(columns))


def _preserves_rows(plan: Any, *, deep: bool = False) -> bool:
    """Returns whether each row of a step is one event; with `deep`, also of all steps below it.

    A join of streams returns pairs, and `explode` several rows per event. `distinct` would compare the position, too,
    so that no two rows were equal.
    """
    kind, below = str(plan.nodeName()), scala_items(plan.children())
    if kind == "Generate" and _is_operator(below[0]):
        return True  # its rows come in lists, which `explode` unpacks
    streams = [child for child in below if child.isStreaming()]
    if kind in ("Distinct", "Generate") or (kind == "Join" and len(streams) > 1):
        return False
    if kind.startswith("Deduplicate") and PARTITION in [column.name() for column in scala_items(plan.keys())]:
        return False
    return not deep or all(_preserves_rows(child, deep=True) for child in streams)


def contains_operator(plan: Any) -> bool:
    """Returns whether one of Headwater's operators runs in a plan."""
    return any(_is_operator(step) for step in _all_steps(plan))


def event_time_steps_after_operators(plan: Any) -> Iterator[str]:
    """Yields descriptions of the steps of Spark that wait for event time, and follow one of Headwater's operators."""
    for above, step in pairwise(chain([None], _steps(plan))):
        follows = _uses_event_time(step) and any(contains_operator(child) for child in scala_items(step.children()))
        if follows and not (above and _is_operator(above)):
            yield _STATEFUL[step.nodeName()]


def _all_steps(plan: Any) -> Iterator[Any]:
    yield plan
    for child in scala_items(plan.children()):
        yield from _all_steps(child)


def _is_operator(plan: Any) -> bool:
    """Returns whether a step is one of Headwater's operators, below its metrics."""
    names = [str(step.nodeName()) for step in (plan, *scala_items(plan.children()))]
    metrics = names[0] == "CollectMetrics" and plan.name().startswith(STATE_METRIC_PREFIX)
    return metrics and names[1].startswith("TransformWithState")


def frame_of(like: DataFrame, plan: Any) -> DataFrame:
    """Returns a plan as a DataFrame in the session of another one."""
    session = like.sparkSession
    jvm: Any = session.sparkContext._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def _hidden_columns(plan: Any) -> list[Any]:
    """Returns the temporary hidden columns of a plan, in a fixed order."""
    by_name = {column.name(): column for column in scala_items(plan.output())}
    return [by_name[name] for name in _CARRIED if name in by_name]


def append_all(sequence: Any, more: list[Any]) -> Any:
    """Returns a Scala sequence with more elements appended."""
    for one in more:
        sequence = sequence.appended(one)
    return sequence


def scala_items(sequence: Any) -> list[Any]:
    """Returns the elements of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]
