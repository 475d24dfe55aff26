"""Converts event types that users declare to Arrow schemas, and rows to instances of them.

A type is a dataclass, a pydantic model, a msgspec Struct, Spark DDL text or an Arrow schema. The log stores the
schema and Spark reads it; the user's code sees the class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, Union
from uuid import UUID

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadTypeError
from headwater.events.ddl import decimal_type, from_ddl
from headwater.events.validator import check_fields
from headwater.events.values import is_pydantic_model, is_record, preview, to_json_value, to_row

__all__ = ["Precision", "arrow_schema", "from_row"]

_ALLOWED = (
    "allowed: bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, UUID, Enum and Literal of text "
    "or whole numbers, Optional, list, dict with text keys, and dataclasses, pydantic models or structs of those"
)
_PLAIN: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    Decimal: pa.decimal128(38, 18),
    time: pa.string(),
    timedelta: pa.int64(),  # microseconds
    UUID: pa.string(),
}
_LISTS = (list, tuple, set, frozenset, Sequence)
_CONSTANT_FACTORIES = (list, dict, set, tuple, frozenset)  # each call returns the same value
_MICROSECOND = timedelta(microseconds=1)
_NO_DEFAULT: Any = object()


@dataclasses.dataclass(frozen=True)
class Precision:
    """The precision and scale of a Decimal field: all digits, and those after the decimal point.

    Example:
        >>> @dataclasses.dataclass
        ... class Order:
        ...     amount: typing.Annotated[Decimal, Precision(12, 2)]
        >>> str(arrow_schema(Order).field("amount").type)
        'decimal128(12, 2)'
    """

    digits: int
    scale: int = 0


def arrow_schema(declared: Any) -> pa.Schema:
    """Returns the Arrow schema of a declared event type.

    Optional fields are nullable. A default that JSON can represent is in the field's metadata. A timedelta is a number
    of microseconds; a time, a UUID and an Enum or Literal of text are text. `Annotated[int, pa.int32()]` sets the
    width, `Annotated[Decimal, Precision(12, 2)]` the precision and scale.

    Example:
        >>> @dataclasses.dataclass
        ... class Order:
        ...     order_id: str
        ...     note: str | None = None
        >>> arrow_schema(Order).names, arrow_schema("id BIGINT NOT NULL").field("id").nullable
        (['order_id', 'note'], False)

    Raises:
        BadTypeError: A field's type is not supported; `data` has `field` and `type`.
    """
    if isinstance(declared, str):
        return from_ddl(declared)
    if isinstance(declared, pa.Schema):
        check_fields(list(declared), "the schema")
        return pa.schema([field.with_type(_canonical_type(field.type)) for field in declared])
    if isinstance(declared, type) and is_record(declared):
        fields = _arrow_fields(declared, ())
        check_fields(fields, declared.__name__)
        return pa.schema(fields)
    raise BadTypeError(
        f"{preview(declared)} is not an event type",
        detail="it is a dataclass, a pydantic model, a msgspec Struct, Spark DDL text or an Arrow schema",
        type=preview(declared),
    )


def _canonical_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type with Spark's names for list and map items, because Spark compares these names too."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_canonical_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), pa.field("value", _canonical_type(kind.item_type), kind.item_field.nullable))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _canonical_type(kind.value_type), kind.value_field.nullable))
    return kind


@dataclasses.dataclass(frozen=True)
class _FieldDeclaration:
    """One field of a dataclass, pydantic model or msgspec Struct."""

    name: str
    hint: Any
    metadata: tuple[Any, ...] = ()
    default: Any = _NO_DEFAULT


def _field_declarations(cls: Any) -> Iterator[_FieldDeclaration]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise BadTypeError(
            f"the annotations of {cls.__name__} cannot be read: {error}",
            fix="define the classes it names at the top of the module, before it",
            type=cls.__name__,
        ) from None
    if is_pydantic_model(cls):
        for name, info in cls.model_fields.items():
            default = _NO_DEFAULT if info.is_required() else _constant_default(info.default, info.default_factory)
            yield _FieldDeclaration(name, info.annotation, tuple(info.metadata), default)
        return
    members: Any = msgspec.structs.fields(cls) if issubclass(cls, msgspec.Struct) else dataclasses.fields(cls)
    for member in members:
        default = _constant_default(member.default, member.default_factory)
        yield _FieldDeclaration(getattr(member, "encode_name", member.name), hints[member.name], (), default)


def _constant_default(default: Any, factory: Any) -> Any:
    """Returns a default that is the same for every row; a factory such as `uuid4` gives none."""
    if factory in _CONSTANT_FACTORIES:
        return factory()
    missing = default is dataclasses.MISSING or default is msgspec.NODEFAULT or default is msgspec.UNSET
    return _NO_DEFAULT if missing or type(default).__name__ == "PydanticUndefinedType" else default


def _arrow_fields(cls: Any, outer: tuple[type, ...]) -> list[pa.Field]:
    if cls in outer:
        raise BadTypeError(f"{cls.__name__} contains itself; recursive types are not supported", type=cls.__name__)
    return [_arrow_field(cls, declared, (*outer, cls)) for declared in _field_declarations(cls)]


def _arrow_field(cls: type, declared: _FieldDeclaration, outer: tuple[type, ...]) -> pa.Field:
    where = f"{cls.__name__}.{declared.name}"
    kind, nullable = _arrow_type(declared.hint, declared.metadata, where, outer)
    metadata = None
    if declared.default is not None and declared.default is not _NO_DEFAULT:
        # Without a default that JSON can represent, every row must have the field.
        with contextlib.suppress(ValueError, TypeError, BadEventError):
            metadata = {"default": json.dumps(to_json_value(to_row({"": declared.default})[""]))}
    return pa.field(declared.name, kind, nullable or declared.default is None, metadata)


def _arrow_type(hint: Any, metadata: tuple[Any, ...], where: str, outer: tuple[type, ...]) -> tuple[pa.DataType, bool]:
    """Returns the Arrow type of an annotation, and whether it may be None."""
    hint, extra = _unwrap(hint)
    metadata = (*metadata, *extra)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        members = [arm for arm in typing.get_args(hint) if arm not in (type(None), msgspec.UnsetType)]
        if len(members) != 1:
            raise _type_error(where, hint, "a union of several types")
        kind, _ = _arrow_type(members[0], metadata, where, outer)
        return kind, len(members) < len(typing.get_args(hint))
    if origin is Literal:
        values = typing.get_args(hint)
        return _value_type([v for v in values if v is not None], where, hint), None in values
    if origin is not None:
        return _container_type(hint, origin, where, outer), False
    return _single_type(hint, metadata, where, outer), False


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    metadata: tuple[Any, ...] = ()
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            metadata = (*metadata, *hint.__metadata__)
            hint = hint.__origin__
        elif hasattr(hint, "__supertype__"):  # a NewType
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # a `type` statement, since Python 3.12
            hint = hint.__value__
        else:
            return hint, metadata


def _container_type(hint: Any, origin: Any, where: str, outer: tuple[type, ...]) -> pa.DataType:
    arguments = typing.get_args(hint)
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        raise _type_error(where, hint, "write tuple[T, ...]: all items have one type")
    if origin in _LISTS:
        kind, nullable = _arrow_type(arguments[0], (), f"{where}[]", outer)
        return pa.list_(pa.field("element", kind, nullable))
    if origin in (dict, Mapping):
        key, _ = _arrow_type(arguments[0], (), f"{where} key", outer)
        if key != pa.string():
            raise _type_error(where, hint, "the keys of a map must be text")
        kind, nullable = _arrow_type(arguments[1], (), f"{where}{{}}", outer)
        return pa.map_(pa.string(), pa.field("value", kind, nullable))
    raise _type_error(where, hint)


def _single_type(hint: Any, metadata: tuple[Any, ...], where: str, outer: tuple[type, ...]) -> pa.DataType:
    if not isinstance(hint, type):
        raise _type_error(where, hint)
    if issubclass(hint, Enum):
        return _value_type([member.value for member in hint], where, hint)
    if is_record(hint):
        return pa.struct(_arrow_fields(hint, outer))
    if hint not in _PLAIN:
        raise _type_error(where, hint)
    chosen = _type_from_metadata(metadata, where)
    if chosen is not None and _type_family(chosen) != _type_family(_PLAIN[hint]):
        raise _type_error(where, hint, f"{chosen} cannot hold its values")
    return _PLAIN[hint] if chosen is None else chosen


def _type_family(kind: pa.DataType) -> str:
    """Returns the name of the Arrow types that hold the same Python type."""
    tests = {"int": pa.types.is_integer, "float": pa.types.is_floating, "decimal": pa.types.is_decimal}
    return next((name for name, test in tests.items() if test(kind)), str(kind))


def _type_from_metadata(metadata: Sequence[Any], where: str) -> pa.DataType | None:
    """Returns the type that metadata of an annotation sets: an Arrow type, a Precision, or pydantic's digits."""
    for item in metadata:
        if isinstance(item, pa.DataType):
            return item
        digits = item.digits if isinstance(item, Precision) else getattr(item, "max_digits", None)
        scale = item.scale if isinstance(item, Precision) else getattr(item, "decimal_places", None)
        if digits is not None or scale is not None:
            digits, scale = 38 if digits is None else digits, 0 if scale is None else scale
            return decimal_type(digits, scale, where, field=where.partition(".")[2])
        nested = _type_from_metadata(getattr(item, "metadata", ()), where)
        if nested is not None:
            return nested
    return None


