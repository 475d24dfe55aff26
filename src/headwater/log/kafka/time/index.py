"""Event time beside a Kafka topic: a side topic with one record for each stretch of a partition that was walked.

Kafka knows nothing of event time. So whoever runs pipelines also keeps the topic's time (timekeeper.py): each new
stretch is read once, and a record says which offsets it has, its lowest and highest event time, and the running maximum
before and after it. Time marks of quiet partitions stand there, too, as stretches without offsets. From then on a
partition on Kafka has what the embedded log has in the headers of its frames, and pipelines judge and plan alike.

The side topic `__headwater.times.TOPIC.ID` has the partitions of its topic, and the id that Kafka gave it: what was
said of a topic that was deleted says nothing of one that was made later under the same name. The timestamp of a record
is the offset at which its stretch ends: so the brokers find the stretch of an offset.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headwater.errors import UnknownTopicError, UnreachableError
from headwater.log.kafka.brokers import Brokers, driver, partition_at
from headwater.log.kafka.topics import KafkaTopics
from headwater.log.storage.frame import LOWEST_TIME, Frame, Kind, columns_of

__all__ = ["Stretch", "TimeEnd", "TimeIndex", "index_name"]

SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # timestamps are offsets here: the timekeeper removes what is no longer needed
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
_LOOK: Final = columns_of({"_hw.deleted": None})
_MOST_KNOWN: Final = 20_000
_STUCK: Final = 2.0  # seconds without a record that is known to be there


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Offsets `[base, next)` of a partition and their event time; without offsets it is a time mark.

    `look`: some of them are tombstones or cannot be read. `lowest`: see `_lag` in walk.py. `partitions`: how many the
    topic had when it was written.
    """

    base: int
    next: int
    count: int
    size: int
    look: bool
    lowest: int
    highest: int
    before: int
    after: int
    partitions: int = 0

    @property
    def frame(self) -> Frame:
        """The same as the header of a frame."""
        return Frame(
            Kind.EVENTS if self.count else Kind.MARK,
            self.base,
            self.next,
            count=self.count,
            columns=_LOOK if self.look else 0,
            lowest=self.lowest,
            highest=self.highest,
            running_before=self.before,
            running_max=self.after,
            length=self.size,
        )


@dataclass(frozen=True)
class TimeEnd:
    """How far a partition's time is known."""

    next_offset: int = 0
    running_max: int = LOWEST_TIME


def index_name(topic: str, id: str) -> str:
    """The side topic of a topic.

    Example:
        >>> index_name("orders", "HVhYy2kZQzCzb6Yt6SWnZQ")
        '__headwater.times.orders.HVhYy2kZQzCzb6Yt6SWnZQ'
    """
    return f"__headwater.times.{topic}.{id}"


class _Known:
    """The stretches of one partition that were read, in order; the oldest are dropped when there are many."""

    def __init__(self, read_from: int) -> None:
        self.read_from = read_from
        self.read_to = read_from
        self.stretches: list[Stretch] = []
        self.end = TimeEnd()

    def add(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)
        self.end = TimeEnd(stretch.next, stretch.after)
        if len(self.stretches) > 2 * _MOST_KNOWN:
            del self.stretches[:_MOST_KNOWN]

    def holds(self, offset: int) -> bool:
        return bool(self.stretches) and self.stretches[0].base <= offset

    def since(self, offset: int) -> list[Stretch]:
        """Stretches that end behind an offset, and time marks at it."""
        first = bisect_right(self.stretches, offset, key=lambda stretch: stretch.next)
        while first and self.stretches[first - 1].base == self.stretches[first - 1].next == offset:
            first -= 1
        return self.stretches[first:]


