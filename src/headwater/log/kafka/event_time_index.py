"""Event time on Kafka: an index in a side topic, with one record per offset range of a partition.

Kafka stores no event times. The process that runs pipelines also runs an `EventTimeIndexer`
(event_time_indexer.py). It reads each new offset range once and writes a record with its offsets, its
lowest and highest event time, and the max event time before and after it. Idle markers are ranges without
offsets. The index holds for a partition on Kafka what the embedded log holds in its frame headers, so
pipelines read both in the same way.

The side topic `__headwater.times.TOPIC.ID` has as many partitions as its topic. ID is the topic id that Kafka
assigned, so the index of a deleted topic is never applied to a later topic of the same name. The timestamp of
a record is the offset at which its range ends; the brokers find the range of an offset by it.

`EventTimeWalk` computes the max event time before each row. It starts each offset range from the max event time
that the index states for it, so idle markers between ranges count, and a read gives the same result in
batches of any size, cached or from the brokers: lateness is a property of the log here too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import UnknownTopicError
from headwater.events import times_column
from headwater.log.batch import LogBatch
from headwater.log.kafka.brokers import topic_partition
from headwater.log.kafka.records import event_times
from headwater.log.kafka.topics import KafkaTopics
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind, envelope_bits
from headwater.log.storage.frame_builder import max_event_times

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["EventTimeEnd", "EventTimeIndex", "EventTimeWalk", "OffsetRange", "index_topic", "read_ranges", "walk"]

INDEX_CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # the timestamps are offsets: retention by time would remove every record at once
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
UNKNOWN_ARRIVAL: Final = 2**62
"""Stands for an unknown arrival, in ranges of older versions: late after every event time, so the topic is not live."""
_NEEDS_READ: Final = envelope_bits(["_hw.deleted", "_hw.error"])
_MAX_CACHED_RANGES: Final = 20_000  # per partition
_SAMPLE_INTERVAL: Final = 500  # records of the side topic between two whose position is remembered
_STALL_TIMEOUT: Final = 2.0  # seconds without an expected record, then the consumer is replaced
_READ_BYTES: Final = 4 << 20  # bytes of one read of a walk
_MICROSECOND = timedelta(microseconds=1)

Times = npt.NDArray[np.int64]


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    """A record of the index: offsets `[base, next)` of a partition and their event time, in microseconds.

    A range without events is an idle marker. `size` estimates the bytes of its rows. `needs_read`: some rows are
    tombstones, cannot be decoded, or may be removed by compaction. `lowest`: see `_max_lateness`. `partitions`: the
    topic's number of partitions when the record was written. `arrived_at`: when the record arrived that set the max
    event time. `ahead`: the topic's `ahead` then; None in records of older versions.
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
    arrived_at: int = UNKNOWN_ARRIVAL
    ahead: int | None = None

    @classmethod
    def describe(cls, base_offset: int, batch: LogBatch) -> OffsetRange:
        """Returns the range of a batch that `EventTimeWalk` has annotated; commit markers may precede its rows."""
        frame, needs_read = batch.frame, bool(batch.tombstones.any() or batch.bad.any())
        times = (frame.lowest, frame.highest, frame.max_event_time_before, frame.max_event_time)
        count, size, ahead = batch.values.num_rows, int(batch.values.nbytes), batch.topic.ahead // _MICROSECOND
        return cls(base_offset, batch.next_offset, count, size, needs_read, *times, ahead=ahead)

    def holds(self, batch: LogBatch) -> bool:
        """Returns whether a batch has the rows and the event time of this range.

        An indexer caches a batch before it commits the range. If another one is faster, the range differs.
        """
        found = (batch.next_offset, batch.values.num_rows, batch.frame.max_event_time_before)
        return found == (self.next_offset, self.count, self.max_event_time_before)

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
    """The offset and event time up to which a partition is indexed, and when the record arrived that set the time."""

    next_offset: int = 0
    max_event_time: int = LOWEST_TIME
    arrived_at: int = UNKNOWN_ARRIVAL


