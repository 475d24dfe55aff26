"""Remove the oldest segments of a partition once they are too old or too many.

What a consumer group has not read yet is held back, and said so, unless the topic's retention says `force`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from headwater.events import Clock
from headwater.log.definition import Retention
from headwater.log.storage import Partition, Slot

__all__ = ["Removal", "retain"]

logger = logging.getLogger("headwater.log")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Removal:
    """What retention did to a partition: offsets `[first, end)` are gone; `held_by` kept it from removing more."""

    partition: int
    first: int
    end: int
    held_by: str | None = None


def retain(partition: Partition, retention: Retention, clock: Clock, committed: Mapping[str, int]) -> Removal:
    """Apply a topic's retention to one partition.

    Args:
        partition: Where to remove.
        retention: How long and how much to keep.
        clock: What time it is.
        committed: How far each consumer group has come in this partition.
    """
    start = partition.slot().start_offset
    if retention.time is None and retention.size is None:
        return Removal(partition.number, start, start)
    with partition.locked() as slot:
        current = _rolled_when_old(partition, slot, retention, clock)
        wanted = _due(partition, current, retention, clock)
        slowest = min(committed, key=committed.__getitem__, default=None)
        held_by = None
        if slowest is not None and not retention.force and committed[slowest] < wanted:
            held_by = slowest
            wanted = max((b for b in partition.files.bases() if b <= committed[slowest]), default=start)
            logger.warning(
                "%s: retention waits for group %s at offset %d", partition.folder, slowest, committed[slowest]
            )
        end = max(start, wanted)
        if end > start:
            _remove(partition, current, end)
        return Removal(partition.number, start, end, held_by)


def _rolled_when_old(partition: Partition, slot: Slot, retention: Retention, clock: Clock) -> Slot:
    """The segment being written is never removed: close it when all in it is too old."""
    too_old = retention.time is not None and _age(slot.appended_at, clock) > retention.time
    return partition.roll(slot) if too_old and slot.next_offset > slot.segment else slot


def _due(partition: Partition, slot: Slot, retention: Retention, clock: Clock) -> int:
    """The first offset to keep."""
    bases = partition.files.bases(fresh=True)
    sizes = [partition.files.size_of(base) for base in bases]
    total = sum(sizes)
    for base, after, length in zip(bases, bases[1:], sizes, strict=False):
        previous = partition.files.segment(after).head()[1].previous
        too_old = (
            retention.time is not None
            and previous is not None
            and previous[0] >= base  # a compacted segment has the name of the first of those it stands for
            and _age(previous[2], clock) > retention.time
        )
        if not too_old and (retention.size is None or total <= retention.size):
            return base
        total -= length
    return slot.segment


def _age(appended_at: int, clock: Clock) -> timedelta:
    return (clock.micros() - appended_at) * _MICROSECOND if appended_at else timedelta(0)


def _remove(partition: Partition, slot: Slot, end: int) -> None:
    """Oldest first, so that a crash on the way leaves a run without gaps."""
    partition.publish(replace(slot, dirty=True))
    for base in partition.files.bases():
        if base < end:
            partition.disk.remove(partition.files.segment(base).path)
            partition.disk.sync_folder(partition.folder)
    partition.publish(replace(slot, start_offset=end, edition=slot.edition + 1))
    partition.forget()
