"""Rows grouped by key and ordered by event time, vectorized over Arrow columns.

`group_by_key` finds the rows of each key. `encode_positions` encodes event positions as bytes that sort in order of
event time, partition and offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import RowCodec, encode_keys, kinds_of
from headwater.engine.state.state import OFFSET, PARTITION, TIME

__all__ = [
    "POSITION_SCHEMA",
    "POSITION_SIZE",
    "KeyCodes",
    "RowsByKey",
    "decode_rows",
    "decode_times",
    "encode_positions",
    "encode_rows",
    "encode_time",
    "encode_times",
    "event_times",
    "factorize_keys",
    "group_by_key",
    "join_by_index",
    "python_values",
    "select_and_cast",
    "to_int64",
    "with_position",
]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowsByKey:
    """Rows grouped by key; keys are in order of first appearance.

    Attributes:
        codes: Of each row, the number of its key.
        key_columns: The columns of the keys, one row for each key.
    """

    codes: Indices
    key_columns: pa.Table

    @cached_property
    def keys(self) -> list[bytes]:
        """Each key as bytes."""
        return encode_keys(self.key_columns.columns)

    @cached_property
    def order(self) -> Indices:
        """The rows sorted by key; rows of one key stay in their order."""
        small = len(self.key_columns) <= 1 << 16
        # Numbers of 16 bits are sorted in one pass over them.
        return np.argsort(self.codes.astype(np.uint16) if small else self.codes, kind="stable")

    @cached_property
    def starts(self) -> Indices:
        """Where the rows of each key begin in `order`, and where the last end."""
        counts = np.bincount(self.codes, minlength=len(self.key_columns))
        return np.concatenate(([0], np.cumsum(counts)))


def group_by_key(table: pa.Table, by: Sequence[str]) -> RowsByKey:
    """Group the rows of a table by some columns; equality is that of `encode_keys`.

    Example:
        >>> found = group_by_key(pa.table({"k": ["b", "a", None, "b"]}), ["k"])
        >>> found.codes.tolist(), found.key_columns.to_pylist(), found.order.tolist(), found.starts.tolist()
        ([0, 1, 2, 0], [{'k': 'b'}, {'k': 'a'}, {'k': None}], [0, 3, 1, 2], [0, 2, 3, 4])
    """
    columns = [table.column(name) for name in by]
    codes = _column_codes(columns[0])
    for column in columns[1:]:
        more = _column_codes(column)
        codes = _renumber(codes * (int(more.max(initial=0)) + 1) + more)
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    # Of several rows of one key the one that is set last stays: the first.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return RowsByKey(codes, table.select(list(by)).take(pa.array(first)))


def python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Returns the values as Python objects, like `to_pylist`; numbers and times are converted in bulk.

    Example:
        >>> python_values(pa.array([1.5, 2.0])), python_values(pa.array([1, None]))
        ([1.5, 2.0], [1, None])
    """
    kind = column.type
    if column.null_count or kind == pa.float16():
        return list(column.to_pylist())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return list(column.to_numpy().tolist())
    if kind == pa.timestamp("us", "UTC"):
        naive = column.cast(pa.int64()).to_numpy().view("datetime64[us]").tolist()
        return [time.replace(tzinfo=UTC) for time in naive]
    return list(column.to_pylist())


def _column_codes(column: pa.ChunkedArray) -> Indices:
    """Returns a number for each row, the same where values are equal."""
    kind = column.type
    if pa.types.is_nested(kind):
        column = pa.chunked_array([pa.array(encode_keys([column]), pa.binary())])
    if pa.types.is_floating(kind):
        # -0.0 becomes 0.0, and every NaN the same NaN.
        column = pc.if_else(pc.is_nan(column), math.nan, pc.add(column, pa.scalar(0.0, kind)))
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    found: Indices = codes.indices.to_numpy().astype(np.int64)
    return found


def _renumber(codes: Indices) -> Indices:
    """Returns the codes renumbered by order of appearance, without gaps."""
    found: Indices = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


Numbers = np.ndarray[Any, Any]
POSITION_SCHEMA: Final = pa.schema([(TIME, pa.int64()), (PARTITION, pa.int64()), (OFFSET, pa.int64())])
"""The hidden columns of an event: when it happened, and where it stands."""
POSITION_SIZE: Final = 24
"""How many bytes a place has."""
_EMPTY_ROW: Final = b"\x90"
_SIGN: Final = np.uint64(1 << 63)


@dataclass(frozen=True)
class KeyCodes:
    """The distinct keys of rows, and for each row the number of its key, -1 if a part of it is null.

    `kinds` is what the columns of the keys are, as `kinds_of` has it.
    """

    keys: list[bytes]
    codes: Numbers
    kinds: str = ""

    @property
    def row_keys(self) -> list[bytes]:
        """The key of each row; only where none is null."""
        return [self.keys[code] for code in self.codes.tolist()]


