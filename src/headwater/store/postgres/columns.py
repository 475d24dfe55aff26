"""Columns of a view as PostgreSQL keeps them, both ways and without loss: the only place that converts.

| Arrow | PostgreSQL |
|---|---|
| bool | boolean |
| integers | smallint, integer or bigint, as wide as is needed; uint64 is numeric(20) |
| float | real, double precision |
| decimal(p, s) | numeric(p, s) |
| string, binary | text, in the order of its bytes; bytea |
| timestamp, date | timestamptz, date |
| window `w` | two columns `w.start` and `w.end` |
| struct, list, map | jsonb (nested.py) |

Rows travel as CSV, which Arrow writes and reads in C++ and COPY takes. -0.0 is kept as 0.0, which equals it.
"""

from __future__ import annotations

import io
from base64 import b16decode, b16encode
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headwater.store.definition import ViewTable
from headwater.store.nested import from_json, to_json
from headwater.store.slots import MOMENT, days_of, moments_of, to_arrays

__all__ = ["arrays_of", "csv_of", "declared", "from_values", "key_texts", "written"]

_INTEGERS = {
    "int8": "smallint",
    "uint8": "smallint",
    "int16": "smallint",
    "uint16": "integer",
    "int32": "integer",
}
_INTEGERS |= {"uint32": "bigint", "int64": "bigint", "uint64": "numeric(20)"}


def declared(kind: pa.DataType) -> str:
    """The type PostgreSQL is told, in the words in which it tells it back.

    Example:
        >>> declared(pa.decimal128(12, 2)), declared(pa.list_(pa.string())), declared(pa.int32())
        ('numeric(12,2)', 'jsonb', 'integer')
    """
    if pa.types.is_integer(kind):
        return _INTEGERS[str(kind)].replace("(20)", "(20,0)")
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_floating(kind):
        return "double precision" if kind == pa.float64() else "real"
    return next(name for fits, name in _NAMES if fits(kind))


_NAMES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_timestamp, "timestamp with time zone"),
    (pa.types.is_date, "date"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_nested, "jsonb"),
    (lambda _: True, "text"),
)


# -- there ---------------------------------------------------------------------------------------------------------


def written(table: ViewTable, rows: pa.Table) -> list[pa.Array]:
    """The columns of these rows as Arrow can write them in CSV, slot by slot.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999.
    """
    return [_written(slot.kind, array, slot.name) for slot, array in to_arrays(table, rows)]


def _written(kind: pa.DataType, array: pa.Array, name: str) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return moments_of(array, name)
    if pa.types.is_date(kind):
        return days_of(array, name)
    if pa.types.is_floating(kind):
        wide = array.cast(pa.float32()) if kind == pa.float16() else array
        return pc.add(wide, pa.scalar(0, wide.type))  # -0.0 and 0.0 are one key
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(
            [v if v is None else "\\x" + b16encode(v).decode() for v in array.to_pylist()], pa.string()
        )
    if pa.types.is_nested(kind):
        return pa.array(to_json(array), pa.string())
    return array


def csv_of(columns: Sequence[pa.Array]) -> memoryview:
    """Columns as CSV: nothing for a null, quotes around every text."""
    sink = pa.BufferOutputStream()
    rows = pa.Table.from_arrays(list(columns), names=[str(number) for number in range(len(columns))])
    csv.write_csv(rows, sink, csv.WriteOptions(include_header=False))
    return memoryview(sink.getvalue())


def key_texts(table: ViewTable, row: pa.Table) -> list[str | None]:
    """The values of one row as PostgreSQL reads them in a literal, slot by slot."""
    return [column.cast(pa.string())[0].as_py() for column in written(table, row)]


# -- and back ------------------------------------------------------------------------------------------------------


def arrays_of(data: bytes | bytearray, kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """The columns of CSV that PostgreSQL wrote."""
    names = [str(number) for number in range(len(kinds))]
    if not data:
        return [pa.array([], kind) for kind in kinds]
    found = csv.read_csv(
        io.BytesIO(data),
        # One block, as long as it can be: a row cannot go over the end of one.
        csv.ReadOptions(column_names=names, use_threads=False, block_size=min(len(data) + 1, 1 << 30)),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types={name: _parsed(kind) for name, kind in zip(names, kinds, strict=True)},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    columns = (column.combine_chunks() for column in found.columns)
    return [_typed(column, kind) for column, kind in zip(columns, kinds, strict=True)]


def _parsed(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader of CSV can make of a column by itself; text, where it cannot."""
    if pa.types.is_timestamp(kind):
        return MOMENT
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal128(kind)
    return kind if plain or kind in (pa.float32(), pa.float64(), pa.date32()) else pa.string()


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        return from_json(column.to_pylist(), kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(
            [v if v is None else b16decode(v[2:], casefold=True) for v in column.to_pylist()], kind
        )
    if pa.types.is_null(kind):
        return pa.nulls(len(column))
    if kind == pa.float16():
        return column.cast(pa.float32()).cast(kind)
    return column if column.type == kind else column.cast(kind)


def from_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column out of values as a query answers them: times, decimals and nested values are text."""
    if pa.types.is_nested(kind):
        return from_json(values, kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(MOMENT).cast(kind)
    if pa.types.is_decimal(kind) or pa.types.is_date(kind) or kind == pa.uint64():
        return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
    return (
        pa.array(values, pa.float64()).cast(kind, safe=False)
        if pa.types.is_floating(kind)
        else pa.array(values, kind)
    )
