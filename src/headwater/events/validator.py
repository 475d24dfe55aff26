"""Validates rows against a schema with msgspec and converts them to columns.

A `RowValidator` is built once per schema. msgspec converts rows and JSON lines to its `struct`, which is fast
and strict and reports the path of an invalid value; `to_columns` converts the structs to Arrow arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, UnsetType

from headwater.errors import BadTypeError
from headwater.events.values import preview

__all__ = [
    "InvalidValueError",
    "RowValidator",
    "check_fields",
    "exponent_too_large",
    "field_default",
    "first_out_of_range",
    "first_rejected",
    "struct_column",
]

ColumnBuilder = Callable[[list[Any]], pa.Array]


def _integer(bits: int) -> Any:
    return Annotated[int, Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_SCALAR_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.int8(): _integer(8),
    pa.int16(): _integer(16),
    pa.int32(): _integer(32),
    pa.int64(): _integer(64),
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): date,
    pa.timestamp("us", "UTC"): Annotated[datetime, Meta(tz=True)],
}
_ALLOWED = f"allowed: {', '.join(map(str, _SCALAR_TYPES))}, decimal128, and list, struct, map with string keys of those"
_MAX_DEPTH = 64
# Arrow allocates memory for the exponent: 1E-99999999 kills the process.
_MAX_EXPONENT = 100
# Microseconds and days since 1970 of 0001-01-01 and 9999-12-31, the range of a Python datetime.
_MIN_TIMESTAMP = -62_135_596_800_000_000
_MAX_TIMESTAMP = 253_402_300_799_999_999
_MIN_DATE = -719_162
_MAX_DATE = 2_932_896


class InvalidValueError(ValueError):
    """A value does not fit its column; `row` counts from 0 and is None if the whole column does not fit."""

    def __init__(self, reason: str, row: int | None, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
        self.path = path

    def with_parent(self, name: str, row: int | None = None) -> InvalidValueError:
        """Returns the same error with the path from the enclosing column."""
        return InvalidValueError(self.reason, self.row if row is None else row, f"{name}.{self.path}".rstrip("."))


@dataclass(frozen=True)
class _FieldSpec:
    """One field. Its attribute is m0, m1, …, because the field may be called `class` or `two words`."""

    attribute: str
    field: pa.Field
    hint: Any
    build: ColumnBuilder
    required: bool
    default: Any


class RowValidator:
    """Checks rows of a schema, or of a struct inside one, and converts them to columns.

    Example:
        >>> shape = RowValidator([pa.field("id", pa.int64(), nullable=False)])
        >>> structs = msgspec.convert([{"id": 7}], list[shape.struct])
        >>> [column.to_pylist() for column in shape.to_columns(structs)]
        [[7]]
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        check_fields(fields, "the schema")
        self._fields = [_field_spec(index, field) for index, field in enumerate(fields)]
        self._by_name = {member.field.name: member for member in self._fields}
        self.struct: Any = msgspec.defstruct(
            "Row",
            # A field that a row lacks is UNSET; `to_columns` fills in its default.
            [(m.attribute, m.hint) if m.required else (m.attribute, m.hint | UnsetType, UNSET) for m in self._fields],
            rename={m.attribute: m.field.name for m in self._fields},
            forbid_unknown_fields=True,
            frozen=True,
            gc=False,  # rows have no cycles, and the collector is slow with millions of them
            kw_only=True,  # optional fields may precede required ones
        )

    def field_value(self, struct: Any, name: str) -> Any:
        """Returns one field of a struct, or its default if the row did not have it."""
        member = self._by_name[name]
        value = getattr(struct, member.attribute)
        return member.default if value is UNSET else value

    def to_columns(self, structs: Sequence[Any]) -> list[pa.Array]:
        """Returns the structs as one array per field.

        Raises:
            InvalidValueError: A value is outside its column's range.
        """
        columns = []
        for member in self._fields:
            values = list(map(attrgetter(member.attribute), structs))
            if not member.required and UNSET in values:
                values = [member.default if value is UNSET else value for value in values]
            try:
                columns.append(member.build(values))
            except InvalidValueError as error:
                raise error.with_parent(member.field.name) from None
        return columns

    def to_struct_column(self, values: list[Any], kind: pa.StructType) -> pa.Array:
        """Returns the structs as one struct column; None becomes null."""
        valid = pa.array([value is not None for value in values], pa.bool_())
        present = [value for value in values if value is not None]
        return struct_column(kind, valid, lambda: self.to_columns(present))


