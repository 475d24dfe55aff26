"""Dead letters, put right and put back in line: a field is set to another value, and the type is checked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from headwater.errors import BadEventError, BadSettingError
from headwater.queues.body import Bodies, key_text
from headwater.queues.definition import Queue
from headwater.queues.protocol import DeadLetter

__all__ = ["edited", "edits_of"]


def edits_of(texts: Sequence[str]) -> dict[str, Any]:
    """What is to be set, from texts such as `customer.country=DE`; a value is JSON if it can be read so, else text.

    Example:
        >>> edits_of(["amount=12.5", "to=ada@example.com", "sent=null", 'code="7"'])
        {'amount': 12.5, 'to': 'ada@example.com', 'sent': None, 'code': '7'}

    Raises:
        BadSettingError: A text has no field or no `=`.
    """
    edits: dict[str, Any] = {}
    for text in texts:
        field, sign, value = text.partition("=")
        if not sign or not field.strip():
            raise BadSettingError(f"cannot read {text!r} as an edit", fix="--edit 'field=value'")
        try:
            edits[field.strip()] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            edits[field.strip()] = value
    return edits


def edited(queue: Queue, letter: DeadLetter, edits: Mapping[str, Any]) -> DeadLetter:
    """The letter with fields of its message set to other values; its key follows.

    Args:
        queue: The letter's queue.
        letter: What died.
        edits: New values by field; `a.b` is the field `b` in `a`.

    Raises:
        BadEventError: There is nothing of that name to go into, or the message does not fit the queue's type now.

    Example:
        >>> from headwater.queues.protocol import Outgoing
        >>> from datetime import UTC, datetime
        >>> at = datetime(2026, 1, 1, tzinfo=UTC)
        >>> letter = DeadLetter(1, "", Outgoing(b'{"to":"ada"}'), at, at, "rejected")
        >>> edited(Queue("emails"), letter, {"to": "bob"}).message.body
        b'{"to":"bob"}'
    """
    if not edits:
        return letter
    value = msgspec.json.decode(letter.message.body)
    for path, new in edits.items():
        _set(value, path.split("."), new, path)
    body = Bodies(queue.schema).encode(value)
    moved = queue.key in edits and value.get(queue.key) is not None
    key = key_text(value[queue.key]) if moved else letter.message.key
    return replace(letter, message=replace(letter.message, body=body, key=key))


def _set(value: Any, path: Sequence[str], new: Any, whole: str) -> None:
    *outer, last = path
    for name in outer:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        raise BadEventError(f"the message has no field {whole!r} to set", field=whole)
    value[last] = new
