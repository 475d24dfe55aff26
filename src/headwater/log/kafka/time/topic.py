"""A Kafka topic as pipelines read it: with its event time known at every stretch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.errors import DataGoneError
from headwater.log.batch import LogBatch
from headwater.log.definition import Topic
from headwater.log.kafka.time.index import TimeEnd, TimeIndex, frames, index_name
from headwater.log.kafka.time.timekeeper import Timekeeper
from headwater.log.kafka.time.walk import walk
from headwater.log.storage.frame import Frame

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["IndexWaiter", "TimedKafkaPartition", "TimedKafkaTopic"]

_LOOK: Final = 1.0  # seconds between two looks whether it is still the same topic


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
        return frames(self._index.stretches(self.number, start, end), end)

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
        self.id = log.incarnation(name)
        self._looked_at = time.monotonic()
        index = index_name(name, self.id)
        self._timekeeper = Timekeeper(log, name, index) if keep else None
        self.index = TimeIndex(log.brokers, log.kafka_topics, index)

    @property
    def definition(self) -> Topic:
        """Its definition under its newest type."""
        return self._log.topic(self._name)

    @property
    def partitions(self) -> Sequence[TimedKafkaPartition]:
        """Its partitions, with what is known of their time now.

        Raises:
            UnknownTopicError: It was deleted.
            DataGoneError: It was deleted, and made again under the same name.
        """
        self._require_same()
        self.index.refresh()
        return [TimedKafkaPartition(p, self.index, self.keeper) for p in range(self.index.partitions)]

    def _require_same(self) -> None:
        if time.monotonic() - self._looked_at > _LOOK:
            if self._log.incarnation(self._name) != self.id:
                what = f'topic "{self._name}" was deleted and made again'
                raise DataGoneError(what, topic=self._name)
            self._looked_at = time.monotonic()

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
        stretches = frames(self.index.stretches(partition, start, end), end)
        # Behind all time marks at the start.
        first = next((frame for frame in stretches if frame.count), None)
        if first is None:
            return
        # Never from behind the start: what is missing there is gone, and the brokers say so.
        at = min(start, first.base_offset)
        for batch in walk(self._log, self._name, partition, at, end, first.running_before):
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
