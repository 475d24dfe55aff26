"""Make a partition's files and its published state agree again, after a crash or damage to side files.

Runs under the partition's lock. Whole batches behind the published end are kept, a torn tail is set aside in a file of
its own and cut off, leftovers of an unfinished compaction are removed.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.errors import DamagedError, DiskFailedError
from headwater.log.storage.ends import Slot
from headwater.log.storage.frame import Frame, Kind
from headwater.log.storage.segment import Head, Segment

if TYPE_CHECKING:
    from headwater.log.storage.partition import Partition

__all__ = ["recover"]

logger = logging.getLogger("headwater.log")


def recover(partition: Partition, published: Slot | None) -> Slot:
    """The partition's state as its segments tell it, published anew.

    Args:
        partition: Locked by the caller.
        published: What its slot said, if it could be read: the start of a partition whose files are gone.
    """
    partition.forget()
    _remove_leftovers(partition)
    bases = partition.files.bases(fresh=True)
    if not bases:
        bases = [_start_anew(partition, published)]
    segment = partition.files.segment(bases[-1])
    size = partition.disk.size(segment.handle)
    known = published if published and _is_of(published, partition, segment) else None
    last = _last_frame(segment, known.length if known and known.distrusted else size)
    end = last.position + last.length
    if end < size:
        _cut(partition, segment, last, end, size)
    slot = Slot(
        start_offset=bases[0],
        next_offset=last.next_offset,
        segment=segment.base,
        length=end,
        last_frame=last.position,
        running_max=last.running_max,
        appended_at=last.appended_at or (published.appended_at if published else 0),
        edition=published.edition + 1 if published else secrets.randbits(40),  # one that nobody has seen
        distrusted=known is not None and known.distrusted,
    )
    _sync_names(partition)
    if slot.distrusted:
        return partition.roll(slot)
    try:
        partition.disk.sync(segment.handle)
    except DiskFailedError:
        if known:
            partition.publish(replace(known, dirty=True, distrusted=True))
        raise
    partition.publish(slot)
    return slot


def _is_of(published: Slot, partition: Partition, segment: Segment) -> bool:
    """Whether it tells how much of this segment was acknowledged; after a restart the slot itself may be an old one."""
    return published.segment == segment.base and published.boot == partition.disk.boot()


def _sync_names(partition: Partition) -> None:
    """The process that made these names may have died before it made them durable."""
    for folder in (partition.folder, *partition.folder.parents[:3]):  # topic, topics, the log
        partition.disk.sync_folder(folder)


def _start_anew(partition: Partition, published: Slot | None) -> int:
    """First segment of a new partition, or of one kept in memory that the machine forgot: offsets go on."""
    base = published.next_offset if published else 0
    running_max = published.running_max if published else Slot().running_max
    Segment(partition.disk, partition.folder, base).create(Head(), running_max)
    return base


def _remove_leftovers(partition: Partition) -> None:
    """Files that an unfinished roll or compaction left behind; the finished ones say what they cover."""
    for name in partition.disk.names(partition.folder):
        if name.endswith(".new"):
            partition.disk.remove(partition.folder / name)
    bases = partition.files.bases(fresh=True)
    _remove_headless(partition, bases)
    covered = 0
    for base in bases:
        if base < covered:
            partition.disk.remove(partition.folder / partition.files.segment(base).path.name)
            continue
        if base != bases[-1]:
            with contextlib.suppress(DamagedError):  # reading it will tell
                covered = partition.files.segment(base).head()[1].covers_until
    partition.forget()


def _remove_headless(partition: Partition, bases: list[int]) -> None:
    """A newest segment without any whole frame was being created when the process died: it held nothing yet."""
    if not bases:
        return
    newest = partition.files.segment(bases[-1])
    size = partition.disk.size(newest.handle)
    if next(newest.walk(0, size, check=True), None) is None and newest.next_sound(0, size) is None:
        _set_aside(partition, newest, 0, size)
        partition.disk.remove(newest.path)
        bases.pop()


def _last_frame(segment: Segment, size: int) -> Frame:
    """The last sound frame that counts.

    A hole with a later write behind it is damage to what was acknowledged: it stays, and reading it is an error. A hole
    in the last write is a torn tail, even if other frames of that write are sound: nobody was told that they are safe.
    Of a send that takes several frames, all are there or none counts.
    """
    last = kept = whole = Frame(Kind.HEAD, segment.base, segment.base)
    position: int | None = 0
    hole: int | None = None
    while position is not None:
        for frame in segment.walk(position, size, check=True):
            if hole == 0 or (hole and not frame.follows):
                logger.error("%s", segment.damaged(kept.next_offset, hole))
                hole = None
            last, kept = frame, frame if hole is None else kept
            whole = whole if kept.unfinished else kept
        hole = last.position + last.length if hole is None else hole
        position = segment.next_sound(last.position + last.length, size)
    return whole


def _cut(partition: Partition, segment: Segment, last: Frame, end: int, size: int) -> None:
    aside = _set_aside(partition, segment, end, size)
    partition.disk.truncate(segment.handle, end)
    logger.warning(
        "partition %s: cut %d torn bytes behind offset %d; they are kept in %s",
        partition.folder,
        size - end,
        last.next_offset,
        aside,
    )


def _set_aside(partition: Partition, segment: Segment, start: int, end: int) -> str:
    aside = segment.path.with_suffix(f".torn-{start}")
    if end > start:
        partition.disk.write_file(aside, partition.disk.read(segment.handle, start, end - start))
    return aside.name
