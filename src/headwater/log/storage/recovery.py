"""Recovery of a partition: make its files and its published state agree after a crash or damage.

Runs under the partition's lock. Whole batches behind the published end are kept. A torn tail is saved to a
separate file and cut off. Leftovers of an unfinished compaction are removed.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.errors import DamagedError, DiskFailedError
from headwater.log.storage.frame import Frame, FrameKind
from headwater.log.storage.partition_state import PartitionState
from headwater.log.storage.segment import Segment, SegmentHeader

if TYPE_CHECKING:
    from headwater.log.storage.partition import Partition

__all__ = ["recover"]

logger = logging.getLogger("headwater.log")


def recover(partition: Partition, published: PartitionState | None) -> PartitionState:
    """Rebuild the partition's state from its segments and publish it.

    Args:
        partition: Locked by the caller.
        published: The contents of its slot, if readable: gives the start offset of a partition whose files are gone.
    """
    partition.invalidate()
    _remove_leftovers(partition)
    bases = partition.files.bases(fresh=True)
    if not bases:  # a new partition, or a memory-only one after a reboot, whose offsets continue
        first = published or PartitionState()
        Segment(partition.disk, partition.folder, first.next_offset).create(SegmentHeader(), first.max_event_time)
        bases = [first.next_offset]
    segment = partition.files.segment(bases[-1])
    size = partition.disk.size(segment.handle)
    # After a reboot the slot may be outdated: only one of this boot holds the acknowledged length of the segment.
    current = published and published.segment == segment.base and published.boot_id == partition.disk.boot_id()
    known = published if current else None
    last = _last_valid_frame(segment, known.length if known and known.sync_failed else size)
    end = last.position + last.length
    if end < size:
        _truncate_torn_tail(partition, segment, last, end, size)
    state = PartitionState(
        start_offset=bases[0],
        next_offset=last.next_offset,
        segment=segment.base,
        length=end,
        last_frame=last.position,
        max_event_time=last.max_event_time,
        appended_at=_last_arrival(last, published),
        # Without a published version a random one: no process has cached files under it.
        files_version=published.files_version + 1 if published else secrets.randbits(40),
        sync_failed=known is not None and known.sync_failed,
    )
    # Make the file names durable: the process that created the files may have died before it did so.
    for folder in (partition.folder, *partition.folder.parents[:3]):  # topic, topics, the log
        partition.disk.sync_folder(folder)
    if state.sync_failed:
        return partition.roll(state)
    try:
        partition.disk.sync(segment.handle)
    except DiskFailedError:
        if known:
            partition.publish(replace(known, dirty=True, sync_failed=True))
        raise
    partition.publish(state)
    return state


def _last_arrival(last: Frame, published: PartitionState | None) -> int:
    """Returns the arrival of the last event; an idle marker is no arrival."""
    if last.kind is FrameKind.EVENTS or published is None:
        return last.appended_at
    return published.appended_at


def _remove_leftovers(partition: Partition) -> None:
    """Remove files of an unfinished roll or compaction; the finished ones state what they cover."""
    for name in partition.disk.names(partition.folder):
        if name.endswith(".new"):
            partition.disk.remove(partition.folder / name)
    bases = partition.files.bases(fresh=True)
    _remove_empty_segment(partition, bases)
    covered = 0
    for base in bases:
        if base < covered:
            partition.disk.remove(partition.files.segment(base).path)
            continue
        if base != bases[-1]:
            with contextlib.suppress(DamagedError):  # a read reports the damage
                covered = partition.files.segment(base).header()[1].covers_until
    partition.invalidate()


def _remove_empty_segment(partition: Partition, bases: list[int]) -> None:
    """Remove a newest segment without any whole frame: its creation was interrupted."""
    if not bases:
        return
    newest = partition.files.segment(bases[-1])
    size = partition.disk.size(newest.handle)
    if next(newest.walk(0, size, check=True), None) is None and newest.find_valid_frame(0, size) is None:
        _save_torn_bytes(partition, newest, 0, size)
        partition.disk.remove(newest.path)
        bases.pop()


def _last_valid_frame(segment: Segment, size: int) -> Frame:
    """Returns the last valid frame that counts.

    A hole with a later write behind it is damage to acknowledged data: it stays, and reading it is an
    error. A hole in the last write is a torn tail, even if other frames of that write are valid, because
    they were not acknowledged. A send of several frames counts only if all of them are there.
    """
    last = kept = whole = Frame(FrameKind.SEGMENT_HEADER, segment.base, segment.base)
    position: int | None = 0
    hole: int | None = None
    while position is not None:
        for frame in segment.walk(position, size, check=True):
            if hole == 0 or (hole and not frame.follows):
                logger.error("%s", segment.damage_error(kept.next_offset, hole))
                hole = None
            last, kept = frame, frame if hole is None else kept
            whole = whole if kept.unfinished else kept
        hole = last.position + last.length if hole is None else hole
        position = segment.find_valid_frame(last.position + last.length, size)
    return whole


def _truncate_torn_tail(partition: Partition, segment: Segment, last: Frame, end: int, size: int) -> None:
    torn_file = _save_torn_bytes(partition, segment, end, size)
    partition.disk.truncate(segment.handle, end)
    logger.warning(
        "partition %s: cut %d torn bytes behind offset %d; they are kept in %s",
        partition.folder,
        size - end,
        last.next_offset,
        torn_file,
    )


def _save_torn_bytes(partition: Partition, segment: Segment, start: int, end: int) -> str:
    torn_file = segment.path.with_suffix(f".torn-{start}")
    if end > start:
        partition.disk.write_file(torn_file, partition.disk.read(segment.handle, start, end - start))
    return torn_file.name
