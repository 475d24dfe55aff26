"""One partition: an ordered run of events in segment files, shared by several processes.

Append: take the partition's lock, lay the batches out behind the last acknowledged byte, write, sync, publish the
new end, release. A process that dies on the way leaves bytes behind the published end; the next writer keeps them if
they form whole batches and cuts them off if not. Read: look up the published end, read below it, compare checksums.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headwater.errors import DamagedError, DiskFailedError, DiskFullError
from headwater.events import Clock
from headwater.log.storage.disk import Disk
from headwater.log.storage.ends import Ends, Slot
from headwater.log.storage.files import Files
from headwater.log.storage.finder import Finder
from headwater.log.storage.frame import Frame, Kind, encode_frame
from headwater.log.storage.layout import Appended, Part, lay_out
from headwater.log.storage.producers import Producers, known_producers
from headwater.log.storage.recovery import recover
from headwater.log.storage.segment import Head, Segment

__all__ = ["Partition", "Written"]


@dataclass(frozen=True)
class Written:
    """How a partition writes: the part of the topic's settings that concerns it (times in microseconds)."""

    durable: bool = True
    segment_size: int = 64 << 20
    segment_age: int = 86_400 * 1_000_000
    ahead: int = 300 * 1_000_000
    clocked: bool = False


class Partition:
    """Appends to and reads from one partition."""

    def __init__(
        self, disk: Disk, clock: Clock, folder: Path, ends: Ends, number: int, written: Written
    ) -> None:
        self.number = number
        self.folder = folder
        self.disk = disk
        self._boot = disk.boot()
        self._clock = clock
        self._ends = ends
        self.written = written
        disk.make_folder(folder)
        self._lock_handle = disk.open(folder / "lock")
        self._mutex = threading.RLock()
        self.files = Files(disk, folder)
        self._depth = 0
        self._producers: Producers | None = None
        self._producers_at: tuple[int, int] = (-1, -1)  # segment and length up to which they are known
        self._finder = Finder(self.files, number, self.slot)
        self._born: tuple[int, int] = (-1, 0)  # segment and time of its first batch
        self._edition = -1
        self._checked = False

    # -- state ---------------------------------------------------------------------------------------------------

    def slot(self) -> Slot:
        """The published state, repaired first if it is missing or does not fit the files."""
        slot = self._published()
        if (
            slot is not None
            and not slot.dirty
            and slot.boot == self._boot
            and (self._checked or self._sound(slot))
        ):
            self._checked = True
            return slot
        with self.locked() as repaired:
            return repaired

    def _published(self) -> Slot | None:
        """The slot as it is; what is known of files that were changed since is dropped before anything looks at it."""
        slot = self._ends.read(self.number)
        return None if slot is None else self._noticed(slot)

    def _noticed(self, slot: Slot) -> Slot:
        if slot.edition != self._edition:
            self.forget()
            self._edition = slot.edition
        return slot

    def publish(self, slot: Slot) -> None:
        """Make this the partition's state; only under the lock."""
        self._ends.write(self.number, slot if slot.boot == self._boot else replace(slot, boot=self._boot))

    @contextlib.contextmanager
    def locked(self) -> Iterator[Slot]:
        """Hold the partition's lock across threads and processes; yields a state that fits the files."""
        with self._mutex:
            if self._depth == 0:
                self.disk.lock(self._lock_handle)
            self._depth += 1
            try:
                slot = self._published()
                if slot is None or slot.dirty or slot.boot != self._boot or not self._sound(slot, whole=True):
                    slot = recover(self, slot)
                self._checked = True
                yield self._noticed(slot)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.disk.unlock(self._lock_handle)

    def _sound(self, slot: Slot, *, whole: bool = False) -> bool:
        """Whether the files hold what the slot says; `whole`: and nothing more (only true under the lock)."""
        try:
            segment = self.files.segment(slot.segment)
            length = self.disk.size(segment.handle)
        except FileNotFoundError:
            return False
        if length < slot.length or (whole and length > slot.length):
            return False
        if self._checked:
            return True
        if slot.segment < max(self.files.bases(fresh=True), default=0):
            return False
        last = next(segment.walk(slot.last_frame, slot.length, check=True), None)
        return last is not None and last.position + last.length == slot.length

    def forget(self) -> None:
        """Drop what is known of the files, after they changed."""
        self.files.forget()
        self._finder.forget()
        self._producers = None

    # -- append --------------------------------------------------------------------------------------------------

    def append(self, parts: list[Part]) -> list[Appended]:
        """Append batches in order, each whole or not at all, with one sync for all of them."""
        with self.locked() as found:
            slot = self._rolled_if_due(found)
            now = self._clock.micros()
            producers = self._known_producers(slot)
            laid = lay_out(parts, slot, now, self._ahead(), producers)
            if laid.frames:
                self._write(slot, b"".join(laid.data), laid.frames, now)
                for frame in laid.frames:
                    producers.note(frame)
            return laid.appended

    def _ahead(self) -> int | None:
        return None if self.written.clocked else self.written.ahead

    def mark(self, time: int) -> None:
        """Append a time mark: from here on the partition's event time is at least `time`.

        It is no arrival: retention counts from the last event.
        """
        with self.locked() as slot:
            now = self._clock.micros()
            frame = Frame(
                Kind.MARK,
                slot.next_offset,
                slot.next_offset + 1,
                appended_at=now,
                lowest=time,
                highest=time,
                running_before=slot.running_max,
                running_max=max(slot.running_max, time),
            )
            self._write(slot, encode_frame(frame, b""), [frame], slot.appended_at)

    def _write(self, slot: Slot, data: bytes, frames: list[Frame], arrived: int) -> None:
        segment = self.files.segment(slot.segment)
        try:
            self.disk.write(segment.handle, slot.length, data)
            if self.written.durable:
                self.disk.sync(segment.handle)
        except DiskFullError:
            self.disk.truncate(segment.handle, slot.length)
            raise
        except DiskFailedError:
            self._seal_after_failure(slot)
            raise
        last = frames[-1]
        new = Slot(
            start_offset=slot.start_offset,
            next_offset=last.next_offset,
            segment=slot.segment,
            length=slot.length + len(data),
            last_frame=slot.length + frames[-1].position,
            running_max=last.running_max,
            appended_at=arrived,
            edition=slot.edition,
            boot=self._boot,
        )
        self.publish(new)
        if self._producers_at == (slot.segment, slot.length):
            self._producers_at = (new.segment, new.length)

    def _seal_after_failure(self, slot: Slot) -> None:
        """Never write to this segment again: what the failed sync left in memory and on disk is unknown.

        If no new one can be started now, recovery does it: the flag is in memory that outlives this process but not
        the machine's memory of the bytes.
        """
        distrusted = replace(slot, dirty=True, distrusted=True)
        with contextlib.suppress(DiskFailedError, DiskFullError):
            self.publish(distrusted)
        segment = self.files.segment(slot.segment)  # held by name: the file is closed with the last reference
        with contextlib.suppress(DiskFailedError, DiskFullError):
            self.disk.truncate(segment.handle, slot.length)
        with contextlib.suppress(DiskFailedError, DiskFullError):
            self.roll(distrusted)

    def _rolled_if_due(self, slot: Slot) -> Slot:
        full = slot.length >= self.written.segment_size and slot.next_offset > slot.segment
        if full or self._too_old(slot):
            return self.roll(slot)
        return slot

    def _too_old(self, slot: Slot) -> bool:
        segment, born = self._born
        if segment != slot.segment:
            frames = self.files.segment(slot.segment).walk(0, slot.length)
            born = next((frame.appended_at for frame in frames if frame.kind != Kind.HEAD), 0)
            if not born:
                return False
            self._born = (slot.segment, born)
        return self._clock.micros() - born > self.written.segment_age

    def roll(self, slot: Slot) -> Slot:
        """Start a new segment at the partition's end; only under the lock."""
        producers = self._known_producers(slot).snapshot(self._clock.micros())
        self.publish(replace(slot, dirty=True))
        previous: tuple[int, int, int] | None = (slot.segment, slot.length, slot.appended_at)
        again = slot.next_offset == slot.segment  # it holds no events yet: a new file under the same name
        if again:
            previous = self.files.segment(slot.segment).head()[1].previous
        segment = Segment(self.disk, self.folder, slot.next_offset)
        length = segment.create(Head(previous=previous, producers=producers), slot.running_max)
        edition = slot.edition + again
        new = replace(
            slot,
            segment=segment.base,
            length=length,
            last_frame=0,
            edition=edition,
            dirty=False,
            distrusted=False,
        )
        self.files.forget()
        self._producers_at = (new.segment, new.length)
        self.publish(new)
        return new

    def _known_producers(self, slot: Slot) -> Producers:
        segment, length = self._producers_at
        if self._producers is None or segment != slot.segment:
            self._producers = known_producers(self.files, slot)
        elif length < slot.length:
            for frame in self.files.segment(slot.segment).walk(length, slot.length):
                self._producers.note(frame)
        self._producers_at = (slot.segment, slot.length)
        return self._producers

    def last_sequence(self, producer: str) -> int:
        """Highest sequence this producer has appended here; -1 when it has none."""
        with self.locked() as slot:
            return self._known_producers(slot).last(producer)

    def offsets_of(self, producer: str, sequences: Sequence[int]) -> list[int]:
        """Where a producer's rows of these sequences are; -1 where it is no longer known."""
        with self.locked() as slot:
            known = self._known_producers(slot)
            return [known.offset_of(producer, sequence) for sequence in sequences]

    # -- read ----------------------------------------------------------------------------------------------------

    def fetch(self, offset: int, max_bytes: int) -> list[tuple[Frame, memoryview]]:
        """Frames from the one that holds `offset` on, whole and checked; none at the end of the partition."""
        edition = -1
        while True:
            slot = self.slot()
            try:
                return self._fetch(offset, max_bytes, slot)
            except DamagedError:
                if slot.edition == edition:
                    raise
                edition = slot.edition  # perhaps the file was rewritten between two looks: look once more
                self.forget()

    def _fetch(self, offset: int, max_bytes: int, slot: Slot) -> list[tuple[Frame, memoryview]]:
        self._finder.require_there(offset, slot)
        found: list[tuple[Frame, memoryview]] = []
        while not found and offset < slot.next_offset:
            segment, position, limit = self._finder.locate(offset, slot)
            try:
                for frame, data in segment.read(position, limit, max_bytes, offset):
                    position = frame.position + frame.length
                    if frame.next_offset > offset and frame.kind != Kind.HEAD:
                        found.append((frame, data))
            except DamagedError:
                if not found:  # what is sound before the damage comes first
                    raise
            if position < limit or segment.base == slot.segment:
                self._finder.remember(found[-1][0].next_offset if found else offset, segment, position)
            elif not found:
                offset = self._finder.behind(segment, offset, slot)
        return found

    def headers(self, start: int, end: int) -> Iterator[Frame]:
        """Headers of the frames that hold offsets of `[start, end)`, without reading what they carry."""
        edition = -1
        while True:
            slot = self.slot()
            try:
                for frame in self._headers(start, end, slot):
                    start = frame.next_offset
                    yield frame
            except DamagedError:
                if slot.edition == edition:
                    raise
                edition = slot.edition
                self.forget()
            else:
                return

    def _headers(self, offset: int, end: int, slot: Slot) -> Iterator[Frame]:
        self._finder.require_there(offset, slot)
        while offset < min(end, slot.next_offset):
            segment, position, limit = self._finder.locate(offset, slot)
            for frame in segment.walk(position, limit):
                if frame.base_offset >= end:
                    return
                if frame.next_offset > offset and frame.kind != Kind.HEAD:
                    offset = frame.next_offset
                    yield frame
                position = frame.position + frame.length
            if position < limit:
                raise segment.damaged(offset, position)
            if segment.base == slot.segment:
                return
            offset = max(offset, self._finder.behind(segment, offset, slot))

    def reach(self, time: int) -> tuple[Frame, memoryview] | None:
        """The first frame at which the partition's event time reaches `time`; None when it has not yet.

        The running maximum never falls, so segments can be searched by halves.
        """
        slot = self.slot()
        if slot.running_max < time:
            return None
        bases = self.files.bases(fresh=True)
        later = bisect_left(bases, time, key=lambda base: self.files.segment(base).head()[0].running_before)
        for base in bases[max(0, later - 1) :]:
            segment = self.files.segment(base)
            for frame in segment.walk(0, self.files.limit(segment, slot)):
                if frame.running_max >= time and frame.kind != Kind.HEAD:
                    return next(segment.read(frame.position, frame.position + frame.length, frame.length))
        return None

    def close(self) -> None:
        """Close the lock file; segments close when nobody reads them."""
        self.disk.close(self._lock_handle)
