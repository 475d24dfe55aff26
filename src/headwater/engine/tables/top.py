"""Top-N per group over Z-set rows: all rows are stored in order, because a deleted row promotes the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from headwater.engine.state.encoding import decode_rows, encode_keys, encode_rows, kinds_of
from headwater.engine.state.state import WEIGHT, State, describe_columns
from headwater.engine.tables.evaluation import consolidate
from headwater.engine.tables.zset import build_zset
from headwater.pipelines.tables.relation import SortKey

__all__ = ["ZSetTop"]

_ROWS: Final = "rows"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(tuple[int, bytes]).decode
_INVERTED: Final = bytes(255 - byte for byte in range(256))
RankedRows = Counter[tuple[bytes, int]]
"""The first rows of a group with their rank (0 if the result has no rank), and the number of copies of each."""


@dataclass(frozen=True)
class ZSetTop:
    """Emits the first `count` rows of each group; the next row moves up when one of them is deleted.

    Rows that are equal in the order are sorted by their encoded bytes, so that every run gives the same result.

    Args:
        rows: The columns of the input that are in the result.
        per: The group columns.
        by: The order.
        count: The maximum rows of each group.
        rank: The name of the column with the rank of a row; None for no such column.

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
    def schema(self) -> pa.Schema:
        """The columns, the rank if requested, and the weight."""
        ranks = [pa.field(self.rank, pa.int32())] if self.rank else []
        return pa.schema([*self.rows, *ranks, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """The description of its state: all rows of each group, in order."""
        order = ", ".join(
            f"{by.column}{' desc' if by.descending else ''}{' nulls first' if by.nulls_first else ''}" for by in self.by
        )
        return f"rows ({describe_columns(self.rows)}) per ({', '.join(self.per)}) by {order}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes; see `StatefulStep`."""
        names = dict.fromkeys([*self.rows.names, *self.per, *(by.column for by in self.by)])
        changed = consolidate(inputs[0].select([*names, WEIGHT]))
        if not len(changed):
            return self.schema.empty_table()
        keys = encode_keys([changed.column(name) for name in self.per]) if self.per else [b""] * len(changed)
        groups = list(dict.fromkeys(keys))
        # The difference of the first rows before and after: rows that stay cancel out.
        moved: RankedRows = Counter()
        for key in groups:
            moved.subtract(self._top_rows(state, key))
        self._put(state, keys, changed)
        for key in groups:
            moved.update(self._top_rows(state, key))
        changes = [(row, rank, weight) for (row, rank), weight in moved.items() if weight]
        rows = decode_rows(self.rows, [row for row, _, _ in changes])
        if self.rank:
            rows = rows.append_column(self.rank, pa.array([rank for _, rank, _ in changes], pa.int32()))
        return build_zset([(rows, [weight for _, _, weight in changes])], self.schema)

    def _put(self, state: State, keys: list[bytes], changed: pa.Table) -> None:
        """Add the changes to the state; an entry is named by its order and its row."""
        rows = encode_rows(self.rows, changed)
        orders = zip(*(self._order_bytes(by, changed) for by in self.by), strict=True)
        names = [b"".join(order) + row for order, row in zip(orders, rows, strict=True)]
        added: dict[tuple[bytes, bytes], tuple[int, bytes]] = {}
        for key, name, row, weight in zip(keys, names, rows, changed.column(WEIGHT).to_pylist(), strict=True):
            added[key, name] = (added.get((key, name), (0, b""))[0] + weight, row)
        groups, names = [key for key, _ in added], [name for _, name in added]
        after: list[bytes | None] = []
        for value, (more, row) in zip(state.values(_ROWS, groups, names), added.values(), strict=True):
            weight = (_DECODE(value)[0] if value is not None else 0) + more
            after.append(_ENCODE((weight, row)) if weight else None)
        state.put(_ROWS, groups, names, after, kinds=kinds_of([changed.column(name) for name in self.per]))

    def _order_bytes(self, by: SortKey, changed: pa.Table) -> list[bytes]:
        """Returns sort keys as bytes in the requested order; none is a prefix of another, so they can be joined."""
        keys = encode_keys([changed.column(by.column)])
        ordered = [key.translate(_INVERTED) for key in keys] if by.descending else keys
        null = b"\x00" if by.nulls_first else b"\xff"
        return [null if key == b"\x00" else b"\x80" + order for key, order in zip(keys, ordered, strict=True)]

    def _top_rows(self, state: State, key: bytes) -> RankedRows:
        top: RankedRows = Counter()
        rank = 0
        # An entry stands for one row or more, so `count` entries are enough.
        for _, value in state.entries(_ROWS, key, limit=self.count):
            weight, row = _DECODE(value)
            for _ in range(min(weight, self.count - rank)):
                rank += 1
                top[row, rank if self.rank else 0] += 1
        return top
