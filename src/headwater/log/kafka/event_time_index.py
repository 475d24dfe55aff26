"""Event time on Kafka: an index in a side topic, with one record per offset range of a partition.

Kafka stores no event times. The process that runs pipelines also runs an `EventTimeIndexer`
(event_time_indexer.py). It reads each new offset range once and writes a record with its offsets, its
lowest and highest event time, and the max event time before and after it. Idle markers are ranges without
offsets. With this index a partition on Kafka has what the embedded log has in its frame headers, and
pipelines handle both alike.

The side topic `__headwater.times.TOPIC.ID` has the partitions of its topic and the id that Kafka gave it,
so the index of a deleted topic is never applied to a later one of the same name. The timestamp of a record
is the offset at which its range ends; the brokers find the range of an offset by it.

`EventTimeWalk` computes lateness from a known offset and max event time. Every walk from the same start
gives the same result, in batches of any size: lateness is a property of the log here too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import UnknownTopicError, UnreachableError
from headwater.events import times_column
from headwater.log.batch import LogBatch
from headwater.log.kafka.brokers import Brokers, driver, topic_partition
from headwater.log.kafka.records import event_times
from headwater.log.kafka.topics import KafkaTopics
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind, envelope_bits
from headwater.log.storage.frame_builder import max_event_times

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["EventTimeEnd", "EventTimeIndex", "EventTimeWalk", "OffsetRange", "index_topic", "walk"]

INDEX_CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # timestamps are offsets here: the indexer removes what is no longer needed
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
_NEEDS_READ: Final = envelope_bits({"_hw.deleted": None})
_MAX_CACHED_RANGES: Final = 20_000
_STALL_TIMEOUT: Final = 2.0  # seconds without a record that is known to be there


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets `[base, next)` of a partition and their event time; without offsets it is an idle marker.

    `needs_read`: some rows are tombstones or cannot be decoded. `lowest`: see `_max_lateness`.
    `partitions`: how many the topic had when the record was written.
    """

    base_offset: int
    next_offset: int
    count: int
    size: int
    needs_read: bool
    lowest: int
    highest: int
    max_event_time_before: int
    max_event_time: int
    partitions: int = 0

    @property
    def frame(self) -> Frame:
        """The range as a frame header."""
        return Frame(
            FrameKind.EVENTS if self.count else FrameKind.IDLE_MARKER,
            self.base_offset,
            self.next_offset,
            count=self.count,
            columns=_NEEDS_READ if self.needs_read else 0,
            lowest=self.lowest,
            highest=self.highest,
            max_event_time_before=self.max_event_time_before,
            max_event_time=self.max_event_time,
            length=self.size,
        )


@dataclass(frozen=True)
class EventTimeEnd:
    """The offset and event time up to which a partition is indexed."""

    next_offset: int = 0
    max_event_time: int = LOWEST_TIME


def index_topic(topic: str, id: str) -> str:
    """Returns the name of a topic's side topic.

    Example:
        >>> index_topic("orders", "HVhYy2kZQzCzb6Yt6SWnZQ")
        '__headwater.times.orders.HVhYy2kZQzCzb6Yt6SWnZQ'
    """
    return f"__headwater.times.{topic}.{id}"


class _PartitionIndex:
    """The offset ranges of one partition that were read, in order; the oldest are dropped."""

    def __init__(self, read_from: int) -> None:
        self.read_from = read_from
        self.position = read_from
        self.ranges: list[OffsetRange] = []
        self.end = EventTimeEnd()

    def add(self, offset_range: OffsetRange) -> None:
        self.ranges.append(offset_range)
        self.end = EventTimeEnd(offset_range.next_offset, offset_range.max_event_time)
        if len(self.ranges) > 2 * _MAX_CACHED_RANGES:
            del self.ranges[:_MAX_CACHED_RANGES]

    def covers(self, offset: int) -> bool:
        return bool(self.ranges) and self.ranges[0].base_offset <= offset

    def since(self, offset: int) -> list[OffsetRange]:
        """Returns the ranges that end behind an offset, and the idle markers at it."""
        first = bisect_right(self.ranges, offset, key=lambda stretch: stretch.next_offset)
        while first and self.ranges[first - 1].base_offset == self.ranges[first - 1].next_offset == offset:
            first -= 1
        return self.ranges[first:]


