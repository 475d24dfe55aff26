"""A topic's type in the forms that others read: JSON Schema, Spark DDL, Arrow."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import pyarrow as pa

from headwater.errors import BadTypeError
from headwater.events import to_ddl
from headwater.events.shape import default_of

__all__ = ["arrow_text", "from_arrow_text", "json_schema", "schema_document"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(schema: pa.Schema, title: str) -> dict[str, Any]:
    """What a JSON event of this type looks like, as JSON Schema 2020-12.

    Example:
        >>> json_schema(pa.schema([pa.field("id", pa.int32(), nullable=False)]), "orders")["properties"]
        {'id': {'type': 'integer', 'minimum': -2147483648, 'maximum': 2147483647}}
    """
    return {"$schema": _DIALECT, "title": title, **_object(list(schema))}


def _object(fields: list[pa.Field]) -> dict[str, Any]:
    required = [field.name for field in fields if not field.nullable and default_of(field) is None]
    return {
        "type": "object",
        "properties": {field.name: _field(field) for field in fields},
        "required": required,
        "additionalProperties": False,
    }


def _field(field: pa.Field) -> dict[str, Any]:
    kind = _kind(field.type)
    if field.nullable:
        kind = {"anyOf": [kind, {"type": "null"}]}
    default = default_of(field)
    return kind if default is None else kind | {"default": default}


def _kind(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return _object(list(kind))
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _field(kind.item_field)}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _field(kind.value_field)}
    if pa.types.is_integer(kind):
        half = 2 ** (kind.bit_width - 1)
        return {"type": "integer", "minimum": -half, "maximum": half - 1}
    return _scalar(kind)


def _scalar(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_floating(kind):
        return {"type": "number"}
    if pa.types.is_decimal(kind):
        about = f"decimal with {kind.precision} digits, {kind.scale} of them after the point"
        return {"type": ["string", "number"], "description": about}
    if pa.types.is_timestamp(kind):
        return {"type": "string", "format": "date-time"}
    if pa.types.is_date(kind):
        return {"type": "string", "format": "date"}
    if pa.types.is_binary(kind):
        return {"type": "string", "contentEncoding": "base64"}
    return {"type": "string"}


def arrow_text(schema: pa.Schema) -> str:
    """The schema as an Arrow IPC message, in base64."""
    return b64encode(schema.serialize().to_pybytes()).decode()


def from_arrow_text(text: str) -> pa.Schema:
    """The schema out of such a text.

    Raises:
        BadTypeError: It is something else.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadTypeError(f"the schema is not an Arrow schema in base64: {str(error)[:200]}") from None


def schema_document(schema: pa.Schema, version: int, title: str) -> dict[str, Any]:
    """All forms of a type."""
    return {
        "version": version,
        "ddl": to_ddl(schema),
        "json_schema": json_schema(schema, title),
        "arrow": arrow_text(schema),
    }
