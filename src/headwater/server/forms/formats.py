"""Batches of the log in the forms in which they leave by HTTP: JSON events, CloudEvents, Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import BadOffsetError, UsageError
from headwater.events import Event
from headwater.events.values import json_form
from headwater.log import EventLog, LogBatch, Start
from headwater.log.reader import Reader

__all__ = [
    "ARROW",
    "CLOUD_EVENTS",
    "EVENTS",
    "JSON",
    "NDJSON",
    "Range",
    "arrow_stream",
    "json_events",
    "one_line",
    "start_of",
]

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CLOUD_EVENTS: Final = "application/cloudevents-batch+json"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
_LINE_ENDS: Final = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")
_encode = msgspec.json.Encoder().encode


def start_of(text: str) -> Start:
    """A start out of a query: "earliest", "latest", an offset or a time."""
    if not text.isdigit():
        return text
    if not text.isascii() or len(text) > 18:
        raise BadOffsetError(f"{text[:40]!r} is not an offset", offset=text[:40])
    return int(text)


def partitions_of(text: str | None, count: int) -> list[int]:
    """Partitions out of a query such as "0,2"; all of them if it says nothing."""
    if text is None:
        return list(range(count))
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"{text[:40]!r} are no partitions", fix="partitions=0,2", parameter="partitions")
    return [int(part) for part in parts]


@dataclass
class Range:
    """What a request wants to read: from where, and up to where (None: for ever)."""

    positions: dict[int, int]
    stops: dict[int, int] | None

    @classmethod
    def of(cls, log: EventLog, topic: str, start: str, stop: str | None, partitions: str | None) -> Range:
        """From the texts of a query."""
        numbers = partitions_of(partitions, log.topic(topic).partitions)
        begin = start_of(start)
        positions = {number: log.find(topic, number, begin) for number in numbers}
        if stop is None:
            return cls(positions, None)
        end = start_of("latest" if stop == "end" else stop)
        return cls(positions, {number: log.find(topic, number, end) for number in numbers})

    def reader(self, log: EventLog, topic: str) -> Reader:
        """What reads it."""
        return Reader(log, topic, self.positions, self.stops)


def json_events(batch: LogBatch) -> list[tuple[Event, bytes]]:
    """Each event of a batch, and the same as one line of JSON."""
    if not batch.values.num_rows:
        return []
    values = batch.codec.to_json(batch.values)
    return [
        (event, one_line(_encode(_document(event, value))))
        for event, value in zip(batch.events(), values, strict=True)
    ]


def one_line(document: bytes) -> bytes:
    """What some readers of lines take for the end of one (U+0085, U+2028, U+2029) is escaped."""
    if b"\xc2\x85" in document or b"\xe2\x80" in document:
        for raw, escaped in _LINE_ENDS:
            document = document.replace(raw, escaped)
    return document


def _document(event: Event, value: bytes) -> dict[str, Any]:
    return {
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "key": json_form(event.key)
        if not isinstance(event.key, tuple)
        else [json_form(k) for k in event.key],
        "value": None if event.value is None else msgspec.Raw(value),
        "id": event.id,
        "occurred_at": event.occurred_at,
        "sent_at": event.sent_at,
        "received_at": event.received_at,
        "headers": event.headers,
        "traceparent": event.traceparent,
        "source": event.source,
        "late": event.late,
    }


def arrow_stream(schema: pa.Schema, batches: Iterator[LogBatch]) -> Iterator[bytes]:
    """The typed columns as an Arrow IPC stream; tombstones are left out."""
    sink = _Sink()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield sink.taken()
        for batch in batches:
            living = batch.select(~batch.deleted) if "_hw.deleted" in batch.envelope else batch
            if living.values.num_rows:
                writer.write_batch(living.values.cast(schema))
                yield sink.taken()
    yield sink.taken()


class _Sink:
    """A file that hands on what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        data, self._written = b"".join(self._written), []
        return data

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True


def resume_of(text: str) -> Mapping[int, int]:
    """Next offset per partition out of an event id such as "0:13,1:7".

    Raises:
        BadOffsetError: It is something else.
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        if not all(
            number.isascii() and number.isdigit() and len(number) < 19 for pair in pairs for number in pair
        ):
            raise ValueError
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise BadOffsetError(
            f"{text[:80]!r} is not the id of an event of this stream",
            detail="an id looks like 0:13,1:7 (partition:next offset)",
            offset=text[:80],
        ) from None
