"""Converts columns of a view to the values of SQLite and back, without loss.

| Arrow | SQLite |
|---|---|
| bool, integers | INTEGER |
| float | REAL; NaN is the text `NaN`, because SQLite has no such number |
| decimal | TEXT with all digits of the column's scale |
| string, binary | TEXT, BLOB |
| timestamp | TEXT such as `2026-01-01T00:00:00.000000Z`, which sorts as time does |
| date | TEXT such as `2026-01-01` |
| window `w` | two columns `w.start` and `w.end` |
| struct, list, map | TEXT as JSON (`headwater.store.columns`) |

Zero has no sign in SQLite: -0.0 is read back as 0.0, which equals it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadEventError
from headwater.events import integers_of
from headwater.store.columns import (
    TIMESTAMP,
    from_arrays,
    from_json,
    storage_columns,
    to_arrays,
    to_dates,
    to_json,
    to_timestamps,
)
from headwater.store.commit.commit import ViewTable

__all__ = ["column_type", "decode_columns", "decode_rows", "encode_columns"]

_MAX_INTEGER = 2**63 - 1


def column_type(kind: pa.DataType) -> str:
    """Returns the declared SQLite type."""
    return _codec(kind).sql_type


def encode_columns(table: ViewTable, rows: pa.Table) -> list[list[Any]]:
    """Returns the values for SQLite, column by column.

    Args:
        table: The view.
        rows: All columns of the view, or only those of its key.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999, or an integer does not fit into 64 bits with a sign.
    """
    return [_codec(slot.kind).encode(array, slot.name) for slot, array in to_arrays(table, rows)]


def decode_columns(table: ViewTable, columns: Sequence[Sequence[Any]]) -> pa.Table:
    """Returns the columns of a view from SQLite's values, in the order of `storage_columns`."""
    decoded = [
        _codec(slot.kind).decode(values, slot.kind)
        for slot, values in zip(storage_columns(table), columns, strict=True)
    ]
    return from_arrays(table, decoded)


def decode_rows(table: ViewTable, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Returns the rows of a view from rows of all stored columns."""
    return decode_columns(table, list(zip(*rows, strict=True)) if rows else [[] for _ in storage_columns(table)])


# -- one codec per kind of type -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ColumnCodec:
    sql_type: str
    encode: Callable[[pa.Array, str], list[Any]]
    decode: Callable[[Sequence[Any], pa.DataType], pa.Array]


def _encode_plain(array: pa.Array, _: str) -> Any:
    fast = array.type == pa.int64() and not array.null_count
    return integers_of(array).tolist() if fast else array.to_pylist()


def _encode_unsigned(array: pa.Array, name: str) -> Any:
    values = array.to_pylist()
    if any(value is not None and value > _MAX_INTEGER for value in values):
        what = f'column "{name}" holds a number above {_MAX_INTEGER}'
        detail = "SQLite has no larger integer; PostgreSQL stores it"
        raise BadEventError(what, detail=detail, fix="cast it to decimal(20,0)", field=name)
    return values


def _encode_float(array: pa.Array, _: str) -> Any:
    values = array.to_pylist()
    if pc.any(pc.is_nan(array), skip_nulls=True).as_py():
        return ["NaN" if value is not None and math.isnan(value) else value for value in values]
    return values


def _encode_decimal(array: pa.Array, _: str) -> Any:
    texts = array.cast(pa.string())
    if pc.any(pc.match_substring(texts, "E"), skip_nulls=True).as_py():  # Arrow writes 0.00000001 as 1E-8
        return [None if text is None else format(Decimal(text), "f") for text in texts.to_pylist()]
    return texts.to_pylist()


def _encode_timestamp(array: pa.Array, name: str) -> Any:
    plain = to_timestamps(array, name).cast(pa.string())
    return pc.binary_replace_slice(pc.binary_replace_slice(plain, 10, 11, "T"), 26, 26, "Z").to_pylist()


def _decode_float(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    plain = [float(value) if type(value) is str else value for value in values]
    return pa.array(plain, pa.float64()).cast(kind, safe=False)


def _decode_text(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).cast(kind)


_BOOL = _ColumnCodec(
    "INTEGER",
    lambda array, _: array.cast(pa.int8()).to_pylist(),
    lambda values, kind: pa.array(values, pa.int64()).cast(kind),
)
_DATE = _ColumnCodec("TEXT", lambda array, name: to_dates(array, name).cast(pa.string()).to_pylist(), _decode_text)
_TIMESTAMP = _ColumnCodec("TEXT", _encode_timestamp, lambda values, kind: _decode_text(values, TIMESTAMP).cast(kind))
_CODECS: tuple[tuple[Callable[[pa.DataType], bool], _ColumnCodec], ...] = (
    (pa.types.is_boolean, _BOOL),
    (pa.types.is_uint64, _ColumnCodec("INTEGER", _encode_unsigned, pa.array)),
    (pa.types.is_integer, _ColumnCodec("INTEGER", _encode_plain, pa.array)),
    (pa.types.is_floating, _ColumnCodec("REAL", _encode_float, _decode_float)),
    (pa.types.is_string, _ColumnCodec("TEXT", _encode_plain, pa.array)),
    (pa.types.is_large_string, _ColumnCodec("TEXT", _encode_plain, pa.array)),
    (pa.types.is_timestamp, _TIMESTAMP),
    (pa.types.is_decimal, _ColumnCodec("TEXT", _encode_decimal, _decode_text)),
    (pa.types.is_date, _DATE),
    (pa.types.is_binary, _ColumnCodec("BLOB", _encode_plain, pa.array)),
    (pa.types.is_large_binary, _ColumnCodec("BLOB", _encode_plain, pa.array)),
    (pa.types.is_null, _ColumnCodec("TEXT", _encode_plain, pa.array)),
    (pa.types.is_nested, _ColumnCodec("TEXT", lambda array, _: to_json(array), from_json)),
)


def _codec(kind: pa.DataType) -> _ColumnCodec:
    return next(codec for fits, codec in _CODECS if fits(kind))
