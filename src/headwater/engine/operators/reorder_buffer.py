"""Reorder buffer: holds rows until the watermark has passed their event time, then releases them in order.

`hold_rows` stores rows of all keys in slices of many rows. A slice is one state entry with one timer, so the cost per
row is small. A slice that the watermark has passed in part is rewritten with the remaining rows.

`ReorderBuffer` wraps another operator, which then receives its rows in order of event time. It stores rows by key, one
entry each, because its rows may be read only together with their key.

`track_emitted` and `read_affected` keep rows that were emitted before they were final: a later record can still correct
them until the watermark passes their time. `diff_rows` returns the corrections.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import (
    decode_rows,
    encode_int64,
    encode_keys,
    encode_rows,
    encode_time,
    kinds_of,
    split_bytes,
)
from headwater.engine.state.grouping import (
    POSITION_SIZE,
    Numbers,
    RowsByKey,
    decode_times,
    encode_positions,
    event_times,
    select_events,
    sort_by_event_time,
    with_position,
)
from headwater.engine.state.key_groups import encode_ipc
from headwater.engine.state.state import TIME, WEIGHT, Operator, State, delete_timers, pop_timers, set_timers
from headwater.events import to_ddl

__all__ = [
    "ReorderBuffer",
    "diff_rows",
    "hold_rows",
    "read_affected",
    "release_complete",
    "release_rows",
    "track_emitted",
]

_BUFFER: Final = "held"
_TIMER_PREFIX: Final = b"\x02held:"
"""The prefix of the buffer's own timers. Encoded keys begin with 0 or 1, so timers of `Stateful` never have it."""


@dataclass(frozen=True)
class ReorderBuffer:
    """Passes events to an operator once the watermark has passed them, ordered by time, partition and offset.

    The operator receives the events of a key in the same order, however they are divided into batches. In return, rows
    are emitted later, by as much as the watermark is behind.

    Args:
        operator: An operator with one input. The names of its timers must not begin with `_TIMER_PREFIX`.
        events: The columns of its input, without hidden columns.

    Example:
        >>> from headwater.engine.state.state import OFFSET, PARTITION, MemoryState
        >>> from headwater.engine.operators.stateful import Stateful
        >>> def seen(key, events, state):
        ...     return None, [{"n": event["n"]} for event in events]
        >>> columns = pa.schema([("k", pa.string()), ("n", pa.int64())])
        >>> operator = ReorderBuffer(Stateful(columns, by=["k"], fn=seen, returns="n bigint"), columns)
        >>> place = {TIME: [20, 10], PARTITION: [0, 0], OFFSET: [0, 1]}
        >>> state, nothing = MemoryState(), with_position(columns).empty_table()
        >>> operator.step(state, [pa.table({"k": ["a", "a"], "n": [2, 1], **place})], watermark=11).to_pylist()
        [{'n': 1}]
        >>> operator.step(state, [nothing], watermark=21).to_pylist()
        [{'n': 2}]
    """

    operator: Operator
    events: pa.Schema

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys of the operator."""
        return self.operator.keys

    @property
    def uses_event_time(self) -> bool:
        """Always: events wait for earlier ones."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The schema of the operator."""
        return self.operator.schema

    @property
    def form(self) -> str:
        """The columns of the stored events, and the form of the operator."""
        return f"events of {to_ddl(self.events)} until they are complete; {self.operator.form}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Pass on the events below the watermark, and store the others."""
        events = select_events(inputs[0], self.events)
        # A later event can still have the time of the watermark, so events at the watermark wait.
        complete = pc.less(events.column(TIME), watermark)
        self._buffer_rows(state, events.filter(pc.invert(complete)))
        ready = pa.concat_tables([events.filter(complete), self._release(state, watermark)])
        return self.operator.step(state, [sort_by_event_time(ready)], watermark)

    def _buffer_rows(self, state: State, events: pa.Table) -> None:
        columns = [events.column(name) for name in self.keys[0]]
        keys, rows = encode_keys(columns), encode_rows(events.schema, events)
        state.put(_BUFFER, keys, encode_positions(events), rows, kinds=kinds_of(columns))
        # One microsecond later: an event is complete once the watermark is above its time.
        set_timers(state, (event_times(events) + 1).tolist(), [_TIMER_PREFIX + key for key in keys])

    def _release(self, state: State, watermark: int) -> pa.Table:
        timers = pop_timers(state, watermark)
        others = [timer for timer in timers if not timer[1].startswith(_TIMER_PREFIX)]
        set_timers(state, [time for time, _ in others], [name for _, name in others])  # the operator pops them itself
        keys = {name[len(_TIMER_PREFIX) :] for _, name in timers if name.startswith(_TIMER_PREFIX)}
        state.prefetch(_BUFFER, keys)
        rows = [(key, *row) for key in sorted(keys) for row in state.entries(_BUFFER, key, high=encode_time(watermark))]
        state.put(_BUFFER, [key for key, _, _ in rows], [name for _, name, _ in rows], [None] * len(rows))
        return decode_rows(with_position(self.events), [row for _, _, row in rows])


_SLICE_ROWS: Final = 4096
"""The maximum rows of a slice, and so of a rewrite when the watermark is inside a slice."""


def hold_rows(state: State, space: str, rows: pa.Table) -> None:
    """Store rows until the watermark is above their `TIME`; idempotent.

    Args:
        state: The state.
        space: The space; all rows in it have one schema.
        rows: The rows, with `TIME` among their columns.
    """
    ordered = rows.take(np.argsort(event_times(rows), kind="stable"))
    times = event_times(ordered).tolist()
    starts = range(0, len(ordered), _SLICE_ROWS)
    slices = [encode_ipc(ordered.slice(start, _SLICE_ROWS)) for start in starts]
    # Named by first time and hash, so the same rows again replace their slice. A name has the length of a position,
    # because `release_rows` reads its time with `decode_times`.
    names = [
        encode_time(times[start]) + hashlib.blake2b(packed, digest_size=POSITION_SIZE - 8).digest()
        for start, packed in zip(starts, slices, strict=True)
    ]
    state.put(space, [b""] * len(slices), names, slices)
    set_timers(state, [times[start] + 1 for start in starts], [space.encode()] * len(slices))


