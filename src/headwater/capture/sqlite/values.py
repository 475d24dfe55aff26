"""Stored SQLite values as Arrow columns.

SQLite stores in any column whatever a program gives it. A value that is not of the declared kind is not converted:
its row goes to quarantine, unless the column is text, which takes numbers as SQLite prints them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

__all__ = ["BadText", "decode_column", "decode_text", "decode_value", "describe_row", "encode_value"]

_EXPECTED: Final[dict[pa.DataType, set[type]]] = {
    pa.int64(): {int},
    pa.float64(): {float, int},
    pa.string(): {str},
    pa.binary(): {bytes},
}


@dataclass(frozen=True)
class BadText:
    """A stored text that is not UTF-8."""

    content: bytes

    def __len__(self) -> int:
        return len(self.content)


def decode_text(content: bytes) -> Any:
    """Returns a text, or `BadText`; the `text_factory` of a connection that met one."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return BadText(content)


def decode_column(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Returns a column, and the places of values that are not of its type, which are null in it.

    Example:
        >>> decode_column([1, None, "two"], pa.int64())[1], decode_column([1, 2.5, "x"], pa.string())[0].to_pylist()
        ([2], ['1', '2.5', 'x'])
    """
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if kinds <= _EXPECTED.get(kind, set()):
        return pa.array(values, kind), []
    convert = _converter(kind)
    converted, failed = [], []
    for place, value in enumerate(values):
        one = None if value is None else convert(value)
        converted.append(one)
        if one is None and value is not None:
            failed.append(place)
    return pa.array(converted, kind), failed


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns a function that gives None for a value that is not of the type."""
    if pa.types.is_string(kind):
        return _as_text
    if pa.types.is_boolean(kind):
        return lambda value: bool(value) if type(value) is int and value in (0, 1) else None
    if pa.types.is_decimal(kind):
        return lambda value: _as_decimal(value, kind)
    expected = tuple(_EXPECTED[kind])
    return lambda value: value if isinstance(value, expected) else None


def _as_text(value: Any) -> str | None:
    if isinstance(value, float):
        return _print_real(value)
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else None


def _as_decimal(value: Any, kind: pa.DataType) -> Decimal | None:
    """Returns a number that the precision and scale can hold exactly."""
    text = _as_text(value)
    if text is None:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    _, digits, exponent = number.normalize().as_tuple()
    scale = max(0, -int(exponent))
    whole = len(digits) + int(exponent)
    return number if scale <= kind.scale and whole <= kind.precision - kind.scale else None


@lru_cache(maxsize=4096)
def _print_real(value: float) -> str:
    """Returns a number as SQLite prints it: with 15 digits."""
    connection = _printer()
    return str(connection.execute("SELECT CAST(? AS TEXT)", (value,)).fetchone()[0])


@lru_cache(maxsize=1)
def _printer() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def describe_row(row: dict[str, Any]) -> str:
    r"""Returns a row as JSON, with the values as they are stored.

    Example:
        >>> describe_row({"id": 1, "photo": b"\xff"})
        '{"id": 1, "photo": {"bytes": "ff"}}'
    """
    return json.dumps(_encode_all(row), ensure_ascii=False)


def _encode_all(value: Any) -> Any:
    return {name: _encode_all(one) for name, one in value.items()} if isinstance(value, dict) else encode_value(value)


def encode_value(value: Any) -> Any:
    r"""Returns a stored value as JSON, which has no form for bytes and infinite numbers.

    Example:
        >>> [encode_value(one) for one in (7, "a", b"\x01", float("inf"))]
        [7, 'a', {'bytes': '01'}, {'number': 'inf'}]
    """
    if isinstance(value, BadText):
        return {"text": value.content.hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"number": repr(value)} if isinstance(value, float) else value


def decode_value(value: Any) -> Any:
    r"""Returns the value of `encode_value`.

    Example:
        >>> decode_value({"bytes": "01"}), decode_value({"number": "1.5"}), decode_value("a")
        (b'\x01', 1.5, 'a')
    """
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["bytes"]) if "bytes" in value else float(value["number"])
