"""Maps columns of a view to columns of a stored table, and nested values to JSON text.

A window takes two stored columns, every other column one. Structs, lists and maps are JSON text. In that text decimals,
times and dates are strings, binary is base64, and NaN and infinities are `"NaN"`, `"Infinity"` and `"-Infinity"`. A map
is an object in the order of its entries.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadEventError, BadTypeError, KeyNotUniqueError
from headwater.events import values_of
from headwater.events.values import preview, to_json_value
from headwater.store.commit.commit import Commit, ViewTable
from headwater.store.commit.row_checks import check_rows

__all__ = [
    "TIMESTAMP",
    "StoredColumn",
    "cast_rows",
    "from_arrays",
    "from_json",
    "not_unique_error",
    "rows_and_deletes",
    "storage_columns",
    "timestamp_text",
    "to_arrays",
    "to_dates",
    "to_json",
    "to_timestamps",
]

Decoder = Callable[[Any], Any]
_INFINITIES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def to_json(array: pa.Array) -> list[str | None]:
    """Returns a nested column as JSON text, row by row.

    Example:
        >>> to_json(pa.array([{"a": 1, "b": [float("nan")]}, None]))
        ['{"a":1,"b":["NaN"]}', None]
    """
    return [
        None
        if value is None
        else json.dumps(_replace_non_finite(to_json_value(value)), ensure_ascii=False, separators=(",", ":"))
        for value in values_of(array, decimal=_DecimalText)
    ]


def from_json(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Returns a nested column from its JSON texts.

    Example:
        >>> from_json(['{"a":"1.50"}'], pa.struct([("a", pa.decimal128(5, 2))])).to_pylist()
        [{'a': Decimal('1.50')}]
    """
    decode = _decoder(kind)
    return pa.array([None if text is None else decode(json.loads(text)) for text in texts], kind)


class _DecimalText(str):
    """The text of a decimal with all its digits, written out."""

    __slots__ = ()

    def __new__(cls, text: str) -> _DecimalText:
        return super().__new__(cls, format(Decimal(text), "f") if "E" in text else text)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _INFINITIES.get(value, "NaN")
    if isinstance(value, dict):
        return {name: _replace_non_finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    return value


def _decoder(kind: pa.DataType) -> Decoder:
    """Returns the function that converts a JSON value to Arrow's Python value; None stays None."""
    decode = _value_decoder(kind)
    return lambda value: None if value is None else decode(value)


def _value_decoder(kind: pa.DataType) -> Decoder:
    if pa.types.is_struct(kind):
        members = [(field.name, _decoder(field.type)) for field in kind]
        return lambda value: {name: inner(value.get(name)) for name, inner in members}
    if pa.types.is_map(kind):
        key, item = _key_decoder(kind.key_type), _decoder(kind.item_type)
        return lambda value: [(key(name), item(inner)) for name, inner in value.items()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _decoder(kind.value_type)
        return lambda value: [element(item) for item in value]
    return next((decode for fits, decode in _LEAF_DECODERS if fits(kind)), lambda value: value)


def _key_decoder(kind: pa.DataType) -> Decoder:
    """Returns the decoder of a map key; object keys are always text in JSON."""
    if pa.types.is_integer(kind):
        return int
    return (lambda text: text == "True") if pa.types.is_boolean(kind) else _value_decoder(kind)


_LEAF_DECODERS: tuple[tuple[Callable[[pa.DataType], bool], Decoder], ...] = (
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_timestamp, datetime.fromisoformat),
    (pa.types.is_date, date.fromisoformat),
    (pa.types.is_binary, b64decode),
    (pa.types.is_large_binary, b64decode),
)
"""Types whose JSON value is not yet Arrow's Python value."""
TIMESTAMP = pa.timestamp("us", "UTC")
_WINDOW_FIELDS = ("start", "end")
_MIN_MICROS = pa.scalar(-62_135_596_800_000_000, pa.int64())  # 0001-01-01 to 9999-12-31: years of four digits
_MAX_MICROS = pa.scalar(253_402_300_799_999_999, pa.int64())
_MIN_DAY = pa.scalar(-719_162, pa.int32())
_MAX_DAY = pa.scalar(2_932_896, pa.int32())
_SUPPORTED_TYPES = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_timestamp, pa.types.is_date, pa.types.is_null, pa.types.is_nested),
)


@dataclass(frozen=True)
class StoredColumn:
    """One column of a stored table.

    Attributes:
        name: Its name in the table.
        view_column: The column of the view that it belongs to.
        kind: The Arrow type of its values.
        window_field: "start" or "end" for a window; empty otherwise.
    """

    name: str
    view_column: str
    kind: pa.DataType
    window_field: str = ""


def storage_columns(table: ViewTable) -> list[StoredColumn]:
    """Returns the columns of a view's table.

    Example:
        >>> window = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
        >>> view = ViewTable("v", 1, pa.schema([("w", window), ("n", pa.int64())]), ("w",), "w")
        >>> [slot.name for slot in storage_columns(view)]
        ['w.start', 'w.end', 'n']

    Raises:
        BadTypeError: Two columns would have the same name, or a type cannot be stored.
    """
    found: list[StoredColumn] = []
    for field in table.schema:
        if field.name == table.window:
            _require_window(field)
            found += [
                StoredColumn(f"{field.name}.{member}", field.name, TIMESTAMP, member) for member in _WINDOW_FIELDS
            ]
        elif any(is_supported(field.type) for is_supported in _SUPPORTED_TYPES):
            found.append(StoredColumn(field.name, field.name, field.type))
        else:
            raise BadTypeError(f"the type {field.type} cannot be stored in a view", type=str(field.type))
    names: set[str] = set()
    for slot in found:
        if slot.name.casefold() in names:
            what = f'view "{table.name}" has two columns "{slot.name}"'
            raise BadTypeError(what, detail="upper and lower case do not tell columns apart", field=slot.name)
        names.add(slot.name.casefold())
    return found


