"""Reorder buffer: holds rows until the watermark has passed their event time, then releases them in order.

Rows are stored in slices of many rows. A slice is one state entry with one timer, so the cost per row is small. A slice
that the watermark has passed in part is rewritten with the remaining rows.

`ReorderBuffer` wraps another operator, which then receives its rows in order of event time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import encode_keys, kinds_of
from headwater.engine.state.grouping import (
    POSITION_SIZE,
    decode_rows,
    decode_times,
    encode_positions,
    encode_rows,
    encode_time,
    event_times,
    with_position,
)
from headwater.engine.state.key_groups import sort_by_event_time
from headwater.engine.state.state import TIME, Operator, State, delete_timers, pop_timers, set_timers
from headwater.events import to_ddl

__all__ = ["ReorderBuffer", "hold_rows", "release_rows"]

_BUFFER: Final = "held"
_TIMER_PREFIX: Final = b"\x02held:"
"""How names of our deadlines begin; those of the operator behind begin otherwise."""


@dataclass(frozen=True)
class ReorderBuffer:
    """Passes events to an operator once the watermark has passed them, ordered by time, partition and offset.

    Whatever the batches, the operator sees the events of a key in one order. The price is that rows come as much later
    as the watermark is behind.

    Args:
        operator: An operator with one input, whose deadlines have names that do not begin as ours do.
        events: The columns of its input, without hidden ones.

    Example:
        >>> from headwater.engine.state.state import OFFSET, PARTITION
        >>> from headwater.engine.state.state import MemoryState
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
    def schema(self) -> pa.Schema:
        """The schema of the operator."""
        return self.operator.schema

    @property
    def form(self) -> str:
        """The columns of the events that are held, and what the operator's state looks like."""
        return f"events of {to_ddl(self.events)} until they are complete; {self.operator.form}"

    @cached_property
    def _row_schema(self) -> pa.Schema:
        return with_position(self.events)

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Pass on the events below the watermark, and keep the rest."""
        events = inputs[0].select(self._row_schema.names).cast(self._row_schema)
        complete = pc.less(events.column(TIME), watermark)
        self._buffer_rows(state, events.filter(pc.invert(complete)))
        now = pa.concat_tables([events.filter(complete), self._release(state, watermark)])
        return self.operator.step(state, [sort_by_event_time(now)], watermark)

    def _buffer_rows(self, state: State, events: pa.Table) -> None:
        if not events.num_rows:
            return
        columns = [events.column(name) for name in self.keys[0]]
        keys, rows = encode_keys(columns), encode_rows(self._row_schema, events)
        state.put(_BUFFER, keys, encode_positions(events), rows, kinds=kinds_of(columns))
        set_timers(state, (event_times(events) + 1).tolist(), [_TIMER_PREFIX + key for key in keys])

    def _release(self, state: State, watermark: int) -> pa.Table:
        found = pop_timers(state, watermark)
        others = [(time, name) for time, name in found if not name.startswith(_TIMER_PREFIX)]
        set_timers(state, [time for time, _ in others], [name for _, name in others])
        keys = {name[len(_TIMER_PREFIX) :] for _, name in found if name.startswith(_TIMER_PREFIX)}
        state.prefetch(_BUFFER, keys)
        rows = [(key, *row) for key in sorted(keys) for row in state.entries(_BUFFER, key, high=encode_time(watermark))]
        state.put(_BUFFER, [key for key, _, _ in rows], [name for _, name, _ in rows], [None] * len(rows))
        return decode_rows(self._row_schema, [row for _, _, row in rows])


_SLICE_ROWS: Final = 4096
"""Rows of a slice: what is read and written again at most when the watermark stands inside one."""


def hold_rows(state: State, space: str, rows: pa.Table) -> None:
    """Store rows until the watermark is above their `TIME`; idempotent.

    Args:
        state: Where to.
        space: What is kept there is of one schema.
        rows: Any columns, `TIME` among them.
    """
    ordered = rows.take(np.argsort(event_times(rows), kind="stable"))
    times = event_times(ordered).tolist()
    starts = range(0, len(ordered), _SLICE_ROWS)
    slices = [_encode_ipc(ordered.slice(start, _SLICE_ROWS)) for start in starts]
    names = [
        encode_time(times[start]) + hashlib.blake2b(packed, digest_size=POSITION_SIZE - 8).digest()
        for start, packed in zip(starts, slices, strict=True)
    ]
    state.put(space, [b""] * len(slices), names, slices)
    set_timers(state, [times[start] + 1 for start in starts], [space.encode()] * len(slices))


def release_rows(state: State, space: str, watermark: int) -> pa.Table | None:
    """Remove and return the rows whose `TIME` is below the watermark; None if there are none.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> hold_rows(state, "waiting", pa.table({"_hw_time": [7, 3, 5], "id": [1, 2, 3]}))
        >>> release_rows(state, "waiting", 6)["id"].to_pylist(), release_rows(state, "waiting", 7)
        ([2, 3], None)
        >>> release_rows(state, "waiting", 8)["id"].to_pylist(), len(list(state.entries("waiting", b"")))
        ([1], 0)
    """
    found = state.entries(space, b"", high=encode_time(watermark))
    if not found:
        return None
    state.put(space, [b""] * len(found), [name for name, _ in found], [None] * len(found))
    starts = decode_times([name for name, _ in found])
    delete_timers(state, (starts + 1).tolist(), [space.encode()] * len(found))
    rows = pa.concat_tables([pa.ipc.open_stream(packed).read_all() for _, packed in found])
    over = event_times(rows) < watermark
    if not over.all():
        hold_rows(state, space, rows.take(np.flatnonzero(~over)))
        rows = rows.take(np.flatnonzero(over))
    return rows


def _encode_ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
