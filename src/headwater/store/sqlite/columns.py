"""Columns of a view as SQLite keeps them, both ways and without loss: the only place that converts.

| Arrow | SQLite |
|---|---|
| bool, integers | INTEGER |
| float | REAL; NaN, which SQLite has no number for, is the text `NaN` |
| decimal | TEXT with all digits of the column's scale |
| string, binary | TEXT, BLOB |
| timestamp | TEXT such as `2026-01-01T00:00:00.000000Z`, which sorts as time does |
| date | TEXT such as `2026-01-01` |
| window `w` | two columns `w.start` and `w.end` |
| struct, list, map | TEXT as JSON (nested.py) |

Zero has no sign in SQLite: -0.0 comes back as 0.0, which equals it.
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
from headwater.store.definition import ViewTable
from headwater.store.nested import from_json, to_json
from headwater.store.slots import MOMENT, Slot, days_of, from_arrays, moments_of, slots, to_arrays

__all__ = ["declared", "from_slots", "to_slots"]

_LARGEST = 2**63 - 1


def declared(slot: Slot) -> str:
    """The type SQLite is told."""
    return _form(slot.kind).declared


def to_slots(table: ViewTable, rows: pa.Table) -> list[list[Any]]:
    """The values SQLite gets, column by column.

    Args:
        table: The view.
        rows: Columns of the view: all of them, or for a list of keys those of the key.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999, or an integer does not fit in 64 bits with a sign.
    """
    return [_form(slot.kind).encode(array, slot.name) for slot, array in to_arrays(table, rows)]


def from_slots(table: ViewTable, columns: Sequence[Sequence[Any]]) -> pa.Table:
    """The columns of a view from what SQLite held, in the order of `slots`."""
    decoded = [
        _form(slot.kind).decode(values, slot.kind) for slot, values in zip(slots(table), columns, strict=True)
    ]
    return from_arrays(table, decoded)


# -- one form per kind of type ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    declared: str
    encode: Callable[[pa.Array, str], list[Any]]
    decode: Callable[[Sequence[Any], pa.DataType], pa.Array]


def _encode_plain(array: pa.Array, _: str) -> list[Any]:
    fast = array.type == pa.int64() and not array.null_count
    found: list[Any] = integers_of(array).tolist() if fast else array.to_pylist()
    return found


def _encode_unsigned(array: pa.Array, name: str) -> list[Any]:
    values: list[Any] = array.to_pylist()
    if any(value is not None and value > _LARGEST for value in values):
        what = f'column "{name}" holds a number above {_LARGEST}'
        detail = "SQLite has no larger integer; PostgreSQL keeps it"
        raise BadEventError(what, detail=detail, fix="cast it to decimal(20,0)", field=name)
    return values


def _decode_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _encode_bool(array: pa.Array, _: str) -> list[Any]:
    found: list[Any] = array.cast(pa.int8()).to_pylist()
    return found


def _decode_bool(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind)


def _encode_float(array: pa.Array, _: str) -> list[Any]:
    values: list[Any] = array.to_pylist()
    if pc.any(pc.is_nan(array), skip_nulls=True).as_py():
        return ["NaN" if value is not None and math.isnan(value) else value for value in values]
    return values


def _decode_float(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    plain = [float(value) if type(value) is str else value for value in values]
    return pa.array(plain, pa.float64()).cast(kind, safe=False)


def _encode_decimal(array: pa.Array, _: str) -> list[Any]:
    texts = array.cast(pa.string())
    found: list[Any] = texts.to_pylist()
    if pc.any(pc.match_substring(texts, "E"), skip_nulls=True).as_py():  # Arrow writes 0.00000001 as 1E-8
        return [None if text is None else format(Decimal(text), "f") for text in found]
    return found


def _decode_text(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).cast(kind)


def _encode_moment(array: pa.Array, name: str) -> list[Any]:
    plain = moments_of(array, name).cast(pa.string())
    found: list[Any] = pc.binary_replace_slice(
        pc.binary_replace_slice(plain, 10, 11, "T"), 26, 26, "Z"
    ).to_pylist()
    return found


def _decode_moment(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).cast(MOMENT).cast(kind)


def _encode_day(array: pa.Array, name: str) -> list[Any]:
    found: list[Any] = days_of(array, name).cast(pa.string()).to_pylist()
    return found


def _encode_nested(array: pa.Array, _: str) -> list[Any]:
    return to_json(array)


_PLAIN = _Form("INTEGER", _encode_plain, _decode_plain)
_FORMS: tuple[tuple[Callable[[pa.DataType], bool], _Form], ...] = (
    (pa.types.is_boolean, _Form("INTEGER", _encode_bool, _decode_bool)),
    (pa.types.is_uint64, _Form("INTEGER", _encode_unsigned, _decode_plain)),
    (pa.types.is_integer, _PLAIN),
    (pa.types.is_floating, _Form("REAL", _encode_float, _decode_float)),
    (pa.types.is_string, _Form("TEXT", _encode_plain, _decode_plain)),
    (pa.types.is_large_string, _Form("TEXT", _encode_plain, _decode_plain)),
    (pa.types.is_timestamp, _Form("TEXT", _encode_moment, _decode_moment)),
    (pa.types.is_decimal, _Form("TEXT", _encode_decimal, _decode_text)),
    (pa.types.is_date, _Form("TEXT", _encode_day, _decode_text)),
    (pa.types.is_binary, _Form("BLOB", _encode_plain, _decode_plain)),
    (pa.types.is_large_binary, _Form("BLOB", _encode_plain, _decode_plain)),
    (pa.types.is_null, _Form("TEXT", _encode_plain, _decode_plain)),
    (pa.types.is_nested, _Form("TEXT", _encode_nested, from_json)),
)


def _form(kind: pa.DataType) -> _Form:
    return next(form for fits, form in _FORMS if fits(kind))
