"""A received message, its value, and edits of dead letters.

`Message` is one delivery with its four calls: ack, nack, reject, extend. `MessageCodec` checks values and encodes them
as JSON on publish; on receive it returns dicts or instances of the user's class. `check_message` enforces the limits
that apply to every broker. `edit_message` changes fields of a dead letter before a redrive and checks the type again.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadJsonError, BadKeyError, BadSettingError, TooLargeError
from headwater.events import Codec, arrow_schema, check_headers, check_traceparent, from_row, key_bytes, to_row
from headwater.events.values import is_record, preview, to_json_value
from headwater.log.topic import MAX_EVENT_BYTES
from headwater.queues.protocol import AckResult, DeadLetter, Delivery, OutgoingMessage, Receiver
from headwater.queues.queue import Queue
from headwater.units import duration

__all__ = [
    "Message",
    "MessageCodec",
    "Reject",
    "check_message",
    "edit_message",
    "format_traceback",
    "key_text",
    "parse_edits",
]


class MessageCodec:
    """Encodes values as JSON bodies, and decodes them.

    Args:
        schema: The type of the queue's values; without one, any dict with a JSON form is accepted.
        as_: The class of decoded values; dicts by default. Without a schema, it is also the type.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Email:
        ...     to: str
        ...     tries: int = 1
        >>> codec = MessageCodec(as_=Email)
        >>> codec.encode({"to": "ada@example.com"})
        b'{"to":"ada@example.com","tries":1}'
        >>> codec.decode(b'{"to":"ada@example.com"}')
        Email(to='ada@example.com', tries=1)
    """

    def __init__(self, schema: pa.Schema | None = None, as_: type | None = None) -> None:
        self._as = as_ if as_ is not None and is_record(as_) else None
        if schema is None and self._as is not None:
            schema = arrow_schema(self._as)
        self._codec = None if schema is None else Codec(schema)

    def encode(self, value: Any) -> bytes:
        """Returns a dict, or an instance of the type, as JSON.

        Raises:
            BadEventError: The value does not match the type or has no JSON form.
        """
        return self.encode_many([value])[0]

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """Returns several values as JSON; raises if one of them is invalid."""
        if self._codec is not None:
            return self._codec.to_json(self._codec.encode(values))
        return list(map(_encode_json, values))

    def decode(self, body: bytes) -> Any:
        """Returns the value of a body.

        Raises:
            BadEventError: The body is not JSON, does not match the type, or the class refuses it.
        """
        if self._codec is not None:
            (row,) = self._codec.rows(self._codec.decode_json([body]))
            return row if self._as is None else from_row(self._as, row)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadJsonError(f"the message is not JSON: {error}", detail=preview(body)) from None


def _encode_json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(to_json_value(to_row(value)))
    except ValueError as error:
        raise BadEventError(f"{preview(value)} cannot be a message: {error}") from None


def key_text(value: Any) -> str:
    """Returns a key as text, the same for equal values.

    Example:
        >>> key_text(7), key_text("ada"), key_text(("de", 7))
        ('7', 'ada', '["de",7]')

    Raises:
        BadKeyError: The value is None or of a type that cannot be a key.
    """
    try:
        return key_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadKeyError(f"the key {preview(value)} is not text", fix="use a text") from None


_MAX_TEXT_BYTES = 255  # the limit of AMQP for ids and routing keys
_MAX_DURATION = timedelta(days=36_500)


def check_message(message: OutgoingMessage, row: int) -> None:
    """Raises if a message is invalid; `row` is its index in the call.

    Example:
        >>> check_message(OutgoingMessage(b"{}", priority=10), 3)
        Traceback (most recent call last):
        headwater.errors.BadEventError: BAD_EVENT: message 3 has priority 10, which is not from 0 to 9
          nothing of this call was published
    """
    for field, what in _find_invalid_fields(message):
        detail = "nothing of this call was published"
        raise BadEventError(f"message {row} has {what}", detail=detail, row=row, field=field)
    if len(message.body) > MAX_EVENT_BYTES:
        raise TooLargeError(
            f"message {row} has {len(message.body):,} bytes, more than {MAX_EVENT_BYTES:,}",
            detail="nothing of this call was published",
            fix="store large objects elsewhere and send a reference",
            limit=MAX_EVENT_BYTES,
            row=row,
        )
    if message.headers:
        check_headers(message.headers)
    if message.traceparent is not None:
        check_traceparent(message.traceparent)


def _find_invalid_fields(message: OutgoingMessage) -> Iterator[tuple[str, str]]:
    body: object = message.body  # users may pass anything
    if not isinstance(body, bytes):
        yield "body", "a body that is not bytes"
    if not isinstance(message.priority, int) or not 0 <= message.priority <= 9:
        yield "priority", f"priority {message.priority!r}, which is not from 0 to 9"
    for name in ("id", "key", "routing_key"):
        text = getattr(message, name)
        if not _is_valid_text(text, name):
            yield name, f"{name} {str(text)[:40]!r}, which is not text of up to {_MAX_TEXT_BYTES} bytes"
    for name in ("delay", "ttl"):
        span = getattr(message, name)
        if span is not None and not timedelta(0) <= span <= _MAX_DURATION:
            yield name, f"a {name} of {span}, which is not from 0 to 100 years"


def _is_valid_text(text: object, field: str) -> bool:
    if text is None:
        return field != "routing_key"
    shortest = 1 if field == "id" else 0
    try:
        return isinstance(text, str) and shortest <= len(text.encode()) <= _MAX_TEXT_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


class Reject(Exception):
    """Raised by a worker's function for a message that can never succeed; it becomes a dead letter at once.

    Example:
        >>> str(Reject("no such customer"))
        'no such customer'
    """


class Message:
    """A received message; after `visible_until` it is delivered again unless it is settled.

    As a context manager it is acknowledged at the end of the block, and nacked when the block raises.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_queue("emails")
        >>> with client.queue("emails") as queue:
        ...     _ = queue.publish({"to": "ada@example.com"}, headers={"from": "shop"})
        ...     with queue.receive(timeout=5) as message:
        ...         print(message.value, message.headers, message.attempt)
        {'to': 'ada@example.com'} {'from': 'shop'} 1
        >>> client.close()
    """

    def __init__(self, receiver: Receiver, delivery: Delivery, codec: MessageCodec) -> None:
        self._receiver = receiver
        self._delivery = delivery
        self._codec = codec
        self._settled = False

    @property
    def value(self) -> Any:
        """The published value, decoded at each access: a dict, or an instance of the requested class.

        Raises:
            BadEventError: The value does not match the type.
        """
        return self._codec.decode(self._delivery.message.body)

    @property
    def id(self) -> str:
        """The message id, the same for every delivery."""
        return self._delivery.message.id or ""

    @property
    def key(self) -> str | None:
        """The key of the message."""
        return self._delivery.message.key

    @property
    def routing_key(self) -> str:
        """The routing key: words separated by dots."""
        return self._delivery.message.routing_key

    @property
    def headers(self) -> dict[str, str]:
        """Short texts by name."""
        return dict(self._delivery.message.headers)

    @property
    def published_at(self) -> datetime:
        """The time of publishing."""
        return self._delivery.published_at

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self._delivery.attempt

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before; its work may already be done."""
        return self._delivery.is_redelivery

    @property
    def visible_until(self) -> datetime:
        """The end of the visibility timeout, as of the delivery."""
        return self._delivery.visible_until

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged, nacked or rejected."""
        return self._settled

    def ack(self) -> bool:
        """Acknowledge the message; returns False when the delivery had expired."""
        return self._settle(self._receiver.ack([self._delivery])[0])

    def nack(self, why: str = "", *, stack: str = "", delay: str | timedelta | None = None) -> bool:
        """Report a failure: it is redelivered after the queue's backoff or `delay`; dead after the last attempt.

        Args:
            why: The reason, kept in the message's history.
            stack: The traceback, kept in the message's history.
            delay: The time until the next delivery; the queue's backoff by default.
        """
        wait = None if delay is None else duration(delay)
        return self._settle(self._receiver.nack(self._delivery, why, stack=stack, delay=wait))

    def reject(self, why: str = "", *, stack: str = "") -> bool:
        """Reject the message: it becomes a dead letter at once, with the reason."""
        return self._settle(self._receiver.reject(self._delivery, why, stack=stack))

    def extend(self, by: str | timedelta | None = None) -> bool:
        """Extend the visibility timeout from now: by the queue's setting, or `by`."""
        length = None if by is None else duration(by)
        return self._receiver.extend(self._delivery, length) is AckResult.DONE

    def _settle(self, result: AckResult) -> bool:
        self._settled = True
        return result is AckResult.DONE

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if self._settled:
            return isinstance(error, Reject)
        if error is None:
            self.ack()
        elif isinstance(error, Reject):
            self.reject(str(error), stack=format_traceback(error))
        else:
            self.nack(f"{type(error).__name__}: {error}".rstrip(": "), stack=format_traceback(error))
        return isinstance(error, Reject)

    def __repr__(self) -> str:
        return f"Message({self.id!r}, attempt={self.attempt})"