def _value_type(values: list[Any], where: str, hint: Any) -> pa.DataType:
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in (str, int, bool):
        raise _type_error(where, hint, "its values must be all text or all integers")
    return _PLAIN[kind]


def _type_error(where: str, hint: Any, reason: str = "") -> BadTypeError:
    name = getattr(hint, "__name__", None) if isinstance(hint, type) else None
    what = f"{where}: the type {name or preview(hint)} is not supported" + (f": {reason}" if reason else "")
    return BadTypeError(what, detail=_ALLOWED, field=where.partition(".")[2], type=name or preview(hint))


def from_row(declared: Any, row: dict[str, Any]) -> Any:
    """Returns a row as an instance of the declared class, or the row itself if the type is not a class.

    Example:
        >>> from_row(Precision, {"digits": 12, "scale": 2})
        Precision(digits=12, scale=2)

    Raises:
        BadEventError: The class refuses the row, for instance through its own validator.
    """
    if not (isinstance(declared, type) and is_record(declared)):
        return row
    try:
        return _build_instance(declared, _restore_timedeltas(declared, row) if _has_timedelta(declared) else row)
    except (ValueError, TypeError, msgspec.ValidationError) as error:
        raise BadEventError(f"{declared.__name__} refuses the row: {error}", type=declared.__name__) from None


