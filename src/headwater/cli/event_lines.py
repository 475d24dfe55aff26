"""Lines of JSON events on their way from a file or a terminal into a topic.

`read_chunks` reads an input in chunks of lines. `LineParser` makes batches of them; a line is a value, or a whole
event with key, times and headers as `headwater cat --envelope` prints it.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any, BinaryIO, Final, Literal

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, TooLargeError
from headwater.events import MAX_JSON_LINE, Codec, check_headers, check_traceparent, key_bytes
from headwater.events.values import format_moment, preview
from headwater.log import Topic, WriteBatch
from headwater.log.storage.frame import ENVELOPE
from headwater.log.write.write_batch import EventEncoder
from headwater.units import micros, moment

__all__ = ["Chunk", "EventOverrides", "LineParser", "parse_documents", "read_chunks"]

_CHUNK: Final = 4 << 20  # bytes
_PAUSE: Final = 0.05  # seconds without input, then the lines read so far are sent


@dataclass(frozen=True)
class Chunk:
    """Lines that are sent together, each with its number in the input; blank ones are left out."""

    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


def parse_documents(text: bytes) -> Chunk:
    r"""Returns the events of a whole input: an object, an array of objects, or one object per line.

    Example:
        >>> parse_documents(b'[{"a": 1}, {"a": 2}]').lines, parse_documents(b'{"a": 1}\n\n{"a": 2}\n').numbers
        ([b'{"a": 1}', b'{"a": 2}'], [1, 3])
    """
    try:
        if text.lstrip()[:1] == b"[":
            whole = msgspec.json.decode(text, type=list[msgspec.Raw])
        else:
            whole = [msgspec.json.decode(text, type=msgspec.Raw)]
    except msgspec.DecodeError:
        return _number_lines(text.split(b"\n"), 1)
    lines = [bytes(raw).strip().replace(b"\n", b" ") for raw in whole]  # no JSON text holds a bare newline
    return Chunk(lines, list(range(1, len(lines) + 1)))


def read_chunks(stream: BinaryIO) -> Iterator[Chunk]:
    """Yields the lines of a stream in chunks of up to 4 MiB; a pause in the input also ends a chunk.

    An input that ends within the first chunk may also be one JSON document over several lines.

    Raises:
        TooLargeError: A line exceeds the limit; raised before more of it is read.
    """
    rest, number = b"", 1
    for block, last in _read_blocks(stream):
        if last and number == 1:
            yield parse_documents(rest + block)
            return
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            lines = whole.split(b"\n")
            yield _number_lines(lines, number)
            number += len(lines)
        if len(rest) > MAX_JSON_LINE:
            what = f"line {number} has more than {MAX_JSON_LINE} bytes"
            raise TooLargeError(what, limit=MAX_JSON_LINE, line=number)
    if rest:
        yield _number_lines([rest], number)


def _number_lines(lines: list[bytes], first: int) -> Chunk:
    full = [(line.strip(), number) for number, line in enumerate(lines, first) if line.strip()]
    return Chunk([line for line, _ in full], [number for _, number in full])


def _read_blocks(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yields blocks of the stream, each with a flag for the end of the input."""
    try:
        handle = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        while block := stream.read(_CHUNK):
            yield block, len(block) < _CHUNK
        return
    waiting = select.poll()
    waiting.register(handle)
    ended = False
    while not ended:
        buffer = bytearray()
        # The first read waits as long as it takes; after it, a pause ends the block.
        while len(buffer) < _CHUNK and not ended and (not buffer or waiting.poll(_PAUSE * 1000)):
            piece = os.read(handle, _CHUNK - len(buffer))
            buffer += piece
            ended = not piece
        yield bytes(buffer), ended


_Object = dict[str, msgspec.Raw]


@dataclass(frozen=True)
class EventOverrides:
    """Options that apply to all events: key, headers, event time."""

    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    time: datetime | None = None