def index_topic(topic: str, id: str) -> str:
    """Returns the name of the side topic that indexes a topic.

    Example:
        >>> index_topic("orders", "HVhYy2kZQzCzb6Yt6SWnZQ")
        '__headwater.times.orders.HVhYy2kZQzCzb6Yt6SWnZQ'
    """
    return f"__headwater.times.{topic}.{id}"


class _PartitionIndex:
    """The offset ranges of one partition that this process has read, in order; the oldest are dropped."""

    def __init__(self, position: int) -> None:
        self.position = position  # next offset to read in the side topic
        self.ranges: list[OffsetRange] = []
        self.end = EventTimeEnd()

    def add(self, offset_range: OffsetRange) -> None:
        self.ranges.append(offset_range)
        self.end = EventTimeEnd(offset_range.next_offset, offset_range.max_event_time, offset_range.arrived_at)
        if len(self.ranges) > 2 * _MAX_CACHED_RANGES:
            del self.ranges[:_MAX_CACHED_RANGES]

    def since(self, offset: int) -> list[OffsetRange]:
        """Returns the ranges that end after an offset, and the idle markers at it."""
        first = bisect_right(self.ranges, offset, key=lambda each: each.next_offset)
        while first and self.ranges[first - 1].base_offset == self.ranges[first - 1].next_offset == offset:
            first -= 1
        return self.ranges[first:]


