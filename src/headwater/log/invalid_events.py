"""Events that do not match the type of their topic: which ones of many, and their form in an invalid topic.

A topic with `invalid=` names the topic that such events go to. `find_invalid` finds them among valid ones,
`InvalidEvent` is the type of their topic, and `Log.divert` appends and counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, TopicExistsError, UsageError
from headwater.events import arrow_schema
from headwater.events.values import fields_of, to_json_value
from headwater.log.topic import Topic

__all__ = ["InvalidEvent", "create_invalid_topic", "find_invalid", "invalid_topic_of", "names_row", "reason_of"]

R = TypeVar("R")
_ROW_PREFIX: Final = re.compile(r"^(?:line|row) \d+(?:[,:] | is )")


@dataclass(frozen=True)
class InvalidEvent:
    """An event that does not match the type of its topic: the type of the topic that `invalid=` names.

    Attributes:
        topic: The topic that it was sent to.
        value: The value as it was sent, as JSON text; the text itself if that is not JSON.
        code: The code of the error: BAD_EVENT, BAD_JSON or BAD_KEY.
        reason: Why the value is invalid.
        origin: Who sent it: the line of a program, of a file, the id of a producer, or an HTTP request.
        field: The field with the wrong value; None if the whole value is wrong.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_topic("orders", "order_id string, cents int", invalid="orders.invalid")
        >>> receipt = client.send("orders", {"order_id": "o-1", "cents": "ten"})
        >>> receipt.topic, receipt.diverted
        ('orders.invalid', "field 'cents': expected int | null, got str")
        >>> [(event.value.value, event.value.field) for event in client.read("orders.invalid", as_=hw.InvalidEvent)]
        [('{"order_id":"o-1","cents":"ten"}', 'cents')]
    """

    topic: str
    value: str
    code: str
    reason: str
    origin: str
    field: str | None = None

    @classmethod
    def of(cls, topic: str, value: Any, error: UsageError, origin: str) -> InvalidEvent:
        """Returns the invalid event for a value that was refused with an error."""
        field = error.data.get("field")
        return cls(topic, _to_text(value), error.code, reason_of(error), origin, field)

    def to_row(self) -> dict[str, Any]:
        """Returns the fields."""
        return asdict(self)


SCHEMA: Final[pa.Schema] = arrow_schema(InvalidEvent)


class _Topics(Protocol):
    """Creates topics: a part of `Log`."""

    def topics(self) -> list[str]: ...
    def topic(self, name: str) -> Topic: ...
    def create(self, topic: Topic) -> Topic: ...


def create_invalid_topic(log: _Topics, topic: Topic) -> None:
    """Create the topic that `invalid=` of a topic names, if there is none.

    Raises:
        TopicExistsError: There is one of another type.
    """
    if topic.invalid is None:
        return
    if topic.invalid not in log.topics():
        log.create(Topic.declare(topic.invalid, InvalidEvent, location=topic.location))
    elif log.topic(topic.invalid).schema != SCHEMA:
        raise TopicExistsError(
            f'topic "{topic.invalid}" exists with another type than that of invalid events',
            detail=f'invalid="{topic.invalid}" of topic "{topic.name}" names it',
            fix=f'invalid="{topic.name}.invalid"',
            location=topic.location,
            topic=topic.invalid,
        )


def invalid_topic_of(topic: Topic) -> str:
    """Returns the name of the topic of a topic's invalid events; raises if it has none."""
    if topic.invalid is None:
        what = f'topic "{topic.name}" has no topic for invalid events'
        raise UsageError(what, fix=f'client.create_topic("{topic.name}", …, invalid="{topic.name}.invalid")')
    return topic.invalid


def names_row(error: Exception) -> bool:
    """Whether an error is about the value of one event; errors of a call or a frame concern all of its events.

    Example:
        >>> names_row(BadEventError("row 3: not an object", row=3)), names_row(BadEventError("no such attribute"))
        (True, False)
    """
    return isinstance(error, BadEventError | BadKeyError) and error.data.get("row") is not None


def reason_of(error: UsageError) -> str:
    """Returns what an error says about its event, without the number of the row.

    Example:
        >>> reason_of(BadEventError("row 3, field cents: expected int", row=3))
        'field cents: expected int'
    """
    return _ROW_PREFIX.sub("", error.what)


def find_invalid(rows: Sequence[R], encode: Callable[[Sequence[R]], object]) -> dict[int, UsageError]:
    """Returns the error of each row that `encode` refuses, by its number; halves the rows until each is alone.

    Example:
        >>> def encode(rows):
        ...     for number, row in enumerate(rows):
        ...         if row < 0: raise BadEventError(f"row {number}: {row} is negative", row=number)
        >>> {number: error.what for number, error in find_invalid([1, -2, 3, -4], encode).items()}
        {1: 'row 0: -2 is negative', 3: 'row 0: -4 is negative'}

    Raises:
        UsageError: An error that is not about one row.
    """
    try:
        encode(rows)
    except (BadEventError, BadKeyError) as error:
        if not names_row(error):
            raise
        if len(rows) == 1:
            return {0: error}
        half = len(rows) // 2
        second = find_invalid(rows[half:], encode)
        return find_invalid(rows[:half], encode) | {half + number: each for number, each in second.items()}
    return {}


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace").strip()
    try:
        fields = value if isinstance(value, Mapping) else fields_of(value) or value
        return msgspec.json.encode(to_json_value(fields), enc_hook=repr).decode()
    except Exception:  # values of users' objects may raise anything
        return repr(value)