def format_traceback(error: BaseException) -> str:
    r"""Returns where a user's code failed, as Python prints it.

    Example:
        >>> format_traceback(ValueError("no address"))
        'ValueError: no address\n'
    """
    return "".join(traceback.format_exception(error))


def parse_edits(texts: Sequence[str]) -> dict[str, Any]:
    """Returns edits from texts such as `customer.country=DE`; a value that is not JSON is text.

    Example:
        >>> parse_edits(["amount=12.5", "to=ada@example.com", "sent=null", 'code="7"'])
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


def edit_message(queue: Queue, letter: DeadLetter, edits: Mapping[str, Any]) -> DeadLetter:
    """Returns a dead letter with edited fields, and with its key if that changed.

    Args:
        queue: The queue of the dead letter.
        letter: The dead letter.
        edits: New values by field; `a.b` is the field `b` in `a`.

    Raises:
        BadEventError: A path leads to no object, or the edited message does not match the queue's type.

    Example:
        >>> from headwater.queues.protocol import OutgoingMessage
        >>> from datetime import UTC, datetime
        >>> at = datetime(2026, 1, 1, tzinfo=UTC)
        >>> letter = DeadLetter(1, "", OutgoingMessage(b'{"to":"ada"}'), at, at, "rejected")
        >>> edit_message(Queue("emails"), letter, {"to": "bob"}).message.body
        b'{"to":"bob"}'
    """
    if not edits:
        return letter
    value = msgspec.json.decode(letter.message.body)
    for path, new in edits.items():
        *outer, last = path.split(".")
        target = value
        for name in outer:
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise BadEventError(f"the message has no field {path!r} to set", field=path)
        target[last] = new
    body = MessageCodec(queue.schema).encode(value)
    key_changed = queue.key in edits and value.get(queue.key) is not None
    key = key_text(value[queue.key]) if key_changed else letter.message.key
    return replace(letter, message=replace(letter.message, body=body, key=key))