def struct_column(kind: pa.StructType, valid: pa.Array, build_members: Callable[[], list[pa.Array]]) -> pa.Array:
    """Returns a struct column with null where `valid` is false; `build_members` returns the members of the other rows.

    Example:
        >>> kind = pa.struct([pa.field("n", pa.int64())])
        >>> struct_column(kind, pa.array([False, True]), lambda: [pa.array([7])]).to_pylist()
        [None, {'n': 7}]

    Raises:
        InvalidValueError: A member is invalid; its row is among all rows.
    """
    try:
        present = pa.StructArray.from_arrays(build_members(), fields=list(kind))
    except InvalidValueError as misfit:  # its row is among the valid ones
        row = None if misfit.row is None else int(np.flatnonzero(valid.to_pylist())[misfit.row])
        raise InvalidValueError(misfit.reason, row, misfit.path) from None
    if len(present) == len(valid):
        return present
    indices = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return present.take(pc.if_else(valid, indices, pa.scalar(None, pa.int64())))


def _field_spec(index: int, field: pa.Field) -> _FieldSpec:
    hint, build = _compile_type(field.type)
    default = field_default(field)
    hint = _optional(hint, field)
    if default is not None:
        default = msgspec.convert(default, hint)
    required = not field.nullable and default is None
    return _FieldSpec(f"m{index}", field, hint, build, required, default)


def field_default(field: pa.Field) -> Any:
    """Returns the declared default of a field as a JSON value, or None.

    Example:
        >>> field_default(pa.field("n", pa.int64(), metadata={"default": "3"}))
        3
    """
    text = (field.metadata or {}).get(b"default")
    return None if text is None else json.loads(text)


def check_fields(fields: Sequence[pa.Field], owner: str, depth: int = 1) -> None:
    """Refuse unsupported types, empty names, and names that differ only by case, which are equal to Spark.

    Example:
        >>> check_fields([pa.field("id", pa.int64())], "Order")

    Raises:
        BadTypeError: `data` has the `field`.
    """
    if not fields:
        raise BadTypeError(f"{owner} has no fields", type=owner)
    seen: set[str] = set()
    for field in fields:
        name = field.name.casefold()
        if not name or name in seen:
            reason = "equals another field name, ignoring case" if name else "is empty"
            raise BadTypeError(f"{owner}: the name {field.name!r} {reason}", field=field.name, type=owner)
        seen.add(name)
        _check_type(field.type, f"{owner}.{field.name}", field.name, depth + 1)


def _check_type(kind: pa.DataType, where: str, name: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise BadTypeError(f"{where} is nested deeper than {_MAX_DEPTH} levels", field=name)
    if pa.types.is_struct(kind):
        check_fields(list(kind), where, depth)
    elif pa.types.is_map(kind) and kind.key_type == pa.string():
        _check_type(kind.item_type, where, name, depth + 1)
    elif pa.types.is_list(kind):
        _check_type(kind.value_type, where, name, depth + 1)
    elif kind not in _SCALAR_TYPES and not (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision):
        raise BadTypeError(
            f"{where}: the Arrow type {kind} is not supported", detail=_ALLOWED, field=name, type=str(kind)
        )


def _compile_type(kind: pa.DataType) -> tuple[Any, ColumnBuilder]:
    """Returns the annotation that msgspec checks a value against, and the function that builds the column."""
    if pa.types.is_struct(kind):
        validator = RowValidator(list(kind))
        return validator.struct, lambda values: validator.to_struct_column(values, kind)
    if pa.types.is_map(kind):
        hint, build = _compile_type(kind.item_type)
        annotation = GenericAlias(dict, (str, _optional(hint, kind.item_field)))
        return annotation, lambda values: _map_column(values, kind, build)
    if pa.types.is_list(kind):
        hint, build = _compile_type(kind.value_type)
        annotation = GenericAlias(list, (_optional(hint, kind.value_field),))
        return annotation, lambda values: _list_column(values, kind, build)
    scalar = Decimal if pa.types.is_decimal(kind) else _SCALAR_TYPES[kind]
    return scalar, lambda values: _scalar_column(values, kind)


def _optional(hint: Any, field: pa.Field) -> Any:
    return hint | None if field.nullable else hint


def _list_column(values: list[Any], kind: pa.ListType, build: ColumnBuilder) -> pa.Array:
    items = _build_items(values, list(chain.from_iterable(value or () for value in values)), build)
    return pa.ListArray.from_arrays(_offsets(values), items, type=kind, mask=_mask(values))


def _map_column(values: list[Any], kind: pa.MapType, build: ColumnBuilder) -> pa.Array:
    flat_keys = list(chain.from_iterable(value or () for value in values))
    keys = _build_items(values, flat_keys, lambda flat: _scalar_column(flat, pa.string()))
    items = _build_items(values, list(chain.from_iterable(value.values() for value in values if value)), build)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind, mask=_mask(values))


