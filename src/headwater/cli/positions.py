"""Where to read from and to, as it is typed: an offset, a time, or a word."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from headwater.errors import BadOffsetError, BadTimeError
from headwater.units import moment

__all__ = ["PositionText", "position"]

PositionText = Annotated[str, Parameter(allow_leading_hyphen=True)]
_FORMS = 'a time such as 2026-01-01T00:00:00Z or -10m, an offset such as 1500, "earliest", "latest" or "end"'


def position(text: str, *, now: datetime | None = None) -> str | int | datetime:
    """What a client takes as start or stop; "end" and "latest" are the same place.

    Example:
        >>> position("1500"), position("end")
        (1500, 'latest')
        >>> position("-10m", now=moment("2026-01-01T00:10:00Z")).isoformat()
        '2026-01-01T00:00:00+00:00'

    Raises:
        BadTimeError: It is neither a time nor an offset nor one of the words.
        BadOffsetError: It is a number, but none that counts events.
    """
    if text in ("earliest", "latest", "end"):
        return "latest" if text == "end" else text
    if text.isascii() and text.isdigit():
        return int(text)
    if text.lstrip("+-").replace(".", "", 1).isdigit():
        raise BadOffsetError(f"{text!r} is no offset", detail=f"give {_FORMS}", offset=text)
    try:
        return moment(text, now=now)
    except BadTimeError as error:
        raise BadTimeError(error.what, detail=f"{error.detail}\ngive {_FORMS}", text=text) from None
