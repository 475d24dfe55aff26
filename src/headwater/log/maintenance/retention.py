"""Retention: removes the oldest segments of a partition when they are too old or the partition is too large.

Segments that a consumer group has not read are kept, with a warning, unless the topic's retention has `force`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from headwater.events import Clock
from headwater.log.storage import Partition, PartitionState
from headwater.log.topic import Retention

__all__ = ["RetentionResult", "apply_retention", "exceeds_limits"]

logger = logging.getLogger("headwater.log")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class RetentionResult:
    """The result for a partition: offsets `[first, end)` were removed; `blocked_by` prevented more."""

    partition: int
    first: int
    end: int
    blocked_by: str | None = None


def exceeds_limits(partition: Partition, retention: Retention, clock: Clock) -> bool:
    """Whether a topic's limits let anything of a partition go, apart from groups that have not read it."""
    state = partition.state()
    if _is_too_old(state, retention, clock) and state.next_offset > state.segment:
        return True
    try:
        return _first_retained_offset(partition, state, retention, clock) > state.start_offset
    except FileNotFoundError:  # another process removed or rewrote a segment meanwhile
        return True


def apply_retention(
    partition: Partition, retention: Retention, clock: Clock, committed: Mapping[str, int]
) -> RetentionResult:
    """Apply a topic's retention to one partition.

    Args:
        partition: The partition.
        retention: The topic's limits.
        clock: The clock of arrival times.
        committed: The committed offset of each consumer group in this partition.
    """
    with partition.lock() as state:
        start = state.start_offset
        # The active segment is never removed: it is closed first if even its last event is too old.
        too_old = _is_too_old(state, retention, clock)
        current = partition.roll(state) if too_old and state.next_offset > state.segment else state
        wanted = _first_retained_offset(partition, current, retention, clock)
        slowest = min(committed, key=committed.__getitem__, default=None)
        blocked_by = None
        if slowest is not None and not retention.force and committed[slowest] < wanted:
            blocked_by = slowest
            wanted = max((b for b in partition.files.bases() if b <= committed[slowest]), default=start)
            logger.warning(
                "%s: retention waits for group %s at offset %d", partition.folder, slowest, committed[slowest]
            )
        end = max(start, wanted)
        if end > start:
            _remove_segments(partition, current, end)
        return RetentionResult(partition.number, start, end, blocked_by)


def _first_retained_offset(partition: Partition, state: PartitionState, retention: Retention, clock: Clock) -> int:
    """Returns the first offset to keep."""
    bases = partition.files.bases(fresh=True)
    sizes = [0 if retention.size is None else partition.files.file_size(base) for base in bases]
    total = sum(sizes)
    for base, after, length in zip(bases, bases[1:], sizes, strict=False):
        previous = partition.files.segment(after).header()[1].previous
        too_old = (
            retention.time is not None
            and previous is not None
            and previous[0] >= base  # a compacted segment has the base of the first segment it replaced
            and _age(previous[2], clock) > retention.time
        )
        if not too_old and (retention.size is None or total <= retention.size):
            return base
        total -= length
    return state.segment


def _is_too_old(state: PartitionState, retention: Retention, clock: Clock) -> bool:
    return retention.time is not None and _age(state.appended_at, clock) > retention.time


def _age(appended_at: int, clock: Clock) -> timedelta:
    return (clock.micros() - appended_at) * _MICROSECOND if appended_at else timedelta(0)


def _remove_segments(partition: Partition, state: PartitionState, end: int) -> None:
    """Remove segments, oldest first, so that a crash midway leaves a range without gaps."""
    partition.publish(replace(state, dirty=True))
    for base in partition.files.bases():
        if base < end:
            partition.disk.remove(partition.files.segment(base).path)
            partition.disk.sync_folder(partition.folder)
    partition.publish(replace(state, start_offset=end, files_version=state.files_version + 1))
    partition.invalidate()