def _offsets(values: list[Any]) -> pa.Array:
    return pa.array(accumulate((len(value) if value else 0 for value in values), initial=0), pa.int32())


def _mask(values: list[Any]) -> pa.Array | None:
    absent = [value is None for value in values]
    return pa.array(absent) if any(absent) else None


def _build_items(values: list[Any], flat: list[Any], build: ColumnBuilder) -> pa.Array:
    try:
        return build(flat)
    except InvalidValueError as misfit:
        ends = np.cumsum([len(value) if value else 0 for value in values])
        row = None if misfit.row is None else int(np.searchsorted(ends, misfit.row, side="right"))
        raise misfit.with_parent("[]", row) from None


def _scalar_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        for row, value in enumerate(values):
            if value is not None and exponent_too_large(value):
                raise InvalidValueError(f"{preview(value)} does not fit {kind}", row)
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        row = first_rejected(len(values), lambda start, end: pa.array(values[start:end], kind))
        raise InvalidValueError(f"{preview(values[row])} does not fit {kind}", row) from None
    # Conversion to UTC can move a time of the years 1 and 9999 out of range.
    invalid = first_out_of_range(column)
    if invalid is not None:
        raise InvalidValueError(f"{preview(values[invalid])} does not fit {kind}", invalid)
    return column


def exponent_too_large(value: Decimal) -> bool:
    """Returns whether a decimal's exponent is too large to pass it to Arrow.

    Example:
        >>> exponent_too_large(Decimal("1E-99999999")), exponent_too_large(Decimal("12.50"))
        (True, False)
    """
    return not -_MAX_EXPONENT < value.adjusted() < _MAX_EXPONENT


def first_rejected(count: int, convert: Callable[[int, int], Any]) -> int:
    """Returns the first row that Arrow refuses to convert, by bisection.

    Args:
        count: The number of rows, of which at least one is refused.
        convert: Converts the rows `[start, end)`.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(low, middle)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            high = middle
        else:
            low = middle
    return low


def first_out_of_range(column: pa.Array) -> int | None:
    """Returns the first row with a number that is not finite, or a date outside the years 1 to 9999; None if none.

    JSON and Python cannot represent these values.

    Example:
        >>> first_out_of_range(pa.array([1.0, float("nan")])), first_out_of_range(pa.array([1.0]))
        (1, None)
    """
    kind = column.type
    if pa.types.is_floating(kind):
        valid = pc.is_finite(column)
    elif pa.types.is_timestamp(kind):
        valid = _in_range(column.view(pa.int64()), _MIN_TIMESTAMP, _MAX_TIMESTAMP)
    elif pa.types.is_date32(kind):
        valid = _in_range(column.view(pa.int32()), _MIN_DATE, _MAX_DATE)
    else:
        return None
    if valid is None or pc.all(valid).as_py() in (True, None):
        return None
    return int(pc.index(valid, False).as_py())


def _in_range(column: pa.Array, low: int, high: int) -> pa.Array | None:
    """Returns a mask of values in range; None if all are, as one pass over the column shows."""
    ends = pc.min_max(column)
    lowest, highest = ends["min"].as_py(), ends["max"].as_py()
    if lowest is None or (low <= lowest and highest <= high):
        return None
    return pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
