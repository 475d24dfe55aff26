"""Versions of a table's rows → changes: what the row was, with weight -1, and what it is now, with weight +1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import DELETED, WEIGHT
from headwater.engine.keyed.rows import RowCodec
from headwater.engine.keyed.state import State
from headwater.engine.operators.scalars.evaluation import plain_schema
from headwater.engine.operators.tables.changes import changes, described

__all__ = ["Integrate"]

_ROWS = "rows"


@dataclass(frozen=True)
class Integrate:
    """Keeps the row of each primary key; a new version replaces it, a deletion takes it away.

    The last version in the order of arrival counts. A version equal to the row, and the deletion of a row that is not
    there, change nothing.

    Args:
        table: The table's name.
        rows: The columns that are used.
        key: The columns of its primary key, with their types.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
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
        return f"row of {self.table} ({described(self.rows)}) by {described(self.key)}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take versions; see `Operator`."""
        (versions,) = arrived
        if not len(versions):
            return self.schema.empty_table()
        everyone = encode_keys([versions.column(name).cast(kind) for name, kind in self._key_types()])
        last = {key: number for number, key in enumerate(everyone)}
        keys = list(last)
        present = versions.take(pa.array(last.values(), pa.int64()))
        plain = plain_schema(self.rows)
        rows = pa.Table.from_arrays([_column(present, field) for field in plain], schema=plain)
        gone = present.column(DELETED).to_pylist()
        after = [None if lost else row for lost, row in zip(gone, RowCodec(plain).encode(rows), strict=True)]
        before = state.values(_ROWS, keys)
        moved = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        state.put(_ROWS, [keys[number] for number in moved], None, [after[number] for number in moved])
        removed = RowCodec(plain).decode([row for number in moved if (row := before[number]) is not None])
        added = rows.take(pa.array([number for number in moved if after[number] is not None], pa.int64()))
        return changes([(removed, -1), (added, 1)], self.schema)

    def _key_types(self) -> list[tuple[str, pa.DataType]]:
        return [(field.name, field.type) for field in plain_schema(self.key)]


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """A column in its plain type; -0.0 is 0.0, so that equal rows have equal bytes."""
    column = rows.column(field.name).cast(field.type)
    return pc.add(column, pa.scalar(0.0, field.type)) if pa.types.is_floating(field.type) else column
