"""Reads a topic over several partitions, from given offsets, to given offsets or without an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from headwater.errors import DataGoneError
from headwater.events import Clock
from headwater.log.batch import LogBatch

if TYPE_CHECKING:
    from headwater.log.protocol import Log

__all__ = ["TopicReader", "age_of_oldest"]


class TopicReader:
    """Reads batches and keeps its position.

    Args:
        log: The log.
        topic: The topic.
        positions: Next offset per partition; may be changed between reads.
        stops: Offsets at which to stop, per partition; None to read without an end.
        group: A consumer group whose changes end a wait, too.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        positions: Mapping[int, int],
        stops: Mapping[int, int] | None = None,
        group: str | None = None,
    ) -> None:
        self.positions = dict(positions)
        self._log = log
        self._topic = topic
        self._stops = stops
        self._group = group
        self._waiter = None if stops is not None else log.watch(topic, group)

    def next(self, timeout: float = 0, max_bytes: int = 1 << 20) -> list[LogBatch]:
        """Returns the next batches; none after `timeout` seconds without any, or at the stops."""
        wanted = self._open_positions()
        if not wanted:
            return []
        found = self._log.fetch(self._topic, wanted, max_bytes=max_bytes, timeout=timeout, waiter=self._waiter)
        for batch in found:
            self.positions[batch.partition] = max(self.positions[batch.partition], batch.next_offset)
        if self._stops is None:
            return found
        if not found:  # compaction took what was left below the stops: there is nothing to come
            self.positions.update({partition: self._stops[partition] for partition in wanted})
        return [_cut_at(batch, self._stops[batch.partition]) for batch in found]

    def _open_positions(self) -> dict[int, int]:
        if self._stops is None:
            return self.positions
        return {p: offset for p, offset in self.positions.items() if offset < self._stops[p]}

    def __iter__(self) -> Iterator[LogBatch]:
        while self._stops is None or self._open_positions():
            yield from self.next(timeout=3600 if self._stops is None else 0)

    def close(self) -> None:
        """Stop waiting."""
        if self._waiter is not None:
            self._waiter.close()


def _cut_at(batch: LogBatch, stop: int) -> LogBatch:
    return batch if batch.next_offset <= stop else batch.select(batch.offsets < stop)


def age_of_oldest(log: Log, clock: Clock, topic: str, partition: int, offset: int) -> timedelta:
    """Returns how long the event at an offset has waited; zero when there is none yet."""
    try:
        unread = log.fetch(topic, {partition: offset}, max_bytes=1, timeout=0, waiter=None)
    except DataGoneError:  # removed between two looks
        return timedelta(0)
    if not unread:
        return timedelta(0)
    received = unread[0].arrival_times
    first = int(received[0]) if len(received) else unread[0].frame.appended_at
    return max(timedelta(0), timedelta(microseconds=clock.micros() - first))
