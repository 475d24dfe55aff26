"""Where an event stands in its topic, and when it happened: kept beside it where a user's `select` names neither.

Operators tell events apart by partition and offset, and take them in the order of time. Steps that give one row for an
event (`select`, `where`, a union of such) need not lose that: the plan that Spark has made of them is walked down to
what still has it, and each step on the way is made again, with the hidden columns behind its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.engine.building.plans import plan_of, time_of
from headwater.engine.keyed.operator import INPUT_BITS, OFFSET, PARTITION

__all__ = ["AT", "HIDDEN_PREFIX", "numbered", "place_in", "with_place"]

HIDDEN_PREFIX: Final = "_hw_"
AT: Final = "_hw_at"
"""The event time, where the user's columns have it no more."""
_CARRIED: Final = {
    "_hw_carried_partition": PARTITION,
    "_hw_carried_offset": OFFSET,
    "_hw_carried_at": AT,
}
"""What hidden columns are called on their way: a user's `select("*")` may have those of the source as well."""
_PASSING: Final = (
    "Filter",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
)
"""Steps of which each row is a row of one below it."""
_BRANCH: Final = 48


def numbered(frame: DataFrame, number: int) -> DataFrame:
    """Rows of an input whose partition says which input it is, so that no two events of a union share their place."""
    return frame.withColumn(PARTITION, F.col(PARTITION).cast("bigint") + F.lit(number << INPUT_BITS))


def place_in(partition: int) -> tuple[int, int]:
    """The number of the input, and the partition there.

    Example:
        >>> place_in(3), place_in((2 << 32) + 3), place_in((7 << 48) + (2 << 32) + 3)
        ((0, 3), (2, 3), (2, 3))
    """
    return partition >> INPUT_BITS & 0xFFFF, partition & 0xFFFFFFFF


def with_place(events: DataFrame) -> DataFrame:
    """The events, with partition, offset and time where a step has left them out and they can be told.

    They cannot be told where a row is not one event: where it comes from several, is one of several that come from one,
    or is made by code that Spark does not look into. Then the events come back without a place.
    """
    walk = _Walk(events)
    carried = walk.carried(_without_names(events))
    frame = events if carried is None else _frame(events, carried)
    found = {name: hidden for name, hidden in _CARRIED.items() if name in frame.columns}
    known = {PARTITION, OFFSET} & set(events.columns)
    if not found or not known <= set(found.values()):
        return events.drop(*known)  # a place that several rows share is none
    timed = time_of(events.schema) is not None
    if timed and (known or len(found) == 1) and walk.branches < 2:
        return events
    if timed:
        frame = frame.drop("_hw_carried_at")
        del found["_hw_carried_at"]
    return frame.drop(*found.values()).withColumnsRenamed(found)


class _Walk:
    """One way down a plan, and up again."""

    def __init__(self, events: DataFrame) -> None:
        self._events = events
        self._logical: Any = events.sparkSession.sparkContext._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
        self.branches = 0
        self._lost = False  # in one branch of a union, so that what the others have is worth nothing

    def carried(self, plan: Any) -> Any | None:
        """The plan with the hidden columns behind its own; None where they cannot be told."""
        kind, children = plan.nodeName(), list(_all(plan.children()))
        if kind == "View":  # of a query in SQL: a name for what is below it
            return self.carried(children[0])
        if kind not in _PASSING or not _one_each(plan):
            return self._found(plan)
        below = [self.carried(child) for child in children]
        if None in below or len({len(_carried_by(one)) for one in below}) > 1:
            self._lost |= kind == "Union"
            return None if self._lost else self._found(plan)
        if kind == "Project":
            return self._logical.Project(_with(plan.projectList(), _carried_by(below[0])), below[0])
        if kind == "Union":
            both = zip(children, below, strict=True)
            below = [self._logical.Project(_with(old.output(), _carried_by(new)), new) for old, new in both]
        return plan.withNewChildren(_with(plan.children().take(0), below))

    def _found(self, plan: Any) -> Any | None:
        """A step below which nothing is to be found: what it has itself, under the names for the way."""
        frame = _frame(self._events, plan)
        time = time_of(frame.schema)
        if time is None:
            return None
        branch, self.branches = self.branches, self.branches + 1
        columns = {"_hw_carried_at": F.col(f"`{time}`")}
        if all(frame.columns.count(name) == 1 for name in (PARTITION, OFFSET)) and _one_each(plan, deep=True):
            # An event may come through two branches of a union.
            partition = F.col(PARTITION).cast("bigint") + F.lit(branch << _BRANCH)
            columns |= {"_hw_carried_partition": partition, "_hw_carried_offset": F.col(OFFSET)}
        return plan_of(frame.withColumns(columns))


def _one_each(plan: Any, *, deep: bool = False) -> bool:
    """Whether a place tells the rows of a step apart, and is no more than that; `deep`: of all steps below it, too.

    A join of streams gives pairs, and `explode` several rows for an event. To `distinct` the place would be a part of
    the row, so that no two are equal.
    """
    kind, below = str(plan.nodeName()), list(_all(plan.children()))
    if kind == "Generate" and _of_operator(below[0]):
        return True  # the rows that an operator gives, in lists
    streams = [child for child in below if child.isStreaming()]
    if kind in ("Distinct", "Generate") or (kind == "Join" and len(streams) > 1):
        return False
    if kind.startswith("Deduplicate") and PARTITION in [column.name() for column in _all(plan.keys())]:
        return False
    return not deep or all(_one_each(child, deep=True) for child in streams)


def _of_operator(plan: Any) -> bool:
    """Whether a step is an operator of ours, with what is observed of it."""
    return bool(
        plan.nodeName() == "CollectMetrics"
        and str(plan.children().apply(0).nodeName()).startswith("TransformWithState")
    )


def _without_names(events: DataFrame) -> Any:
    """The analysed plan, with what a query in SQL says under WITH in the places where it is used."""
    jvm: Any = events.sparkSession.sparkContext._jvm
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False).apply(plan_of(events))


def _frame(of: DataFrame, plan: Any) -> DataFrame:
    """An analysed plan as a DataFrame."""
    session = of.sparkSession
    jvm: Any = session.sparkContext._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def _carried_by(plan: Any) -> list[Any]:
    """The hidden columns that a plan has for the way, in one order."""
    by_name = {column.name(): column for column in _all(plan.output())}
    return [by_name[name] for name in _CARRIED if name in by_name]


def _with(sequence: Any, more: list[Any]) -> Any:
    """A sequence of Scala's, and more behind it."""
    for one in more:
        sequence = sequence.appended(one)
    return sequence


def _all(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))
