"""Durations, sizes and times as text; one parser for Python, HTTP and the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from headwater.errors import BadTimeError

__all__ = ["duration", "format_duration", "micros", "moment", "size", "to_seconds"]

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT_NAMES = {
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
    "sec": "s",
    "minute": "m",
    "min": "m",
    "hour": "h",
    "day": "d",
    "week": "w",
}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_DURATION_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def duration(text: str | timedelta) -> timedelta:
    """Returns a duration from "10 minutes", "10m", "1h 30m" or a `timedelta`.

    Example:
        >>> duration("10 minutes"), duration("1h 30m")
        (datetime.timedelta(seconds=600), datetime.timedelta(seconds=5400))
    """
    if isinstance(text, timedelta):
        return text
    parts = _NUMBER_AND_UNIT.findall(text) if isinstance(text, str) else []
    if not parts or _NUMBER_AND_UNIT.sub("", text):
        raise _parse_error("duration", text, 'such as "10 minutes", "2s" or "1h 30m"')
    seconds = 0.0
    for number, unit in parts:
        word = unit.lower()
        short = word if word in _SECONDS else _UNIT_NAMES.get(word.removesuffix("s"))
        if short is None:
            raise _parse_error("duration", text, f"units: {', '.join(_SECONDS)}, or their words")
        seconds += float(number) * _SECONDS[short]
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise _parse_error("duration", text, "it is longer than a timedelta can hold") from None


def to_seconds(value: float | str | timedelta) -> float:
    """Returns a duration in seconds; a number is in seconds already.

    Example:
        >>> to_seconds("2 minutes"), to_seconds(0.5)
        (120.0, 0.5)
    """
    return duration(value).total_seconds() if isinstance(value, str | timedelta) else value


def size(text: str | int) -> int:
    """Returns a number of bytes from "64 MB", "1GiB" or a plain number.

    Example:
        >>> size("64 MB"), size(512)
        (64000000, 512)
    """
    if isinstance(text, int):
        return text
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match and match[2].lower() in _BYTES:
        return int(float(match[1]) * _BYTES[match[2].lower()])
    if text.strip().isdigit():
        return int(text)
    raise _parse_error("size", text, 'such as "64 MB" or "1 GiB"')


def moment(text: str | datetime, *, now: datetime | None = None) -> datetime:
    """Returns a point in time from RFC 3339 text with a zone, a relative "-10m", or an aware `datetime`.

    Example:
        >>> moment("2026-01-01T00:00:00Z").isoformat()
        '2026-01-01T00:00:00+00:00'
        >>> moment("-10m", now=moment("2026-01-01T00:10:00Z")).isoformat()
        '2026-01-01T00:00:00+00:00'
    """
    try:
        if isinstance(text, str) and text.startswith("-"):
            return (now or datetime.now(UTC)) - duration(text[1:])
        parsed = text if isinstance(text, datetime) else datetime.fromisoformat(text)
        if parsed.tzinfo is not None:
            return parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _parse_error("time", text, 'RFC 3339 such as "2026-01-01T00:00:00Z", or "-10m"') from None
    raise _parse_error("time", text, 'it has no zone: add "Z" or an offset')


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """Returns microseconds since 1970, exactly; `datetime.timestamp` would round.

    Example:
        >>> micros(moment("1970-01-01T00:00:01Z"))
        1000000
    """
    return (at - _EPOCH) // timedelta(microseconds=1)


def _parse_error(what: str, text: object, hint: str) -> BadTimeError:
    return BadTimeError(f"cannot read {text!r} as a {what}", detail=hint, text=str(text))


def format_duration(length: timedelta) -> str:
    """Returns a duration as text, without rounding.

    Example:
        >>> format_duration(timedelta(minutes=10)), format_duration(timedelta(seconds=5400))
        ('10 minutes', '90 minutes')
        >>> format_duration(timedelta(milliseconds=1500))
        '1.5 seconds'
    """
    seconds, rest = divmod(length, timedelta(seconds=1))
    if rest:
        return f"{length.total_seconds():f}".rstrip("0") + " seconds"
    unit, size = next((unit, size) for unit, size in _DURATION_UNITS if seconds % size == 0 and (seconds or size == 1))
    return f"{seconds // size} {unit}{'' if seconds == size else 's'}"
