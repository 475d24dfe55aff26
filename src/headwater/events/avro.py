"""The type of a topic as an Avro schema: what each field becomes, and which names Avro does not take."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from headwater.errors import BadTypeError

__all__ = ["avro_schema"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEAVES: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}


def avro_schema(schema: pa.Schema, name: str) -> dict[str, Any]:
    """A record with the fields of a type; one that may be null is a union with null, which is its default.

    Args:
        schema: The type.
        name: The record's name; what Avro does not take in it becomes `_`.

    Example:
        >>> avro_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)]), "orders.eu")
        {'type': 'record', 'name': 'orders_eu', 'fields': [{'name': 'id', 'type': 'long'}]}

    Raises:
        BadTypeError: A field has a name that Avro does not take.
    """
    return _record(list(schema), re.sub(r"^(?=\d)|[^A-Za-z0-9_]", "_", name))


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field(field, name) for field in fields]}


def _field(field: pa.Field, inside: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        what = f"{field.name!r} cannot be the name of a field in Avro"
        detail = "names have letters, digits and underscores, and begin with no digit"
        raise BadTypeError(what, detail=detail, fix='another name, or values="json"', field=field.name)
    return {"name": field.name} | _optional(field, f"{inside}_{field.name}")


def _optional(field: pa.Field, path: str) -> dict[str, Any]:
    kind = _kind(field.type, path)
    return {"type": ["null", kind], "default": None} if field.nullable else {"type": kind}


def _kind(kind: pa.DataType, path: str) -> Any:
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record([kind.field(index) for index in range(kind.num_fields)], path)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _optional(kind.value_field, path)["type"]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": _optional(kind.item_field, path)["type"]}
    return _LEAVES[kind]
