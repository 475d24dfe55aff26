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

from headwater.errors import BadEventError, BadTypeError
from headwater.events import integers_of
from headwater.store.definition import ViewTable
from headwater.store.sqlite.nested import from_json, to_json

__all__ = ["Slot", "from_slots", "slots", "to_slots"]

_FIRST = pa.scalar(-62_135_596_800_000_000, pa.int64())  # 0001-01-01 and 9999-12-31: years of four digits
_LAST = pa.scalar(253_402_300_799_999_999, pa.int64())
_FIRST_DAY = pa.scalar(-719_162, pa.int32())
_LAST_DAY = pa.scalar(2_932_896, pa.int32())
_MOMENT = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Slot:
    """One column of the table in SQLite.

    Attributes:
        name: Its name there.
        column: The column of the view it belongs to.
        member: "start" or "end" of a window.
        kind: The Arrow type of what it holds.
    """

    name: str
    column: str
    kind: pa.DataType
    member: str = ""

    @property
    def declared(self) -> str:
        """The type SQLite is told."""
        return _form(self.kind).declared


def slots(table: ViewTable) -> list[Slot]:
    """The columns of a view's table.

    Example:
        >>> window = pa.struct([("start", _MOMENT), ("end", _MOMENT)])
        >>> view = ViewTable("v", 1, pa.schema([("w", window), ("n", pa.int64())]), ("w",), "w")
        >>> [(slot.name, slot.declared) for slot in slots(view)]
        [('w.start', 'TEXT'), ('w.end', 'TEXT'), ('n', 'INTEGER')]

    Raises:
        BadTypeError: Two columns would have one name, or a type cannot be kept.
    """
    found: list[Slot] = []
    for field in table.schema:
        if field.name == table.window:
            _require_window(field)
            found += [Slot(f"{field.name}.{member}", field.name, _MOMENT, member) for member in _MEMBERS]
        else:
            _form(field.type)
            found.append(Slot(field.name, field.name, field.type))
    taken: set[str] = set()
    for slot in found:
        if slot.name.casefold() in taken:
            what = f'view "{table.name}" has two columns "{slot.name}"'
            raise BadTypeError(what, detail="upper and lower case do not tell columns apart", field=slot.name)
        taken.add(slot.name.casefold())
    return found


_MEMBERS = ("start", "end")


def _require_window(field: pa.Field) -> None:
    kind = field.type
    names = [member.name for member in kind] if pa.types.is_struct(kind) else []
    if names != list(_MEMBERS) or not all(pa.types.is_timestamp(member.type) for member in kind):
        what = f'column "{field.name}" is not a window'
        raise BadTypeError(what, detail=f"it is {kind}, not a struct of start and end", field=field.name)


def to_slots(table: ViewTable, rows: pa.Table) -> list[list[Any]]:
    """The values SQLite gets, column by column.

    Args:
        table: The view.
        rows: Columns of the view: all of them, or for a list of keys those of the key.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999.
    """
    arrays = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    found = []
    for slot in slots(table):
        if slot.column not in arrays:
            continue
        array = arrays[slot.column]
        if slot.member:
            array = pc.struct_field(array, slot.member)  # unlike .field(), this heeds the nulls of the struct
        found.append(_form(slot.kind).encode(_whole(array), slot.name))
    return found


def from_slots(table: ViewTable, columns: Sequence[Sequence[Any]]) -> pa.Table:
    """The columns of a view from what SQLite held, in the order of `slots`."""
    arrays: dict[str, Any] = {}
    windows: dict[str, list[pa.Array]] = {}
    for slot, values in zip(slots(table), columns, strict=True):
        array = _form(slot.kind).decode(values, slot.kind)
        if slot.member:
            windows.setdefault(slot.column, []).append(array)
        else:
            arrays[slot.column] = array
    for name, members in windows.items():
        arrays[name] = _windows(members, table.schema.field(name).type)
    return pa.Table.from_arrays([arrays[name] for name in table.schema.names], schema=table.schema)


def _windows(members: list[pa.Array], kind: pa.DataType) -> pa.Array:
    absent = pc.and_(members[0].is_null(), members[1].is_null())
    typed = [member.cast(field.type) for member, field in zip(members, kind, strict=True)]
    return pa.StructArray.from_arrays(typed, fields=list(kind), mask=absent)


def _whole(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


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
    micros = array.cast(_MOMENT)
    _require_between(micros.view(pa.int64()), _FIRST, _LAST, name)
    plain = micros.view(pa.timestamp("us")).cast(pa.string())
    found: list[Any] = pc.binary_replace_slice(
        pc.binary_replace_slice(plain, 10, 11, "T"), 26, 26, "Z"
    ).to_pylist()
    return found


def _decode_moment(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).cast(_MOMENT).cast(kind)


def _encode_day(array: pa.Array, name: str) -> list[Any]:
    days = array.cast(pa.date32())
    _require_between(days.view(pa.int32()), _FIRST_DAY, _LAST_DAY, name)
    found: list[Any] = days.cast(pa.string()).to_pylist()
    return found


def _require_between(counts: pa.Array, first: pa.Scalar, last: pa.Scalar, name: str) -> None:
    outside = pc.or_(pc.less(counts, first), pc.greater(counts, last))
    if pc.any(outside, skip_nulls=True).as_py():
        what = f'column "{name}" holds a time outside of the years 1 to 9999'
        raise BadEventError(what, detail="such a time cannot be kept in a view", field=name)


def _encode_nested(array: pa.Array, _: str) -> list[Any]:
    return to_json(array)


_PLAIN = _Form("INTEGER", _encode_plain, _decode_plain)
_FORMS: tuple[tuple[Callable[[pa.DataType], bool], _Form], ...] = (
    (pa.types.is_boolean, _Form("INTEGER", _encode_bool, _decode_bool)),
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
    for fits, form in _FORMS:
        if fits(kind):
            return form
    raise BadTypeError(f"the type {kind} cannot be kept in a view", type=str(kind))
