"""Compaction: keeps only the last event of each key in the closed segments of a compacted topic.

Reads and appends continue meanwhile: new files are written beside the old ones and replace them by a rename
under the partition's lock. It runs when at least half of the closed bytes are new since the last run, so
its cost per event does not grow with the topic. Tombstones are kept for a day, for readers that are behind,
and then removed. The segment records up to which offset, so that readers that have not read them are told
(log/tombstones.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.config import COMPACTION_MEMORY
from headwater.errors import LockedError
from headwater.log.batch import LogBatch
from headwater.log.maintenance.key_offsets import KeyOffsets
from headwater.log.open_topic import OpenTopic
from headwater.log.storage import Frame, FrameKind, Partition, PartitionState, Segment
from headwater.log.storage.frame import ENVELOPE, encode_frame, envelope_bits, serialize_columns
from headwater.log.storage.segment import SegmentHeader
from headwater.units import size

__all__ = ["CompactionResult", "compact"]

_FRAME_ROWS: Final = 50_000  # a merged frame is written at this many rows or bytes
_FRAME_BYTES: Final = 16 << 20
_KEEP_TOMBSTONES: Final = timedelta(days=1)


@dataclass(frozen=True)
class CompactionResult:
    """How many events compaction looked at in a partition, and how many it kept."""

    partition: int
    seen: int = 0
    kept: int = 0


def compact(topic: OpenTopic, number: int, now: int, *, eager: bool = False) -> CompactionResult:
    """Compact one partition, if at least half of its closed bytes are new.

    Args:
        topic: A topic with a key.
        number: The partition.
        now: Microseconds since 1970.
        eager: Compact even if less than half of the closed bytes are new.

    Raises:
        LockedError: Another process compacts the partition now.
    """
    partition = topic.partitions[number]
    with _compaction_lock(partition):
        state = partition.state()
        closed = [base for base in partition.files.bases(fresh=True) if base < state.segment]
        clean = [base for base in closed if partition.files.segment(base).header()[1].covers_until]
        dirty = [base for base in closed if base not in clean]
        new, old = (sum(map(partition.files.file_size, bases)) for bases in (dirty, clean))
        if not dirty or (new < old and not eager):
            return CompactionResult(number)
        memory = size(COMPACTION_MEMORY.read())
        result = CompactionResult(number)
        try:
            while dirty:
                result, closed, dirty = _CompactionPass(topic, partition, state, now, memory).run(closed, dirty)
        except FileNotFoundError:  # retention removed a segment meanwhile: the next run compacts the rest
            return CompactionResult(number)
        return result


@contextlib.contextmanager
def _compaction_lock(partition: Partition) -> Iterator[None]:
    handle = partition.disk.open(partition.folder / "compaction.lock")
    try:
        if not partition.disk.lock(handle, wait=False):
            pid = partition.disk.read(handle, 0, 20).decode(errors="replace").strip()
            what = f"process {pid} compacts {partition.folder.parent.name}/{partition.number}"
            raise LockedError(what, detail="one process at a time may compact a partition", pid=pid)
        partition.disk.write(handle, 0, str(os.getpid()).encode().ljust(20))
        yield
    finally:
        partition.disk.close(handle)


class _CompactionPass:
    """One run over the closed segments of a partition, up to the first whose keys no longer fit into memory."""

    def __init__(self, topic: OpenTopic, partition: Partition, state: PartitionState, now: int, memory: int) -> None:
        self.topic = topic
        self.partition = partition
        self.state = state
        self.oldest_tombstone = now - _KEEP_TOMBSTONES // timedelta(microseconds=1)
        self.last = KeyOffsets(memory)  # of the last event of each key in the dirty segments
        self.seen = self.kept = 0
        self.tombstones_removed = 0  # offset behind the last one of the segments that are rewritten now
        self.tombstone_kept = False  # whether a tombstone was too young; all behind it stay, too

    def run(self, closed: list[int], dirty: list[int]) -> tuple[CompactionResult, list[int], list[int]]:
        """Returns the result, and the closed and the dirty segments that are left for the next pass."""
        read = next((at for at, base in enumerate(dirty) if not self._read_keys(base, must=at == 0)), len(dirty))
        rest = dirty[read:]
        now = closed[: len(closed) - len(rest)]
        for bases in self._group_segments(now):
            until = min((base for base in closed if base > bases[-1]), default=self.state.segment)
            self._rewrite(bases, until)
        result = CompactionResult(self.partition.number, self.seen, self.kept)
        left = [base for base in self.partition.files.bases(fresh=True) if base < self.state.segment]
        return result, left, rest

    def _read_keys(self, base: int, *, must: bool) -> bool:
        """Read the keys of a segment; returns False if they do not fit. What was read of them is right nevertheless."""
        for frame, data in self.partition.files.read_frames(base, self.state):
            if frame.kind is FrameKind.EVENTS:
                if not must and not self.last.has_room(frame.count):
                    return False
                batch = self.topic.decode(self.partition.number, frame, data)
                self.last.put(_keys(batch), batch.offsets)
        return True

    def _group_segments(self, closed: list[int]) -> Iterator[list[int]]:
        """Yields neighbouring segments that together fit into one."""
        run: list[int] = []
        size = 0
        for base in closed:
            size += self.partition.files.file_size(base)
            if run and size > self.topic.definition.segment_size:
                yield run
                run, size = [], self.partition.files.file_size(base)
            run.append(base)
        if run:
            yield run

    def _rewrite(self, bases: list[int], until: int) -> None:
        """Write the retained events of these segments into one file, then replace the segments with it."""
        first = self.partition.files.segment(bases[0])
        frame, header = first.header()
        new = Segment(self.partition.disk, self.partition.folder, bases[0])
        self.tombstones_removed = max(
            self.partition.files.segment(base).header()[1].tombstones_removed for base in bases
        )
        # How many tombstones go is known only at the end. No number is longer than `until`, so the header fits then.
        new_header = SegmentHeader(
            covers_until=until,
            previous=header.previous,
            producers=header.producers,
            markers=header.markers,
            tombstones_removed=until,
            older_producers=header.older_producers,
        )
        length = new.create(new_header, frame.max_event_time_before, temporary=True)
        for data in self._surviving_frames(bases):
            self.partition.disk.write(new.handle, length, data)
            length += len(data)
        new_header.tombstones_removed = self.tombstones_removed
        new.rewrite_header(new_header, frame.max_event_time_before)
        self.partition.disk.sync(new.handle)
        self._replace_files(new.temporary_path, first, bases[1:])

    def _replace_files(self, temporary_path: Path, first: Segment, leftovers: list[int]) -> None:
        with self.partition.lock() as state:
            if state.start_offset > first.base:  # retention removed the first segment meanwhile: it must not come back
                self.partition.disk.remove(temporary_path)
                return
            # A crash between these steps is safe: the dirty flag makes the next process recover, and the header's
            # `covers_until` marks old files that are still there as leftovers. Until the rename, the old files count.
            self.partition.publish(replace(state, dirty=True))
            self.partition.disk.replace(temporary_path, first.path)
            for base in leftovers:
                self.partition.disk.remove(self.partition.files.segment(base).path)
            self.partition.disk.sync_folder(self.partition.folder)
            self.partition.publish(replace(state, files_version=state.files_version + 1))
            self.partition.invalidate()

    def _surviving_frames(self, bases: list[int]) -> Iterator[bytes]:
        waiting: list[LogBatch] = []
        rows = nbytes = 0
        for base in bases:
            for frame, data in self.partition.files.read_frames(base, self.state):
                if frame.kind is FrameKind.EVENTS:
                    batch = self.topic.decode(self.partition.number, frame, data)
                    waiting.append(batch.select(self._survivors(batch)))
                    rows += waiting[-1].values.num_rows
                    nbytes += waiting[-1].values.nbytes
                # An idle marker stays between the events before and after it.
                if frame.kind is FrameKind.IDLE_MARKER or rows >= _FRAME_ROWS or nbytes >= _FRAME_BYTES:
                    yield from self._merge(waiting)
                    waiting, rows, nbytes = [], 0, 0
                if frame.kind is FrameKind.IDLE_MARKER:
                    yield bytes(data)
        yield from self._merge(waiting)

    def _survivors(self, batch: LogBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        newest = self.last.get(_keys(batch))
        # A key without an event in the dirty segments was already unique: the last run left one event of it.
        keep: np.ndarray[tuple[int], np.dtype[np.bool_]] = (newest < 0) | (newest == batch.offsets)
        keep &= ~self._expired_tombstones(batch, last_of_key=keep)
        self.seen += len(keep)
        self.kept += int(keep.sum())
        return keep

    def _expired_tombstones(
        self, batch: LogBatch, last_of_key: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Returns the tombstones to remove, up to the first young one, and records their end.

        After a jump of the clock an older tombstone may be behind a younger one. It stays, so that a later run never
        removes a tombstone below the recorded end.
        """
        old = batch.arrival_times < self.oldest_tombstone
        young = np.flatnonzero(batch.tombstones & ~old)
        expired: np.ndarray[tuple[int], np.dtype[np.bool_]] = batch.tombstones & old
        expired[0 if self.tombstone_kept else young[0] if len(young) else len(expired) :] = False
        self.tombstone_kept |= bool(len(young))
        # A tombstone before another event of its key is not missed: readers get that event.
        removed = batch.offsets[expired & last_of_key]
        if len(removed):
            self.tombstones_removed = max(self.tombstones_removed, int(removed[-1]) + 1)
        return expired

    def _merge(self, batches: list[LogBatch]) -> Iterator[bytes]:
        """Yields one frame with all rows, if there are any; each keeps its offset, arrival and max event time."""
        rows = sum(batch.values.num_rows for batch in batches)
        if not rows:
            return
        values = pa.concat_batches([batch.values for batch in batches])
        envelope = {
            field.name: pa.concat_arrays(
                [batch.envelope.get(field.name, pa.nulls(batch.values.num_rows, field.type)) for batch in batches]
            )
            for field in ENVELOPE
            if any(field.name in batch.envelope for batch in batches)
        }
        times = np.concatenate([batch.event_times for batch in batches])
        offsets = envelope["_hw.offset"]
        frame = Frame(
            FrameKind.EVENTS,
            offsets[0].as_py(),
            offsets[rows - 1].as_py() + 1,
            count=rows,
            schema=self.topic.definition.version,
            columns=envelope_bits(envelope),
            appended_at=batches[-1].frame.appended_at,
            lowest=int(times.min()),
            highest=int(times.max()),
            max_event_time_before=batches[0].frame.max_event_time_before,
            max_event_time=batches[-1].frame.max_event_time,
        )
        yield encode_frame(frame, serialize_columns(values, envelope))


def _keys(batch: LogBatch) -> pa.Array:
    assert batch.key_bytes is not None  # a compacted topic has a key
    return batch.key_bytes
