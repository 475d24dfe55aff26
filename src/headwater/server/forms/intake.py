"""JSON from outside on its way into a topic: attributes from CloudEvents headers or the query, values from the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from headwater.client.rows import Incoming
from headwater.errors import BadEventError, BadJsonError, BadKeyError, TooLargeError, UsageError
from headwater.events import Receipt, partition_of, values_of
from headwater.events.values import json_form
from headwater.log import EventLog, Receipts, Row

__all__ = ["About", "Intake"]

R = TypeVar("R")
# Where the attributes of a CloudEvent have a place of their own here.
_PLACES: Final = {
    "id": "id",
    "source": "source",
    "time": "occurred_at",
    "senttime": "sent_at",
    "traceparent": "traceparent",
    "partitionkey": "key",
}
_UNSAID: Final = frozenset({"specversion", "datacontenttype"})


@dataclass
class About:
    """What a request says about an event besides its value; the key is text."""

    key: str | None = None
    producer: str = ""
    sequence: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    deleted: bool = False

    def ask(self, query: Mapping[str, str]) -> None:
        """Take over what the query says; it goes before what headers or a document say."""
        for name, value in query.items():
            if name == "headers":
                self.headers |= headers_of(value)
            elif name == "sequence":
                self.sequence = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else -1
            elif name in ("key", "producer"):
                setattr(self, name, value)
            else:
                self.attributes[name] = value

    def note(self, name: str, value: str, topic: str) -> None:
        """Take over an attribute of a CloudEvent; one without a place here is kept as a header."""
        place = _PLACES.get(name)
        if place == "key":
            self.key = value
        elif place is not None:
            self.attributes[place] = value
        elif name == "headers":
            self.headers |= headers_of(value)
        elif name not in _UNSAID and not (name == "type" and value == topic):
            self.headers[name] = value


def headers_of(text: str) -> dict[str, str]:
    """Headers written as one JSON object of texts."""
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what = f"the headers are not a JSON object of texts: {error}"
        raise BadEventError(what, field="headers") from None


def from_headers(headers: Mapping[str, str], topic: str) -> About:
    """The attributes of a CloudEvent in binary mode; other requests have none."""
    about = About()
    for name, value in headers.items():
        if name.startswith("ce-"):
            about.note(name[3:], unquote(value), topic)
    if "traceparent" in headers:
        about.attributes.setdefault("traceparent", headers["traceparent"])
    return about


def from_document(body: bytes, topic: str) -> tuple[About, bytes]:
    """The attributes and the value of a CloudEvent in structured mode."""
    try:
        document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what = f"the CloudEvent is not a JSON object: {error}"
        raise BadJsonError(what, row=0) from None
    about = About()
    data = bytes(document.pop("data", b""))
    about.deleted = bytes(document.pop("tombstone", b"")) == b"true"
    if "data_base64" in document:
        raise BadEventError(
            "the data of the CloudEvent is base64", fix="send it as JSON in data", field="data"
        )
    for name, raw in document.items():
        value = msgspec.json.decode(raw)
        if value is not None:
            about.note(name, value if isinstance(value, str) else bytes(raw).decode(), topic)
    return about, data


class Intake:
    """Appends JSON events, checked against the newest type of their topic."""

    def __init__(self, log: EventLog, line: int) -> None:
        self._log = log
        self._line = line
        self._known: dict[str, Incoming] = {}

    def one(self, topic: str, body: bytes, about: About) -> Receipt:
        """Append a single event."""
        if about.deleted:
            return self.delete(topic, about.key)
        if len(body) > self._line:
            what = f"the event has {len(body):,} bytes, more than {self._line:,}"
            raise TooLargeError(what, limit=self._line, size=len(body))
        return self._log.append_one(
            topic, self._made(topic, lambda incoming, now: _row(incoming, body, about, now))
        )

    def many(self, topic: str, body: bytes) -> Receipts:
        """Append NDJSON; those of one partition whole or not at all.

        Raises:
            BadEventError: `data` has the `line`, counted from 1; nothing was appended.
        """
        numbered = [(number, line) for number, line in enumerate(body.splitlines(), 1) if line.strip()]
        if not numbered:
            raise BadJsonError("the body has no lines", fix="one JSON object on each line", row=0)
        lines = [line for _, line in numbered]
        try:
            rows = self._made(topic, lambda incoming, now: incoming.json(lines, now))
        except (BadEventError, TooLargeError) as error:
            row = error.data.get("row")
            if row is not None:
                error.data["line"] = numbered[row][0]
                error.detail = "\n".join(filter(None, (f"line {numbered[row][0]} of the body", error.detail)))
            raise
        return self._log.append(topic, rows)

    def delete(self, topic: str, key: str | None) -> Receipt:
        """Append the tombstone of a key."""
        if key is None:
            raise BadKeyError("which key is to be deleted?", fix="?key=...", topic=topic)

        def tombstone(incoming: Incoming, now: int) -> Any:
            return incoming.tombstone(_typed_key(incoming, key), now)

        return self._log.append(topic, self._made(topic, tombstone))[0]

    def _made(self, topic: str, make: Callable[[Incoming, int], R]) -> R:
        known = self._known.get(topic)
        if known is not None:
            try:
                return make(known, self._log.clock.micros())
            except BadEventError:  # the type may have grown since
                if self._log.topic(topic).version == known.topic.version:
                    raise
        known = self._known[topic] = Incoming(self._log.topic(topic))
        return make(known, self._log.clock.micros())


def _row(incoming: Incoming, body: bytes, about: About, now: int) -> Row:
    key: Any = about.key
    if key is not None and incoming.topic.key:
        key = _typed_key(incoming, key)
        body = _with_key(body, incoming.topic.key, key)
    value = incoming.codec.rows(incoming.codec.decode_json([body]))[0]
    row = incoming.one(value, now, key, **about.attributes, headers=about.headers or None)
    if about.producer:
        _number(incoming, row, about)
    return row


def _number(incoming: Incoming, row: Row, about: About) -> None:
    """Give the row its producer's number; a repeated send must find the same partition."""
    if about.sequence is None or not 0 <= about.sequence < 2**62:
        raise UsageError("a producer numbers its events", fix="?producer=till-7&sequence=0, then 1, 2, ...")
    key = incoming.key_of(row)
    partitions = incoming.topic.partitions
    if key is None and partitions > 1:
        what = f'topic "{incoming.topic.name}" has {partitions} partitions: an event of a producer needs a key there'
        raise BadKeyError(what, fix="?key=...", topic=incoming.topic.name)
    row.producer, row.sequence = about.producer, about.sequence
    row.partition = 0 if key is None else partition_of(key, partitions)


