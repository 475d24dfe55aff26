"""Top-N per group over Z-set rows: all rows are kept in order, because a deleted row promotes the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from headwater.engine.state.encoding import RowCodec, encode_keys, kinds_of
from headwater.engine.state.state import WEIGHT, State
from headwater.engine.tables.evaluation import consolidate
from headwater.engine.tables.zset import build_zset, describe_columns
from headwater.pipelines.tables.relation import SortKey

__all__ = ["ZSetTop"]

_ROWS: Final = "rows"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(tuple[int, bytes]).decode
_INVERTED: Final = bytes(255 - byte for byte in range(256))
RankedRows = Counter[tuple[bytes, int]]
"""Rows that are shown, with their number; how often."""


@dataclass(frozen=True)
class ZSetTop:
    """Emits the first `count` rows of each group; the next row moves up when one of them is deleted.

    Rows that the order does not tell apart are in the order of their bytes, so that every run shows the same.

    Args:
        rows: The columns of the input that are in the result.
        per: The columns of the group.
        by: The order.
        count: How many rows of each group.
        rank: The name of the column with a row's number, if wanted.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> top = ZSetTop(pa.schema([("x", pa.int64())]), (), (SortKey("x", True, False),), 1)
        >>> state = MemoryState()
        >>> top.step(state, [pa.table({"x": [1, 5], WEIGHT: [1, 1]})], 0).to_pylist()
        [{'x': 5, '_hw_weight': 1}]
        >>> top.step(state, [pa.table({"x": [5], WEIGHT: [-1]})], 0).to_pylist()
        [{'x': 5, '_hw_weight': -1}, {'x': 1, '_hw_weight': 1}]
    """

    rows: pa.Schema
    per: tuple[str, ...]
    by: tuple[SortKey, ...]
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
            f"{by.column}{' desc' if by.descending else ''}{' nulls first' if by.nulls_first else ''}" for by in self.by
        )
        return f"rows ({describe_columns(self.rows)}) per ({', '.join(self.per)}) by {order}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes; see `Operator`."""
        names = dict.fromkeys([*self.rows.names, *self.per, *(by.column for by in self.by)])
        changed = consolidate(inputs[0].select([*names, WEIGHT]))
        if not len(changed):
            return self.schema.empty_table()
        keys = encode_keys([changed.column(name) for name in self.per]) if self.per else [b""] * len(changed)
        groups = list(dict.fromkeys(keys))
        moved = Counter[tuple[bytes, int]]()
        for key in groups:
            moved.subtract(self._top_rows(state, key))
        self._put(state, keys, changed)
        for key in groups:
            moved.update(self._top_rows(state, key))
        return self._build_changes([(row, number, weight) for (row, number), weight in moved.items() if weight])

    def _put(self, state: State, keys: list[bytes], changed: pa.Table) -> None:
        rows = RowCodec(self.rows).encode(changed)
        orders = zip(*(self._order_bytes(by, changed) for by in self.by), strict=True)
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

    def _order_bytes(self, by: SortKey, changed: pa.Table) -> list[bytes]:
        """Returns sort keys as bytes in the requested order, none a prefix of another in the same column."""
        plain = encode_keys([changed.column(by.column)])
        turned = [key.translate(_INVERTED) for key in plain] if by.descending else plain
        null = b"\x00" if by.nulls_first else b"\xff"
        return [null if key == b"\x00" else b"\x80" + name for key, name in zip(plain, turned, strict=True)]

    def _top_rows(self, state: State, key: bytes) -> RankedRows:
        shown: RankedRows = Counter()
        number = 0
        for _, value in state.entries(_ROWS, key, limit=self.count):
            weight, row = _DECODE(value)
            for _ in range(min(weight, self.count - number)):
                number += 1
                shown[row, number if self.rank else 0] += 1
        return shown

    def _build_changes(self, rows: list[tuple[bytes, int, int]]) -> pa.Table:
        found = RowCodec(self.rows).decode([row for row, _, _ in rows])
        if self.rank:
            found = found.append_column(self.rank, pa.array([number for _, number, _ in rows], pa.int32()))
        return build_zset([(found, [weight for _, _, weight in rows])], self.schema)
