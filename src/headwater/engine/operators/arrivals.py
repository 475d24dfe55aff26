"""Rows that arrived, as operators take them: their keys once each, and their places in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.grouping import grouped as by_key
from headwater.engine.keyed.keys import encode_keys, kinds_of
from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME
from headwater.engine.keyed.rows import RowCodec

__all__ = [
    "ORDER",
    "PLACE",
    "Grouped",
    "beside",
    "decode_rows",
    "encode_rows",
    "fitted",
    "grouped",
    "mark",
    "marks",
    "numbers",
    "places",
    "times_at",
    "times_of",
    "with_order",
]

Numbers = np.ndarray[Any, Any]
ORDER: Final = pa.schema([(TIME, pa.int64()), (PARTITION, pa.int64()), (OFFSET, pa.int64())])
"""The hidden columns of an event: when it happened, and where it stands."""
PLACE: Final = 24
"""How many bytes a place has."""
_NOTHING: Final = b"\x90"
_SIGN: Final = np.uint64(1 << 63)


@dataclass(frozen=True)
class Grouped:
    """Keys of rows: each key once, and for each row the number of its key, -1 where a part of it is null.

    `kinds` is what the columns of the keys are, as `kinds_of` has it.
    """

    keys: list[bytes]
    codes: Numbers
    kinds: str = ""

    @property
    def of_rows(self) -> list[bytes]:
        """The key of each row; only where none is null."""
        return [self.keys[code] for code in self.codes.tolist()]


def grouped(rows: pa.Table, columns: Sequence[str], *, nulls: bool = False) -> Grouped:
    """The keys of rows, each once.

    Args:
        rows: The rows.
        columns: Those of the key.
        nulls: Whether a null is a value like others, as it is where rows are grouped, not joined.

    Example:
        >>> found = grouped(pa.table({"id": [7, None, 8, 7]}), ["id"])
        >>> len(found.keys), found.codes.tolist()
        (2, [0, -1, 1, 0])
    """
    found = by_key(rows, columns)
    kinds = kinds_of(found.columns.columns)
    null = np.zeros(len(found.columns), bool)
    for column in [] if nulls else found.columns.columns:
        null |= column.is_null().to_numpy()
    if not null.any():
        return Grouped(found.keys, found.at, kinds)
    numbers_ = np.where(null, -1, np.cumsum(~null) - 1)
    keys = encode_keys(found.columns.filter(pa.array(~null)).columns)
    return Grouped(keys, numbers_[found.at], kinds)


def encode_rows(schema: pa.Schema, rows: pa.Table) -> list[bytes]:
    r"""Each row as bytes, never none; `RowCodec`, and rows without columns.

    Example:
        >>> encode_rows(pa.schema([]), pa.table({"id": [7, 8]}))
        [b'\x90', b'\x90']
    """
    return RowCodec(schema).encode(rows) if schema.names else [_NOTHING] * len(rows)


def decode_rows(schema: pa.Schema, rows: Sequence[bytes]) -> pa.Table:
    """What `encode_rows` made bytes of."""
    return RowCodec(schema).decode(rows)


def beside(left: pa.Table, right: pa.Table, at: Numbers, schema: pa.Schema) -> pa.Table:
    """Rows with those rows of another table that `at` says beside them: nulls for -1.

    Example:
        >>> schema = pa.schema([("n", pa.int64()), ("name", pa.string())])
        >>> beside(pa.table({"n": [1, 2]}), pa.table({"name": ["a"]}), np.array([0, -1]), schema).to_pylist()
        [{'n': 1, 'name': 'a'}, {'n': 2, 'name': None}]
    """
    where = pa.array(at, mask=at < 0)
    found = dict(zip(left.column_names, left.columns, strict=True))
    found |= {name: right.column(name).take(where) for name in right.column_names}
    return pa.Table.from_arrays([found[name] for name in schema.names], schema=schema)


def times_of(rows: pa.Table) -> Numbers:
    """The time of each row, in microseconds since 1970."""
    return numbers(rows.column(TIME))


def numbers(column: pa.ChunkedArray) -> Numbers:
    """A column of whole numbers without nulls.

    Example:
        >>> numbers(pa.chunked_array([[1, 2], [3]])).tolist()
        [1, 2, 3]
    """
    found: Numbers = column.cast(pa.int64()).to_numpy()
    return found


def places(rows: pa.Table) -> list[bytes]:
    """Time, partition and offset of each row as bytes, in whose order rows are taken.

    Example:
        >>> first, second = places(pa.table({"_hw_time": [5, 5], "_hw_partition": [0, 1], "_hw_offset": [9, 2]}))
        >>> first < second, first[:8] == mark(5)
        (True, True)
    """
    wide = np.empty((len(rows), PLACE), np.uint8)
    for number, name in enumerate(ORDER.names):
        wide[:, 8 * number : 8 * number + 8] = _big_endian(numbers(rows.column(name)))
    return _cut(wide, PLACE)


def marks(times: Numbers) -> list[bytes]:
    """Times as bytes that are in the order of times: how each place begins."""
    return _cut(_big_endian(times), 8)


def mark(time: int) -> bytes:
    """One time as bytes; a time that no row can have is the nearest that one can.

    Example:
        >>> mark(-1) < mark(0) < mark(1)
        True
    """
    return (min(max(time, -(1 << 63)), (1 << 63) - 1) + (1 << 63)).to_bytes(8, "big")


def times_at(found: Sequence[bytes]) -> Numbers:
    """The times of places.

    Example:
        >>> times_at([mark(5) + bytes(16), mark(-7) + bytes(16)]).tolist()
        [5, -7]
    """
    wide = np.frombuffer(b"".join(found), np.uint8).reshape(-1, PLACE)
    return (np.ascontiguousarray(wide[:, :8]).view(">u8").reshape(-1).astype(np.uint64) ^ _SIGN).view(
        np.int64
    )


def with_order(schema: pa.Schema) -> pa.Schema:
    """A schema with the hidden columns of an event behind its own.

    Example:
        >>> with_order(pa.schema([("id", pa.int64())])).names
        ['id', '_hw_time', '_hw_partition', '_hw_offset']
    """
    return pa.schema([*schema, *ORDER])


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its order and of its types; others are left out.

    Example:
        >>> fitted(pa.table({"b": [1], "a": [2]}), pa.schema([("a", pa.int32())])).to_pydict()
        {'a': [2]}
    """
    return rows.select(schema.names).cast(schema)


def _big_endian(values: Numbers) -> Numbers:
    turned = np.ascontiguousarray(values, np.int64).view(np.uint64) ^ _SIGN
    return turned.astype(">u8").view(np.uint8).reshape(-1, 8)


def _cut(wide: Numbers, width: int) -> list[bytes]:
    text = wide.tobytes()
    return [text[at : at + width] for at in range(0, len(text), width)]
