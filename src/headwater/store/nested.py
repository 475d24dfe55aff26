"""Structs, lists and maps as JSON text and back: what JSON has no form for is text inside it.

Decimals, times and dates are text, binary is base64, NaN and infinities are `"NaN"`, `"Infinity"`, `"-Infinity"`. A map
is an object, in the order of its entries.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headwater.events import values_of
from headwater.events.values import json_form

__all__ = ["from_json", "to_json"]

Decode = Callable[[Any], Any]
_INFINITIES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def to_json(array: pa.Array) -> list[str | None]:
    """A nested column as JSON text, row by row.

    Example:
        >>> to_json(pa.array([{"a": 1, "b": [float("nan")]}, None]))
        ['{"a":1,"b":["NaN"]}', None]
    """
    return [
        None
        if value is None
        else json.dumps(_finite(json_form(value)), ensure_ascii=False, separators=(",", ":"))
        for value in values_of(array, decimal=_Digits)
    ]


def from_json(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """A nested column from its JSON texts.

    Example:
        >>> from_json(['{"a":"1.50"}'], pa.struct([("a", pa.decimal128(5, 2))])).to_pylist()
        [{'a': Decimal('1.50')}]
    """
    decode = _decoder(kind)
    return pa.array([None if text is None else decode(json.loads(text)) for text in texts], kind)


class _Digits(str):
    """The text of a decimal with all its digits, written out."""

    __slots__ = ()

    def __new__(cls, text: str) -> _Digits:
        return super().__new__(cls, format(Decimal(text), "f") if "E" in text else text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _INFINITIES.get(value, "NaN")
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _decoder(kind: pa.DataType) -> Decode:
    """What makes Arrow's Python value out of a JSON value; None stays None."""
    if pa.types.is_struct(kind):
        return _struct_decoder(kind)
    if pa.types.is_map(kind):
        return _map_decoder(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _decoder(kind.value_type)
        return lambda items: None if items is None else [inner(item) for item in items]
    return _leaf_decoder(kind)


def _struct_decoder(kind: pa.DataType) -> Decode:
    members = [(field.name, _decoder(field.type)) for field in kind]

    def decode(value: Any) -> Any:
        return None if value is None else {name: inner(value.get(name)) for name, inner in members}

    return decode


def _map_decoder(kind: pa.DataType) -> Decode:
    key, item = _decoder_of_text(kind.key_type), _decoder(kind.item_type)

    def decode(value: Any) -> Any:
        return None if value is None else [(key(name), item(inner)) for name, inner in value.items()]

    return decode


def _decoder_of_text(kind: pa.DataType) -> Decode:
    """Keys of objects are text in JSON, whatever they were."""
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_boolean(kind):
        return lambda text: text == "True"
    return _leaf_decoder(kind)


def _leaf_decoder(kind: pa.DataType) -> Decode:
    make: Decode = _same
    if pa.types.is_floating(kind):
        make = float
    elif pa.types.is_decimal(kind):
        make = Decimal
    elif pa.types.is_timestamp(kind):
        make = datetime.fromisoformat
    elif pa.types.is_date(kind):
        make = date.fromisoformat
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        make = b64decode
    return lambda value: None if value is None else make(value)


def _same(value: Any) -> Any:
    return value
