"""Encodes events by the type of their topic and appends them; invalid ones are refused, diverted or left out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, SourceLocation, UnknownTopicError, UsageError
from headwater.events import Clock, Receipt
from headwater.events.envelope import Receipts
from headwater.log.invalid_events import InvalidEvent, find_invalid, invalid_topic_of, names_row
from headwater.log.protocol import Log
from headwater.log.topic import Topic
from headwater.log.write.write_batch import EventEncoder, PendingEvent, WriteBatch, check_key

__all__ = [
    "EncoderCache",
    "EventSender",
    "FrameRows",
    "JsonRows",
    "Rows",
    "ValueRows",
    "merge_receipts",
    "origin_of_caller",
]

R = TypeVar("R")


class EncoderCache:
    """Encodes values by the type of their topic. Keeps one encoder per topic and replaces it when the type evolves."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # No lock: if two threads make the encoder of a topic at the same time, either one serves.
        self._encoders: dict[str, EventEncoder] = {}

    def encode(self, topic: str, make: Callable[[EventEncoder, int], R]) -> R:
        """Returns what `make` returns for the topic's encoder and the current time in microseconds since 1970."""
        encoder = self.get(topic)
        try:
            return make(encoder, self._clock.micros())
        except BadEventError:  # the value may fit a version of the type that this process has not seen
            newest = self._log.topic(topic)
            if newest.version == encoder.topic.version:
                raise
            self._encoders[topic] = EventEncoder(newest)
            return make(self._encoders[topic], self._clock.micros())

    def get(self, topic: str) -> EventEncoder:
        """Returns the encoder of a topic."""
        if topic not in self._encoders:
            self._encoders[topic] = EventEncoder(self._log.topic(topic))
        return self._encoders[topic]

    def remove(self, topic: str) -> None:
        """Remove the encoder of a topic whose definition changed."""
        self._encoders.pop(topic, None)

    @contextlib.contextmanager
    def removed_if_deleted(self, topic: str) -> Iterator[None]:
        """Remove the encoder if the append in this block finds that the topic was deleted."""
        try:
            yield
        except UnknownTopicError:
            self.remove(topic)
            raise


class Rows(Protocol):
    """Rows of one call."""

    def __len__(self) -> int:
        """The number of rows."""

    def encode(self, encoder: EventEncoder, now: int, numbers: Sequence[int] | None = None) -> WriteBatch:
        """Returns the rows of these numbers, or all, as one batch."""

    def value(self, number: int) -> Any:
        """Returns the value of a row, as an invalid event keeps it."""


@dataclass(frozen=True)
class ValueRows:
    """Dicts or instances of a class, with a key each if the topic has no key column."""

    values: Sequence[Any]
    keys: Sequence[Any] | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values)

    def encode(self, encoder: EventEncoder, now: int, numbers: Sequence[int] | None = None) -> WriteBatch:
        """Returns the rows of these numbers, or all, as one batch."""
        if numbers is None:
            return encoder.encode_many(self.values, self.keys, now)
        keys = None if self.keys is None else [self.keys[number] for number in numbers]
        return encoder.encode_many([self.values[number] for number in numbers], keys, now)

    def value(self, number: int) -> Any:
        """Returns the value of a row."""
        return self.values[number]


@dataclass(frozen=True)
class JsonRows:
    """JSON objects, one per line."""

    lines: Sequence[bytes]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.lines)

    def encode(self, encoder: EventEncoder, now: int, numbers: Sequence[int] | None = None) -> WriteBatch:
        """Returns the rows of these numbers, or all, as one batch."""
        lines = self.lines if numbers is None else [self.lines[number] for number in numbers]
        return encoder.encode_json(lines, now)

    def value(self, number: int) -> bytes:
        """Returns a line."""
        return self.lines[number]


@dataclass(frozen=True)
class FrameRows:
    """An Arrow table or batch, or a pandas or Polars frame."""

    frame: Any
    keys: Sequence[Any] | None = None

    @cached_property
    def _table(self) -> pa.Table:
        return pa.Table.from_batches([self.frame]) if isinstance(self.frame, pa.RecordBatch) else pa.table(self.frame)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.frame)

    def encode(self, encoder: EventEncoder, now: int, numbers: Sequence[int] | None = None) -> WriteBatch:
        """Returns the rows of these numbers, or all, as one batch."""
        if numbers is None:
            return encoder.encode_many(self.frame, self.keys, now)
        keys = None if self.keys is None else [self.keys[number] for number in numbers]
        return encoder.encode_many(self._table.take(pa.array(numbers, pa.int64())), keys, now)

    def value(self, number: int) -> dict[str, Any]:
        """Returns a row as a dict."""
        row: dict[str, Any] = self._table.slice(number, 1).to_pylist()[0]
        return row


