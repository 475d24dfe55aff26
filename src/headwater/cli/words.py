"""Numbers, times and sizes as a person reads them; text of events made safe for a terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["bytes_text", "count", "escaped", "escaped_json", "machine", "plural", "seconds", "when"]

# Control characters of both sets, line separators, and marks that reverse the direction of writing: printed as they
# are, they could move the cursor, recolour, or make a terminal answer.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BYTES = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


def escaped(text: str) -> str:
    r"""Text with its control characters written out.

    Example:
        >>> escaped("red: \x1b[31m")
        'red: \\u001b[31m'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escaped_json(line: bytes) -> bytes:
    r"""A JSON text in which every control character is escaped; it still means the same.

    JSON itself asks for that only below U+0020, and terminals obey others too.

    Example:
        >>> escaped_json('{"name":"\x9b31m"}'.encode())
        b'{"name":"\\u009b31m"}'
    """
    if not _CONTROL_BYTES.search(line):
        return line
    return _CONTROL_BYTES.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), line)


def count(number: int) -> str:
    """A number with its thousands apart.

    Example:
        >>> count(18204)
        '18,204'
    """
    return f"{number:,}"


def plural(number: int, word: str) -> str:
    """A number and its noun.

    Example:
        >>> plural(1, "event"), plural(2000, "event")
        ('1 event', '2,000 events')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def seconds(length: timedelta | float | None) -> str:
    """A length of time in its fitting unit.

    Example:
        >>> seconds(1.234), seconds(0.0004), seconds(4000), seconds(None)
        ('1.2 s', '0.4 ms', '1.1 h', '')
    """
    if length is None:
        return ""
    number = length.total_seconds() if isinstance(length, timedelta) else float(length)
    for unit, size, least in (("d", 86_400, 172_800), ("h", 3_600, 3_600), ("min", 60, 120), ("s", 1, 1)):
        if abs(number) >= least:
            return f"{number / size:.1f} {unit}"
    return f"{number * 1000:.1f} ms" if number else "0 s"


def bytes_text(number: float) -> str:
    """A size in its fitting unit.

    Example:
        >>> bytes_text(1536), bytes_text(2_500_000_000)
        ('1.5 kB', '2.5 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def when(at: datetime | None) -> str:
    """A moment in UTC, to the millisecond, with its zone.

    Example:
        >>> when(datetime(2026, 1, 1, 12, tzinfo=UTC))
        '2026-01-01 12:00:00.000Z'
    """
    if at is None:
        return ""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds") + "Z"


def machine(value: Any) -> str:
    """A value for another program: nothing rounded, no thousands apart, times in RFC 3339.

    Example:
        >>> machine(18204), machine(None), machine(True), machine(("a", "b"))
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
            return ",".join(f"{machine(name)}={machine(item)}" for name, item in value.items())
        case list() | tuple():
            return ",".join(map(machine, value))
    return escaped(str(value))