class EventTimeIndex:
    """Reads the side topic of one topic; safe to share between threads.

    Args:
        topics: The topics, for start and end offsets.
        name: The name of the side topic.
    """

    def __init__(self, topics: KafkaTopics, name: str) -> None:
        self._brokers = topics.brokers
        self._topics = topics
        self.name = name
        self._partitions = 0  # the highest count that a record names
        self._lock = threading.RLock()  # held while reading: the driver allows one thread per consumer
        self._consumer: Any = None
        self._known: dict[int, _PartitionIndex] = {}
        self._samples: dict[int, list[tuple[int, int]]] = {}  # of some ranges: their end, and their position

    def end(self, partition: int) -> EventTimeEnd:
        """Returns how far the partition was indexed at the last `refresh`."""
        with self._lock:
            return self._known[partition].end if partition in self._known else EventTimeEnd()

    def ranges(self, partition: int, start: int, end: int) -> Iterator[OffsetRange]:
        """Returns the ranges that hold offsets in `[start, end)`, with idle markers."""
        with self._lock:
            known = self._known.get(partition)
            dropped = known is not None and (not known.ranges or start < known.ranges[0].base_offset)
            if known is None or (dropped and start < known.end.next_offset):
                position = self._find_position(partition, start)
                last = self._topics.end_offsets(self.name, [partition])[partition]
                if last - position > _MAX_CACHED_RANGES:
                    return self._read_history(partition, position, start, end)
                self._seek(partition, position)
                self.refresh()
            elif known.end.next_offset < end:
                self.refresh()
            found = self._known[partition].since(start)
        return (each for each in found if each.base_offset < end)

    def _find_position(self, partition: int, start: int) -> int:
        """Returns an offset in the side topic that is not after the range of an offset."""
        samples = self._samples.get(partition, [])
        index = bisect_left(samples, (start, -1))
        if index:
            return samples[index - 1][1]
        # The timestamp of a record is the end of its range, so this finds the range of the offset.
        position = self._topics.offset_for_time(self.name, partition, start * 1000)
        return self._topics.start_offsets(self.name, [partition])[partition] if position is None else position

    def _read_history(self, partition: int, position: int, start: int, end: int) -> Iterator[OffsetRange]:
        """Yields ranges that are too far back to be kept with the newest, from a consumer of its own."""
        consumer = self._create_consumer()
        try:
            consumer.assign([topic_partition(self.name, partition, position)])
            heard_at = time.monotonic()
            while time.monotonic() - heard_at < self._brokers.patience:
                for message in consumer.consume(_SAMPLE_INTERVAL, 0.2):
                    if message.error() is not None:
                        if message.error().code() == self._brokers.kafka.KafkaError._PARTITION_EOF:
                            return
                        continue
                    heard_at = time.monotonic()
                    each = msgspec.json.decode(message.value(), type=OffsetRange)
                    self._add_sample(partition, each.next_offset, message.offset())
                    if each.base_offset >= end:
                        return
                    if each.next_offset > start or each.base_offset == each.next_offset == start:
                        yield each
            raise self._brokers.unreachable_error()
        finally:
            consumer.close()

    def _add_sample(self, partition: int, next_offset: int, position: int) -> None:
        with self._lock:
            samples = self._samples.setdefault(partition, [])
            if not samples or (next_offset > samples[-1][0] and position >= samples[-1][1] + _SAMPLE_INTERVAL):
                samples.append((next_offset, position))

    def refresh(self) -> None:
        """Read the side topic to its present end.

        Raises:
            UnknownTopicError: The side topic does not exist: no process indexes this topic.
        """
        with self._lock:
            deadline = time.monotonic() + self._brokers.patience
            self._read_to_end(deadline)
            while len(self._known) < self._partitions:  # a record names more partitions than were read
                self._read_to_end(deadline)

    @property
    def partitions(self) -> int:
        """The number of partitions at the last `refresh`.

        It may be less than Kafka reports now: the event time of the others may advance only after a new
        partition is indexed (event_time_indexer.py).
        """
        with self._lock:
            return len(self._known)

    def _read_to_end(self, deadline: float) -> None:
        partitions = list(range(self._topics.partition_count(self.name)))
        if not partitions:
            raise UnknownTopicError(f'no topic "{self.name}"', topic=self.name)
        if 0 < len(self._known) < len(partitions):
            self._reconnect()
        ends = self._topics.end_offsets(self.name, partitions)
        for number in partitions:
            if number not in self._known:
                # The end of the last record is how far the partition is indexed. It is among the last four offsets,
                # with commit markers after it.
                start = self._topics.start_offsets(self.name, [number])[number]
                self._seek(number, max(start, ends[number] - 4))
        self._read_until({number: end - 1 for number, end in ends.items()}, deadline)  # the last is a commit marker

    def _read_until(self, ends: dict[int, int], deadline: float) -> None:
        heard_at = time.monotonic()
        while any(self._known[number].position < end for number, end in ends.items()):
            stalled = time.monotonic() - heard_at > _STALL_TIMEOUT
            if stalled:
                self._reconnect()
            if self._poll(0.05) or stalled:
                heard_at = time.monotonic()
            if time.monotonic() > deadline:
                raise self._brokers.unreachable_error()

    def wait(self, timeout: float) -> bool:
        """Returns True as soon as a new record was read, False after `timeout` seconds."""
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
            elif message.error().code() == self._brokers.kafka.KafkaError._PARTITION_EOF:
                known.position = max(known.position, message.offset())
        return any(message.error() is None for message in messages)

    def _reconnect(self) -> None:
        """Continue with a new consumer.

        The old one learns of new partitions minutes later, and sometimes does not start to read at a new position.
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
        """Close the connection."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
                self._known.clear()


