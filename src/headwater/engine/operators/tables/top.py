"""The first rows of each group in an order, while rows come and go: all rows are kept, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from headwater.engine.keyed.keys import encode_keys, kinds_of
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.rows import RowCodec
from headwater.engine.keyed.state import State
from headwater.engine.operators.scalars.evaluation import net
from headwater.engine.operators.tables.changes import changes, described
from headwater.pipelines.tables.relation import Order

__all__ = ["Top"]

_ROWS: Final = "rows"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(tuple[int, bytes]).decode
_TURNED: Final = bytes(255 - byte for byte in range(256))
Ranked = Counter[tuple[bytes, int]]
"""Rows that are shown, with their number; how often."""


@dataclass(frozen=True)
class Top:
    """The first `count` rows of each group; the next one moves up when one of them goes.

    Rows that the order does not tell apart are in the order of their bytes, so that every run shows the same.

    Args:
        rows: The columns of the input that are in the result.
        per: The columns of the group.
        by: The order.
        count: How many rows of each group.
        rank: The name of the column with a row's number, if wanted.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> top = Top(pa.schema([("x", pa.int64())]), (), (Order("x", True, False),), 1)
        >>> state = MemoryState()
        >>> top.step(state, [pa.table({"x": [1, 5], WEIGHT: [1, 1]})], 0).to_pylist()
        [{'x': 5, '_hw_weight': 1}]
        >>> top.step(state, [pa.table({"x": [5], WEIGHT: [-1]})], 0).to_pylist()
        [{'x': 5, '_hw_weight': -1}, {'x': 1, '_hw_weight': 1}]
    """

    rows: pa.Schema
    per: tuple[str, ...]
    by: tuple[Order, ...]
    count: int
    rank: str | None = None

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the group."""
        return (self.per,)

    @property
    def schema(self) -> pa.Schema:
        """The columns, the rank if wanted, and the weight."""
        ranks = [pa.field(self.rank, pa.int32())] if self.rank else []
        return pa.schema([*self.rows, *ranks, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """What is kept for each group."""
        order = ", ".join(
            f"{by.column}{' desc' if by.descending else ''}{' nulls first' if by.nulls_first else ''}"
            for by in self.by
        )
        return f"rows ({described(self.rows)}) per ({', '.join(self.per)}) by {order}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take changes; see `Operator`."""
        names = dict.fromkeys([*self.rows.names, *self.per, *(by.column for by in self.by)])
        changed = net(arrived[0].select([*names, WEIGHT]))
        if not len(changed):
            return self.schema.empty_table()
        keys = encode_keys([changed.column(name) for name in self.per]) if self.per else [b""] * len(changed)
        groups = list(dict.fromkeys(keys))
        moved = Counter[tuple[bytes, int]]()
        for key in groups:
            moved.subtract(self._first(state, key))
        self._put(state, keys, changed)
        for key in groups:
            moved.update(self._first(state, key))
        return self._shown([(row, number, weight) for (row, number), weight in moved.items() if weight])

    def _put(self, state: State, keys: list[bytes], changed: pa.Table) -> None:
        rows = RowCodec(self.rows).encode(changed)
        orders = zip(*(self._order(by, changed) for by in self.by), strict=True)
        names = [b"".join(order) + row for order, row in zip(orders, rows, strict=True)]
        added: dict[tuple[bytes, bytes], tuple[int, bytes]] = {}
        for key, name, row, weight in zip(keys, names, rows, changed.column(WEIGHT).to_pylist(), strict=True):
            added[key, name] = (added.get((key, name), (0, b""))[0] + weight, row)
        places, below = [key for key, _ in added], [name for _, name in added]
        after: list[bytes | None] = []
        for value, (more, row) in zip(state.values(_ROWS, places, below), added.values(), strict=True):
            weight = (_DECODE(value)[0] if value is not None else 0) + more
            after.append(_ENCODE((weight, row)) if weight else None)
        state.put(_ROWS, places, below, after, kinds=kinds_of([changed.column(name) for name in self.per]))

    def _order(self, by: Order, changed: pa.Table) -> list[bytes]:
        """Bytes in the order asked for, none of which begins another of the same column."""
        plain = encode_keys([changed.column(by.column)])
        turned = [key.translate(_TURNED) for key in plain] if by.descending else plain
        null = b"\x00" if by.nulls_first else b"\xff"
        return [null if key == b"\x00" else b"\x80" + name for key, name in zip(plain, turned, strict=True)]

    def _first(self, state: State, key: bytes) -> Ranked:
        shown: Ranked = Counter()
        number = 0
        for _, value in state.entries(_ROWS, key, most=self.count):
            weight, row = _DECODE(value)
            for _ in range(min(weight, self.count - number)):
                number += 1
                shown[row, number if self.rank else 0] += 1
        return shown

    def _shown(self, rows: list[tuple[bytes, int, int]]) -> pa.Table:
        found = RowCodec(self.rows).decode([row for row, _, _ in rows])
        if self.rank:
            found = found.append_column(self.rank, pa.array([number for _, number, _ in rows], pa.int32()))
        return changes([(found, [weight for _, _, weight in rows])], self.schema)
