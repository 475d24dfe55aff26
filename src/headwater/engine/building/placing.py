"""Where an operator with state per key runs: after Spark, if it is the last step, or inside Spark's query.

A user's function asks for operators through `headwater.engine.verbs`. Whether one is the last step is known only when
the function has returned. So it is called twice: at first each operator only gives a result of the right form, which
carries the operator; if exactly such a result is returned, that operator can run after Spark, and all others in Spark.
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

from headwater.engine.building.after_spark import AfterSpark, Arrival
from headwater.engine.building.inputs import Input
from headwater.engine.building.places import AT, HIDDEN_PREFIX, with_place
from headwater.engine.building.plans import plan_of, time_of
from headwater.engine.keyed.in_spark import keyed
from headwater.engine.keyed.operator import OFFSET, PARTITION, REFUSED, TIME, WEIGHT, Operator
from headwater.errors import BadPipelineError, Place
from headwater.pipelines import Table

__all__ = [
    "BUCKETS",
    "Making",
    "Stage",
    "after_spark_of",
    "arrival",
    "columns_of",
    "placed",
    "stage",
    "table_of",
]

BUCKETS: Final = 8
"""Among how many buckets the keys of an operator in Spark are spread: part of what its state means.

So many tasks can work on them side by side; each has its price in every batch, about a millisecond of CPU.
"""
_AFTER: Final = "_hw_after_spark"
_MIXED: Final = (
    "select, where and union keep it; groupBy, distinct, explode, mapInArrow and joins of streams do not"
)
_EARLIER: Final = "call {} before that step, or make that step a pipeline of its own and read it"


@dataclass
class Stage:
    """A user's function while it is called.

    Attributes:
        tables: The tables it was given, by name.
        final: Whether its rows must be final when they come, because nobody could correct them.
        apart: Which operators are not to be put into Spark's query, by number; None for all of them.
        words: What the operators keep in state, for people.
        forms: What their states look like.
        last_only: Those that must be the last step.
        entered: What reaches operators from the inputs, and not from another operator.
        refusing: Of those in Spark's query that give events back, the names under which they say which.
        keeping: Of all that are in Spark's query, the names under which they say how much they keep.
    """

    tables: Mapping[str, tuple[Input, DataFrame]]
    final: bool
    apart: tuple[int, ...] | None = None
    words: list[str] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    last_only: list[str] = field(default_factory=list)
    entered: list[Arrival] = field(default_factory=list)
    refusing: list[str] = field(default_factory=list)
    keeping: list[str] = field(default_factory=list)


class Making(Protocol):
    """Makes an operator for a place."""

    def __call__(self, *, final: bool) -> Operator:
        """The operator.

        Args:
            final: Whether its rows must be final when they come.
        """


_stage: ContextVar[Stage | None] = ContextVar("stage", default=None)


@contextmanager
def stage(
    tables: Mapping[str, tuple[Input, DataFrame]], *, final: bool, apart: tuple[int, ...] | None
) -> Iterator[Stage]:
    """Let operators be asked for meanwhile."""
    now = Stage(tables, final, apart)
    token = _stage.set(now)
    try:
        yield now
    finally:
        _stage.reset(token)


def table_of(table: Any, verb: str) -> Arrival:
    """The changes of a table that the user's function was given.

    Raises:
        BadPipelineError: It is no table, or one that the function has made itself.
    """
    known = _present(verb).tables
    name = table.inputs[0] if isinstance(table, Table) and len(table.inputs) == 1 else None
    if name is None or name not in known or table != Table.named(name):
        what = f"{verb} needs a table as the function was given it, not {type(table).__name__}"
        fix = "annotate the parameter: products: hw.Table; of a table that you filter or join, make a view first"
        raise BadPipelineError(what, fix=fix, place=Place.of_caller())
    input_, frame = known[name]
    return Arrival(frame, input_.time)


def arrival(events: Any, verb: str) -> Arrival:
    """Events that an operator reads.

    Raises:
        BadPipelineError: They have no time any more, or are no events.
    """
    if not isinstance(events, DataFrame):
        what = f"{verb} takes events, not {type(events).__name__}"
        raise BadPipelineError(what, fix="a parameter annotated DataFrame", place=Place.of_caller())
    events = with_place(events)
    time = time_of(events.schema)
    if time is None:
        what = f"{verb} takes events in the order of their time, and a step before it has dropped that"
        raise BadPipelineError(what, detail=_MIXED, fix=_EARLIER.format(verb), place=Place.of_caller())
    return Arrival(events, time)


def columns_of(of: Arrival) -> pa.Schema:
    """The columns that a user sees of it."""
    schema = to_arrow_schema(of.frame.schema, timezone="UTC")
    return pa.schema([f.with_nullable(True) for f in schema if not f.name.startswith(HIDDEN_PREFIX)])


def placed(make: Making, arrivals: tuple[Arrival, ...], words: str, verb: str) -> DataFrame:
    """The result of an operator.

    Args:
        make: Makes the operator.
        arrivals: Its inputs.
        words: What it keeps in state, for people.
        verb: What the user called.
    """
    now = _present(verb)
    if now.apart is not None:
        _require_places(arrivals, verb)
    inside, beside = make(final=True), make(final=now.final)
    apart = now.apart is None or len(now.words) in now.apart
    now.words.append(words)
    now.entered.extend(one for one in arrivals if _as_it_is.__name__ not in plan_of(one.frame).toString())
    now.forms.append(f"{BUCKETS} buckets by checksum of {inside.form}")
    if WEIGHT in inside.schema.names:
        now.last_only.append(verb)
    frames, times = [one.frame for one in arrivals], [one.time for one in arrivals]
    time = times[0] if times[0] in inside.schema.names else None
    if not apart:
        now.keeping.append(f"kept.{len(now.words)}")
        result = keyed(inside, frames, times=times, buckets=BUCKETS, time=time, observed=now.keeping[-1])
        return _timed(_without_refused(result, now), arrivals[0])
    result = frames[0].mapInArrow(_as_it_is, from_arrow_schema(inside.schema))
    result = _timed(result if time is None else _marked(result, time, arrivals[0]), arrivals[0])
    setattr(result, _AFTER, AfterSpark(beside, arrivals, (words,)))
    return result


def _require_places(arrivals: tuple[Arrival, ...], verb: str) -> None:
    """Two events may be equal in all they say, and are told apart by where they stand in their topic alone."""
    if not all(one.frame.columns.count(name) == 1 for one in arrivals for name in (PARTITION, OFFSET)):
        what = f"{verb} tells events apart by where they stand in their topic, and a step before it has dropped that"
        raise BadPipelineError(what, detail=_MIXED, fix=_EARLIER.format(verb), place=Place.of_caller())


def _as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stands for an operator in a plan that is looked at, and never run."""
    return batches


