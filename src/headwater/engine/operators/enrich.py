"""Stream-table join: each event with the current row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.operators.arguments import (
    ColumnPairs,
    JoinType,
    require_duration,
    require_join_columns,
    value_columns,
)
from headwater.engine.state.grouping import (
    KeyCodes,
    Numbers,
    decode_rows,
    decode_times,
    encode_positions,
    encode_rows,
    encode_time,
    event_times,
    factorize_keys,
    join_by_index,
    select_and_cast,
    with_position,
)
from headwater.engine.state.state import (
    DELETED,
    OFFSET,
    PARTITION,
    QUARANTINE_REASON,
    State,
    delete_timers,
    pop_timers,
    set_timers,
)

__all__ = ["Enrich"]

_ROWS: Final = "rows"
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class Enrich:
    """Joins each event with the row that the table has when the event is processed.

    The table's rows of a batch are processed before its events. Among several versions of a row the last in topic order
    is the row, as in every view of the table, whatever their valid-from times. A null equals nothing. State: the
    table's rows, and waiting events.

    Args:
        events: The event's columns.
        table: The table's columns, including its key.
        on: Pairs of equal columns, of the event and of the table; all columns of the table's key.
        how: The handling of an event without a row: "left" gives nulls, "inner" drops it.
        wait: How long such an event first waits for its row, in microseconds of event time.
        quarantine: Whether it is rejected instead, with the reason in `QUARANTINE_REASON`.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> sales, prices = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("price", pa.int64())])
        >>> enrich = Enrich(sales, prices, on=(("id", "id"),))
        >>> place = {"_hw_time": [5, 6], "_hw_partition": [0, 0], "_hw_offset": [0, 1]}
        >>> inputs = [pa.table({"id": [1, 3], **place}),
        ...            pa.table({"id": [1, 2], "price": [10, 20], "_hw_deleted": [False, False], **place})]
        >>> enrich.step(MemoryState(), inputs, watermark=0).select(["id", "price"]).to_pylist()
        [{'id': 1, 'price': 10}, {'id': 3, 'price': None}]
    """

    events: pa.Schema
    table: pa.Schema
    on: ColumnPairs
    how: JoinType = "left"
    wait: int = 0
    quarantine: bool = False

    def __post_init__(self) -> None:
        require_join_columns("enrich", self.events, self.table, self.on)
        require_duration("enrich", "wait", self.wait, lowest=0)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The paired columns, of the event and of the table."""
        return tuple(left for left, _ in self.on), tuple(right for _, right in self.on)

    @property
    def schema(self) -> pa.Schema:
        """Returns the columns of the event, the other columns of the table, and the event's position.

        `QUARANTINE_REASON` is added if unmatched events are quarantined.
        """
        joined = with_position(pa.schema([*self.events, *value_columns(self.table, self.on)]))
        return joined.append(pa.field(QUARANTINE_REASON, pa.string())) if self.quarantine else joined

    @property
    def form(self) -> str:
        """The description of its state."""
        held = f"; events {self.events.to_string()}" if self.wait else ""
        return f"enrich 1: rows {value_columns(self.table, self.on).to_string()} by {self.keys}{held}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process the table's rows, then the events; emit joined events and those whose wait is over."""
        events = select_and_cast(inputs[0], with_position(self.events))
        touched = self._update_table(state, inputs[1])
        waited = list(dict.fromkeys(key for _, key in pop_timers(state, watermark)))
        if self.wait:
            held = self._pop_waiting(state, touched, None)
            over = self._pop_waiting(state, waited, watermark - self.wait)
            events = pa.concat_tables([over, held, events])
        return self._join(state, events, watermark)

    def _update_table(self, state: State, rows: pa.Table) -> list[bytes]:
        """Store the last version of each key; returns the keys that have one."""
        rows = rows.take(np.lexsort([rows.column(name).to_numpy() for name in (OFFSET, PARTITION)]))
        found = factorize_keys(rows, self.keys[1])
        last = np.full(len(found.keys), -1, np.int64)
        known = np.flatnonzero(found.codes >= 0)
        last[found.codes[known]] = known
        which = np.flatnonzero(last >= 0)
        keys, rows = [found.keys[code] for code in which.tolist()], rows.take(last[which])
        contents = encode_rows(value_columns(self.table, self.on), rows)
        gone = rows.column(DELETED).to_pylist()
        values = [None if dead else row for dead, row in zip(gone, contents, strict=True)]
        state.put(_ROWS, keys, None, values)
        return keys

    def _pop_waiting(self, state: State, keys: list[bytes], before: int | None) -> pa.Table:
        """Remove waiting events of these keys from the state and return them.

        Those whose key has no row yet are left waiting, unless their time is before the limit.
        """
        high = None if before is None else encode_time(before)
        state.prefetch(_WAITING, keys)
        if before is None:
            there = state.values(_ROWS, keys)
            keys = [key for key, row in zip(keys, there, strict=True) if row is not None]
        found = [(key, name, row) for key in keys for name, row in state.entries(_WAITING, key, high=high)]
        names = [name for _, name, _ in found]
        state.put(_WAITING, [key for key, _, _ in found], names, [None] * len(found))
        if found:
            ends = decode_times(names) + self.wait + 1
            delete_timers(state, ends.tolist(), [key for key, _, _ in found])
        return decode_rows(with_position(self.events), [row for _, _, row in found])

    def _join(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        found = factorize_keys(events, self.keys[0])
        stored = state.values(_ROWS, found.keys)
        present = [number for number, row in enumerate(stored) if row is not None]
        rows = [row for row in stored if row is not None]
        where = np.full(len(found.keys) + 1, -1, np.int64)
        where[present] = np.arange(len(present))
        at = where[found.codes]  # -1, of a null key, finds the last place, which stays -1
        contents = decode_rows(value_columns(self.table, self.on), rows)
        if self.wait:
            events, at = self._keep_waiting(state, events, found, at, watermark)
        if self.how == "inner" and not self.quarantine:
            kept = np.flatnonzero(at >= 0)
            events, at = events.take(kept), at[kept]
        if self.quarantine:
            events = events.append_column(QUARANTINE_REASON, self._reasons(events, at))
        return join_by_index(events, contents, at, self.schema)

    def _keep_waiting(
        self, state: State, events: pa.Table, found: KeyCodes, at: Numbers, watermark: int
    ) -> tuple[pa.Table, Numbers]:
        """Store events without a row that may still wait; returns the others."""
        ends = event_times(events) + self.wait + 1
        holding = (at < 0) & (found.codes >= 0) & (ends > watermark)
        held = np.flatnonzero(holding)
        if len(held):
            rows, keys = events.take(held), [found.keys[code] for code in found.codes[held].tolist()]
            contents = encode_rows(with_position(self.events), rows)
            state.put(_WAITING, keys, encode_positions(rows), contents, kinds=found.kinds)
            set_timers(state, ends[held].tolist(), [key for key in keys])
        left = np.flatnonzero(~holding)
        return events.take(left), at[left]

    def _reasons(self, events: pa.Table, at: Numbers) -> pa.Array:
        names = self.keys[0]
        null = np.zeros(len(events), bool)
        for name in names:
            null |= events.column(name).is_null().to_numpy()
        reasons = pc.if_else(pa.array(null), f"{' or '.join(names)} is null", f"no row for this {', '.join(names)}")
        return pc.if_else(pa.array(at < 0), reasons, pa.scalar(None, pa.string()))
