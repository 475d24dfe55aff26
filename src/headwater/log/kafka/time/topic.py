"""A Kafka topic as pipelines read it: with its event time known at every stretch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.log.batch import LogBatch
from headwater.log.definition import Topic
from headwater.log.kafka.time.index import TimeEnd, TimeIndex, frames
from headwater.log.kafka.time.timekeeper import Timekeeper
from headwater.log.kafka.time.walk import walk
from headwater.log.storage.frame import LOWEST_TIME, Frame

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["IndexWaiter", "TimedKafkaPartition", "TimedKafkaTopic"]


@dataclass(frozen=True)
class TimedKafkaPartition:
    """One partition, as far as its time was known when it was asked for."""

    number: int
    _index: TimeIndex
    _keeper: Callable[[], Timekeeper]

    def slot(self) -> TimeEnd:
        """Where it ends, for readers that go by event time."""
        return self._index.end(self.number)

    def headers(self, start: int, end: int) -> Iterator[Frame]:
        """Stretches that hold offsets of `[start, end)`, as headers of frames; time marks included."""
        return frames(self._index.stretches(self.number, start), end)

    def mark(self, time: int) -> None:
        """Move its time on without an event; only in a process that keeps the time."""
        self._keeper().mark(self.number, time)
        self._index.refresh()


class TimedKafkaTopic:
    """One topic.

    Args:
        log: Where it is.
        name: Its name.
        keep: Whether this process keeps its time.
    """

    def __init__(self, log: KafkaLog, name: str, *, keep: bool) -> None:
        self._log = log
        self._name = name
        self._timekeeper = Timekeeper(log, name) if keep else None
        self.index = TimeIndex(log.brokers, log.kafka_topics, name)

    @property
    def definition(self) -> Topic:
        """Its definition under its newest type."""
        return self._log.topic(self._name)

    @property
    def partitions(self) -> Sequence[TimedKafkaPartition]:
        """Its partitions, with what is known of their time now."""
        self.index.refresh()
        number = self.definition.partitions
        return [TimedKafkaPartition(partition, self.index, self.keeper) for partition in range(number)]

    def keeper(self) -> Timekeeper:
        """Who keeps its time here."""
        assert self._timekeeper is not None, "only the process that runs pipelines keeps time"
        return self._timekeeper

    def settle(self) -> None:
        """Return when the time of everything that is in the topic now is known."""
        if self._timekeeper is not None:
            self._timekeeper.settle()

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """The events of offsets `[start, end)`, each with the running maximum before it."""
        first = next(frames(self.index.stretches(partition, start), end), None)
        running, at = (first.running_before, first.base_offset) if first else (LOWEST_TIME, start)
        for batch in walk(self._log, self._name, partition, at, end, running):
            yield batch if batch.frame.base_offset >= start else batch.select(batch.offsets >= start)

    def close(self) -> None:
        """Stop keeping time, let go of connections."""
        if self._timekeeper is not None:
            self._timekeeper.stop()
        self.index.close()


class IndexWaiter:
    """Waits until more is known of some topics' time: by turns, since each has a connection of its own.

    Args:
        indexes: The side topics.
    """

    def __init__(self, indexes: Sequence[TimeIndex]) -> None:
        self._indexes = indexes

    def wait(self, timeout: float | None) -> bool:
        """True as soon as one of them has something new."""
        slice_ = (1.0 if timeout is None else timeout) / len(self._indexes)
        if len(self._indexes) > 1:
            slice_ = min(slice_, 0.02)
        left = timeout if timeout is not None else float("inf")
        while True:
            for index in self._indexes:
                if index.wait(slice_):
                    return True
                left -= slice_
            if left <= 0:
                return False

    def close(self) -> None:
        """Nothing: the connections are the topics'."""
