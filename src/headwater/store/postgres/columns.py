"""Converts columns of a view to the values of PostgreSQL and back, without loss.

| Arrow | PostgreSQL |
|---|---|
| bool | boolean |
| integers | the smallest of smallint, integer and bigint that fits; uint64 is numeric(20) |
| float | real, double precision |
| decimal(p, s) | numeric(p, s) |
| string, binary | text, in the order of its bytes; bytea |
| timestamp, date | timestamptz, date |
| window `w` | two columns `w.start` and `w.end` |
| struct, list, map | jsonb (`headwater.store.columns`) |

Rows are sent as CSV, which Arrow writes and reads in C++ and COPY accepts. -0.0 is stored as 0.0, which equals it.
"""

from __future__ import annotations

import io
from base64 import b16decode, b16encode
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

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

__all__ = ["column_type", "decode_rows", "from_csv", "key_literals", "stored_type", "to_csv", "to_csv_columns"]

_INTEGERS = {"int8": "smallint", "uint8": "smallint", "int16": "smallint", "uint16": "integer", "int32": "integer"}
_INTEGERS |= {"uint32": "bigint", "int64": "bigint", "uint64": "numeric(20,0)"}


def column_type(kind: pa.DataType) -> str:
    """Returns the PostgreSQL type, spelled as the server reports it.

    Example:
        >>> column_type(pa.decimal128(12, 2)), column_type(pa.list_(pa.string())), column_type(pa.int32())
        ('numeric(12,2)', 'jsonb', 'integer')
    """
    if pa.types.is_integer(kind):
        return _INTEGERS[str(kind)]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_floating(kind):
        return "double precision" if kind == pa.float64() else "real"
    return next(name for fits, name in _TYPE_NAMES if fits(kind))


def stored_type(kind: pa.DataType) -> str:
    """Returns the PostgreSQL type for CREATE TABLE, in which text compares by bytes."""
    found = column_type(kind)
    return f'{found} COLLATE "C"' if found == "text" else found


_TYPE_NAMES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_timestamp, "timestamp with time zone"),
    (pa.types.is_date, "date"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_nested, "jsonb"),
    (lambda _: True, "text"),
)


# -- to PostgreSQL -------------------------------------------------------------------------------------------------


def to_csv_columns(table: ViewTable, rows: pa.Table) -> list[pa.Array]:
    """Returns the stored columns of these rows in types that Arrow can write as CSV.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999.
    """
    return [_to_csv_column(slot.kind, array, slot.name) for slot, array in to_arrays(table, rows)]


def _to_csv_column(kind: pa.DataType, array: pa.Array, name: str) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return to_timestamps(array, name)
    if pa.types.is_date(kind):
        return to_dates(array, name)
    if pa.types.is_floating(kind):
        wide = array.cast(pa.float32()) if kind == pa.float16() else array
        return pc.add(wide, pa.scalar(0, wide.type))  # -0.0 and 0.0 are one key
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([v if v is None else "\\x" + b16encode(v).decode() for v in array.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pa.array(to_json(array), pa.string())
    return array


def to_csv(columns: Sequence[pa.Array]) -> memoryview:
    """Returns columns as CSV: a null is an empty field, every text has quotes."""
    sink = pa.BufferOutputStream()
    rows = pa.Table.from_arrays(list(columns), names=[str(number) for number in range(len(columns))])
    csv.write_csv(rows, sink, csv.WriteOptions(include_header=False))
    return memoryview(sink.getvalue())


def key_literals(table: ViewTable, row: pa.Table) -> list[str | None]:
    """Returns the values of one row as PostgreSQL literals, one per stored column."""
    return [column.cast(pa.string())[0].as_py() for column in to_csv_columns(table, row)]


# -- from PostgreSQL -----------------------------------------------------------------------------------------------


def from_csv(data: bytes | bytearray, kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """Returns the columns of CSV that PostgreSQL wrote."""
    names = [str(number) for number in range(len(kinds))]
    if not data:
        return [pa.array([], kind) for kind in kinds]
    found = csv.read_csv(
        io.BytesIO(data),
        # One block for all, up to Arrow's limit, because a row must not cross the end of a block.
        csv.ReadOptions(column_names=names, use_threads=False, block_size=min(len(data) + 1, 1 << 30)),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types={name: _csv_type(kind) for name, kind in zip(names, kinds, strict=True)},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    columns = (column.combine_chunks() for column in found.columns)
    return [_cast_column(column, kind) for column, kind in zip(columns, kinds, strict=True)]


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type that Arrow's CSV reader can produce for a column, or text."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal128(kind)
    return kind if plain or kind in (pa.float32(), pa.float64(), pa.date32()) else pa.string()


def _cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        return from_json(column.to_pylist(), kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([v if v is None else b16decode(v[2:], casefold=True) for v in column.to_pylist()], kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(column))
    if kind == pa.float16():
        return column.cast(pa.float32()).cast(kind)
    return column if column.type == kind else column.cast(kind)


def decode_rows(table: ViewTable, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Returns the rows of a view from rows of a query result, at least one, with all stored columns."""
    columns = zip(storage_columns(table), zip(*rows, strict=True), strict=True)
    return from_arrays(table, [_from_values(values, column.kind) for column, values in columns])


def _from_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Returns a column from the values of a query result, in which times, decimals and nested values are text."""
    if pa.types.is_nested(kind):
        return from_json(values, kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(TIMESTAMP).cast(kind)
    if pa.types.is_decimal(kind) or pa.types.is_date(kind) or kind == pa.uint64():
        return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
    if pa.types.is_floating(kind):
        return pa.array(values, pa.float64()).cast(kind, safe=False)
    return pa.array(values, kind)
