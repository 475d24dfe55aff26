"""Formats numbers, durations and sizes, and escapes text of events for a terminal.

The text of a value of an event or view is `headwater.events.values.format_value`.
"""

from __future__ import annotations

import re
from datetime import timedelta

__all__ = [
    "escape",
    "escape_json",
    "format_bytes",
    "format_count",
    "format_duration",
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
        >>> format_duration(0.437)
        '437 ms'
    """
    if length is None:
        return ""
    number = length.total_seconds() if isinstance(length, timedelta) else float(length)
    for unit, size, least in (("d", 86_400, 172_800), ("h", 3_600, 3_600), ("min", 60, 120), ("s", 1, 1)):
        if abs(number) >= least:
            return f"{number / size:.1f} {unit}"
    if not number:
        return "0 s"
    return f"{number * 1000:.0f} ms" if abs(number) >= 0.01 else f"{number * 1000:.1f} ms"


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
