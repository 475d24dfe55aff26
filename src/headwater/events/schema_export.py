"""A topic's type as JSON Schema, Spark DDL, Arrow or Avro.

For Avro, characters that a record name cannot have become `_`; a field with such a name raises
`BadTypeError`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Any, Final

import pyarrow as pa

from headwater.errors import BadTypeError
from headwater.events.ddl import to_ddl
from headwater.events.validator import field_default

__all__ = ["from_arrow_base64", "schema_document", "to_arrow_base64", "to_avro", "to_json_schema"]

_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO_TYPES: Final[dict[pa.DataType, Any]] = {
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


def to_avro(schema: pa.Schema, name: str) -> dict[str, Any]:
    """Returns a type as an Avro record; nullable fields are unions with null, with null as default.

    Args:
        schema: The type.
        name: The record's name; characters that Avro does not allow become `_`.

    Example:
        >>> to_avro(pa.schema([pa.field("id", pa.int64(), nullable=False)]), "orders.eu")
        {'type': 'record', 'name': 'orders_eu', 'fields': [{'name': 'id', 'type': 'long'}]}

    Raises:
        BadTypeError: Avro does not allow a field's name.
    """
    return _avro_record(list(schema), re.sub(r"^(?=\d)|[^A-Za-z0-9_]", "_", name))


def _avro_record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_avro_field(field, name) for field in fields]}


def _avro_field(field: pa.Field, record: str) -> dict[str, Any]:
    if not _AVRO_NAME.fullmatch(field.name):
        what = f"{field.name!r} is not a valid field name in Avro"
        detail = "names consist of letters, digits and underscores, and do not start with a digit"
        raise BadTypeError(what, detail=detail, fix='rename the field, or use value_format="json"', field=field.name)
    # The name of a record inside is its path, because Avro demands a different name for each record.
    return {"name": field.name} | _avro_optional(field, f"{record}_{field.name}")


def _avro_optional(field: pa.Field, path: str) -> dict[str, Any]:
    kind = _avro_type(field.type, path)
    return {"type": ["null", kind], "default": None} if field.nullable else {"type": kind}


def _avro_type(kind: pa.DataType, path: str) -> Any:
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _avro_record(list(kind), path)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _avro_optional(kind.value_field, path)["type"]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": _avro_optional(kind.item_field, path)["type"]}
    return _AVRO_TYPES[kind]


_JSON_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_JSON_TYPES: Final[dict[pa.DataType, dict[str, Any]]] = {
    pa.bool_(): {"type": "boolean"},
    pa.float32(): {"type": "number"},
    pa.float64(): {"type": "number"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    pa.date32(): {"type": "string", "format": "date"},
    pa.timestamp("us", "UTC"): {"type": "string", "format": "date-time"},
}


def to_json_schema(schema: pa.Schema, title: str) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a type's JSON events.

    Example:
        >>> to_json_schema(pa.schema([pa.field("id", pa.int32(), nullable=False)]), "orders")["properties"]
        {'id': {'type': 'integer', 'minimum': -2147483648, 'maximum': 2147483647}}
    """
    return {"$schema": _JSON_DIALECT, "title": title, **_json_object(list(schema))}


def _json_object(fields: list[pa.Field]) -> dict[str, Any]:
    required = [field.name for field in fields if not field.nullable and field_default(field) is None]
    return {
        "type": "object",
        "properties": {field.name: _json_field(field) for field in fields},
        "required": required,
        "additionalProperties": False,
    }


def _json_field(field: pa.Field) -> dict[str, Any]:
    kind = _json_type(field.type)
    if field.nullable:
        kind = {"anyOf": [kind, {"type": "null"}]}
    default = field_default(field)
    return kind if default is None else kind | {"default": default}


def _json_type(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return _json_object(list(kind))
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _json_field(kind.item_field)}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _json_field(kind.value_field)}
    if pa.types.is_integer(kind):
        half = 2 ** (kind.bit_width - 1)
        return {"type": "integer", "minimum": -half, "maximum": half - 1}
    if pa.types.is_decimal(kind):  # written as text, because many JSON parsers round numbers; read as both
        about = f"decimal with {kind.precision} digits, {kind.scale} of them after the point"
        return {"type": ["string", "number"], "description": about}
    return _JSON_TYPES[kind]


def to_arrow_base64(schema: pa.Schema) -> str:
    """Returns the schema as an Arrow IPC message, in base64."""
    return b64encode(schema.serialize().to_pybytes()).decode()


def from_arrow_base64(text: str) -> pa.Schema:
    """Parse the text from `to_arrow_base64`.

    Raises:
        BadTypeError: The text is not an Arrow schema in base64.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadTypeError(f"the schema is not an Arrow schema in base64: {str(error)[:200]}") from None


def schema_document(schema: pa.Schema, version: int, title: str) -> dict[str, Any]:
    """Returns a type as DDL, JSON Schema and Arrow."""
    return {
        "version": version,
        "ddl": to_ddl(schema),
        "json_schema": to_json_schema(schema, title),
        "arrow": to_arrow_base64(schema),
    }
