"""Follow a topic over several partitions: from some offsets on, to some offsets or for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headwater.log.batch import LogBatch

if TYPE_CHECKING:
    from headwater.log.protocol import Log

__all__ = ["Reader"]


class Reader:
    """Reads batches and remembers where it is.

    Args:
        log: Where to read.
        topic: What to read.
        positions: Next offset per partition; may be changed between reads.
        stops: Offsets at which to stop, per partition; None to go on for ever.
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
        """The next batches; none after `timeout` seconds without any, or at the stops."""
        wanted = self._unfinished()
        if not wanted:
            return []
        found = self._log.fetch(
            self._topic, wanted, max_bytes=max_bytes, timeout=timeout, waiter=self._waiter
        )
        for batch in found:
            self.positions[batch.partition] = max(self.positions[batch.partition], batch.next_offset)
        if self._stops is None:
            return found
        if not found:  # compaction took what was left below the stops: there is nothing to come
            self.positions.update({partition: self._stops[partition] for partition in wanted})
        return [_before(batch, self._stops[batch.partition]) for batch in found]

    def _unfinished(self) -> dict[int, int]:
        if self._stops is None:
            return self.positions
        return {p: offset for p, offset in self.positions.items() if offset < self._stops[p]}

    def __iter__(self) -> Iterator[LogBatch]:
        while self._stops is None or self._unfinished():
            yield from self.next(timeout=3600 if self._stops is None else 0)

    def close(self) -> None:
        """Stop waiting."""
        if self._waiter is not None:
            self._waiter.close()


def _before(batch: LogBatch, stop: int) -> LogBatch:
    return batch if batch.next_offset <= stop else batch.select(batch.offsets < stop)
