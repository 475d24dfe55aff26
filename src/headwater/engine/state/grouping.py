"""Rows grouped by key and ordered by event time, vectorized over Arrow columns.

`group_by_key` finds the rows of each key. `encode_positions` encodes event positions as bytes that sort in order of
event time, partition and offset; `sort_by_event_time` sorts rows in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import (
    decode_int64,
    encode_int64,
    encode_keys,
    kinds_of,
    normalize_zeros,
    split_bytes,
)
from headwater.engine.state.state import OFFSET, PARTITION, TIME, TIMESTAMP

__all__ = [
    "POSITION_SCHEMA",
    "POSITION_SIZE",
    "Numbers",
    "RowsByKey",
    "decode_times",
    "encode_positions",
    "event_times",
    "group_by_key",
    "join_by_index",
    "python_values",
    "select_events",
    "sort_by_event_time",
    "to_int64",
    "with_position",
]

Numbers = np.ndarray[Any, Any]
POSITION_SCHEMA: Final = pa.schema([(TIME, pa.int64()), (PARTITION, pa.int64()), (OFFSET, pa.int64())])
"""The hidden columns of an event: its event time and its position in the topic."""
POSITION_SIZE: Final = 24
"""The bytes of an encoded position."""


@dataclass(frozen=True)
class RowsByKey:
    """Rows grouped by key; keys are in order of first appearance.

    Attributes:
        codes: For each row, the number of its key; -1 for a null key that `group_by_key` left out.
        key_columns: The key columns, with one row for each key.
    """

    codes: Numbers
    key_columns: pa.Table

    @cached_property
    def keys(self) -> list[bytes]:
        """Each key as bytes."""
        return encode_keys(self.key_columns.columns)

    @property
    def kinds(self) -> str:
        """The type letters of the key columns; see `kinds_of`."""
        return kinds_of(self.key_columns.columns)

    @cached_property
    def order(self) -> Numbers:
        """The rows sorted by key; rows of one key keep their order."""
        small = len(self.key_columns) <= 1 << 16
        # NumPy sorts 16-bit integers by radix sort, in linear time.
        return np.argsort(self.codes.astype(np.uint16) if small else self.codes, kind="stable")

    @cached_property
    def starts(self) -> Numbers:
        """The index in `order` at which the rows of each key begin, then the number of rows; no code may be -1."""
        counts = np.bincount(self.codes, minlength=len(self.key_columns))
        return np.concatenate(([0], np.cumsum(counts)))

    def row_keys(self, rows: Numbers | None = None) -> list[bytes]:
        """Returns the key of each row, or of the rows with these indexes; none of them may have the code -1."""
        keys, codes = self.keys, self.codes if rows is None else self.codes[rows]
        return [keys[code] for code in codes.tolist()]


def group_by_key(table: pa.Table, by: Sequence[str], *, nulls: bool = True) -> RowsByKey:
    """Group the rows of a table by some columns; equality is that of `encode_keys`.

    Args:
        table: The rows.
        by: The key columns.
        nulls: Whether null is a value like any other. If not, rows with a null in the key have no key, as in joins.

    Example:
        >>> table = pa.table({"k": ["b", "a", None, "b"]})
        >>> found = group_by_key(table, ["k"])
        >>> found.codes.tolist(), found.key_columns.to_pylist(), found.order.tolist(), found.starts.tolist()
        ([0, 1, 2, 0], [{'k': 'b'}, {'k': 'a'}, {'k': None}], [0, 3, 1, 2], [0, 2, 3, 4])
        >>> found = group_by_key(table, ["k"], nulls=False)
        >>> found.codes.tolist(), found.key_columns.to_pylist()
        ([0, 1, -1, 0], [{'k': 'b'}, {'k': 'a'}])
    """
    columns = [table.column(name) for name in by]
    codes = _column_codes(columns[0])
    for column in columns[1:]:
        more = _column_codes(column)
        # Renumbered after each column: products of three code ranges could exceed 64 bits.
        pairs = pa.array(codes * (int(more.max(initial=0)) + 1) + more)
        codes = pairs.dictionary_encode().indices.to_numpy().astype(np.int64)
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    # Rows are assigned from the last to the first, so the first row of each key remains.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    keys = table.select(list(by)).take(pa.array(first))
    if not nulls:
        null = np.zeros(len(keys), bool)
        for column in keys.columns:
            null |= column.is_null().to_numpy()
        if null.any():
            codes = np.where(null, -1, np.cumsum(~null) - 1)[codes]
            keys = keys.filter(pa.array(~null))
    return RowsByKey(codes, keys)


def _column_codes(column: pa.ChunkedArray) -> Numbers:
    """Returns a number for each row, the same where values are equal."""
    if pa.types.is_nested(column.type):
        column = pa.chunked_array([pa.array(encode_keys([column]), pa.binary())])
    if pa.types.is_floating(column.type):  # all NaN become one NaN
        column = pc.if_else(pc.is_nan(column), math.nan, normalize_zeros(column))
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    found: Numbers = codes.indices.to_numpy().astype(np.int64)
    return found


def python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Returns the values as Python objects, like `to_pylist`; numbers and times are converted in bulk.

    Example:
        >>> python_values(pa.array([1.5, 2.0])), python_values(pa.array([1, None]))
        ([1.5, 2.0], [1, None])
    """
    kind = column.type
    if not column.null_count and kind != pa.float16():
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return list(column.to_numpy().tolist())
        if kind == TIMESTAMP:
            naive = column.cast(pa.int64()).to_numpy().view("datetime64[us]").tolist()
            return [time.replace(tzinfo=UTC) for time in naive]
    return list(column.to_pylist())