def factorize_keys(rows: pa.Table, columns: Sequence[str], *, nulls: bool = False) -> KeyCodes:
    """Returns the distinct keys of rows.

    Args:
        rows: The rows.
        columns: Those of the key.
        nulls: Whether a null is a value like others, as it is where rows are grouped, not joined.

    Example:
        >>> found = factorize_keys(pa.table({"id": [7, None, 8, 7]}), ["id"])
        >>> len(found.keys), found.codes.tolist()
        (2, [0, -1, 1, 0])
    """
    found = group_by_key(rows, columns)
    kinds = kinds_of(found.key_columns.columns)
    null = np.zeros(len(found.key_columns), bool)
    for column in [] if nulls else found.key_columns.columns:
        null |= column.is_null().to_numpy()
    if not null.any():
        return KeyCodes(found.keys, found.codes, kinds)
    codes = np.where(null, -1, np.cumsum(~null) - 1)
    keys = encode_keys(found.key_columns.filter(pa.array(~null)).columns)
    return KeyCodes(keys, codes[found.codes], kinds)


def encode_rows(schema: pa.Schema, rows: pa.Table) -> list[bytes]:
    r"""Returns each row as bytes, never empty; like `RowCodec`, but also for rows without columns.

    Example:
        >>> encode_rows(pa.schema([]), pa.table({"id": [7, 8]}))
        [b'\x90', b'\x90']
    """
    return RowCodec(schema).encode(rows) if schema.names else [_EMPTY_ROW] * len(rows)


def decode_rows(schema: pa.Schema, rows: Sequence[bytes]) -> pa.Table:
    """Decodes the bytes of `encode_rows`."""
    return RowCodec(schema).decode(rows)


def join_by_index(left: pa.Table, right: pa.Table, at: Numbers, schema: pa.Schema) -> pa.Table:
    """Returns rows beside the rows of another table with these indexes; nulls for -1.

    Example:
        >>> schema = pa.schema([("n", pa.int64()), ("name", pa.string())])
        >>> join_by_index(pa.table({"n": [1, 2]}), pa.table({"name": ["a"]}), np.array([0, -1]), schema).to_pylist()
        [{'n': 1, 'name': 'a'}, {'n': 2, 'name': None}]
    """
    where = pa.array(at, mask=at < 0)
    found = dict(zip(left.column_names, left.columns, strict=True))
    found |= {name: right.column(name).take(where) for name in right.column_names}
    return pa.Table.from_arrays([found[name] for name in schema.names], schema=schema)


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
        >>> rows = pa.table({"_hw_time": [5, 5], "_hw_partition": [0, 1], "_hw_offset": [9, 2]})
        >>> first, second = encode_positions(rows)
        >>> first < second, first[:8] == encode_time(5)
        (True, True)
    """
    wide = np.empty((len(rows), POSITION_SIZE), np.uint8)
    for number, name in enumerate(POSITION_SCHEMA.names):
        wide[:, 8 * number : 8 * number + 8] = _big_endian(to_int64(rows.column(name)))
    return _split_bytes(wide, POSITION_SIZE)


def encode_times(times: Numbers) -> list[bytes]:
    """Returns times as bytes that sort like times; each encoded position begins with them."""
    return _split_bytes(_big_endian(times), 8)


def encode_time(time: int) -> bytes:
    """Returns one time as bytes; a time out of range is clamped.

    Example:
        >>> encode_time(-1) < encode_time(0) < encode_time(1)
        True
    """
    return (min(max(time, -(1 << 63)), (1 << 63) - 1) + (1 << 63)).to_bytes(8, "big")


def decode_times(found: Sequence[bytes]) -> Numbers:
    """Returns the times of encoded positions.

    Example:
        >>> decode_times([encode_time(5) + bytes(16), encode_time(-7) + bytes(16)]).tolist()
        [5, -7]
    """
    wide = np.frombuffer(b"".join(found), np.uint8).reshape(-1, POSITION_SIZE)
    return (np.ascontiguousarray(wide[:, :8]).view(">u8").reshape(-1).astype(np.uint64) ^ _SIGN).view(np.int64)


def with_position(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with the hidden position columns appended.

    Example:
        >>> with_position(pa.schema([("id", pa.int64())])).names
        ['id', '_hw_time', '_hw_partition', '_hw_offset']
    """
    return pa.schema([*schema, *POSITION_SCHEMA])


def select_and_cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a schema, in its order and types; others are dropped.

    Example:
        >>> select_and_cast(pa.table({"b": [1], "a": [2]}), pa.schema([("a", pa.int32())])).to_pydict()
        {'a': [2]}
    """
    return rows.select(schema.names).cast(schema)


def _big_endian(values: Numbers) -> Numbers:
    turned = np.ascontiguousarray(values, np.int64).view(np.uint64) ^ _SIGN
    return turned.astype(">u8").view(np.uint8).reshape(-1, 8)


def _split_bytes(wide: Numbers, width: int) -> list[bytes]:
    text = wide.tobytes()
    return [text[at : at + width] for at in range(0, len(text), width)]