class EventTimeIndex:
    """Reads the side topic of one topic; safe to share between threads.

    Args:
        brokers: Where it is.
        topics: Knows what partitions hold.
        name: Its own name.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics, name: str) -> None:
        self._brokers = brokers
        self._topics = topics
        self.name = name
        self._partitions = 0
        self._kafka = driver()
        self._lock = threading.RLock()
        self._consumer: Any = None
        self._known: dict[int, _PartitionIndex] = {}

    def end(self, partition: int) -> EventTimeEnd:
        """Returns how far the partition was indexed at the last `refresh`."""
        with self._lock:
            known = self._known.get(partition)
            return known.end if known is not None else EventTimeEnd()

    def ranges(self, partition: int, start: int, end: int) -> list[OffsetRange]:
        """Returns the ranges from an offset, up to `end` at least if the side topic has it."""
        with self._lock:
            known = self._known.get(partition)
            if known is None or (not known.covers(start) and start < known.end.next_offset):
                self._seek_to_offset(partition, start)
                self.refresh()
            elif known.end.next_offset < end:
                self.refresh()
            return self._known[partition].since(start)

    def refresh(self) -> None:
        """Read everything that is in the side topic now.

        Raises:
            UnknownTopicError: There is none: no process indexes this topic.
        """
        with self._lock:
            deadline = time.monotonic() + self._brokers.patience
            self._read_to_end(deadline)
            while len(self._known) < self._partitions:  # what was read is of a time when there were more
                self._read_to_end(deadline)

    @property
    def partitions(self) -> int:
        """Returns the number of partitions at the last `refresh`.

        It may be less than Kafka reports now: the event time of the others may advance only after a new
        partition is indexed (event_time_indexer.py).
        """
        with self._lock:
            return len(self._known)

    def _read_to_end(self, deadline: float) -> None:
        partitions = self._topics.partition_counts(self.name).get(self.name, 0)
        if not partitions:
            raise UnknownTopicError(f'no topic "{self.name}"', topic=self.name)
        if 0 < len(self._known) < partitions:
            self._reconnect()
        for partition in range(partitions):
            if partition not in self._known:
                self._seek_to_last(partition)
        ends = self._topics.end_offsets(self.name, list(range(partitions)))
        ends = {number: end - 1 for number, end in ends.items()}  # the last is the mark of a commit
        self._read_until(ends, deadline)

    def _read_until(self, ends: dict[int, int], deadline: float) -> None:
        heard = time.monotonic()
        while any(self._known[number].position < end for number, end in ends.items()):
            if self._poll(0.05):
                heard = time.monotonic()
            elif time.monotonic() - heard > _STALL_TIMEOUT:
                self._reconnect()
                heard = time.monotonic()
            if time.monotonic() > deadline:
                what = f"no Kafka broker answers at {self._brokers.address}"
                raise UnreachableError(what, url=str(self._brokers.address))

    def wait(self, timeout: float) -> bool:
        """Returns True as soon as something new was read."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if not self._known:
                self.refresh()
            while not self._poll(max(0.0, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    return False
            return True

    def _poll(self, timeout: float) -> bool:
        found = self._consumer.poll(timeout)
        messages = [] if found is None else [found, *self._consumer.consume(1_000, 0)]
        for message in messages:
            known = self._known[message.partition()]
            if message.error() is None:
                known.position = message.offset() + 1
                offset_range = msgspec.json.decode(message.value(), type=OffsetRange)
                known.add(offset_range)
                self._partitions = max(self._partitions, offset_range.partitions)
            elif message.error().code() == self._kafka.KafkaError._PARTITION_EOF:
                known.position = max(known.position, message.offset())
        return any(message.error() is None for message in messages)

    def _seek_to_last(self, partition: int) -> None:
        """Seek to the last record; its end is how far the partition is indexed."""
        end = self._topics.end_offsets(self.name, [partition])[partition]
        start = self._topics.start_offsets(self.name, [partition])[partition]
        self._seek(partition, max(start, end - 4))  # a record, and the marks of commits behind it

    def _seek_to_offset(self, partition: int, offset: int) -> None:
        """Seek to the range of an offset, or to the idle markers there."""
        position = self._topics.offset_for_time(self.name, partition, offset * 1000)
        start = self._topics.start_offsets(self.name, [partition])[partition]
        self._seek(partition, start if position is None else position)

    def _reconnect(self) -> None:
        """Go on with a new consumer.

        The old one would learn of new partitions some minutes later, and sometimes it does not begin to read at a new
        place.
        """
        self._consumer.close()
        self._consumer = self._create_consumer()
        partitions = [topic_partition(self.name, number, known.position) for number, known in self._known.items()]
        self._consumer.incremental_assign(partitions)

    def _create_consumer(self) -> Any:
        return self._brokers.create_consumer({"fetch.wait.max.ms": 500, "fetch.error.backoff.ms": 20})

    def _seek(self, partition: int, offset: int) -> None:
        if self._consumer is None:
            self._consumer = self._create_consumer()
        if partition in self._known:
            self._consumer.incremental_unassign([topic_partition(self.name, partition)])
        self._known[partition] = _PartitionIndex(offset)
        self._consumer.incremental_assign([topic_partition(self.name, partition, offset)])

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
                self._known.clear()


def frame_headers(ranges: list[OffsetRange], end: int) -> Iterator[Frame]:
    """Yields the headers of ranges that start before an offset."""
    return (stretch.frame for stretch in ranges if stretch.base_offset < end)


Times = npt.NDArray[np.int64]
_MICROSECOND = timedelta(microseconds=1)
_READ_BYTES = 4 << 20  # bytes of one read


class EventTimeWalk:
    """Computes max event times for batches of one partition, in order.

    Args:
        max_event_time: Highest event time before the first batch, in microseconds: the `max_event_time` after the
            last batch of the previous walk.
    """

    def __init__(self, max_event_time: int = LOWEST_TIME) -> None:
        self.max_event_time = max_event_time

    def annotate(self, batch: LogBatch) -> LogBatch:
        """Returns the batch with its max event times, so that `late` works as in the embedded log.

        Rows that cannot be decoded do not advance the event time.
        """
        if not batch.values.num_rows:
            return replace(
                batch,
                frame=replace(
                    batch.frame, max_event_time_before=self.max_event_time, max_event_time=self.max_event_time
                ),
            )
        times = event_times(batch)
        ahead = batch.topic.ahead // _MICROSECOND
        if batch.topic.external_time:
            times = times.copy()
            times[:] = LOWEST_TIME
        maxima = max_event_times(times, batch.arrival_times, self.max_event_time, ahead)
        before, self.max_event_time = self.max_event_time, int(maxima[-1])
        frame = replace(
            batch.frame,
            lowest=self.max_event_time - _max_lateness(batch.event_times, maxima[:-1]),
            highest=int(batch.event_times.max()),
            max_event_time_before=before,
            max_event_time=self.max_event_time,
        )
        column = times_column(maxima[:-1]).view(pa.int64())
        return replace(batch, frame=frame, envelope=batch.envelope | {"_hw.running_max": column})


def _max_lateness(occurred: Times, before: Times) -> int:
    """Returns how far the latest row is behind the max event time before it.

    A range may span hours of event time and hold no late row, so its lowest time says nothing about
    lateness. The stored lowest time of a range is therefore computed from this value: it answers whether
    any row is late.

    Example:
        >>> _max_lateness(np.array([10, 5, 90]), np.array([LOWEST_TIME, 10, 10]))
        5
    """
    return int(np.where(before == LOWEST_TIME, 0, before - occurred).max())


def walk(
    log: KafkaLog, topic: str, partition: int, start: int, end: int, max_event_time: int = LOWEST_TIME
) -> Iterator[LogBatch]:
    """Yields the batches of `[start, end)` of a partition, annotated from this max event time.

    The next range continues from the last batch's `frame.max_event_time`.
    """
    event_time_walk = EventTimeWalk(max_event_time)
    at = start
    while at < end:
        cached = log.get_cached_batch(topic, partition, at)
        if cached is not None:
            at, event_time_walk.max_event_time = cached.next_offset, cached.frame.max_event_time
            yield cached if at <= end else cached.select(cached.offsets < end)
            continue
        found = log.fetch(topic, {partition: at}, max_bytes=_READ_BYTES, envelope=False)
        if not found:  # what is left below the end are marks of commits
            return
        for batch in found:
            at = batch.next_offset
            kept = batch if at <= end else batch.select(batch.offsets < end)
            yield event_time_walk.annotate(kept)