class TimeIndex:
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
        self._known: dict[int, _Known] = {}

    def end(self, partition: int) -> TimeEnd:
        """How far time was known at the last `refresh`."""
        with self._lock:
            known = self._known.get(partition)
            return known.end if known is not None else TimeEnd()

    def stretches(self, partition: int, start: int, end: int) -> list[Stretch]:
        """What is known from an offset on; up to `end` at least, if the side topic has it."""
        with self._lock:
            known = self._known.get(partition)
            if known is None or (not known.holds(start) and start < known.end.next_offset):
                self._read_from(partition, start)
                self.refresh()
            elif known.end.next_offset < end:
                self.refresh()
            return self._known[partition].since(start)

    def refresh(self) -> None:
        """Read everything that is in the side topic now.

        Raises:
            UnknownTopicError: There is none: nobody keeps the time of this topic.
        """
        with self._lock:
            deadline = time.monotonic() + self._brokers.patience
            self._read_up(deadline)
            while len(self._known) < self._partitions:  # what was read is of a time when there were more
                self._read_up(deadline)

    @property
    def partitions(self) -> int:
        """How many partitions there were at the last `refresh`.

        Not what Kafka says of the topic now: time may go on in the others only when a new one is known (timekeeper.py).
        """
        with self._lock:
            return len(self._known)

    def _read_up(self, deadline: float) -> None:
        partitions = self._topics.partitions(self.name).get(self.name, 0)
        if not partitions:
            raise UnknownTopicError(f'no topic "{self.name}"', topic=self.name)
        if 0 < len(self._known) < partitions:
            self._reopen()
        for partition in range(partitions):
            if partition not in self._known:
                self._read_from_last(partition)
        ends = self._topics.end_offsets(self.name, list(range(partitions)))
        ends = {number: end - 1 for number, end in ends.items()}  # the last is the mark of a commit
        self._read_to(ends, deadline)

    def _read_to(self, ends: dict[int, int], deadline: float) -> None:
        heard = time.monotonic()
        while any(self._known[number].read_to < end for number, end in ends.items()):
            if self._take(0.05):
                heard = time.monotonic()
            elif time.monotonic() - heard > _STUCK:
                self._reopen()
                heard = time.monotonic()
            if time.monotonic() > deadline:
                what = f"no Kafka broker answers at {self._brokers.address}"
                raise UnreachableError(what, url=str(self._brokers.address))

    def wait(self, timeout: float) -> bool:
        """True as soon as something new was read."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if not self._known:
                self.refresh()
            while not self._take(max(0.0, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    return False
            return True

    def _take(self, timeout: float) -> bool:
        found = self._consumer.poll(timeout)
        messages = [] if found is None else [found, *self._consumer.consume(1_000, 0)]
        for message in messages:
            known = self._known[message.partition()]
            if message.error() is None:
                known.read_to = message.offset() + 1
                stretch = msgspec.json.decode(message.value(), type=Stretch)
                known.add(stretch)
                self._partitions = max(self._partitions, stretch.partitions)
            elif message.error().code() == self._kafka.KafkaError._PARTITION_EOF:
                known.read_to = max(known.read_to, message.offset())
        return any(message.error() is None for message in messages)

    def _read_from_last(self, partition: int) -> None:
        """Begin at the last record, whose end is how far time is known."""
        end = self._topics.end_offsets(self.name, [partition])[partition]
        start = self._topics.start_offsets(self.name, [partition])[partition]
        self._seek(partition, max(start, end - 4))  # a record, and the marks of commits behind it

    def _read_from(self, partition: int, offset: int) -> None:
        """Begin at the stretch of an offset, or at the time marks there."""
        place = self._topics.at_time(self.name, partition, offset * 1000)
        start = self._topics.start_offsets(self.name, [partition])[partition]
        self._seek(partition, start if place is None else place)

    def _reopen(self) -> None:
        """Go on with a new consumer.

        The old one would learn of new partitions some minutes later, and sometimes it does not begin to read at a new
        place.
        """
        self._consumer.close()
        self._consumer = self._opened()
        places = [partition_at(self.name, number, known.read_to) for number, known in self._known.items()]
        self._consumer.incremental_assign(places)

    def _opened(self) -> Any:
        return self._brokers.consumer({"fetch.wait.max.ms": 500, "fetch.error.backoff.ms": 20})

    def _seek(self, partition: int, offset: int) -> None:
        if self._consumer is None:
            self._consumer = self._opened()
        if partition in self._known:
            self._consumer.incremental_unassign([partition_at(self.name, partition)])
        self._known[partition] = _Known(offset)
        self._consumer.incremental_assign([partition_at(self.name, partition, offset)])

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
                self._known.clear()


def frames(stretches: list[Stretch], end: int) -> Iterator[Frame]:
    """The headers of stretches that begin before an offset."""
    return (stretch.frame for stretch in stretches if stretch.base < end)