def _require_window(field: pa.Field) -> None:
    kind = field.type
    names = [member.name for member in kind] if pa.types.is_struct(kind) else []
    if names != list(_WINDOW_FIELDS) or not all(pa.types.is_timestamp(member.type) for member in kind):
        what = f'column "{field.name}" is not a window'
        raise BadTypeError(what, detail=f"it is {kind}, not a struct of start and end", field=field.name)


def cast_rows(table: ViewTable, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the rows with exactly these columns of a view, in their order and type.

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


def rows_and_deletes(commit: Commit, table: ViewTable) -> tuple[pa.Table, pa.Table]:
    """Returns the rows and the keys to delete of a commit, with exactly the columns of the view and of its key.

    Raises:
        BadTypeError: They have other columns.
        BadRowError: A row cannot be stored.
    """
    key_schema = pa.schema([field for field in table.schema if field.name in table.key])
    deletes = key_schema.empty_table() if commit.deletes is None else commit.deletes
    rows = cast_rows(table, commit.rows, table.schema)
    check_rows(table, rows)
    return rows, cast_rows(table, deletes, key_schema)


def not_unique_error(table: ViewTable, key: dict[str, Any], rows: pa.Table | None = None) -> KeyNotUniqueError:
    """Returns the error for a key of two rows, given by its stored columns, with the rows if they are known."""
    named = [] if rows is None else rows.to_pylist()
    text, *shown = (", ".join(f"{name} = {preview(value)}" for name, value in each.items()) for each in (key, *named))
    return KeyNotUniqueError(
        f'view "{table.name}" got two rows for one key: {text}',
        detail="\n".join([f"key: {', '.join(table.key)}", *(f"row: {row}" for row in shown)]),
        fix="group by the key, or name a key that tells the rows apart",
        view=table.name,
        key=key,
        rows=[{name: _to_error_value(value) for name, value in row.items()} for row in named],
    )


def _to_error_value(value: Any) -> Any:
    """Returns a value as JSON, or as text if JSON has no form for it: a view may hold times without a zone."""
    try:
        return to_json_value(value)
    except ValueError:
        return preview(value)


def to_arrays(table: ViewTable, rows: pa.Table) -> list[tuple[StoredColumn, pa.Array]]:
    """Returns the stored columns of a view's rows, or of a list of keys."""
    arrays = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    found = []
    for slot in storage_columns(table):
        if slot.view_column in arrays:
            array = arrays[slot.view_column]
            # Unlike .field(), struct_field applies the nulls of the struct to its members.
            found.append((slot, pc.struct_field(array, slot.window_field) if slot.window_field else array))
    return found


def from_arrays(table: ViewTable, arrays: Sequence[pa.Array]) -> pa.Table:
    """Returns the rows of a view from its stored columns."""
    found: dict[str, Any] = {}
    for slot, array in zip(storage_columns(table), arrays, strict=True):
        if slot.window_field:
            found.setdefault(slot.view_column, []).append(_combine_chunks(array))
        else:
            found[slot.view_column] = array
    if table.window is not None:
        kind, members = table.schema.field(table.window).type, found[table.window]
        typed = [member.cast(field.type) for member, field in zip(members, kind, strict=True)]
        absent = pc.and_(members[0].is_null(), members[1].is_null())
        found[table.window] = pa.StructArray.from_arrays(typed, fields=list(kind), mask=absent)
    return pa.Table.from_arrays([found[name] for name in table.schema.names], schema=table.schema)


def _combine_chunks(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def to_timestamps(array: pa.Array, name: str) -> pa.Array:
    """Returns times in microseconds, without a zone.

    Raises:
        BadEventError: A time lies outside of the years 1 to 9999.
    """
    micros = array.cast(TIMESTAMP)
    _check_range(micros.view(pa.int64()), _MIN_MICROS, _MAX_MICROS, name)
    return micros.view(pa.timestamp("us"))


def timestamp_text(micros: int) -> str:
    """Returns a count of microseconds since 1970 in the form of stored timestamps, which sorts as time does.

    Example:
        >>> timestamp_text(1_500_000)
        '1970-01-01T00:00:01.500000Z'
    """
    text: str = pa.array([micros], pa.timestamp("us")).cast(pa.string())[0].as_py()
    return f"{text.replace(' ', 'T')}Z"


def to_dates(array: pa.Array, name: str) -> pa.Array:
    """Returns dates as days.

    Raises:
        BadEventError: A day lies outside of the years 1 to 9999.
    """
    days = array.cast(pa.date32())
    _check_range(days.view(pa.int32()), _MIN_DAY, _MAX_DAY, name)
    return days


def _check_range(counts: pa.Array, first: pa.Scalar, last: pa.Scalar, name: str) -> None:
    outside = pc.or_(pc.less(counts, first), pc.greater(counts, last))
    if pc.any(outside, skip_nulls=True).as_py():
        what = f'column "{name}" holds a time outside of the years 1 to 9999'
        raise BadEventError(what, detail="such a time cannot be stored in a view", field=name)
