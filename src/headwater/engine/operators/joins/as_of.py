"""Events with the row that a table had at their time: the as-of join."""

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
    Numbers,
    beside,
    decode_rows,
    fitted,
    grouped,
    times_of,
    with_order,
)
from headwater.engine.operators.joins.sides import How, Pairs, others, refuse, require_sides
from headwater.engine.operators.joins.versions import Held, held_at, prune, take_versions
from headwater.engine.operators.past.remembered import affected, remember
from headwater.engine.operators.slices import hold, release

__all__ = ["AsOf"]

_WAITING: Final = "waiting"
_MOMENT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class AsOf:
    """Joins each event with the version of the table's row that held at the event's time.

    That is the newest version whose time is not after the event's; of versions of one time the last by partition and
    offset. From the time of a deletion on there is no row. A null equals nothing. Records may still come whose time is
    the watermark or later, so the answer for an event is final once the watermark is above its time.

    State: of each key the versions that an event can still need, which are those after the watermark and the newest
    one not after it; and the events whose answer is not final. An event gets the same answer however versions and
    events are interleaved and cut into batches.

    When a version ends is not in the result: it can become known long after the answer is final. `History` has it.

    Args:
        events: The event's columns.
        table: The table's columns, key among them.
        on: Pairs of columns that are equal, of the event and of the table; all columns of the table's key.
        how: What becomes of an event without a row: "left" gives nulls, "inner" leaves it out.
        final: Whether an event is given out once, when its answer is final. Otherwise it is given out at once with
            weight 1, and corrected by rows of weight -1 and 1 when a version arrives that changes the answer.
        valid_from: The name of a column with the time since when the version holds; none if left out.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> sales, prices = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("price", pa.int64())])
        >>> as_of = AsOf(sales, prices, on=(("id", "id"),))
        >>> place = {"_hw_partition": [0, 0], "_hw_offset": [0, 1]}
        >>> arrived = [pa.table({"id": [1, 1], "_hw_time": [5, 9], **place}),
        ...            pa.table({"id": [1, 1], "price": [10, 20], "_hw_deleted": [False, False],
        ...                      "_hw_time": [3, 8], **place})]
        >>> as_of.step(MemoryState(), arrived, watermark=10).select(["id", "price"]).to_pylist()
        [{'id': 1, 'price': 10}, {'id': 1, 'price': 20}]
    """

    events: pa.Schema
    table: pa.Schema
    on: Pairs
    how: How = "left"
    final: bool = True
    valid_from: str | None = None

    def __post_init__(self) -> None:
        require_sides("join_as_of", self.events, self.table, self.on)
        taken = [*self.events.names, *self.table.names]
        if self.valid_from in taken:
            what = f"join_as_of would give two columns named {self.valid_from}"
            refuse(what, "another name for valid_from", columns=[self.valid_from])

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The paired columns, of the event and of the table."""
        return tuple(left for left, _ in self.on), tuple(right for _, right in self.on)

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the table's other columns, `valid_from`, the event's place; `WEIGHT` unless final."""
        since = [] if self.valid_from is None else [pa.field(self.valid_from, _MOMENT)]
        joined = with_order(pa.schema([*self.events, *others(self.table, self.on), *since]))
        return joined if self.final else joined.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """What its state looks like."""
        contents = others(self.table, self.on)
        return f"as of 1: versions {contents.to_string()} by {self.keys}; events {self.events.to_string()}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take versions and events; give out what is final now, or what is new and what changed."""
        events = fitted(arrived[0], with_order(self.events))
        due(state, watermark)
        if self.final:
            take_versions(state, arrived[1], self.keys[1], others(self.table, self.on))
            ready = self._ready(state, events, watermark)
            result = self._rows(ready, self._held(state, ready), 1)
        else:
            found = grouped(arrived[1], self.keys[1])
            changed = affected(state, found, times_of(arrived[1]), with_order(self.events))
            before = self._held(state, changed)
            take_versions(state, arrived[1], self.keys[1], others(self.table, self.on))
            result = self._corrections(state, changed, before, events)
            remember(state, grouped(events, self.keys[0]), events, watermark)
        prune(state, watermark)
        return result

    def _ready(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        """The events whose answer is final now; the others wait."""
        over = release(state, _WAITING, watermark)
        later = times_of(events) >= watermark
        if later.any():
            hold(state, _WAITING, events.take(np.flatnonzero(later)))
            events = events.take(np.flatnonzero(~later))
        return events if over is None else pa.concat_tables([over, events])

    def _corrections(self, state: State, given: pa.Table, before: Held, events: pa.Table) -> pa.Table:
        now = self._held(state, given)
        changed = np.array(
            [old != new for old, new in zip(self._told(before), self._told(now), strict=True)], bool
        )
        which = np.flatnonzero(changed)
        rows = given.take(which)
        return pa.concat_tables(
            [
                self._rows(rows, before.of(which), -1),
                self._rows(rows, now.of(which), 1),
                self._rows(events, self._held(state, events), 1),
            ]
        )

    def _told(self, held: Held) -> list[tuple[bytes | None, int]]:
        """What the result says of the version of each event."""
        since = held.since.tolist() if self.valid_from else [0] * len(held.at)
        return [
            (held.values[at], time) if at >= 0 else (None, 0)
            for at, time in zip(held.at.tolist(), since, strict=True)
        ]

    def _held(self, state: State, events: pa.Table) -> Held:
        found = grouped(events, self.keys[0])
        return held_at(state, found.keys, found.codes, times_of(events))

    def _rows(self, events: pa.Table, held: Held, weight: int) -> pa.Table:
        """Events beside the contents of their versions."""
        at, since = held.at, held.since
        if self.how == "inner":
            kept = np.flatnonzero(at >= 0)
            events, at, since = events.take(kept), at[kept], since[kept]
        used, where = _used(at)
        contents = decode_rows(others(self.table, self.on), [held.values[number] for number in used])
        if self.valid_from is not None:
            events = events.append_column(self.valid_from, pa.array(since, _MOMENT, mask=at < 0))
        if not self.final:
            events = events.append_column(WEIGHT, pa.array(np.full(len(events), weight, np.int64)))
        return beside(events, contents, where, self.schema)


def _used(at: Numbers) -> tuple[list[int], Numbers]:
    """The numbers that occur, each once, and for each place where among them its number is; -1 stays."""
    used, where = np.unique(at, return_inverse=True)
    if len(used) and used[0] < 0:
        used, where = used[1:], where - 1
    return used.tolist(), where
