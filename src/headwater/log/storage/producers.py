"""What a partition remembers of each producer, so that a repeated send is told apart from a new one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from headwater.errors import DamagedError
from headwater.log.storage.ends import Slot
from headwater.log.storage.files import Files
from headwater.log.storage.frame import Frame

__all__ = ["Batch", "Producers", "known_producers"]

logger = logging.getLogger("headwater.log")
_REMEMBERED: Final = 16
_FORGET_AFTER: Final = 7 * 86_400 * 1_000_000  # microseconds


class Batch(NamedTuple):
    """One batch of a producer in this partition."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    rows: int
    appended_at: int


class Producers:
    """Last sequence per producer, and where its latest batches lie.

    Example:
        >>> from headwater.log.storage.frame import Frame, Kind
        >>> producers = Producers()
        >>> producers.note(Frame(Kind.EVENTS, 10, 12, count=2, first_sequence=0, last_sequence=1, producer="till-7"))
        >>> producers.last("till-7"), producers.last("till-8")
        (1, -1)
    """

    def __init__(self) -> None:
        self._batches: dict[str, deque[Batch]] = {}

    def last(self, producer: str) -> int:
        """Highest sequence appended by this producer; -1 when it has none."""
        batches = self._batches.get(producer)
        return batches[-1].last_sequence if batches else -1

    def note(self, frame: Frame) -> None:
        """Remember a batch that is in the log."""
        if not frame.producer:
            return
        batches = self._batches.setdefault(frame.producer, deque(maxlen=_REMEMBERED))
        batches.append(
            Batch(
                frame.first_sequence,
                frame.last_sequence,
                frame.base_offset,
                frame.count,
                frame.appended_at,
            )
        )

    def offset_of(self, producer: str, sequence: int) -> int:
        """Where the row of this sequence is, if it is in one of the last few batches; else -1."""
        for batch in reversed(self._batches.get(producer, ())):
            if batch.first_sequence <= sequence <= batch.last_sequence:
                per_row = batch.rows == batch.last_sequence - batch.first_sequence + 1
                return batch.base_offset + (sequence - batch.first_sequence if per_row else 0)
        return -1

    def snapshot(self, now: int) -> dict[str, tuple[int, int, int, int, int]]:
        """The latest batch of each producer seen in the last seven days, for a segment's head."""
        return {
            name: tuple(batches[-1])  # type: ignore[misc]  # a Batch is such a tuple
            for name, batches in self._batches.items()
            if now - batches[-1].appended_at < _FORGET_AFTER
        }

    def restore(self, snapshot: dict[str, tuple[int, int, int, int, int]], frames: Iterable[Frame]) -> None:
        """Start from a segment's head and the frames that follow it."""
        self._batches = {name: deque([Batch(*batch)], _REMEMBERED) for name, batch in snapshot.items()}
        for frame in frames:
            self.note(frame)


def known_producers(files: Files, slot: Slot) -> Producers:
    """What the segment being written tells of producers; where its head is damaged, the segments before it.

    Raises:
        DamagedError: Those before it were compacted, so they no longer tell.
    """
    producers = Producers()
    bases = [base for base in files.bases(fresh=True) if base <= slot.segment]
    for place in reversed(range(len(bases))):
        segment = files.segment(bases[place])
        try:
            head = segment.head()[1]
        except DamagedError as damage:
            logger.error("%s", damage)
            continue
        if head.covers_until and place + 1 < len(bases):
            raise files.segment(bases[place + 1]).damaged(bases[place + 1], 0)
        later = [files.segment(base) for base in bases[place:]]
        frames = (frame for part in later for frame in part.sound(0, files.limit(part, slot)))
        producers.restore(head.producers, frames)
        break
    return producers