class EventTimeWalk:
    """Computes max event times for batches of one partition, in order.

    Args:
        max_event_time: Highest event time before the first batch, in microseconds: that of the last batch of the
            previous walk.
        ranges: The index of the offsets that are walked. The first row of a range follows the max event time that
            the index states for it.
    """

    def __init__(self, max_event_time: int = LOWEST_TIME, ranges: Sequence[OffsetRange] = ()) -> None:
        self.max_event_time = max_event_time
        self._ahead: int | None = None
        self._following = deque(each for each in ranges if each.count)  # ranges that begin after the last row

    def annotate(self, batch: LogBatch) -> LogBatch:
        """Returns the batch with its max event times, so that `late` works as in the embedded log.

        Rows that cannot be decoded do not advance the event time.
        """
        if not batch.values.num_rows:
            now = self.max_event_time
            return replace(batch, frame=replace(batch.frame, max_event_time_before=now, max_event_time=now))
        times = event_times(batch)
        if batch.topic.external_time:
            times = np.full_like(times, LOWEST_TIME)
        maxima = np.empty_like(times)  # before each row
        for rows in self._split_at_ranges(batch.offsets):
            ahead = batch.topic.ahead // _MICROSECOND if self._ahead is None else self._ahead
            found = max_event_times(times[rows], batch.arrival_times[rows], self.max_event_time, ahead)
            maxima[rows], self.max_event_time = found[:-1], int(found[-1])
        frame = replace(
            batch.frame,
            lowest=self.max_event_time - _max_lateness(batch.event_times, maxima),
            highest=int(batch.event_times.max()),
            max_event_time_before=int(maxima[0]),
            max_event_time=self.max_event_time,
        )
        column = times_column(maxima).view(pa.int64())
        return replace(batch, frame=frame, envelope=batch.envelope | {"_hw.running_max": column})

    def _split_at_ranges(self, offsets: Times) -> Iterator[slice]:
        """Yields the rows of each range; `max_event_time` is then the one before them."""
        first = 0
        while first < len(offsets):
            while self._following and self._following[0].base_offset <= offsets[first]:
                entered = self._following.popleft()
                self.max_event_time, self._ahead = entered.max_event_time_before, entered.ahead
            last = len(offsets)
            if self._following:
                last = int(np.searchsorted(offsets, self._following[0].base_offset))
            yield slice(first, last)
            first = last


def _max_lateness(occurred: Times, before: Times) -> int:
    """Returns how far the latest row is behind the max event time before it.

    A range may span hours of event time without a late row, so its lowest event time says nothing about lateness.
    Therefore `OffsetRange.lowest` is max event time minus this value: it shows whether any row is late.

    Example:
        >>> _max_lateness(np.array([10, 5, 90]), np.array([LOWEST_TIME, 10, 10]))
        5
    """
    return int(np.where(before == LOWEST_TIME, 0, before - occurred).max())


def walk(
    log: KafkaLog, topic: str, partition: int, start: int, end: int, max_event_time: int = LOWEST_TIME
) -> Iterator[LogBatch]:
    """Yields the batches of offsets `[start, end)` of a partition with their max event times, without an index.

    The next walk continues from the last batch's `frame.max_event_time`.
    """
    unknown = LOWEST_TIME
    whole = OffsetRange(start, end, end - start, 0, True, unknown, unknown, max_event_time, unknown)
    return read_ranges(log, topic, partition, [whole], start, end, use_cache=False)


def read_ranges(
    log: KafkaLog,
    topic: str,
    partition: int,
    ranges: Sequence[OffsetRange],
    start: int,
    end: int,
    *,
    use_cache: bool = True,
) -> Iterator[LogBatch]:
    """Yields the events of offsets `[start, end)` of a partition, each with the max event time before it.

    Args:
        log: The log.
        topic: The topic.
        partition: One of its partitions.
        ranges: The index of these offsets, with idle markers.
        start: The first offset.
        end: The offset after the last one.
        use_cache: Whether decoded ranges may be read from the cache of this machine.
    """
    event_time_walk = EventTimeWalk(ranges=ranges)
    # Not after the start: if retention removed events there, the fetch raises DataGoneError.
    at = min([start, *(each.base_offset for each in ranges if each.count)])
    for each in ranges:
        if not each.count and each.base_offset <= at:  # an idle marker, or commit markers
            at = max(at, each.next_offset)
            continue
        cached = log.get_cached_batch(topic, partition, at) if use_cache and at == each.base_offset else None
        if cached is not None and each.holds(cached):
            at = each.next_offset
            yield _cut(cached, start, end)
            continue
        while at < min(each.next_offset, end):
            found = log.fetch(topic, {partition: at}, max_bytes=_READ_BYTES, envelope=False)
            if not found:  # only commit markers are left below the end
                return
            for batch in found:
                at = batch.next_offset
                yield _cut(event_time_walk.annotate(_cut(batch, 0, end)), start, end)


def _cut(batch: LogBatch, start: int, end: int) -> LogBatch:
    """Returns the rows of offsets `[start, end)`."""
    if start <= batch.frame.base_offset and batch.next_offset <= end:
        return batch
    return batch.select((batch.offsets >= start) & (batch.offsets < end))
