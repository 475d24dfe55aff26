"""Events held back until their time is complete: the operator behind sees them in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.due import due, remind
from headwater.engine.keyed.keys import encode_keys, kinds_of
from headwater.engine.keyed.operator import TIME, Operator
from headwater.engine.keyed.packing import in_order
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    decode_rows,
    encode_rows,
    mark,
    places,
    times_of,
    with_order,
)
from headwater.events import to_ddl

__all__ = ["Held"]

_SPACE: Final = "held"
_OURS: Final = b"\x02held:"
"""How names of our deadlines begin; those of the operator behind begin otherwise."""


@dataclass(frozen=True)
class Held:
    """Gives events to an operator when the watermark has passed them, in the order of time, partition and offset.

    Whatever the batches, the operator sees the events of a key in one order. The price is that rows come as much later
    as the watermark is behind.

    Args:
        operator: An operator with one input, whose deadlines have names that do not begin as ours do.
        events: The columns of its input, without hidden ones.

    Example:
        >>> from headwater.engine.keyed.operator import OFFSET, PARTITION
        >>> from headwater.engine.keyed.state import MemoryState
        >>> from headwater.engine.operators.own.stateful import Stateful
        >>> def seen(key, events, state):
        ...     return None, [{"n": event["n"]} for event in events]
        >>> columns = pa.schema([("k", pa.string()), ("n", pa.int64())])
        >>> operator = Held(Stateful(columns, by=["k"], fn=seen, returns="n bigint"), columns)
        >>> place = {TIME: [20, 10], PARTITION: [0, 0], OFFSET: [0, 1]}
        >>> state, nothing = MemoryState(), with_order(columns).empty_table()
        >>> operator.step(state, [pa.table({"k": ["a", "a"], "n": [2, 1], **place})], watermark=11).to_pylist()
        [{'n': 1}]
        >>> operator.step(state, [nothing], watermark=21).to_pylist()
        [{'n': 2}]
    """

    operator: Operator
    events: pa.Schema

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Those of the operator."""
        return self.operator.keys

    @property
    def schema(self) -> pa.Schema:
        """That of the operator."""
        return self.operator.schema

    @property
    def form(self) -> str:
        """The columns of the events that are held, and what the operator's state looks like."""
        return f"events of {to_ddl(self.events)} until they are complete; {self.operator.form}"

    @cached_property
    def _rows(self) -> pa.Schema:
        return with_order(self.events)

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Give on what is complete, and keep the rest."""
        events = arrived[0].select(self._rows.names).cast(self._rows)
        complete = pc.less(events.column(TIME), watermark)
        self._hold(state, events.filter(pc.invert(complete)))
        now = pa.concat_tables([events.filter(complete), self._released(state, watermark)])
        return self.operator.step(state, [in_order(now)], watermark)

    def _hold(self, state: State, events: pa.Table) -> None:
        if not events.num_rows:
            return
        columns = [events.column(name) for name in self.keys[0]]
        keys, rows = encode_keys(columns), encode_rows(self._rows, events)
        state.put(_SPACE, keys, places(events), rows, kinds=kinds_of(columns))
        remind(state, (times_of(events) + 1).tolist(), [_OURS + key for key in keys])

    def _released(self, state: State, watermark: int) -> pa.Table:
        found = due(state, watermark)
        others = [(time, name) for time, name in found if not name.startswith(_OURS)]
        remind(state, [time for time, _ in others], [name for _, name in others])
        keys = {name[len(_OURS) :] for _, name in found if name.startswith(_OURS)}
        state.load(_SPACE, keys)
        rows = [
            (key, *row) for key in sorted(keys) for row in state.entries(_SPACE, key, high=mark(watermark))
        ]
        state.put(_SPACE, [key for key, _, _ in rows], [name for _, name, _ in rows], [None] * len(rows))
        return decode_rows(self._rows, [row for _, _, row in rows])
