"""Rows on their way into a topic: typed columns, keys and event times.

`EventEncoder` turns what a caller passes (dicts, objects, JSON, Arrow, pandas, Polars) into a `WriteBatch`
of checked columns. `PendingEvent` is a single event that waits to be written together with others;
`coalesce` makes one batch of several. `EventTimes` decides the event time of each row once, before the
append, so every reader sees the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError
from headwater.events import (
    UNKNOWN_TIME,
    Clock,
    ClockOffsets,
    Codec,
    DeviceClock,
    check_headers,
    check_traceparent,
    integers_of,
    key_bytes,
    storage_schema,
    to_row,
)
from headwater.log.storage.frame import ENVELOPE, LOWEST_TIME
from headwater.log.topic import Topic, missing_key_error
from headwater.units import micros, moment

__all__ = [
    "EventAttributes",
    "EventEncoder",
    "EventTimes",
    "Origin",
    "PendingEvent",
    "WriteBatch",
    "check_key",
    "coalesce",
]

Rows = TypeVar("Rows", "PendingEvent", "WriteBatch")
Times = np.ndarray[Any, np.dtype[np.int64]]
_OCCURRED_AT: Final = "_hw.occurred_at"
_MICROSECOND: Final = timedelta(microseconds=1)
_ZONED: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Origin:
    """The source of a pipeline's rows: its batch, the epoch of its runner, and the offsets the batch read.

    Kafka commits it in the transaction of the rows. The embedded log needs only the producer's sequence
    numbers.
    """

    batch: int
    epoch: int
    span: str


@dataclass(frozen=True)
class WriteBatch:
    """Columns of a topic's type at `version`, with envelope columns by name.

    With a `producer`, sequence numbers count from `sequence`: one per row, or one for the whole batch with
    `per_row=False`. Such a batch names its `partition`, because sequence numbers are kept per partition.
    `previous` is the sequence number that the producer sent to the partition before this batch, -1 if it sent
    none; numbers may have gaps, so it does not follow from `sequence`. If it is not the last number in the
    partition, the log refuses the batch. None: the log does not check.
    `sent_at` is the send time of all rows, unless the envelope has a column for it. `origin` names the
    pipeline batch that produced the rows.

    The log sets the rest. `times` are the event times, `LOWEST_TIME` where a row has none; None means that
    arrival is the event time of all rows. `unfinished` means that the next batch continues the same send:
    recovery keeps both or neither. All times are microseconds since 1970.
    """

    values: pa.RecordBatch
    version: int
    envelope: dict[str, pa.Array] = field(default_factory=dict)
    partition: int | None = None
    producer: str = ""
    sequence: int = -1
    previous: int | None = None
    per_row: bool = True
    sent_at: int = LOWEST_TIME
    origin: Origin | None = None
    times: Times | None = None
    unfinished: bool = False

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return int(self.values.num_rows)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last row."""
        return self.sequence + (self.row_count - 1 if self.producer and self.per_row else 0)

    def can_follow(self, previous: PendingEvent | WriteBatch) -> bool:
        """Returns False: only single events are coalesced."""
        return False

    def slice(self, start: int, count: int) -> WriteBatch:
        """Returns up to `count` rows from `start`, with their own sequence numbers."""
        counted = self.producer and self.per_row
        sequence = self.sequence + start if counted else self.sequence
        return replace(
            self,
            values=self.values.slice(start, count),
            envelope={name: column.slice(start, count) for name, column in self.envelope.items()},
            times=None if self.times is None else self.times[start : start + count],
            sequence=sequence,
            previous=sequence - 1 if start and counted and self.previous is not None else self.previous,
        )

    def split(self, max_bytes: int) -> list[WriteBatch]:
        """Returns the rows in batches of about `max_bytes`; a batch under one sequence number stays whole."""
        nbytes, rows = self.nbytes, self.row_count
        if nbytes <= max_bytes or not self.per_row:
            return [self]
        step = max(1, rows * max_bytes // nbytes)
        parts = [self.slice(start, step) for start in range(0, rows, step)]
        return [*(replace(part, unfinished=True) for part in parts[:-1]), parts[-1]]

    @cached_property
    def nbytes(self) -> int:
        """The size of all columns in memory."""
        return int(self.values.nbytes + sum(column.nbytes for column in self.envelope.values()))


@dataclass(slots=True)
class PendingEvent:
    """One event, checked by its codec; `envelope` holds its envelope by column name."""

    struct: Any
    version: int
    envelope: dict[str, Any] = field(default_factory=dict)
    partition: int | None = None
    producer: str = ""
    sequence: int = -1
    previous: int | None = None

    @property
    def row_count(self) -> int:
        """Always 1, as one row of a batch."""
        return 1

    def can_follow(self, previous: PendingEvent | WriteBatch) -> bool:
        """Whether both can be rows of one batch, in this order."""
        return (
            isinstance(previous, PendingEvent)
            and self.version == previous.version
            and self.producer == previous.producer
            and (not self.producer or self._continues(previous))
        )

    def _continues(self, before: PendingEvent) -> bool:
        # Repeats all name the newest number that was sent, so they share their `previous`.
        return self.sequence == before.sequence + 1 and self.previous in (before.sequence, before.previous)


def coalesce(codec_of: Callable[[int], Codec], rows: Sequence[PendingEvent | WriteBatch]) -> WriteBatch:
    """Returns single events as one batch; a batch, which comes alone, is returned as it is.

    Args:
        codec_of: The codec of the topic's type at a version.
        rows: One batch, or events of which each can follow the one before it (`can_follow`).
    """
    first = rows[0]
    if isinstance(first, WriteBatch):
        return first
    events = cast("Sequence[PendingEvent]", rows)
    names = {name for event in events for name in event.envelope}
    sent = {event.envelope.get("_hw.sent_at") for event in events}
    sent_at = None
    if len(sent) == 1:  # the same for all events: the frame's header has it, not a column
        names.discard("_hw.sent_at")
        sent_at = sent.pop()
    envelope = {
        column.name: pa.array([event.envelope.get(column.name) for event in events], column.type)
        for column in ENVELOPE
        if column.name in names
    }
    values = codec_of(first.version).batch([event.struct for event in events])
    return WriteBatch(
        values,
        first.version,
        envelope,
        first.partition,
        first.producer,
        first.sequence,
        first.previous,
        sent_at=LOWEST_TIME if sent_at is None else sent_at,
    )


def check_key(topic: Topic, codec_of: Callable[[int], Codec], rows: PendingEvent | WriteBatch) -> Sequence[Any]:
    """Returns the key columns of a batch, or the key fields of an event; raises if one is missing."""
    if isinstance(rows, PendingEvent):
        fields = codec_of(rows.version).field_values(rows.struct, topic.key)
        for name, field in zip(topic.key, fields, strict=True):
            if field is None:
                raise missing_key_error(topic, name, 0)
        return fields
    columns = [rows.values.column(name) for name in topic.key]
    for name, column in zip(topic.key, columns, strict=True):
        if column.null_count:
            raise missing_key_error(topic, name, column.is_null().index(True).as_py())
    return columns


class EventAttributes(TypedDict, total=False):
    """The attributes of an event besides its value and key."""

    id: str | None
    """The id of the event; a new one, if omitted."""
    occurred_at: datetime | str | None
    """When it happened: the event time of a topic without `time=`."""
    sent_at: datetime | str | None
    """When the producer sent it; the time of the call, if omitted."""
    headers: Mapping[str, str] | None
    """Strings by name."""
    traceparent: str | None
    """The W3C trace that the event belongs to."""
    source: str | None
    """The `source` of the event as a CloudEvent."""


class EventEncoder:
    """Encodes values as `WriteBatch` for one topic under one version of its type.

    With `checks_keys`, and if the topic has a topic for invalid events, missing keys are found here, as all that makes
    an event invalid; otherwise by the append.
    """

    def __init__(self, topic: Topic, *, checks_keys: bool = False) -> None:
        self.topic = topic
        self._checks_keys = bool(topic.key) and (checks_keys or topic.invalid is not None)
        self.codec = Codec(topic.schema)
        self._storage_schema = storage_schema(topic.schema)

    def encode_one(
        self, value: Any, now: int, key: Any = None, /, **attributes: Unpack[EventAttributes]
    ) -> PendingEvent:
        """Encode a single event.

        The attributes are those of `EventAttributes`.
        """
        envelope: dict[str, Any] = {"_hw.sent_at": now}
        if key is not None and self.topic.key:
            value = self._fill_key(to_row(value), key)
        elif key is not None:
            envelope["_hw.key"] = key_bytes(key)
        for name, attribute in attributes.items():
            if name not in _ATTRIBUTES:
                what = f"an event has no attribute {name!r}"
                raise BadEventError(what, detail=f"it can have: {', '.join(_ATTRIBUTES)}", field=name)
            if attribute is not None:
                envelope[f"_hw.{name}"] = _ATTRIBUTES[name](attribute)
        return self._check(PendingEvent(self.codec.validate([value])[0], self.topic.version, envelope))

    def encode_many(self, values: Any, keys: Sequence[Any] | None, sent_at: int) -> WriteBatch:
        """Encode a sequence of values, an Arrow table or batch, or a pandas or Polars frame."""
        batch = self.codec.encode(values) if isinstance(values, list | tuple) else self._encode_values(values)
        envelope = {} if keys is None else {"_hw.key": self._key_column(keys, batch.num_rows)}
        return self._check(WriteBatch(batch, self.topic.version, envelope, sent_at=sent_at))

    def encode_json(self, lines: Sequence[bytes], sent_at: int) -> WriteBatch:
        """Encode JSON objects, one per line."""
        batch = self.codec.decode_json(lines)
        return self._check(WriteBatch(batch, self.topic.version, {}, sent_at=sent_at))

    def _check(self, rows: Rows) -> Rows:
        if self._checks_keys:
            check_key(self.topic, lambda version: self.codec, rows)
        return rows

    def encode_tombstone(self, key: Any, sent_at: int) -> WriteBatch:
        """Encode the row that deletes a key."""
        if not self.topic.key:
            what = f'topic "{self.topic.name}" has no key, so nothing can be deleted from it'
            raise BadKeyError(what, fix='create the topic with key="…"', topic=self.topic.name)
        parts = dict(zip(self.topic.key, self._key_parts(key), strict=True))
        columns = []
        for column in self._storage_schema:
            try:
                columns.append(pa.array([parts.get(column.name)], column.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                what = f"{parts[column.name]!r} cannot be a key of topic {self.topic.name!r}"
                raise BadKeyError(what, detail=str(error), topic=self.topic.name) from None
        values = pa.RecordBatch.from_arrays(columns, schema=self._storage_schema)
        return WriteBatch(values, self.topic.version, {"_hw.deleted": pa.array([True])}, sent_at=sent_at)

    def key_of(self, row: PendingEvent) -> bytes | None:
        """Returns the canonical key of a single event."""
        if not self.topic.key:
            key: bytes | None = row.envelope.get("_hw.key")
            return key
        parts = self.codec.field_values(row.struct, self.topic.key)
        return key_bytes(parts[0] if len(parts) == 1 else parts)

    def _encode_values(self, values: Any) -> pa.RecordBatch:
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            values = list(values) if hasattr(values, "__iter__") and not isinstance(values, str | bytes) else values
            if not isinstance(values, list) or (values and isinstance(values[0], str | bytes | int | float)):
                what = f"send_many takes rows or a frame, not {type(values).__name__}"
                raise BadEventError(what, fix="client.send(topic, value) for one event")
            return self.codec.encode(values)
        return self.codec.encode_dataframe(values)

    def _fill_key(self, row: dict[str, Any], key: Any) -> dict[str, Any]:
        """Set the missing key fields of a row; raises if one is there with another value."""
        for name, part in zip(self.topic.key, self._key_parts(key), strict=True):
            if row.get(name) is None:
                row[name] = part
            elif key_bytes(row[name]) != key_bytes(part):
                raise BadKeyError(
                    f'the key {part!r} is not the event\'s "{name}", which is {row[name]!r}',
                    detail=f'topic "{self.topic.name}" is keyed by {", ".join(self.topic.key)}',
                    fix="omit the key: it is read from the event",
                    topic=self.topic.name,
                )
        return row

    def _key_parts(self, key: Any) -> tuple[Any, ...]:
        parts = tuple(key) if isinstance(key, tuple | list) else (key,)
        if len(parts) != len(self.topic.key) or any(part is None for part in parts):
            what = f"{key!r} is not a key of topic {self.topic.name!r}"
            raise BadKeyError(what, detail=f"its key is ({', '.join(self.topic.key)})", topic=self.topic.name)
        return parts

    def _key_column(self, keys: Sequence[Any], rows: int) -> pa.Array:
        if self.topic.key:
            what = f'topic "{self.topic.name}" reads its keys from {", ".join(self.topic.key)}'
            raise BadKeyError(what, fix="omit keys=", topic=self.topic.name)
        if len(keys) != rows:
            raise BadKeyError(f"{len(keys)} keys for {rows} events", topic=self.topic.name)
        return pa.array([None if key is None else key_bytes(key) for key in keys], pa.binary())


def _parse_micros(at: datetime | str) -> int:
    return micros(moment(at))


_ATTRIBUTES: Final[dict[str, Callable[[Any], Any]]] = {
    "id": str,
    "occurred_at": _parse_micros,
    "sent_at": _parse_micros,
    "headers": lambda headers: list(check_headers(headers).items()),
    "traceparent": check_traceparent,
    "source": str,
}


class EventTimes:
    """Determines the event time of rows: a time column, a corrected device clock, or the sender's `occurred_at`.

    Args:
        clock: The clock of arrival times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clock_offsets = ClockOffsets()

    def resolve(self, topic: Topic, batch: WriteBatch) -> WriteBatch:
        """Returns the batch with its event times; a corrected time is stored in the envelope, too."""
        if topic.device_clock is not None:
            times = self._correct_device_times(topic, topic.device_clock, batch.values)
            stored = pa.array(times, pa.int64(), mask=times == UNKNOWN_TIME).cast(_ZONED)
            return replace(batch, times=times, envelope=batch.envelope | {_OCCURRED_AT: stored})
        column = batch.values.column(topic.time) if topic.time else batch.envelope.get(_OCCURRED_AT)
        return batch if column is None else replace(batch, times=_to_micros(column))

    def _correct_device_times(self, topic: Topic, clock: DeviceClock, values: pa.RecordBatch) -> Times:
        columns = [values.column(name).to_pylist() for name in clock.device or topic.key]
        devices = [None if None in device else device for device in zip(*columns, strict=True)]
        return self._clock_offsets.correct(
            devices,
            _to_micros(values.column(clock.column)),
            _to_micros(values.column(clock.sent)),
            self._clock.micros(),
            None if clock.limit is None else clock.limit // _MICROSECOND,
        )


def _to_micros(column: pa.Array) -> Times:
    times = integers_of(column)
    return times if not column.null_count else np.where(column.is_valid().to_pylist(), times, UNKNOWN_TIME)
