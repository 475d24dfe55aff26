"""Converts versions of a table's rows to Z-set rows, and computes distinct rows.

`Integrate` emits the previous row with weight -1 and the new row with weight +1. `ZSetDistinct` emits each row once,
and stores the number of its copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.engine.state.encoding import decode_rows, encode_keys, encode_rows, normalize_zeros
from headwater.engine.state.state import DELETED, WEIGHT, State, describe_columns
from headwater.engine.tables.evaluation import consolidate, plain_schema
from headwater.engine.tables.zset import add_weights, build_zset

__all__ = ["Integrate", "ZSetDistinct"]

_ROWS = "rows"


@dataclass(frozen=True)
class ZSetDistinct:
    """Emits a row when its first copy arrives, and retracts it when its last copy is removed.

    Args:
        rows: The columns.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> distinct, state = ZSetDistinct(pa.schema([("x", pa.int64())])), MemoryState()
        >>> distinct.step(state, [pa.table({"x": [1, 1, 2], WEIGHT: [1, 1, 1]})], 0).num_rows
        2
        >>> distinct.step(state, [pa.table({"x": [1, 2], WEIGHT: [-1, -1]})], 0).to_pylist()
        [{'x': 2, '_hw_weight': -1}]
    """

    rows: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """The columns and the weight."""
        return self.rows.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """The description of its state: the number of copies of each row."""
        return f"number of copies of ({describe_columns(self.rows)})"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes; see `StatefulStep`."""
        changed = consolidate(inputs[0].select(self.schema.names))
        if not len(changed):
            return self.schema.empty_table()
        keys = encode_keys([changed.column(name) for name in self.rows.names])
        sums = add_weights(state, _ROWS, keys, None, changed.column(WEIGHT).to_pylist())
        moves = [bool(new) - bool(old) for old, new in sums]
        rows = changed.select(self.rows.names).filter(pa.array(map(bool, moves), pa.bool_()))
        return build_zset([(rows, list(filter(None, moves)))], self.schema)


@dataclass(frozen=True)
class Integrate:
    """Stores the row of each primary key; a new version replaces it, a deletion removes it.

    Among versions of one key the last in order of arrival counts. A version equal to the stored row, and the deletion
    of a missing row, change nothing.

    Args:
        table: The table's name.
        rows: The columns that the query uses.
        key: The columns of the primary key.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> posts = Integrate("posts", pa.schema([("likes", pa.int64())]), pa.schema([("id", pa.int64())]))
        >>> state = MemoryState()
        >>> first = pa.table({"id": [1, 1], "likes": [5, 6], DELETED: [False, False]})
        >>> posts.step(state, [first], 0).to_pylist()
        [{'likes': 6, '_hw_weight': 1}]
        >>> posts.step(state, [pa.table({"id": [1], "likes": [None], DELETED: [True]})], 0).to_pylist()
        [{'likes': 6, '_hw_weight': -1}]
    """

    table: str
    rows: pa.Schema
    key: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """The columns that the query uses, and the weight."""
        return plain_schema(self.rows).append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """The description of its state: the row of each primary key."""
        return f"row of {self.table} ({describe_columns(self.rows)}) by {describe_columns(self.key)}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process versions; see `StatefulStep`."""
        (versions,) = inputs
        if not len(versions):
            return self.schema.empty_table()
        key_columns = [versions.column(field.name).cast(field.type) for field in plain_schema(self.key)]
        last = {key: number for number, key in enumerate(encode_keys(key_columns))}
        keys = list(last)
        versions = versions.take(pa.array(last.values(), pa.int64()))
        plain = plain_schema(self.rows)
        columns = [normalize_zeros(versions.column(field.name).cast(field.type)) for field in plain]
        rows = pa.Table.from_arrays(columns, schema=plain)
        encoded = zip(versions.column(DELETED).to_pylist(), encode_rows(plain, rows), strict=True)
        after = [None if deleted else row for deleted, row in encoded]
        before = state.values(_ROWS, keys)
        changed = [number for number, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        state.put(_ROWS, [keys[number] for number in changed], None, [after[number] for number in changed])
        removed = decode_rows(plain, [row for number in changed if (row := before[number]) is not None])
        added = rows.take(pa.array([number for number in changed if after[number] is not None], pa.int64()))
        return build_zset([(removed, -1), (added, 1)], self.schema)
