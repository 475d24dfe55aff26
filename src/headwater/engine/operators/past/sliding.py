"""Each event's own last minutes: aggregates over the events of its key that came shortly before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.due import due
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    decode_rows,
    encode_rows,
    fitted,
    grouped,
    mark,
    places,
    times_of,
    with_order,
)
from headwater.engine.operators.joins.sides import refuse, require_key, require_time
from headwater.engine.operators.joins.timelines import (
    Flat,
    insert,
    over,
    places_before,
    read,
    rewrite,
    set_ends,
    sought,
)
from headwater.engine.operators.past.aggregates import Aggregate, aggregated, columns_of, fields_of
from headwater.engine.operators.past.remembered import affected, remember
from headwater.engine.operators.slices import hold, release

__all__ = ["Sliding"]

_EVENTS: Final = "events"
"""The space: the timeline of each key, whose contents are the columns that aggregates look at."""
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class Sliding:
    """Gives each event with aggregates over the events of its key in the time that ends with it.

    That time is (t - over, t] for an event at t: all events of its own time are in it, whenever they arrive. Without
    the event itself it is [t - over, t): a baseline that an event can be compared with. A null in the key equals
    itself. The result is final once the watermark is above t.

    State: of each key the events that a later one can still look back at; the events whose result is not final.

    Args:
        events: The event's columns.
        key: The columns of the key.
        length: How far back, in microseconds of event time.
        aggregates: What to compute.
        itself: Whether the event, and others of its time, are looked at.
        final: Whether an event is given out once, when its result is final. Otherwise it is given out at once with
            weight 1, and corrected by rows of weight -1 and 1 when an event arrives that changes the result.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> sliding = Sliding(pa.schema([("id", pa.int64())]), ("id",), 10, (Aggregate("count", None, "n"),))
        >>> place = {"_hw_time": [0, 9, 10], "_hw_partition": [0, 0, 0], "_hw_offset": [0, 1, 2]}
        >>> rows = pa.table({"id": [1, 1, 1], **place})
        >>> sliding.step(MemoryState(), [rows], watermark=11)["n"].to_pylist()
        [1, 2, 2]
    """

    events: pa.Schema
    key: tuple[str, ...]
    length: int
    aggregates: tuple[Aggregate, ...]
    itself: bool = True
    final: bool = True

    def __post_init__(self) -> None:
        require_key("sliding", self.events, self.key)
        require_time("sliding", "length", self.length)
        fields = fields_of("sliding", self.aggregates, self.events)
        names = [*self.events.names, *(field.name for field in fields)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            refuse(f"sliding would give two columns named {', '.join(twice)}", "another name", columns=twice)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the aggregates, the event's place; `WEIGHT` unless final."""
        found = fields_of("sliding", self.aggregates, self.events)
        joined = with_order(pa.schema([*self.events, *found]))
        return joined if self.final else joined.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """What its state looks like."""
        return f"sliding 1: {self._looked_at.to_string()} by {self.key}; events {self.events.to_string()}"

    @property
    def _looked_at(self) -> pa.Schema:
        return columns_of(self.aggregates, self.events)

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take events; give out what is final now, or what is new and what changed."""
        due(state, watermark)
        events = fitted(arrived[0], with_order(self.events))
        if self.final:
            self._take(state, events)
            result = self._rows(state, self._ready(state, events, watermark), 1)
        else:
            changed = affected(
                state, grouped(events, self.key, nulls=True), times_of(events), with_order(self.events)
            )
            before = self._rows(state, changed, -1)
            self._take(state, events)
            after = self._rows(state, changed, 1)
            result = pa.concat_tables([_different(before, after), self._rows(state, events, 1)])
            remember(state, grouped(events, self.key, nulls=True), events, watermark)
        self._forget(state, watermark)
        return result

    def _take(self, state: State, events: pa.Table) -> None:
        owners = grouped(events, self.key, nulls=True).of_rows
        insert(state, _EVENTS, owners, places(events), encode_rows(self._looked_at, events))
        set_ends(state, owners, times_of(events) + self.length - self.itself)

    def _ready(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        waited = release(state, _WAITING, watermark)
        later = times_of(events) >= watermark
        hold(state, _WAITING, events.take(np.flatnonzero(later)))
        ready = events.take(np.flatnonzero(~later))
        return ready if waited is None else pa.concat_tables([waited, ready])

    def _rows(self, state: State, events: pa.Table, weight: int) -> pa.Table:
        found, times = grouped(events, self.key, nulls=True), times_of(events)
        past = read(state, _EVENTS, found.keys)
        side = "right" if self.itself else "left"
        low, high = sought(past, found.codes, (times - self.length, side), (times, side))
        contents = decode_rows(self._looked_at, past.contents)
        for aggregate, column in zip(
            self.aggregates, aggregated(self.aggregates, contents, low, high), strict=True
        ):
            events = events.append_column(aggregate.name, column)
        if not self.final:
            events = events.append_column(WEIGHT, pa.array(np.full(len(events), weight, np.int64)))
        return events.select(self.schema.names).cast(self.schema)

    def _forget(self, state: State, watermark: int) -> None:
        """Forget events that no event at the watermark or after it looks back at."""
        limit = mark(watermark - self.length + self.itself)

        def needed(_: bytes, past: Flat) -> Flat:
            return past[2 * places_before(past, limit) :]

        rewrite(state, _EVENTS, over(state, watermark), needed)


def _different(before: pa.Table, after: pa.Table) -> pa.Table:
    """Rows that are not what they were, old ones and new ones."""
    old, new = (rows.drop_columns([WEIGHT]).to_pylist() for rows in (before, after))
    which = pa.array(
        [at for at, (was, now) in enumerate(zip(old, new, strict=True)) if repr(was) != repr(now)], pa.int64()
    )
    return pa.concat_tables([before.take(which), after.take(which)])
