"""Decodes JSON requests into events: attributes from CloudEvents headers or the query, values from the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from headwater.client.sender import EventSender, JsonRows
from headwater.errors import BadEventError, BadJsonError, BadKeyError, TooLargeError, UnknownTopicError, UsageError
from headwater.events import Receipt, partition_of, values_of
from headwater.events.envelope import Receipts
from headwater.events.values import to_json_value
from headwater.log import EventLog, PendingEvent
from headwater.log.write.write_batch import EventEncoder

__all__ = ["EventAttributes", "EventIngest", "parse_previous"]

R = TypeVar("R")
# CloudEvents attributes and the attributes of our events that they become.
_ATTRIBUTE_NAMES: Final = {
    "id": "id",
    "source": "source",
    "time": "occurred_at",
    "senttime": "sent_at",
    "traceparent": "traceparent",
    "partitionkey": "key",
    "headers": "headers",
}
_IGNORED: Final = frozenset({"specversion", "datacontenttype"})


@dataclass
class EventAttributes:
    """The attributes of an event in a request; the key is text, and is parsed when the topic is known."""

    key: str | None = None
    producer: str = ""
    sequence: int | None = None
    previous: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    deleted: bool = False

    def set(self, name: str, value: str) -> None:
        """Set an attribute by the name it has in the query."""
        if name == "headers":
            self.headers |= parse_headers(value)
        elif name == "sequence":
            self.sequence = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else -1
        elif name == "previous":
            self.previous = parse_previous(value)
        elif name in ("key", "producer"):
            setattr(self, name, value)
        else:
            self.attributes[name] = value

    def set_cloud_attribute(self, name: str, value: str, topic: str) -> None:
        """Set an attribute of a CloudEvent; one that events do not have becomes a header."""
        if name in _ATTRIBUTE_NAMES:
            self.set(_ATTRIBUTE_NAMES[name], value)
        elif name not in _IGNORED and not (name == "type" and value == topic):
            self.headers[name] = value


def parse_previous(text: str | None) -> int | None:
    """Returns the sequence number that a producer sent before; -1 if it sent none, None if the text is missing."""
    if text is None or text == "-1":
        return None if text is None else -1
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        what = f"{text[:80]!r} is not the previous sequence of a producer"
        raise UsageError(what, fix="?previous=41, or -1 for the first event", parameter="previous")
    return int(text)


def parse_headers(text: str) -> dict[str, str]:
    """Returns the headers in a JSON object of strings."""
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what = f"the headers are not a JSON object of strings: {error}"
        raise BadEventError(what, field="headers") from None


def parse_ce_headers(headers: Mapping[str, str], topic: str) -> EventAttributes:
    """Returns the attributes in the `ce-` headers of a request (CloudEvents, binary mode)."""
    attributes = EventAttributes()
    for name, value in headers.items():
        if name.startswith("ce-"):
            attributes.set_cloud_attribute(name[3:], unquote(value), topic)
    if "traceparent" in headers:
        attributes.attributes.setdefault("traceparent", headers["traceparent"])
    return attributes


def parse_cloud_event(body: bytes, topic: str) -> tuple[EventAttributes, bytes]:
    """Returns the attributes and the value of a CloudEvent (structured mode)."""
    try:
        document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what = f"the CloudEvent is not a JSON object: {error}"
        raise BadJsonError(what, row=0) from None
    attributes = EventAttributes()
    data = bytes(document.pop("data", b""))
    attributes.deleted = bytes(document.pop("tombstone", b"")) == b"true"
    if "data_base64" in document:
        raise BadEventError("the data of the CloudEvent is base64", fix="send it as JSON in data", field="data")
    for name, raw in document.items():
        value = msgspec.json.decode(raw)
        if value is not None:
            attributes.set_cloud_attribute(name, value if isinstance(value, str) else bytes(raw).decode(), topic)
    return attributes, data


class EventIngest:
    """Appends JSON events, validated against the newest type of their topic.

    Args:
        log: The log.
        max_line: The maximum size of one event in bytes.
    """

    def __init__(self, log: EventLog, max_line: int) -> None:
        self._log = log
        self._max_line = max_line
        self._sender = EventSender(log, log.clock)

    def append_one(self, topic: str, body: bytes, attributes: EventAttributes) -> Receipt:
        """Append a single event."""
        if attributes.deleted:
            return self.delete(topic, attributes.key)
        if len(body) > self._max_line:
            what = f"the event has {len(body):,} bytes, more than {self._max_line:,}"
            raise TooLargeError(what, limit=self._max_line, size=len(body))
        return self._retry_if_deleted(
            lambda: self._sender.send_one(
                topic,
                lambda encoder, now: _encode_event(encoder, body, attributes, now),
                body,
                lambda: _origin(topic, attributes),
            )
        )

    def _retry_if_deleted(self, append: Callable[[], R]) -> R:
        """Append; JSON fits whatever topic has the name now, also after a deletion."""
        try:
            return append()
        except UnknownTopicError:  # the sender no longer has the encoder of the deleted topic
            return append()

    def append_lines(self, topic: str, body: bytes, *, skip_invalid: bool = False) -> Receipts:
        """Append the events of an NDJSON body; those of one partition completely or not at all.

        With `skip_invalid`, invalid events are left out. Those of a topic with `invalid=` are diverted in any case.

        Raises:
            BadEventError: An event is invalid; `line` in its data is the line, counted from 1. Nothing was appended.
        """
        numbered = [(number, line) for number, line in enumerate(body.splitlines(), 1) if line.strip()]
        if not numbered:
            raise BadJsonError("the body has no lines", fix="one JSON object on each line", row=0)
        lines = [line for _, line in numbered]
        try:
            return self._retry_if_deleted(
                lambda: self._sender.send_rows(
                    topic,
                    JsonRows(lines),
                    lambda row: f"POST {_path(topic)}, line {numbered[row][0]}",
                    skip_invalid=skip_invalid,
                )
            )
        except (BadEventError, TooLargeError) as error:
            row = error.data.get("row")
            if row is not None:
                error.data["line"] = numbered[row][0]
                error.detail = "\n".join(filter(None, (f"line {numbered[row][0]} of the body", error.detail)))
            raise

    def delete(self, topic: str, key: str | None) -> Receipt:
        """Append the tombstone of a key."""
        if key is None:
            raise BadKeyError("a delete needs a key", fix="?key=...", topic=topic)

        def append() -> Receipt:
            encoders = self._sender.encoders
            row = encoders.encode(topic, lambda encoder, now: encoder.encode_tombstone(_parse_key(encoder, key), now))
            with encoders.removed_if_deleted(topic):
                return self._log.append(topic, row)[0]

        return self._retry_if_deleted(append)


def _path(topic: str) -> str:
    return f"/api/topics/{topic}/events"


def _origin(topic: str, attributes: EventAttributes) -> str:
    """Returns who sent an event: what it says itself, or the request."""
    if attributes.producer:
        return f"producer {attributes.producer}"
    return attributes.attributes.get("source") or f"POST {_path(topic)}"


def _encode_event(encoder: EventEncoder, body: bytes, attributes: EventAttributes, now: int) -> PendingEvent:
    key: Any = attributes.key
    if key is not None and encoder.topic.key:
        key = _parse_key(encoder, key)
        body = _add_key(body, encoder.topic.key, key)
    value = encoder.codec.rows(encoder.codec.decode_json([body]))[0]
    row = encoder.encode_one(value, now, key, **attributes.attributes, headers=attributes.headers or None)
    if attributes.producer:
        _set_sequence(encoder, row, attributes)
    return row


def _set_sequence(encoder: EventEncoder, row: PendingEvent, attributes: EventAttributes) -> None:
    """Set producer, sequence and partition of a row; a repeated send must reach the same partition."""
    if attributes.sequence is None or not 0 <= attributes.sequence < 2**62:
        raise UsageError(
            "an event of a producer needs a sequence from 0 on", fix="?producer=till-7&sequence=0, then 1, 2, ..."
        )
    key = encoder.key_of(row)
    partitions = encoder.topic.partitions
    if key is None and partitions > 1:
        what = f'topic "{encoder.topic.name}" has {partitions} partitions, so an event of a producer needs a key'
        raise BadKeyError(what, fix="?key=...", topic=encoder.topic.name)
    row.producer, row.sequence, row.previous = attributes.producer, attributes.sequence, attributes.previous
    row.partition = 0 if key is None else partition_of(key, partitions)


def _parse_key(encoder: EventEncoder, text: str) -> Any:
    """Returns a key given as text in the types of its columns; several columns are a JSON array."""
    names = encoder.topic.key
    if not names:
        return text
    parts: Sequence[Any] = [text] if len(names) == 1 else _parse_key_parts(text)
    columns = [encoder.topic.schema.field(name).type for name in names]
    if len(parts) != len(columns):
        raise BadKeyError(f"{text!r} is not a key of ({', '.join(names)})", topic=encoder.topic.name)
    try:
        values = [values_of(pa.array([str(part)]).cast(kind))[0] for part, kind in zip(parts, columns, strict=True)]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        what = f"{text!r} is not a key of topic {encoder.topic.name!r}"
        raise BadKeyError(what, detail=str(error), topic=encoder.topic.name) from None
    return values[0] if len(values) == 1 else tuple(values)


def _parse_key_parts(text: str) -> list[Any]:
    try:
        return msgspec.json.decode(text.encode(), type=list[str | int | bool])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise BadKeyError(f"{text!r} is not a JSON array of the key's parts", fix='["eu", 7]') from None


def _add_key(body: bytes, names: Sequence[str], key: Any) -> bytes:
    """Returns the body with the fields of the key added, if it does not have them."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body  # the decoder reports the error
    missing = [name for name in names if name not in members]
    if not missing:
        return body
    parts = dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))
    added = b",".join(msgspec.json.encode({name: to_json_value(parts[name])})[1:-1] for name in missing)
    return body.replace(b"{", b"{" + added + (b"," if members else b""), 1)