def release_rows(state: State, space: str, watermark: int) -> pa.Table | None:
    """Remove the rows whose `TIME` is below the watermark, and return them; None if no slice begins below it.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> hold_rows(state, "waiting", pa.table({"_hw_time": [7, 3, 5], "id": [1, 2, 3]}))
        >>> release_rows(state, "waiting", 6)["id"].to_pylist(), release_rows(state, "waiting", 7)
        ([2, 3], None)
        >>> release_rows(state, "waiting", 8)["id"].to_pylist(), len(list(state.entries("waiting", b"")))
        ([1], 0)
    """
    slices = state.entries(space, b"", high=encode_time(watermark))
    if not slices:
        return None
    names = [name for name, _ in slices]
    state.put(space, [b""] * len(names), names, [None] * len(names))
    delete_timers(state, (decode_times(names) + 1).tolist(), [space.encode()] * len(names))
    rows = pa.concat_tables([pa.ipc.open_stream(packed).read_all() for _, packed in slices])
    complete = event_times(rows) < watermark
    if not complete.all():
        hold_rows(state, space, rows.take(np.flatnonzero(~complete)))
        rows = rows.take(np.flatnonzero(complete))
    return rows


def release_complete(state: State, space: str, rows: pa.Table, watermark: int) -> pa.Table:
    """Returns the rows below the watermark, new and stored ones; stores the new rows at or after it.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> release_complete(state, "waiting", pa.table({"_hw_time": [7, 3]}), 5)["_hw_time"].to_pylist()
        [3]
        >>> release_complete(state, "waiting", pa.table({"_hw_time": [6]}), 8)["_hw_time"].to_pylist()
        [7, 6]
    """
    released = release_rows(state, space, watermark)
    later = event_times(rows) >= watermark
    if later.any():
        hold_rows(state, space, rows.take(np.flatnonzero(later)))
        rows = rows.take(np.flatnonzero(~later))
    return rows if released is None else pa.concat_tables([released, rows])


_EMITTED: Final = "given"
_FINALITY: Final = "known"
_FINALITY_SCHEMA: Final = pa.schema([("key", pa.binary()), ("name", pa.binary()), (TIME, pa.int64())])


def track_emitted(state: State, by_key: RowsByKey, events: pa.Table, watermark: int) -> None:
    """Store emitted events whose result may still change, and delete those that are final now.

    Args:
        state: The state.
        by_key: The keys of the events; an event without a key is not stored.
        events: The emitted events.
        watermark: Events below it are final.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> from headwater.engine.state.grouping import group_by_key
        >>> state = MemoryState()
        >>> rows = pa.table({"id": [1, 1], "_hw_time": [5, 7], "_hw_partition": [0, 0], "_hw_offset": [0, 1]})
        >>> track_emitted(state, group_by_key(rows, ["id"]), rows, watermark=5)
        >>> later = group_by_key(rows.slice(1), ["id"])
        >>> read_affected(state, later, np.array([6]), rows.schema)["_hw_offset"].to_pylist()
        [1]
    """
    open_ = np.flatnonzero((event_times(events) >= watermark) & (by_key.codes >= 0))
    rows, keys = events.take(open_), by_key.row_keys(open_)
    names = encode_positions(rows)
    state.put(_EMITTED, keys, names, encode_rows(rows.schema, rows), kinds=by_key.kinds)
    hold_rows(state, _FINALITY, pa.table({"key": keys, "name": names, TIME: rows.column(TIME)}, _FINALITY_SCHEMA))
    final = release_rows(state, _FINALITY, watermark)
    if final is not None:
        state.put(_EMITTED, final.column("key").to_pylist(), final.column("name").to_pylist(), [None] * len(final))


def read_affected(state: State, by_key: RowsByKey, times: Numbers, schema: pa.Schema) -> pa.Table:
    """Returns the emitted events at or after the earliest of some records of their key.

    Args:
        state: The state.
        by_key: The keys of the records.
        times: The times of the records.
        schema: The columns of the emitted events.
    """
    # One element more than keys: the code -1 of records without a key selects the last one.
    earliest = np.full(len(by_key.keys) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, by_key.codes, times)
    state.prefetch(_EMITTED, by_key.keys)
    bounds = zip(by_key.keys, split_bytes(encode_int64(earliest[:-1]).tobytes(), 8), strict=True)
    return decode_rows(schema, [row for key, low in bounds for _, row in state.entries(_EMITTED, key, low)])


def diff_rows(before: pa.Table, after: pa.Table) -> pa.Table:
    """Returns the rows that only one of the tables has, apart from weights.

    Example:
        >>> before, after = pa.table({"n": [1, 2], WEIGHT: [-1, -1]}), pa.table({"n": [2, 3], WEIGHT: [1, 1]})
        >>> diff_rows(before, after).to_pylist()
        [{'n': 1, '_hw_weight': -1}, {'n': 3, '_hw_weight': 1}]
    """
    visible = before.drop_columns([WEIGHT]).schema
    # Compared as bytes: NaN equals NaN there.
    old, new = (encode_rows(visible, rows) for rows in (before, after))
    both = set(old) & set(new)
    masks = [pa.array([row not in both for row in encoded], pa.bool_()) for encoded in (old, new)]
    return pa.concat_tables([before.filter(masks[0]), after.filter(masks[1])])
