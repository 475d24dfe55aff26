"""Converts versions of a table's rows to Z-set rows, and keeps distinct rows.

`Integrate` emits the previous row with weight -1 and the new row with weight +1. `ZSetDistinct` emits each row once and
keeps the multiplicity of every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import RowCodec, encode_keys
from headwater.engine.state.state import DELETED, WEIGHT, State
from headwater.engine.tables.evaluation import consolidate, plain_schema
from headwater.engine.tables.zset import build_zset, decode_weight, describe_columns, encode_weight

__all__ = ["Integrate", "ZSetDistinct"]

_ROWS = "rows"


@dataclass(frozen=True)
class ZSetDistinct:
    """Emits a row with its first copy, and retracts it with its last.

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
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """All columns."""
        return (tuple(self.rows.names),)

    @property
    def schema(self) -> pa.Schema:
        """The columns and the weight."""
        return self.rows.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """What is kept for each row."""
        return f"number of copies of ({describe_columns(self.rows)})"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes; see `Operator`."""
        changed = consolidate(inputs[0].select(self.schema.names))
        if not len(changed):
            return self.schema.empty_table()
        keys = encode_keys([changed.column(name) for name in self.rows.names])
        before = [decode_weight(value) for value in state.values(_ROWS, keys)]
        after = [old + more for old, more in zip(before, changed.column(WEIGHT).to_pylist(), strict=True)]
        state.put(_ROWS, keys, None, [encode_weight(weight) for weight in after])
        turned = [bool(new) - bool(old) for old, new in zip(before, after, strict=True)]
        places = [number for number, weight in enumerate(turned) if weight]
        rows = changed.select(self.rows.names).take(pa.array(places, pa.int64()))
        return build_zset([(rows, [turned[number] for number in places])], self.schema)


@dataclass(frozen=True)
class Integrate:
    """Stores the row of each primary key; a new version replaces it, a deletion removes it.

    The last version in the order of arrival counts. A version equal to the row, and the deletion of a row that is not
    there, change nothing.

    Args:
        table: The table's name.
        rows: The columns that are used.
        key: The columns of its primary key, with their types.

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
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the primary key."""
        return (tuple(self.key.names),)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are used, and the weight."""
        return plain_schema(self.rows).append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """What is kept for each primary key."""
        return f"row of {self.table} ({describe_columns(self.rows)}) by {describe_columns(self.key)}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process versions; see `Operator`."""
        (versions,) = inputs
        if not len(versions):
            return self.schema.empty_table()
        everyone = encode_keys([versions.column(name).cast(kind) for name, kind in self._key_types()])
        last = {key: number for number, key in enumerate(everyone)}
        keys = list(last)
        present = versions.take(pa.array(last.values(), pa.int64()))
        plain = plain_schema(self.rows)
        rows = pa.Table.from_arrays([_plain_column(present, field) for field in plain], schema=plain)
        gone = present.column(DELETED).to_pylist()
        after = [None if lost else row for lost, row in zip(gone, RowCodec(plain).encode(rows), strict=True)]
        before = state.values(_ROWS, keys)
        moved = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        state.put(_ROWS, [keys[number] for number in moved], None, [after[number] for number in moved])
        removed = RowCodec(plain).decode([row for number in moved if (row := before[number]) is not None])
        added = rows.take(pa.array([number for number in moved if after[number] is not None], pa.int64()))
        return build_zset([(removed, -1), (added, 1)], self.schema)

    def _key_types(self) -> list[tuple[str, pa.DataType]]:
        return [(field.name, field.type) for field in plain_schema(self.key)]


def _plain_column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """Returns a column in its plain type; -0.0 is 0.0, so that equal rows have equal bytes."""
    column = rows.column(field.name).cast(field.type)
    return pc.add(column, pa.scalar(0.0, field.type)) if pa.types.is_floating(field.type) else column
