"""From lines of JSON to rows for the log: values, or whole events with key, times and headers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

import msgspec
import pyarrow as pa

from headwater.client.rows import Incoming
from headwater.errors import BadEventError, BadKeyError
from headwater.events import Codec, checked_headers, checked_traceparent, key_bytes
from headwater.events.values import moment_text, shown
from headwater.log import Rows, Topic
from headwater.units import micros, moment

__all__ = ["About", "Lines"]

_ZONED = pa.timestamp("us", "UTC")
_Object = dict[str, msgspec.Raw]


@dataclass(frozen=True)
class About:
    """What was typed about all events: a key, headers, the time at which they happened."""

    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    time: datetime | None = None

    @property
    def given(self) -> bool:
        """Whether anything was."""
        return self.key is not None or bool(self.headers) or self.time is not None


class _Document(msgspec.Struct):
    """A CloudEvents document in structured mode, as `headwater cat --envelope` prints it."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    data: msgspec.Raw = msgspec.Raw(b"")
    time: str | None = None
    partitionkey: str | None = None
    senttime: str | None = None
    headers: str | None = None
    traceparent: str | None = None
    tombstone: bool = False


@dataclass(frozen=True)
class _Item:
    """One event: its value as JSON, and what is known about it."""

    value: bytes
    key: str | None = None
    id: str | None = None
    occurred_at: int | None = None
    sent_at: int | None = None
    headers: dict[str, str] | None = None
    traceparent: str | None = None
    source: str | None = None
    tombstone: bool = False