class EventSender:
    """Sends events: encodes, appends, and decides what happens to invalid ones.

    An event is invalid if its value does not match the type of its topic, or lacks the key. If the topic has
    `invalid=`, the event goes to the topic named there, before the valid events of the call: if their append fails and
    the caller sends again, it is there twice, but never lost. Otherwise the call is refused, unless it skips invalid
    events.

    Args:
        log: The log.
        clock: The clock of send times.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self.encoders = EncoderCache(log, clock)
        self._log = log
        self._clock = clock

    def send_one(
        self, topic: str, encode: Callable[[EventEncoder, int], PendingEvent], value: Any, origin: Callable[[], str]
    ) -> Receipt:
        """Encode and append one event.

        Args:
            topic: The topic.
            encode: Encodes the event.
            value: Its value, as an invalid event keeps it.
            origin: Returns who sends it; called only for an invalid event.
        """
        try:
            row = self.encoders.encode(topic, encode)
        except (BadEventError, BadKeyError) as error:
            return self.divert_one(topic, value, error, origin())
        with self.encoders.removed_if_deleted(topic):
            return self._log.append_one(topic, row)

    def divert_one(self, topic: str, value: Any, error: UsageError, origin: str) -> Receipt:
        """Divert an invalid event; raises its error if the topic has no topic for invalid events."""
        definition = self._log.topic(topic)
        if definition.invalid is None or not names_row(error):
            raise error
        return self.divert(definition, [InvalidEvent.of(topic, value, error, origin)])[0]

    def send_rows(
        self, topic: str, rows: Rows, origin: Callable[[int], str], *, skip_invalid: bool = False
    ) -> Receipts:
        """Encode and append rows as one batch.

        Args:
            topic: The topic.
            rows: The rows.
            origin: Returns who sends a row, by its number; called only for invalid rows.
            skip_invalid: Leave invalid rows out if the topic has no topic for them.
        """
        invalid: Mapping[int, Receipt] = {}
        try:
            batch = self.encoders.encode(topic, rows.encode)
            if skip_invalid:
                check_key(self.encoders.get(topic).topic, lambda version: self.encoders.get(topic).codec, batch)
        except (BadEventError, BadKeyError) as error:
            definition = self._log.topic(topic)
            if not names_row(error) or (definition.invalid is None and not skip_invalid):
                raise
            encoder, now = EventEncoder(definition, checks_keys=True), self._clock.micros()
            numbers = range(len(rows))
            errors = find_invalid(numbers, lambda part: rows.encode(encoder, now, part))
            found = {row: InvalidEvent.of(topic, rows.value(row), each, origin(row)) for row, each in errors.items()}
            invalid = self._set_apart(definition, found)
            batch = rows.encode(encoder, now, [row for row in numbers if row not in invalid])
        with self.encoders.removed_if_deleted(topic):
            receipts = self._log.append(topic, batch) if batch.row_count or not invalid else no_receipts(topic)
        return merge_receipts(receipts, invalid) if invalid else receipts

    def _set_apart(self, topic: Topic, invalid: Mapping[int, InvalidEvent]) -> dict[int, Receipt]:
        """Divert invalid rows, or refuse them; returns their receipts by row."""
        if topic.invalid is None:
            return {row: Receipt(topic.name, -1, -1, refused=event.reason) for row, event in invalid.items()}
        return dict(zip(invalid, self.divert(topic, list(invalid.values())), strict=True))

    def divert(self, topic: Topic, invalid: Sequence[InvalidEvent]) -> list[Receipt]:
        """Append invalid events to the topic that `invalid=` names; creates it anew if it was deleted."""
        target = invalid_topic_of(topic)
        try:
            receipts = self._divert(topic.name, target, invalid)
        except UnknownTopicError:
            self.encoders.remove(target)
            self._log.create(topic)
            receipts = self._divert(topic.name, target, invalid)
        return [
            Receipt(target, receipt.partition, receipt.offset, dropped=receipt.dropped, diverted=event.reason)
            for receipt, event in zip(receipts, invalid, strict=True)
        ]

    def _divert(self, topic: str, target: str, invalid: Sequence[InvalidEvent]) -> Receipts:
        encoder = self.encoders.get(target)
        return self._log.divert(topic, encoder.encode_many([*invalid], None, self._clock.micros()))


def merge_receipts(receipts: Receipts, invalid: Mapping[int, Receipt]) -> Receipts:
    """Returns the receipts of the valid rows of a call with those of its invalid ones, which are given by row.

    Example:
        >>> sent = Receipts("orders", np.array([0, 0]), np.array([7, 8]), np.array([False, False]))
        >>> merged = merge_receipts(sent, {1: Receipt("orders", -1, -1, refused="not an object")})
        >>> [receipt.offset for receipt in merged], merged.refused
        ([7, -1, 8], 1)
    """
    places = [row for row in range(len(receipts) + len(invalid)) if row not in invalid]

    def spread(column: Any, empty: Any) -> Any:
        whole = np.full(len(places) + len(invalid), empty, column.dtype)
        whole[places] = column
        return whole

    return replace(
        receipts,
        partitions=spread(receipts.partitions, -1),
        offsets=spread(receipts.offsets, -1),
        repeated=spread(receipts.repeated, False),
        invalid=invalid,
    )


def origin_of_caller() -> str:
    """Returns the line of the user's program that called into Headwater."""
    location = SourceLocation.of_caller()
    return str(location) if location else "a program"


def no_receipts(topic: str) -> Receipts:
    """Returns the receipts of no rows."""
    return Receipts(topic, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool))
