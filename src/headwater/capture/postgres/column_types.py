"""PostgreSQL's types as Arrow types, and columns of PostgreSQL's text as Arrow columns.

The stream and a snapshot deliver the same text for a value, and both are converted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["PostgresType", "arrow_type", "convert", "parse_array"]

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_PLAIN: Final = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid, unsigned
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1184: _TIMESTAMP,
}
_NUMERIC: Final = 1700
_MAX_DIGITS: Final = 38
_NO_MODIFIER: Final = -1
_DOMAIN_DEPTH: Final = 32
_ITEM: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,"{}]+)')
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PostgresType:
    """What the catalog says about a type.

    Attributes:
        oid: Its number.
        base: The type that a domain is made of; 0 if it is no domain.
        base_modifier: The modifier of that type, such as precision and scale.
        element: The type of an array's elements; 0 if it is no array.
        delimiter: What separates the elements of an array.
    """

    oid: int
    base: int = 0
    base_modifier: int = _NO_MODIFIER
    element: int = 0
    delimiter: str = ","


def arrow_type(oid: int, modifier: int, dimensions: int, look_up: Callable[[int], PostgresType | None]) -> pa.DataType:
    """Returns the Arrow type of a column; text where there is no type that holds all its values exactly.

    Args:
        oid: The number of its type.
        modifier: Its type modifier, or -1.
        dimensions: The declared dimensions of an array; those with two or more are text.
        look_up: Finds a type that is not built in.

    Example:
        >>> numeric, json = 1700, 114
        >>> arrow_type(numeric, ((12 << 16) | 2) + 4, 0, lambda oid: None), arrow_type(json, -1, 0, lambda oid: None)
        (Decimal128Type(decimal128(12, 2)), DataType(string))
    """
    for _ in range(_DOMAIN_DEPTH):
        if oid in _PLAIN:
            return _PLAIN[oid]
        if oid == _NUMERIC:
            return _numeric_type(modifier)
        found = look_up(oid)
        if found is None:
            return pa.string()
        if found.base:
            oid, modifier = found.base, found.base_modifier
            continue
        if not found.element or found.delimiter != "," or dimensions > 1:
            return pa.string()
        return pa.list_(pa.field("element", arrow_type(found.element, modifier, 0, look_up)))
    return pa.string()


def _numeric_type(modifier: int) -> pa.DataType:
    if modifier < 4:
        return pa.string()
    precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (modifier - 4) & 0x7FF
    if precision > _MAX_DIGITS or scale > precision:  # a negative scale is stored as one above 1,024
        return pa.string()
    return pa.decimal128(precision, scale)


def convert(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Returns the typed values of a column, and which of them the type cannot hold; None if it holds all.

    A value that does not fit is null in the result: infinity and years before 1 or after 9999 in dates and times, NaN
    in a decimal, an array of several dimensions, text that is not UTF-8.

    Example:
        >>> values, bad = convert(pa.array([b"2026-01-01", b"infinity", None]), pa.date32())
        >>> values.to_pylist(), bad.tolist()
        ([datetime.date(2026, 1, 1), None, None], [False, True, False])
    """
    try:
        return _cast(texts, kind), None
    except (pa.ArrowInvalid, ValueError):
        pass
    if len(texts) == 1:
        return pa.nulls(1, kind), np.ones(1, np.bool_)
    middle = len(texts) // 2
    parts = [convert(half, kind) for half in (texts[:middle], texts[middle:])]
    bad = [np.zeros(len(values), np.bool_) if flags is None else flags for values, flags in parts]
    return pa.concat_arrays([values for values, _ in parts]), np.concatenate(bad)


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([_decode_hex(value) for value in texts.to_pylist()], kind)
    strings = texts.cast(pa.string())
    if pa.types.is_string(kind):
        return strings
    if pa.types.is_boolean(kind):
        return pc.equal(strings, "t")
    if pa.types.is_list(kind):
        return _cast_arrays(strings, kind)
    return strings.cast(kind)


def _decode_hex(value: bytes | None) -> bytes | None:
    if value is None:
        return None
    if value[:2] != b"\\x":
        raise ValueError("bytes are not in hexadecimal form")
    return bytes.fromhex(value[2:].decode("ascii"))


def _cast_arrays(strings: pa.Array, kind: pa.ListType) -> pa.Array:
    rows = [None if text is None else parse_array(text) for text in strings.to_pylist()]
    items = pa.array([item for row in rows if row for item in row], pa.string())
    values = _cast(items.cast(pa.binary()), kind.value_type)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row or ()) for row in rows], out=offsets[1:])
    absent = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=absent)


def parse_array(text: str) -> list[str | None]:
    """Returns the elements of a one-dimensional array with the usual bounds."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("the array has bounds of its own")
    inner = text[1:-1]
    if "{" not in inner and '"' not in inner:
        return [None if item == "NULL" else item for item in inner.split(",")] if inner else []
    items: list[str | None] = []
    position = 0
    while position <= len(inner):
        found = _ITEM.match(inner, position)
        if found is None:
            raise ValueError("the array has several dimensions")
        quoted, plain = found.groups()
        if quoted is not None:
            items.append(_ESCAPED.sub(r"\1", quoted))
        else:
            items.append(None if plain == "NULL" else plain)
        position = found.end() + 1
    return items