class Lines:
    """Makes rows of lines for one topic.

    Args:
        topic: Where the events go.
        about: What was typed about all of them.
    """

    def __init__(self, topic: Topic, about: About) -> None:
        self._topic = topic
        self._about = about
        self._incoming = Incoming(topic)
        self._whole_events = "specversion" not in topic.schema.names

    def rows(self, lines: list[bytes], sent_at: int) -> list[Rows]:
        """Rows for all lines, in order; everything is checked before anything comes back.

        Raises:
            BadEventError: A line does not fit the topic; `data` has its `row` among these lines.
        """
        if not self._about.given and not any(b'"specversion"' in line for line in lines):
            return [self._incoming.json(lines, sent_at)] if lines else []
        items = [self._item(line, row) for row, line in enumerate(lines)]
        made: list[Rows] = []
        first = 0
        for tombstone, members in groupby(items, key=lambda item: item.tombstone):
            group = list(members)
            try:
                made.extend(self._tombstones(group, sent_at) if tombstone else [self._events(group, sent_at)])
            except BadEventError as error:
                if isinstance(error.data.get("row"), int):
                    error.data["row"] += first
                raise
            first += len(group)
        return made

    def _item(self, line: bytes, row: int) -> _Item:
        item = self._document(line, row) if self._whole_events and b'"specversion"' in line else None
        item = item or _Item(line)
        about = self._about
        if about.headers:
            item = replace(item, headers=(item.headers or {}) | about.headers)
        if about.key is not None:
            item = replace(item, key=about.key)
        if about.time is not None:
            item = replace(item, occurred_at=micros(about.time))
        if item.tombstone:
            return item
        return replace(item, value=self._completed(item.value, row))

    def _document(self, line: bytes, row: int) -> _Item | None:
        """The event in a CloudEvents document; None when the line is something else."""
        try:
            document = msgspec.json.decode(line, type=_Document)
        except msgspec.ValidationError as error:
            if "specversion" not in _object(line):
                return None
            what = f"row {row}: not a CloudEvents 1.0 document: {str(error).replace('`', '')}"
            raise BadEventError(what, row=row) from None
        except msgspec.DecodeError:
            return None
        return _Item(
            value=bytes(document.data),
            key=document.partitionkey,
            id=document.id,
            occurred_at=_micros(document.time),
            sent_at=_micros(document.senttime),
            headers=_headers(document.headers, row),
            traceparent=document.traceparent and checked_traceparent(document.traceparent),
            source=document.source,
            tombstone=document.tombstone,
        )

    def _completed(self, value: bytes, row: int) -> bytes:
        """The value with the key and the time that were typed, where its type has columns for them."""
        fill_key = bool(self._about.key is not None and self._topic.key)
        if not fill_key and not (self._about.time is not None and self._topic.time):
            return value
        found = _object(value)
        if fill_key:
            self._fill_key(found, row)
        if self._about.time is not None and self._topic.time:
            found[self._topic.time] = _raw(moment_text(self._about.time))
        return msgspec.json.encode(found) if found else value

    def _fill_key(self, found: _Object, row: int) -> None:
        text = self._about.key or ""
        parts = self._key_parts(text)
        for name, part in zip(self._topic.key, parts, strict=True):
            known = msgspec.json.decode(found[name]) if name in found else None
            if known is not None and key_bytes(known) != key_bytes(msgspec.json.decode(part)):
                raise BadKeyError(
                    f'the key {shown(text)} is not the event\'s "{name}", which is {shown(known)}',
                    detail=f'topic "{self._topic.name}" is keyed by {", ".join(self._topic.key)}',
                    fix="leave the key out: it is taken from the event",
                    row=row,
                )
            found[name] = part

    def _key_parts(self, text: str) -> list[msgspec.Raw]:
        """The key as JSON, one text per key column; several columns are typed as a JSON array."""
        fields = [self._topic.schema.field(name) for name in self._topic.key]
        if len(fields) == 1:
            plain = pa.types.is_integer(fields[0].type) or pa.types.is_boolean(fields[0].type)
            return [msgspec.Raw(text.encode()) if plain and _is_json(text) else _raw(text)]
        try:
            parts = msgspec.json.decode(text, type=list[msgspec.Raw])
        except msgspec.DecodeError:
            parts = []
        if len(parts) != len(fields):
            what = f"{shown(text)} is no key of topic {self._topic.name!r}"
            columns = ", ".join(self._topic.key)
            raise BadKeyError(what, detail=f"its key is a JSON array of {columns}", topic=self._topic.name)
        return parts

    def _tombstones(self, items: list[_Item], sent_at: int) -> Iterator[Rows]:
        for item in items:
            if item.key is None or not self._topic.key:
                what = f'topic "{self._topic.name}" cannot take a deletion without a key'
                raise BadKeyError(what, topic=self._topic.name)
            fields = [self._topic.schema.field(name) for name in self._topic.key]
            row = dict(zip(self._topic.key, self._key_parts(item.key), strict=True))
            codec = Codec(pa.schema(fields))
            values = codec.rows(codec.decode_json([msgspec.json.encode(row)]))[0]
            yield self._incoming.tombstone(
                tuple(values.values()), sent_at if item.sent_at is None else item.sent_at
            )

    def _events(self, items: list[_Item], sent_at: int) -> Rows:
        rows = self._incoming.json([item.value for item in items], sent_at)
        times = [sent_at if item.sent_at is None else item.sent_at for item in items]
        columns: dict[str, tuple[list[Any], Any]] = {
            "_hw.key": ([None if item.key is None else item.key.encode() for item in items], pa.binary()),
            "_hw.id": ([item.id for item in items], pa.string()),
            "_hw.occurred_at": ([item.occurred_at for item in items], _ZONED),
            "_hw.sent_at": (times, _ZONED),
            "_hw.headers": (
                [list(item.headers.items()) if item.headers else None for item in items],
                pa.map_(pa.string(), pa.string()),
            ),
            "_hw.traceparent": ([item.traceparent for item in items], pa.string()),
            "_hw.source": ([item.source for item in items], pa.string()),
        }
        if self._topic.key:
            del columns["_hw.key"]  # it stands in the value
        if self._topic.time:
            del columns["_hw.occurred_at"]
        envelope = {
            name: pa.array(values, kind)
            for name, (values, kind) in columns.items()
            if any(value is not None for value in values)
        }
        return replace(rows, envelope=envelope)


def _object(text: bytes) -> _Object:
    """The members of a JSON object as they are written; none when it is something else, which the codec then tells."""
    try:
        return msgspec.json.decode(text, type=_Object)
    except msgspec.DecodeError:
        return {}


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _micros(text: str | None) -> int | None:
    return None if text is None else micros(moment(text))


def _headers(text: str | None, row: int) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        return checked_headers(msgspec.json.decode(text, type=dict[str, str]))
    except msgspec.DecodeError as error:
        raise BadEventError(
            f"row {row}: the headers are not a JSON object of text: {error}", row=row
        ) from None
