"""Columns of a view as the columns of a table: a window takes two, every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadEventError, BadTypeError
from headwater.store.definition import ViewTable

__all__ = ["MOMENT", "Slot", "days_of", "fitted", "from_arrays", "moments_of", "slots", "to_arrays"]

MOMENT = pa.timestamp("us", "UTC")
_MEMBERS = ("start", "end")
_FIRST = pa.scalar(-62_135_596_800_000_000, pa.int64())  # 0001-01-01 and 9999-12-31: years of four digits
_LAST = pa.scalar(253_402_300_799_999_999, pa.int64())
_FIRST_DAY = pa.scalar(-719_162, pa.int32())
_LAST_DAY = pa.scalar(2_932_896, pa.int32())
_KEPT = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_timestamp, pa.types.is_date, pa.types.is_null, pa.types.is_nested),
)


@dataclass(frozen=True)
class Slot:
    """One column of a table.

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


def slots(table: ViewTable) -> list[Slot]:
    """The columns of a view's table.

    Example:
        >>> window = pa.struct([("start", MOMENT), ("end", MOMENT)])
        >>> view = ViewTable("v", 1, pa.schema([("w", window), ("n", pa.int64())]), ("w",), "w")
        >>> [slot.name for slot in slots(view)]
        ['w.start', 'w.end', 'n']

    Raises:
        BadTypeError: Two columns would have one name, or a type cannot be kept.
    """
    found: list[Slot] = []
    for field in table.schema:
        if field.name == table.window:
            _require_window(field)
            found += [Slot(f"{field.name}.{member}", field.name, MOMENT, member) for member in _MEMBERS]
        elif any(kept(field.type) for kept in _KEPT):
            found.append(Slot(field.name, field.name, field.type))
        else:
            raise BadTypeError(f"the type {field.type} cannot be kept in a view", type=str(field.type))
    taken: set[str] = set()
    for slot in found:
        if slot.name.casefold() in taken:
            what = f'view "{table.name}" has two columns "{slot.name}"'
            raise BadTypeError(what, detail="upper and lower case do not tell columns apart", field=slot.name)
        taken.add(slot.name.casefold())
    return found


def _require_window(field: pa.Field) -> None:
    kind = field.type
    names = [member.name for member in kind] if pa.types.is_struct(kind) else []
    if names != list(_MEMBERS) or not all(pa.types.is_timestamp(member.type) for member in kind):
        what = f'column "{field.name}" is not a window'
        raise BadTypeError(what, detail=f"it is {kind}, not a struct of start and end", field=field.name)


def fitted(table: ViewTable, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with exactly these columns of a view, in their order and type.

    Raises:
        BadTypeError: The rows have other columns.
    """
    if rows.schema.equals(schema):
        return rows
    if sorted(rows.column_names) != sorted(schema.names):
        raise BadTypeError(
            f'the rows for view "{table.name}" have other columns than the view',
            detail=f"rows: {', '.join(rows.column_names)}\nview: {', '.join(schema.names)}",
            view=table.name,
        )
    return rows.select(schema.names).cast(schema)


def to_arrays(table: ViewTable, rows: pa.Table) -> list[tuple[Slot, pa.Array]]:
    """Rows of a view, or for a list of keys their columns, slot by slot."""
    arrays = {name: _whole(rows.column(name)) for name in rows.column_names}
    return [
        # Unlike .field(), struct_field heeds the nulls of the struct.
        (slot, pc.struct_field(arrays[slot.column], slot.member) if slot.member else arrays[slot.column])
        for slot in slots(table)
        if slot.column in arrays
    ]


def from_arrays(table: ViewTable, arrays: Sequence[pa.Array]) -> pa.Table:
    """Rows of a view out of its slots."""
    found: dict[str, Any] = {}
    windows: dict[str, list[pa.Array]] = {}
    for slot, array in zip(slots(table), arrays, strict=True):
        if slot.member:
            windows.setdefault(slot.column, []).append(_whole(array))
        else:
            found[slot.column] = array
    for name, members in windows.items():
        found[name] = _windows(members, table.schema.field(name).type)
    return pa.Table.from_arrays([found[name] for name in table.schema.names], schema=table.schema)


def _windows(members: list[pa.Array], kind: pa.DataType) -> pa.Array:
    absent = pc.and_(members[0].is_null(), members[1].is_null())
    typed = [member.cast(field.type) for member, field in zip(members, kind, strict=True)]
    return pa.StructArray.from_arrays(typed, fields=list(kind), mask=absent)


def _whole(array: Any) -> pa.Array:
    found = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def moments_of(array: pa.Array, name: str) -> pa.Array:
    """Times in microseconds, without a zone.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999.
    """
    micros = array.cast(MOMENT)
    _require_between(micros.view(pa.int64()), _FIRST, _LAST, name)
    return micros.view(pa.timestamp("us"))


def days_of(array: pa.Array, name: str) -> pa.Array:
    """Days.

    Raises:
        BadEventError: A day lies outside of the years 1 to 9999.
    """
    days = array.cast(pa.date32())
    _require_between(days.view(pa.int32()), _FIRST_DAY, _LAST_DAY, name)
    return days


def _require_between(counts: pa.Array, first: pa.Scalar, last: pa.Scalar, name: str) -> None:
    outside = pc.or_(pc.less(counts, first), pc.greater(counts, last))
    if pc.any(outside, skip_nulls=True).as_py():
        what = f'column "{name}" holds a time outside of the years 1 to 9999'
        raise BadEventError(what, detail="such a time cannot be kept in a view", field=name)