def join_by_index(left: pa.Table, right: pa.Table, at: Numbers, schema: pa.Schema) -> pa.Table:
    """Returns each left row beside the right row with its index; nulls for the index -1.

    Example:
        >>> schema = pa.schema([("n", pa.int64()), ("name", pa.string())])
        >>> join_by_index(pa.table({"n": [1, 2]}), pa.table({"name": ["a"]}), np.array([0, -1]), schema).to_pylist()
        [{'n': 1, 'name': 'a'}, {'n': 2, 'name': None}]
    """
    indices = pa.array(at, mask=at < 0)
    columns = dict(zip(left.column_names, left.columns, strict=True))
    columns |= {name: right.column(name).take(indices) for name in right.column_names}
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def event_times(rows: pa.Table) -> Numbers:
    """Returns the event time of each row, in microseconds since 1970."""
    return to_int64(rows.column(TIME))


def to_int64(column: pa.ChunkedArray) -> Numbers:
    """Returns an integer column without nulls as an array.

    Example:
        >>> to_int64(pa.chunked_array([[1, 2], [3]])).tolist()
        [1, 2, 3]
    """
    found: Numbers = column.cast(pa.int64()).to_numpy()
    return found


def encode_positions(rows: pa.Table) -> list[bytes]:
    """Returns time, partition and offset of each row as bytes that sort in processing order.

    Example:
        >>> from headwater.engine.state.encoding import encode_time
        >>> rows = pa.table({"_hw_time": [5, 5], "_hw_partition": [0, 1], "_hw_offset": [9, 2]})
        >>> first, second = encode_positions(rows)
        >>> first < second, first[:8] == encode_time(5), decode_times([first, second]).tolist()
        (True, True, [5, 5])
    """
    wide = np.empty((len(rows), POSITION_SIZE), np.uint8)
    for number, name in enumerate(POSITION_SCHEMA.names):
        wide[:, 8 * number : 8 * number + 8] = encode_int64(to_int64(rows.column(name)))
    return split_bytes(wide.tobytes(), POSITION_SIZE)


def decode_times(positions: Sequence[bytes]) -> Numbers:
    """Returns the event times of encoded positions."""
    return decode_int64(np.frombuffer(b"".join(positions), np.uint8).reshape(-1, POSITION_SIZE)[:, :8])


def with_position(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with the hidden position columns appended.

    Example:
        >>> with_position(pa.schema([("id", pa.int64())])).names
        ['id', '_hw_time', '_hw_partition', '_hw_offset']
    """
    return pa.schema([*schema, *POSITION_SCHEMA])


def select_events(rows: pa.Table, events: pa.Schema) -> pa.Table:
    """Returns the event columns and the position of each row, in the types of the schema; drops other columns.

    Example:
        >>> rows = pa.table({"b": [1], "_hw_time": [5], "_hw_partition": [0], "_hw_offset": [7], "a": [2]})
        >>> select_events(rows, pa.schema([("a", pa.int32())])).column_names
        ['a', '_hw_time', '_hw_partition', '_hw_offset']
    """
    schema = with_position(events)
    return rows.select(schema.names).cast(schema)


def sort_by_event_time(table: pa.Table) -> pa.Table:
    """Sort rows by event time, partition and offset.

    Example:
        >>> rows = {TIME: [5, 5, 4], PARTITION: [1, 0, 1], OFFSET: [7, 8, 6]}
        >>> sort_by_event_time(pa.table(rows)).column(OFFSET).to_pylist()
        [6, 8, 7]
    """
    time = table.column(TIME).to_numpy()
    order = np.argsort(time, kind="stable")
    same = np.diff(time[order]) == 0
    if same.any():
        # Most times differ: only rows with equal times are compared by position.
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        positions = [table.column(name).to_numpy()[rows] for name in (OFFSET, PARTITION)]
        order[tied] = rows[np.lexsort((*positions, time[rows]))]
    return table.take(pa.array(order))
