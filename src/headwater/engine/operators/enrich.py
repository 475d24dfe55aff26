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
from headwater.engine.state.encoding import decode_rows, encode_rows, encode_time
from headwater.engine.state.grouping import (
    Numbers,
    RowsByKey,
    decode_times,
    encode_positions,
    event_times,
    group_by_key,
    join_by_index,
    select_events,
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
        correction: How much longer the watermark waits for late events than their topics do, in microseconds; an event
            does not wait for that.

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
    correction: int = 0

    def __post_init__(self) -> None:
        require_join_columns("enrich", self.events, self.table, self.on)
        require_duration("enrich", "wait", self.wait, lowest=0)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The join columns of the event and of the table."""
        return tuple(left for left, _ in self.on), tuple(right for _, right in self.on)

    @property
    def uses_event_time(self) -> bool:
        """Whether events wait for their row."""
        return self.wait > 0

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the table's other columns, the event's position; `QUARANTINE_REASON` if it is used."""
        columns = with_position(pa.schema([*self.events, *self._contents]))
        return columns.append(pa.field(QUARANTINE_REASON, pa.string())) if self.quarantine else columns

    @property
    def form(self) -> str:
        """The description of its state."""
        waiting = f"; events {self.events.to_string()}" if self.wait else ""
        return f"enrich 1: rows {self._contents.to_string()} by {self.keys}{waiting}"

    @property
    def delay(self) -> int:
        """How far the watermark is above an event when its wait ends, in microseconds; negative if it is below."""
        return self.wait - self.correction

    @property
    def _contents(self) -> pa.Schema:
        return value_columns(self.table, self.on)

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process the table's rows, then the events; emit joined events and those whose wait is over."""
        events = select_events(inputs[0], self.events)
        updated = self._update_table(state, inputs[1])
        # A row that arrives in the batch in which the wait ends still counts: the table is updated first.
        expired = list(dict.fromkeys(key for _, key in pop_timers(state, watermark)))
        if self.wait:
            matched = self._pop_waiting(state, updated, None)
            unmatched = self._pop_waiting(state, expired, watermark - self.delay)
            events = pa.concat_tables([unmatched, matched, events])
        return self._join(state, events, watermark)

    def _update_table(self, state: State, rows: pa.Table) -> list[bytes]:
        """Store the last version of each key; returns the keys of the rows."""
        rows = rows.take(np.lexsort([rows.column(name).to_numpy() for name in (OFFSET, PARTITION)]))
        by_key = group_by_key(rows, self.keys[1], nulls=False)
        last = np.empty(len(by_key.keys), np.int64)
        known = np.flatnonzero(by_key.codes >= 0)
        last[by_key.codes[known]] = known  # of several rows of one key, the last assignment remains
        rows = rows.take(last)
        pairs = zip(rows.column(DELETED).to_pylist(), encode_rows(self._contents, rows), strict=True)
        state.put(_ROWS, by_key.keys, None, [None if deleted else row for deleted, row in pairs])
        return by_key.keys

    def _pop_waiting(self, state: State, keys: list[bytes], before: int | None) -> pa.Table:
        """Remove waiting events of these keys from the state and return them.

        With a limit, these are the events before it. Without, these are all events of keys that now have a row.
        """
        high = None if before is None else encode_time(before)
        state.prefetch(_WAITING, keys)
        if before is None:
            keys = [key for key, row in zip(keys, state.values(_ROWS, keys), strict=True) if row is not None]
        found = [(key, name, row) for key in keys for name, row in state.entries(_WAITING, key, high=high)]
        owners, names = [key for key, _, _ in found], [name for _, name, _ in found]
        state.put(_WAITING, owners, names, [None] * len(found))
        delete_timers(state, (decode_times(names) + self.delay + 1).tolist(), owners)
        return decode_rows(with_position(self.events), [row for _, _, row in found])

    def _join(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        by_key = group_by_key(events, self.keys[0], nulls=False)
        stored = state.values(_ROWS, by_key.keys)
        present = [number for number, row in enumerate(stored) if row is not None]
        contents = decode_rows(self._contents, [row for row in stored if row is not None])
        # One element more than keys: the code -1 of a null key selects the last one, which is -1.
        indices = np.full(len(by_key.keys) + 1, -1, np.int64)
        indices[present] = np.arange(len(present))
        at = indices[by_key.codes]
        if self.wait:
            events, at = self._keep_waiting(state, events, by_key, at, watermark)
        if self.how == "inner" and not self.quarantine:
            matched = np.flatnonzero(at >= 0)
            events, at = events.take(matched), at[matched]
        if self.quarantine:
            events = events.append_column(QUARANTINE_REASON, self._reasons(events, at))
        return join_by_index(events, contents, at, self.schema)

    def _keep_waiting(
        self, state: State, events: pa.Table, by_key: RowsByKey, at: Numbers, watermark: int
    ) -> tuple[pa.Table, Numbers]:
        """Store events without a row that may still wait; returns the others."""
        # An event waits until the watermark is above its time plus `delay`.
        ends = event_times(events) + self.delay + 1
        waits = (at < 0) & (by_key.codes >= 0) & (ends > watermark)
        waiting, others = np.flatnonzero(waits), np.flatnonzero(~waits)
        if len(waiting):
            rows, keys = events.take(waiting), by_key.row_keys(waiting)
            contents = encode_rows(rows.schema, rows)
            state.put(_WAITING, keys, encode_positions(rows), contents, kinds=by_key.kinds)
            set_timers(state, ends[waiting].tolist(), keys)
        return events.take(others), at[others]

    def _reasons(self, events: pa.Table, at: Numbers) -> pa.Array:
        """Returns the reason of each event without a row; null for the others."""
        names = self.keys[0]
        null = np.zeros(len(events), bool)
        for name in names:
            null |= events.column(name).is_null().to_numpy()
        reasons = pc.if_else(pa.array(null), f"{' or '.join(names)} is null", f"no row for this {', '.join(names)}")
        return pc.if_else(pa.array(at < 0), reasons, pa.scalar(None, pa.string()))