def _without_refused(result: DataFrame, now: Stage) -> DataFrame:
    """The result of an operator in Spark; which events it gave back, the sink reads from what is observed here."""
    if REFUSED not in result.columns:
        return result
    name = f"refused.{len(now.words)}"
    now.refusing.append(name)
    refused = F.when(F.col(REFUSED).isNotNull(), F.struct(PARTITION, OFFSET, REFUSED))
    kept = result.observe(name, F.collect_list(refused).alias("events")).where(F.col(REFUSED).isNull())
    # A row that is no event has no place; only those that were given back had one.
    return kept.drop(REFUSED) if TIME in result.columns else kept.drop(REFUSED, PARTITION, OFFSET)


def _timed(result: DataFrame, of: Arrival) -> DataFrame:
    """The result of an operator with the time of its events, if it says when they were and has no such column."""
    if time_of(result.schema) is not None or TIME not in result.columns:
        return result
    return _marked(result.withColumn(AT, F.timestamp_micros(TIME)), AT, of)


def _marked(result: DataFrame, column: str, of: Arrival) -> DataFrame:
    """A result of which one column carries the event time on."""
    return result.withMetadata(column, of.frame.schema[of.time].metadata)


def after_spark_of(result: DataFrame) -> AfterSpark | None:
    """The operator that made this very result, to be run after Spark."""
    return vars(result).get(_AFTER)


def _present(verb: str) -> Stage:
    now = _stage.get()
    if now is None:
        what = f"{verb} describes a step of a pipeline, and is called outside of one"
        raise BadPipelineError(
            what, fix="call it in a function under @app.view or @app.stream", place=Place.of_caller()
        )
    return now
