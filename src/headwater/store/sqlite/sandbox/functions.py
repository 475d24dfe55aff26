"""Functions and orders that replace SQLite's own in users' queries.

Decimals and times are text in the file. Compared as text, 99.00 comes after 100.00, and 12:00:00Z after 12:00:00.5Z; so
their columns are shown with an order of their own. And some of SQLite's functions take a minute for two texts of a
megabyte, during which nothing can end them.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

__all__ = ["DECIMAL", "MOMENT", "add_functions"]

DECIMAL = "hw_decimal"
MOMENT = "hw_moment"
_WRITTEN = len("2026-01-01T00:00:00.000000Z")


def add_functions(connection: sqlite3.Connection, longest: int) -> None:
    """Give a connection our functions and orders; no text they make is longer than `longest`."""

    def replace(text: Any, old: Any, new: Any) -> Any:
        if text is None or old is None:
            return None
        text, old = _text(text), _text(old)
        if not old:
            return text
        if new is None:
            return None
        new = _text(new)
        if len(text) + text.count(old) * (len(new) - len(old)) > longest:
            raise OverflowError  # SQLite is told: string or blob too big
        return text.replace(old, new)

    connection.create_collation(DECIMAL, _compare_decimals)
    connection.create_collation(MOMENT, _compare_moments)
    connection.create_function("replace", 3, replace, deterministic=True)
    connection.create_function("instr", 2, _instr, deterministic=True)
    for name, sides in (("trim", "lr"), ("ltrim", "l"), ("rtrim", "r")):
        trimming = _trimming(sides)
        connection.create_function(name, 1, trimming, deterministic=True)
        connection.create_function(name, 2, trimming, deterministic=True)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else str(value)


def _instr(text: Any, part: Any) -> int | None:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _text(text).find(_text(part)) + 1


def _trimming(sides: str) -> Any:
    def trim(text: Any, signs: Any = " ") -> str | None:
        if text is None or signs is None:
            return None
        found, gone = _text(text), frozenset(_text(signs))
        start, end = 0, len(found)
        while "l" in sides and start < end and found[start] in gone:
            start += 1
        while "r" in sides and start < end and found[end - 1] in gone:
            end -= 1
        return found[start:end]

    return trim


def _compare_decimals(one: str, other: str) -> int:
    """-1, 0 or 1, as numbers; text that is no number comes after all numbers, in its own order."""
    first, second = _number(one), _number(other)
    if first is None or second is None:
        if first is None and second is None:
            return (one > other) - (one < other)
        return 1 if first is None else -1
    return (first > second) - (first < second)


@lru_cache(maxsize=4096)
def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text[:100])
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _compare_moments(one: str, other: str) -> int:
    first = one if len(one) == _WRITTEN and one[-1] == "Z" else _moment(one)
    second = other if len(other) == _WRITTEN and other[-1] == "Z" else _moment(other)
    return (first > second) - (first < second)


@lru_cache(maxsize=4096)
def _moment(text: str) -> str:
    """A time as it is written in the file, if it is one: any zone, a space for the T, no seconds, a day alone."""
    try:
        read = datetime.fromisoformat(text[:40])
    except ValueError:
        return text
    zoned = read if read.tzinfo else read.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(_WRITTEN, "0")
