"""The producer state of a partition: last sequence numbers, by which a repeated send is recognised."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from headwater.errors import DamagedError
from headwater.log.storage.frame import Frame
from headwater.log.storage.partition_state import PartitionState
from headwater.log.storage.segment import SegmentFiles

__all__ = ["ProducerBatch", "ProducerState", "load_producers"]

logger = logging.getLogger("headwater.log")
_MAX_BATCHES: Final = 16  # per producer, for the receipts of repeated sends
_EXPIRY: Final = 7 * 86_400 * 1_000_000  # microseconds
# Ids of bridges ("queue/…"), pipelines ("revenue@1") and commands ("hw.…"). Their retries may come after any time.
_PERMANENT: Final = re.compile(r"queue/.+|.+@\d+|hw\..+")


class ProducerBatch(NamedTuple):
    """One batch of a producer in this partition."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    rows: int
    appended_at: int


class ProducerState:
    """The last sequence number of each producer, and the positions of its latest batches.

    Example:
        >>> from headwater.log.storage.frame import Frame, FrameKind
        >>> producers = ProducerState()
        >>> sequences = {"first_sequence": 0, "last_sequence": 1}
        >>> producers.record(Frame(FrameKind.EVENTS, 10, 12, count=2, producer="till-7", **sequences))
        >>> producers.last_sequence("till-7"), producers.last_sequence("till-8")
        (1, -1)
    """

    def __init__(self) -> None:
        self._batches: dict[str, deque[ProducerBatch]] = {}

    def last_sequence(self, producer: str) -> int:
        """Returns the highest sequence number of this producer; -1 when it has none."""
        batches = self._batches.get(producer)
        return batches[-1].last_sequence if batches else -1

    def record(self, frame: Frame) -> None:
        """Record a batch that is in the log."""
        if not frame.producer:
            return
        batches = self._batches.setdefault(frame.producer, deque(maxlen=_MAX_BATCHES))
        batches.append(
            ProducerBatch(frame.first_sequence, frame.last_sequence, frame.base_offset, frame.count, frame.appended_at)
        )

    def offset_of(self, producer: str, sequence: int) -> int:
        """Returns the offset of a sequence number if it is in one of the last few batches; else -1."""
        for batch in reversed(self._batches.get(producer, ())):
            if batch.first_sequence <= sequence <= batch.last_sequence:
                per_row = batch.rows == batch.last_sequence - batch.first_sequence + 1
                return batch.base_offset + (sequence - batch.first_sequence if per_row else 0)
        return -1

    def find_missing(self, producer: str, first: int, last: int) -> int | None:
        """Returns the first sequence number of a range that is known not to be in the log; None if none is known.

        Numbers before the oldest batch that is remembered may be in the log.
        """
        after: int | None = None
        for batch in self._batches.get(producer, ()):
            if after is not None and max(first, after) <= min(last, batch.first_sequence - 1):
                return max(first, after)
            after = batch.last_sequence + 1
        return None

    def remove_expired(self, now: int) -> None:
        """Forget producers that have been inactive for seven days, except those of pipelines and bridges."""
        self._batches = {
            name: batches
            for name, batches in self._batches.items()
            if now - batches[-1].appended_at < _EXPIRY or _PERMANENT.fullmatch(name)
        }

    def snapshot(self) -> dict[str, tuple[int, int, int, int, int]]:
        """Returns the latest batch of each producer, for a segment header."""
        return {name: tuple(batches[-1]) for name, batches in self._batches.items()}  # type: ignore[misc]

    def restore(self, snapshot: dict[str, tuple[int, int, int, int, int]], frames: Iterable[Frame]) -> None:
        """Restore the state from a segment header and the frames that follow it."""
        self._batches = {name: deque([ProducerBatch(*batch)], _MAX_BATCHES) for name, batch in snapshot.items()}
        for frame in frames:
            self.record(frame)


def load_producers(files: SegmentFiles, state: PartitionState) -> ProducerState:
    """Returns the producer state of the active segment; reads earlier segments if its header is damaged.

    Raises:
        DamagedError: The earlier segments were compacted and no longer hold the state.
    """
    producers = ProducerState()
    bases = [base for base in files.bases(fresh=True) if base <= state.segment]
    for index in reversed(range(len(bases))):
        try:
            head = files.segment(bases[index]).header()[1]
        except DamagedError as damage:
            logger.error("%s", damage)
            continue
        if head.covers_until and index + 1 < len(bases):
            raise files.segment(bases[index + 1]).damage_error(bases[index + 1], 0)
        frames = (
            frame
            for later in map(files.segment, bases[index:])
            for frame in later.walk_past_damage(0, files.valid_length(later, state))
        )
        producers.restore(head.producers, frames)
        break
    return producers
