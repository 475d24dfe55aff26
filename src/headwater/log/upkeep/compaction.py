"""Keep only the last event of each key in the closed segments of a compacted topic.

Reading and appending go on: new files are written beside the old ones and take their place by a rename under the
partition's lock. It runs when at least half of the closed bytes are new since the last time, so its cost per event does
not grow with the topic. Tombstones stay for a day, for readers that are behind, and then go.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from headwater.errors import LockedError
from headwater.log.batch import LogBatch
from headwater.log.storage import Frame, Kind, Partition, Segment, Slot
from headwater.log.storage.frame import ENVELOPE, columns_of, encode_frame
from headwater.log.storage.segment import Head
from headwater.log.topic import OpenTopic

__all__ = ["Compacted", "compact"]

_FRAME_ROWS = 50_000
_FRAME_BYTES = 16 << 20
_KEEP_TOMBSTONES = timedelta(days=1)


@dataclass(frozen=True)
class Compacted:
    """How many events compaction looked at in a partition, and how many it kept."""

    partition: int
    seen: int = 0
    kept: int = 0


def compact(topic: OpenTopic, number: int, now: int, *, eager: bool = False) -> Compacted:
    """Compact one partition, if enough is new.

    Args:
        topic: A topic with a key.
        number: Which partition.
        now: Microseconds since 1970.
        eager: However little is new.

    Raises:
        LockedError: Another process compacts it right now.
    """
    partition = topic.partitions[number]
    with _only_one(partition):
        slot = partition.slot()
        closed = [base for base in partition.files.bases(fresh=True) if base < slot.segment]
        clean = [base for base in closed if partition.files.segment(base).head()[1].covers_until]
        dirty = [base for base in closed if base not in clean]
        new, old = (sum(map(partition.files.size_of, bases)) for bases in (dirty, clean))
        if not dirty or (new < old and not eager):
            return Compacted(number)
        try:
            return _Pass(topic, partition, slot, now).run(closed, dirty)
        except FileNotFoundError:  # retention removed some of them meanwhile: the next pass sees what is left
            return Compacted(number)


@contextlib.contextmanager
def _only_one(partition: Partition) -> Iterator[None]:
    handle = partition.disk.open(partition.folder / "compaction.lock")
    try:
        if not partition.disk.lock(handle, wait=False):
            pid = partition.disk.read(handle, 0, 20).decode(errors="replace").strip()
            what = f"process {pid} compacts {partition.folder.parent.name}/{partition.number}"
            raise LockedError(what, detail="only one may at a time", pid=pid)
        partition.disk.write(handle, 0, str(os.getpid()).encode().ljust(20))
        yield
    finally:
        partition.disk.close(handle)


class _Pass:
    """One run over the closed segments `[first, end)` of a partition."""

    def __init__(self, topic: OpenTopic, partition: Partition, slot: Slot, now: int) -> None:
        self.topic = topic
        self.partition = partition
        self.slot = slot
        self.oldest_tombstone = now - _KEEP_TOMBSTONES // timedelta(microseconds=1)
        self.last: dict[bytes, int] = {}
        self.seen = self.kept = 0

    def run(self, closed: list[int], dirty: list[int]) -> Compacted:
        for base in dirty:
            for batch in self._batches(base):
                keys = [] if batch.key_bytes is None else batch.key_bytes.to_pylist()
                self.last.update(zip(keys, batch.offsets.tolist(), strict=True))
        for bases in self._runs(closed):
            self._replace(bases, self._until(bases[-1], closed))
        return Compacted(self.partition.number, self.seen, self.kept)

    def _until(self, base: int, closed: list[int]) -> int:
        return min((other for other in closed if other > base), default=self.slot.segment)

    def _runs(self, closed: list[int]) -> Iterator[list[int]]:
        """Neighbours whose bytes together make one segment at most."""
        run: list[int] = []
        size = 0
        for base in closed:
            size += self.partition.files.size_of(base)
            if run and size > self.topic.definition.segment_size:
                yield run
                run, size = [], self.partition.files.size_of(base)
            run.append(base)
        if run:
            yield run

    def _batches(self, base: int) -> Iterator[LogBatch]:
        for frame, data in self.partition.files.frames(base, self.slot):
            if frame.kind is Kind.EVENTS:
                yield self.topic.decode(self.partition.number, frame, data)

    def _replace(self, bases: list[int], until: int) -> None:
        """Write what is kept of these segments into one file, then put it in their place."""
        first = self.partition.files.segment(bases[0])
        frame, head = first.head()
        new = Segment(self.partition.disk, self.partition.folder, bases[0])
        covering = Head(covers_until=until, previous=head.previous, producers=head.producers)
        length = new.create(covering, frame.running_before, beside=True)
        for data in self._kept_frames(bases):
            self.partition.disk.write(new.handle, length, data)
            length += len(data)
        self.partition.disk.sync(new.handle)
        self._swap(new.path_beside, first, bases[1:])

    def _swap(self, beside: Path, first: Segment, leftovers: list[int]) -> None:
        with self.partition.locked() as slot:
            if slot.start_offset > first.base:  # retention was quicker: what it removed must not come back
                self.partition.disk.remove(beside)
                return
            self.partition.publish(replace(slot, dirty=True))
            self.partition.disk.replace(beside, first.path)
            for base in leftovers:
                self.partition.disk.remove(self.partition.files.segment(base).path)
            self.partition.disk.sync_folder(self.partition.folder)
            self.partition.publish(replace(slot, edition=slot.edition + 1))
            self.partition.forget()

    def _kept_frames(self, bases: list[int]) -> Iterator[bytes]:
        waiting: list[LogBatch] = []
        rows = nbytes = 0
        for base in bases:
            for frame, data in self.partition.files.frames(base, self.slot):
                if frame.kind is Kind.EVENTS:
                    batch = self.topic.decode(self.partition.number, frame, data)
                    waiting.append(batch.select(self._keep(batch)))
                    rows += waiting[-1].values.num_rows
                    nbytes += waiting[-1].values.nbytes
                if frame.kind is Kind.MARK or rows >= _FRAME_ROWS or nbytes >= _FRAME_BYTES:
                    yield from self._joined(waiting)
                    waiting, rows, nbytes = [], 0, 0
                if frame.kind is Kind.MARK:
                    yield bytes(data)
        yield from self._joined(waiting)

    def _keep(self, batch: LogBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        keys = [] if batch.key_bytes is None else batch.key_bytes.to_pylist()
        newest = np.fromiter((self.last.get(key, -1) for key in keys), np.int64, len(keys))
        keep: np.ndarray[tuple[int], np.dtype[np.bool_]] = (newest < 0) | (newest == batch.offsets)
        keep &= ~(batch.deleted & (batch.received < self.oldest_tombstone))
        self.seen += len(keep)
        self.kept += int(keep.sum())
        return keep

    def _joined(self, batches: list[LogBatch]) -> Iterator[bytes]:
        """One frame of several batches, each row with its own offset, arrival and running maximum."""
        rows = sum(batch.values.num_rows for batch in batches)
        if not rows:
            return
        names = [f.name for f in ENVELOPE if any(f.name in batch.envelope for batch in batches)]
        values = pa.concat_batches([batch.values for batch in batches])
        envelope = {
            field.name: pa.concat_arrays([_column(batch, field) for batch in batches])
            for field in ENVELOPE
            if field.name in names
        }
        times = np.concatenate([batch.occurred for batch in batches])
        offsets = envelope["_hw.offset"]
        frame = Frame(
            Kind.EVENTS,
            offsets[0].as_py(),
            offsets[rows - 1].as_py() + 1,
            count=rows,
            schema=self.topic.definition.version,
            columns=columns_of(envelope),
            appended_at=batches[-1].frame.appended_at,
            lowest=int(times.min()),
            highest=int(times.max()),
            running_before=batches[0].frame.running_before,
            running_max=batches[-1].frame.running_max,
        )
        columns = pa.RecordBatch.from_arrays(
            [*values.columns, *envelope.values()], [*values.schema.names, *envelope]
        )
        yield encode_frame(frame, columns.serialize())


def _column(batch: LogBatch, field: pa.Field) -> pa.Array:
    found = batch.envelope.get(field.name)
    return pa.nulls(batch.values.num_rows, field.type) if found is None else found
