"""Whether a message can be published at all; the same for every broker."""

from __future__ import annotations

from datetime import timedelta

from headwater.errors import BadEventError, TooLargeError
from headwater.events import checked_headers, checked_traceparent
from headwater.log.definition import LARGEST_EVENT
from headwater.queues.protocol import Outgoing

__all__ = ["check_message"]

_LONGEST_TEXT = 255  # bytes: what AMQP has room for in ids and routing keys
_LONGEST_SPAN = timedelta(days=36_500)


def check_message(message: Outgoing, row: int) -> None:
    """Raises if a message cannot be as it is; `row` says which of a call it is.

    Example:
        >>> check_message(Outgoing(b"{}", priority=10), 3)
        Traceback (most recent call last):
        headwater.errors.BadEventError: BAD_EVENT: message 3 has priority 10, which is not from 0 to 9
          nothing of this call was taken
    """
    if not isinstance(message.body, bytes):
        raise _bad(row, "a body that is not bytes", "body")
    if len(message.body) > LARGEST_EVENT:
        raise TooLargeError(
            f"message {row} has {len(message.body):,} bytes, more than {LARGEST_EVENT:,}",
            detail="nothing of this call was taken",
            fix="keep large objects elsewhere and send where they are",
            limit=LARGEST_EVENT,
            row=row,
        )
    if not isinstance(message.priority, int) or not 0 <= message.priority <= 9:
        raise _bad(row, f"priority {message.priority!r}, which is not from 0 to 9", "priority")
    _check_texts(message, row)
    for name in ("delay", "ttl"):
        span = getattr(message, name)
        if span is not None and not timedelta(0) <= span <= _LONGEST_SPAN:
            raise _bad(row, f"a {name} of {span}", name)
    if message.headers:
        checked_headers(message.headers)
    if message.traceparent is not None:
        checked_traceparent(message.traceparent)


def _check_texts(message: Outgoing, row: int) -> None:
    for name in ("id", "key", "words"):
        text = getattr(message, name)
        if text is None and name != "words":
            continue
        if not isinstance(text, str) or not _sound(text) or (name == "id" and not text):
            raise _bad(
                row, f"{name} {str(text)[:40]!r}, which is not text of up to {_LONGEST_TEXT} bytes", name
            )


def _sound(text: str) -> bool:
    try:
        return len(text.encode()) <= _LONGEST_TEXT and "\0" not in text
    except UnicodeEncodeError:
        return False


def _bad(row: int, what: str, field: str) -> BadEventError:
    detail = "nothing of this call was taken"
    return BadEventError(f"message {row} has {what}", detail=detail, row=row, field=field)