class _CloudEvent(msgspec.Struct):
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


@dataclass
class _ParsedEvent:
    """One event: its value as JSON, its key as text, and the envelope by column name, as in `PendingEvent`."""

    value: bytes
    key: str | None = None
    envelope: dict[str, Any] = field(default_factory=dict)
    tombstone: bool = False


class LineParser:
    """Converts lines to batches for one topic.

    Args:
        topic: The topic.
        overrides: Options that apply to all events.
        checks_keys: Whether lines without a key are found here, and not by the append.
    """

    def __init__(self, topic: Topic, overrides: EventOverrides, *, checks_keys: bool = False) -> None:
        self.topic = topic
        self._overrides = overrides
        self._encoder = EventEncoder(topic, checks_keys=checks_keys)
        self._whole_events = "specversion" not in topic.schema.names

    def parse(self, lines: Sequence[bytes], sent_at: int) -> list[WriteBatch]:
        """Return batches for all lines, in order; all lines are checked first.

        Raises:
            BadEventError: A line does not match the topic's type; `data` has its `row` among these lines.
        """
        if self._overrides == EventOverrides() and not any(b'"specversion"' in line for line in lines):
            return [self._encoder.encode_json(lines, sent_at)] if lines else []
        items = [self._parse_line(line, row, sent_at) for row, line in enumerate(lines)]
        batches: list[WriteBatch] = []
        first = 0
        for tombstone, members in groupby(items, key=lambda item: item.tombstone):
            group = list(members)
            try:
                batches += self._tombstone_rows(group) if tombstone else [self._event_rows(group, sent_at)]
            except BadEventError as error:
                if isinstance(error.data.get("row"), int):
                    error.data["row"] += first
                raise
            first += len(group)
        return batches

    def _parse_line(self, line: bytes, row: int, sent_at: int) -> _ParsedEvent:
        # A topic with a field "specversion" holds plain values that only look like CloudEvents documents.
        item = self._parse_cloud_event(line, row) if self._whole_events and b'"specversion"' in line else None
        item = item or _ParsedEvent(line)
        envelope, overrides = item.envelope, self._overrides
        envelope.setdefault("_hw.sent_at", sent_at)
        if overrides.headers:
            envelope["_hw.headers"] = list((dict(envelope.get("_hw.headers", ())) | overrides.headers).items())
        if overrides.key is not None:
            item.key = overrides.key
        if overrides.time is not None:
            envelope["_hw.occurred_at"] = micros(overrides.time)
        # A key column or time column takes precedence: the value has it.
        if item.key is not None and not self.topic.key:
            envelope["_hw.key"] = item.key.encode()
        if self.topic.time:
            envelope.pop("_hw.occurred_at", None)
        if not item.tombstone:
            item.value = self._fill_columns(item.value, row)
        return item

    def _parse_cloud_event(self, line: bytes, row: int) -> _ParsedEvent | None:
        """Returns the event of a CloudEvents document; None if the line is not one."""
        try:
            document = msgspec.json.decode(line, type=_CloudEvent)
        except msgspec.ValidationError as error:
            if "specversion" not in _parse_object(line):
                return None
            what = f"row {row}: not a CloudEvents 1.0 document: {str(error).replace('`', '')}"
            raise BadEventError(what, row=row) from None
        except msgspec.DecodeError:
            return None
        envelope = {
            "_hw.id": document.id,
            "_hw.occurred_at": _parse_micros(document.time),
            "_hw.sent_at": _parse_micros(document.senttime),
            "_hw.headers": _parse_headers(document.headers, row),
            "_hw.traceparent": document.traceparent and check_traceparent(document.traceparent),
            "_hw.source": document.source,
        }
        given = {name: value for name, value in envelope.items() if value is not None}
        return _ParsedEvent(bytes(document.data), document.partitionkey, given, document.tombstone)

    def _fill_columns(self, value: bytes, row: int) -> bytes:
        """Returns the value with the given key and event time, if its type has columns for them."""
        fill_key = bool(self._overrides.key is not None and self.topic.key)
        if not fill_key and not (self._overrides.time is not None and self.topic.time):
            return value
        found = _parse_object(value)
        if fill_key:
            self._fill_key(found, row)
        if self._overrides.time is not None and self.topic.time:
            found[self.topic.time] = _to_raw(format_moment(self._overrides.time))
        return msgspec.json.encode(found) if found else value

    def _fill_key(self, found: _Object, row: int) -> None:
        text = self._overrides.key or ""
        parts = self._parse_key(text)
        for name, part in zip(self.topic.key, parts, strict=True):
            known = msgspec.json.decode(found[name]) if name in found else None
            if known is not None and key_bytes(known) != key_bytes(msgspec.json.decode(part)):
                raise BadKeyError(
                    f'the key {preview(text)} is not the event\'s "{name}", which is {preview(known)}',
                    detail=f'topic "{self.topic.name}" is keyed by {", ".join(self.topic.key)}',
                    fix="omit --key: the key is read from the event",
                    row=row,
                )
            found[name] = part

    def _parse_key(self, text: str) -> list[msgspec.Raw]:
        """Returns the key as one JSON text per key column; several columns are given as a JSON array."""
        fields = [self.topic.schema.field(name) for name in self.topic.key]
        if len(fields) == 1:
            if pa.types.is_integer(fields[0].type) or pa.types.is_boolean(fields[0].type):
                with contextlib.suppress(msgspec.DecodeError):
                    return [msgspec.json.decode(text, type=msgspec.Raw)]
            return [_to_raw(text)]
        try:
            parts = msgspec.json.decode(text, type=list[msgspec.Raw])
        except msgspec.DecodeError:
            parts = []
        if len(parts) != len(fields):
            what = f"{preview(text)} is not a key of topic {self.topic.name!r}"
            columns = ", ".join(self.topic.key)
            raise BadKeyError(what, detail=f"its key is a JSON array of {columns}", topic=self.topic.name)
        return parts

    def _tombstone_rows(self, items: list[_ParsedEvent]) -> Iterator[WriteBatch]:
        for item in items:
            if item.key is None or not self.topic.key:
                what = f'a tombstone of topic "{self.topic.name}" needs a key'
                raise BadKeyError(what, topic=self.topic.name)
            fields = [self.topic.schema.field(name) for name in self.topic.key]
            row = dict(zip(self.topic.key, self._parse_key(item.key), strict=True))
            codec = Codec(pa.schema(fields))
            values = codec.rows(codec.decode_json([msgspec.json.encode(row)]))[0]
            yield self._encoder.encode_tombstone(tuple(values.values()), item.envelope["_hw.sent_at"])

    def _event_rows(self, items: list[_ParsedEvent], sent_at: int) -> WriteBatch:
        rows = self._encoder.encode_json([item.value for item in items], sent_at)
        names = {name for item in items for name in item.envelope}
        envelope = {
            column.name: pa.array([item.envelope.get(column.name) for item in items], column.type)
            for column in ENVELOPE
            if column.name in names
        }
        return replace(rows, envelope=envelope)


def _parse_object(text: bytes) -> _Object:
    """Returns the members of a JSON object as raw JSON; empty for anything else, which the codec refuses later."""
    try:
        return msgspec.json.decode(text, type=_Object)
    except msgspec.DecodeError:
        return {}


def _to_raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _parse_micros(text: str | None) -> int | None:
    return None if text is None else micros(moment(text))


def _parse_headers(text: str | None, row: int) -> list[tuple[str, str]] | None:
    if text is None:
        return None
    try:
        return list(check_headers(msgspec.json.decode(text, type=dict[str, str])).items()) or None
    except msgspec.DecodeError as error:
        raise BadEventError(f"row {row}: the headers are not a JSON object of text: {error}", row=row) from None