def _typed_key(incoming: Incoming, text: str) -> Any:
    """A key as text, such as "7", in the type of its column; several columns as a JSON array."""
    names = incoming.topic.key
    if not names:
        return text
    parts: Sequence[Any] = [text] if len(names) == 1 else _parts(text)
    columns = [incoming.topic.schema.field(name).type for name in names]
    if len(parts) != len(columns):
        raise BadKeyError(f"{text!r} is no key of ({', '.join(names)})", topic=incoming.topic.name)
    try:
        values = [
            values_of(pa.array([str(part)]).cast(kind))[0] for part, kind in zip(parts, columns, strict=True)
        ]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        what = f"{text!r} cannot be a key of topic {incoming.topic.name!r}"
        raise BadKeyError(what, detail=str(error), topic=incoming.topic.name) from None
    return values[0] if len(values) == 1 else tuple(values)


def _parts(text: str) -> list[Any]:
    try:
        return msgspec.json.decode(text.encode(), type=list[str | int | bool])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise BadKeyError(f"{text!r} is not a JSON array of the key's parts", fix='["eu", 7]') from None


def _with_key(body: bytes, names: Sequence[str], key: Any) -> bytes:
    """The body with the key's fields where it does not have them."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body  # what is wrong with it is said when it is decoded
    missing = [name for name in names if name not in members]
    if not missing:
        return body
    parts = dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))
    added = b",".join(msgspec.json.encode({name: json_form(parts[name])})[1:-1] for name in missing)
    return body.replace(b"{", b"{" + added + (b"," if members else b""), 1)
