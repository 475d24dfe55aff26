"""Events with the row that a table has for them now: the stream-table join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.due import due, forget, remind
from headwater.engine.keyed.operator import DELETED, OFFSET, PARTITION, REFUSED
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    Grouped,
    Numbers,
    beside,
    decode_rows,
    encode_rows,
    fitted,
    grouped,
    mark,
    places,
    times_at,
    times_of,
    with_order,
)
from headwater.engine.operators.joins.sides import How, Pairs, others, require_sides, require_time

__all__ = ["Enrich"]

_ROWS: Final = "rows"
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class Enrich:
    """Joins each event with the row that the table has for it when the event is taken.

    The table's rows of a batch are taken before its events. Of several versions of a row the last in the order of their
    topic is the row, as in every view of the table, whatever they say about since when they hold. A null equals
    nothing. State: the table's rows; events that wait.

    Args:
        events: The event's columns.
        table: The table's columns, key among them.
        on: Pairs of columns that are equal, of the event and of the table; all columns of the table's key.
        how: What becomes of an event without a row: "left" gives nulls, "inner" leaves it out.
        wait: For how long such an event first waits for its row, in microseconds of event time.
        refuse: Whether it is given back instead, with the reason in `REFUSED`.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> sales, prices = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("price", pa.int64())])
        >>> enrich = Enrich(sales, prices, on=(("id", "id"),))
        >>> place = {"_hw_time": [5, 6], "_hw_partition": [0, 0], "_hw_offset": [0, 1]}
        >>> arrived = [pa.table({"id": [1, 3], **place}),
        ...            pa.table({"id": [1, 2], "price": [10, 20], "_hw_deleted": [False, False], **place})]
        >>> enrich.step(MemoryState(), arrived, watermark=0).select(["id", "price"]).to_pylist()
        [{'id': 1, 'price': 10}, {'id': 3, 'price': None}]
    """

    events: pa.Schema
    table: pa.Schema
    on: Pairs
    how: How = "left"
    wait: int = 0
    refuse: bool = False

    def __post_init__(self) -> None:
        require_sides("enrich", self.events, self.table, self.on)
        require_time("enrich", "wait", self.wait, lowest=0)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The paired columns, of the event and of the table."""
        return tuple(left for left, _ in self.on), tuple(right for _, right in self.on)

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the table's other columns, the event's place; `REFUSED` if events are given back."""
        joined = with_order(pa.schema([*self.events, *others(self.table, self.on)]))
        return joined.append(pa.field(REFUSED, pa.string())) if self.refuse else joined

    @property
    def form(self) -> str:
        """What its state looks like."""
        held = f"; events {self.events.to_string()}" if self.wait else ""
        return f"enrich 1: rows {others(self.table, self.on).to_string()} by {self.keys}{held}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take the table's rows, then the events; give out what is joined and what has waited long enough."""
        events = fitted(arrived[0], with_order(self.events))
        touched = self._take_rows(state, arrived[1])
        waited = list(dict.fromkeys(key for _, key in due(state, watermark)))
        if self.wait:
            held = self._given_back(state, touched, None)
            over = self._given_back(state, waited, watermark - self.wait)
            events = pa.concat_tables([over, held, events])
        return self._joined(state, events, watermark)

    def _take_rows(self, state: State, rows: pa.Table) -> list[bytes]:
        """Put the last version of each key into the state; returns the keys that have one."""
        rows = rows.take(np.lexsort([rows.column(name).to_numpy() for name in (OFFSET, PARTITION)]))
        found = grouped(rows, self.keys[1])
        last = np.full(len(found.keys), -1, np.int64)
        known = np.flatnonzero(found.codes >= 0)
        last[found.codes[known]] = known
        which = np.flatnonzero(last >= 0)
        keys, rows = [found.keys[code] for code in which.tolist()], rows.take(last[which])
        contents = encode_rows(others(self.table, self.on), rows)
        gone = rows.column(DELETED).to_pylist()
        values = [None if dead else row for dead, row in zip(gone, contents, strict=True)]
        state.put(_ROWS, keys, None, values)
        return keys

    def _given_back(self, state: State, keys: list[bytes], before: int | None) -> pa.Table:
        """Events that waited, of keys; they are taken out of the state.

        Those whose key has no row yet are left waiting, unless their time is before the limit.
        """
        high = None if before is None else mark(before)
        state.load(_WAITING, keys)
        if before is None:
            there = state.values(_ROWS, keys)
            keys = [key for key, row in zip(keys, there, strict=True) if row is not None]
        found = [(key, name, row) for key in keys for name, row in state.entries(_WAITING, key, high=high)]
        names = [name for _, name, _ in found]
        state.put(_WAITING, [key for key, _, _ in found], names, [None] * len(found))
        if found:
            ends = times_at(names) + self.wait + 1
            forget(state, ends.tolist(), [key for key, _, _ in found])
        return decode_rows(with_order(self.events), [row for _, _, row in found])

    def _joined(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        found = grouped(events, self.keys[0])
        stored = state.values(_ROWS, found.keys)
        present = [number for number, row in enumerate(stored) if row is not None]
        rows = [row for row in stored if row is not None]
        where = np.full(len(found.keys) + 1, -1, np.int64)
        where[present] = np.arange(len(present))
        at = where[found.codes]  # -1, of a null key, finds the last place, which stays -1
        contents = decode_rows(others(self.table, self.on), rows)
        if self.wait:
            events, at = self._hold(state, events, found, at, watermark)
        if self.how == "inner" and not self.refuse:
            kept = np.flatnonzero(at >= 0)
            events, at = events.take(kept), at[kept]
        if self.refuse:
            events = events.append_column(REFUSED, self._reasons(events, at))
        return beside(events, contents, at, self.schema)

    def _hold(
        self, state: State, events: pa.Table, found: Grouped, at: Numbers, watermark: int
    ) -> tuple[pa.Table, Numbers]:
        """Keep events without a row that may still wait; returns the others."""
        ends = times_of(events) + self.wait + 1
        holding = (at < 0) & (found.codes >= 0) & (ends > watermark)
        held = np.flatnonzero(holding)
        if len(held):
            rows, keys = events.take(held), [found.keys[code] for code in found.codes[held].tolist()]
            contents = encode_rows(with_order(self.events), rows)
            state.put(_WAITING, keys, places(rows), contents, kinds=found.kinds)
            remind(state, ends[held].tolist(), [key for key in keys])
        left = np.flatnonzero(~holding)
        return events.take(left), at[left]

    def _reasons(self, events: pa.Table, at: Numbers) -> pa.Array:
        names = self.keys[0]
        null = np.zeros(len(events), bool)
        for name in names:
            null |= events.column(name).is_null().to_numpy()
        reasons = pc.if_else(
            pa.array(null), f"{' or '.join(names)} is null", f"no row for this {', '.join(names)}"
        )
        return pc.if_else(pa.array(at < 0), reasons, pa.scalar(None, pa.string()))