def _build_instance(cls: Any, row: Any) -> Any:
    if is_pydantic_model(cls):
        return cls.model_validate(row, by_name=True, by_alias=True)
    return msgspec.convert(row, cls, dec_hook=_build_instance)


# Cached, because `from_row` asks for every row; most classes have no timedelta.
@lru_cache(maxsize=1024)
def _has_timedelta(cls: type) -> bool:
    waiting: list[Any] = [cls]
    while waiting:
        hint, _ = _unwrap(waiting.pop())
        if hint is timedelta:
            return True
        waiting.extend(typing.get_args(hint))
        if isinstance(hint, type) and is_record(hint):
            waiting.extend(declared.hint for declared in _field_declarations(hint))
    return False


def _restore_timedeltas(hint: Any, value: Any) -> Any:
    """Returns the value with timedeltas in place of microseconds where the class declares timedeltas."""
    hint, _ = _unwrap(hint)
    arguments = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    if value is None:
        return None
    if hint is timedelta:
        return value * _MICROSECOND
    if isinstance(hint, type) and is_record(hint):
        members = {declared.name: declared.hint for declared in _field_declarations(hint)}
        return {name: _restore_timedeltas(members[name], item) for name, item in value.items() if name in members}
    if isinstance(value, dict) and len(arguments) == 2:
        return {name: _restore_timedeltas(arguments[1], item) for name, item in value.items()}
    if isinstance(value, list) and arguments and typing.get_origin(hint) in _LISTS:
        return [_restore_timedeltas(arguments[0], item) for item in value]
    return _restore_timedeltas(arguments[0], value) if arguments and typing.get_origin(hint) is not Literal else value
