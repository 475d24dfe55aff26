"""Formats numbers, times and sizes, and escapes text of events for a terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = [
    "escape",
    "escape_json",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_plain",
    "format_time",
    "plural",
]

# C0 and C1 control characters, line separators, and marks that change the direction of text. In a terminal they could
# move the cursor, change colours, or make the terminal send a response.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BYTES = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


def escape(text: str) -> str:
    r"""Returns text with its control characters escaped.

    Example:
        >>> escape("red: \x1b[31m")
        'red: \\u001b[31m'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escape_json(line: bytes) -> bytes:
    r"""Returns an equivalent JSON text in which every control character is escaped.

    JSON requires this only below U+0020, but terminals also interpret others.

    Example:
        >>> escape_json('{"name":"\x9b31m"}'.encode())
        b'{"name":"\\u009b31m"}'
    """
    if not _CONTROL_BYTES.search(line):
        return line
    return _CONTROL_BYTES.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), line)


def format_count(number: int) -> str:
    """Returns a number with thousands separators.

    Example:
        >>> format_count(18204)
        '18,204'
    """
    return f"{number:,}"


def plural(number: int, word: str) -> str:
    """Returns a number with its noun in singular or plural.

    Example:
        >>> plural(1, "event"), plural(2000, "event")
        ('1 event', '2,000 events')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def format_duration(length: timedelta | float | None) -> str:
    """Returns a duration in a suitable unit.

    Example:
        >>> format_duration(1.234), format_duration(0.0004), format_duration(4000), format_duration(None)
        ('1.2 s', '0.4 ms', '1.1 h', '')
    """
    if length is None:
        return ""
    number = length.total_seconds() if isinstance(length, timedelta) else float(length)
    for unit, size, least in (("d", 86_400, 172_800), ("h", 3_600, 3_600), ("min", 60, 120), ("s", 1, 1)):
        if abs(number) >= least:
            return f"{number / size:.1f} {unit}"
    return f"{number * 1000:.1f} ms" if number else "0 s"


def format_bytes(number: float) -> str:
    """Returns a size in a suitable unit.

    Example:
        >>> format_bytes(1536), format_bytes(2_500_000_000)
        ('1.5 kB', '2.5 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def format_time(at: datetime | None) -> str:
    """Returns a time in UTC with milliseconds.

    Example:
        >>> format_time(datetime(2026, 1, 1, 12, tzinfo=UTC))
        '2026-01-01 12:00:00.000Z'
    """
    if at is None:
        return ""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds") + "Z"


def format_plain(value: Any) -> str:
    """Returns a value for another program: not rounded, without thousands separators, times as RFC 3339.

    Example:
        >>> format_plain(18204), format_plain(None), format_plain(True), format_plain(("a", "b"))
        ('18204', '', 'true', 'a,b')
    """
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case dict():
            return ",".join(f"{format_plain(name)}={format_plain(item)}" for name, item in value.items())
        case list() | tuple():
            return ",".join(map(format_plain, value))
    return escape(str(value))
