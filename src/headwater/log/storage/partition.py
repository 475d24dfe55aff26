"""One partition: an ordered sequence of events in segment files, shared by several processes.

Append: take the partition's lock, encode the batches behind the last acknowledged byte, write, sync,
publish the new end, release. This order makes a crash safe: a process that dies before the publish leaves
bytes behind the published end. The next writer keeps them if they form whole batches and cuts them off if
not. Read: look up the published end, read below it, compare checksums.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.errors import DamagedError, DiskFailedError, DiskFullError
from headwater.events import Clock
from headwater.log.storage.disk import Disk
from headwater.log.storage.event_counts import EventCounts
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind, encode_frame
from headwater.log.storage.frame_builder import AppendResult, build_frames
from headwater.log.storage.partition_state import PartitionState, StateFile
from headwater.log.storage.producers import OlderProducers, ProducerState, load_producers
from headwater.log.storage.recovery import recover
from headwater.log.storage.segment import OffsetIndex, Segment, SegmentFiles, SegmentHeader, check_offset
from headwater.log.topic import Durability, Topic, deleted_topic_error

if TYPE_CHECKING:
    from headwater.log.write.write_batch import WriteBatch

__all__ = ["Partition"]

_SEGMENT_AGE: Final = 86_400 * 1_000_000  # microseconds after which a segment is closed, however small it is
_MICROSECOND: Final = timedelta(microseconds=1)


class Partition:
    """Appends to and reads from one partition.

    Args:
        disk: File system access.
        clock: The clock of arrival times.
        folder: The folder of the segments; created when it does not exist.
        state_file: The file in which the states of all partitions of the topic are published.
        number: The partition's number.
        definition: The topic's definition; may be replaced when the topic changes.
    """

    _lock_handle = -1

    def __init__(
        self, disk: Disk, clock: Clock, folder: Path, state_file: StateFile, number: int, definition: Topic
    ) -> None:
        self.number = number
        self.folder = folder
        self.disk = disk
        self._boot_id = disk.boot_id()
        self._clock = clock
        self._state_file = state_file
        self.definition = definition
        disk.make_folder(folder)
        self._lock_path = str(folder / "lock")  # every read of the state looks at it, and building a Path is slow
        self._lock_handle = disk.open(folder / "lock")
        self._mutex = threading.RLock()  # one handle: the file lock keeps out other processes, not threads
        self.files = SegmentFiles(disk, folder)
        self._lock_depth = 0  # `lock` is re-entrant, the file lock is not
        self._producers: ProducerState | None = None
        self._producers_position = (-1, -1)  # segment and length up to which they are loaded
        self._index = OffsetIndex(self.files, number, self.state)
        self._event_counts = EventCounts(self.files)
        self._segment_created = (-1, 0)  # segment and time of its first batch
        self._tombstones_removed: int | None = None
        self._files_version = -1  # of the files that the caches describe
        self._max_arrival = (LOWEST_TIME, 0)  # a max event time, and the arrival of the record that set it
        self._verified = False  # whether this process has compared the published state with the files
        self._synced_from = 0  # the first segment that may hold bytes that only the page cache has

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> PartitionState:
        """Returns the published state; repairs it first if it is missing or does not match the files."""
        state = self._read_state()
        if state is not None and self._matches_files(state):
            self._verified = True
            return state
        with self.lock() as repaired:
            return repaired

    def _read_state(self) -> PartitionState | None:
        """Returns the slot; drops cached file data first if files changed since.

        Raises:
            UnknownTopicError: The topic was deleted.
        """
        if not self.is_current():
            raise deleted_topic_error(self.definition.name)
        state = self._state_file.read(self.number)
        return None if state is None else self._drop_stale_caches(state)

    def is_current(self) -> bool:
        """Whether the partition is still that of the log; closes its segments if the topic was deleted."""
        if not self.disk.is_current(self._lock_handle, self._lock_path):
            self._state_file.deleted = True
            self.invalidate()
        return not self._state_file.deleted

    def _drop_stale_caches(self, state: PartitionState) -> PartitionState:
        if state.files_version != self._files_version:
            self.invalidate()
            self._files_version = state.files_version
        return state

    def publish(self, state: PartitionState) -> None:
        """Publish the partition's state; only under the lock."""
        self._state_file.write(
            self.number, state if state.boot_id == self._boot_id else replace(state, boot_id=self._boot_id)
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[PartitionState]:
        """Hold the partition's lock across threads and processes; yields a state that matches the files."""
        with self._mutex:
            if self._lock_depth == 0:
                self._lock_file()
            self._lock_depth += 1
            try:
                state = self._read_state()
                if state is None or not self._matches_files(state, exact=True):
                    state = recover(self, state)
                self._verified = True
                yield self._drop_stale_caches(state)
            finally:
                self._lock_depth -= 1
                if self._lock_depth == 0:
                    self.disk.unlock(self._lock_handle)

    def _lock_file(self) -> None:
        try:
            self.disk.lock(self._lock_handle)
        except FileNotFoundError:  # its descriptor was given back meanwhile, and the file is gone
            self.is_current()
            raise deleted_topic_error(self.definition.name) from None

    def _matches_files(self, state: PartitionState, *, exact: bool = False) -> bool:
        """Whether the files hold what the slot says; with `exact`, nothing more (only true under the lock)."""
        if state.dirty or state.boot_id != self._boot_id:
            return False
        if self._verified and not exact:
            return True
        try:
            segment = self.files.segment(state.segment)
            length = self.disk.size(segment.handle)
        except FileNotFoundError:
            return False
        if length < state.length or (exact and length > state.length):
            return False
        if self._verified:
            return True
        if state.segment < max(self.files.bases(fresh=True), default=0):
            return False
        last = next(segment.walk(state.last_frame, state.length, check=True), None)
        return last is not None and last.position + last.length == state.length

    def invalidate(self) -> None:
        """Drop cached data about the files after they changed."""
        self.files.invalidate()
        self._index.invalidate()
        self._event_counts.invalidate()
        self._producers = None
        self._tombstones_removed = None

    # -- append --------------------------------------------------------------------------------------------------

    def append(self, batches: list[WriteBatch]) -> list[AppendResult]:
        """Append batches in order, each completely or not at all, with one sync for all."""
        with self.lock() as found:
            now = self._clock.micros()
            full = found.length >= self.definition.segment_size and found.next_offset > found.segment
            state = self.roll(found) if full or self._is_segment_expired(found, now) else found
            producers = self._load_producers(state)
            ahead = None if self.definition.external_time else self.definition.ahead // _MICROSECOND
            encoded = build_frames(batches, state, now, ahead, producers)
            if encoded.frames:
                self._write_frames(state, b"".join(encoded.data), encoded.frames, now)
                for frame in encoded.frames:
                    producers.record(frame)
            return encoded.results

    def append_idle_marker(self, time: int) -> None:
        """Append an idle marker: from here the partition's event time is at least `time`.

        It does not count as an arrival: retention counts from the last event.
        """
        with self.lock() as state:
            now = self._clock.micros()
            frame = Frame(
                FrameKind.IDLE_MARKER,
                state.next_offset,
                state.next_offset + 1,
                appended_at=now,
                lowest=time,
                highest=time,
                max_event_time_before=state.max_event_time,
                max_event_time=max(state.max_event_time, time),
            )
            self._write_frames(state, encode_frame(frame, b""), [frame], state.appended_at)

    def sync(self) -> None:
        """Bring everything that was appended to stable storage; for topics whose appends do not (durability "fast").

        The first call syncs all segments: another process may have written them, and died before it synced.
        """
        with self.lock() as state:
            for base in self.files.bases(fresh=True):
                if base >= self._synced_from:
                    self.disk.sync(self.files.segment(base).handle)
            self._synced_from = state.segment

    def _write_frames(self, state: PartitionState, data: bytes, frames: list[Frame], appended_at: int) -> None:
        # The end is published after the sync: on a durable topic nobody reads bytes that a power cut can lose.
        segment = self.files.segment(state.segment)
        try:
            self.disk.write(segment.handle, state.length, data)
            if self.definition.durability is Durability.DURABLE:
                self.disk.sync(segment.handle)
        except DiskFullError:  # nothing was acknowledged: remove what was written of it
            self.disk.truncate(segment.handle, state.length)
            raise
        except DiskFailedError:
            self._seal_after_failure(state)
            raise
        last = frames[-1]
        new = replace(
            state,
            next_offset=last.next_offset,
            length=state.length + len(data),
            last_frame=state.length + last.position,
            max_event_time=last.max_event_time,
            appended_at=appended_at,
        )
        self.publish(new)
        if self._producers_position == (state.segment, state.length):
            self._producers_position = (new.segment, new.length)

    def _seal_after_failure(self, state: PartitionState) -> None:
        """Stop writing to this segment: its contents after a failed sync are unknown.

        If no new segment can be created now, recovery does it. The flag is in the state file, whose page
        cache outlives this process exactly as long as the doubtful bytes do: until the machine restarts.
        """
        failed = replace(state, dirty=True, sync_failed=True)
        with contextlib.suppress(DiskFailedError, DiskFullError):
            self.publish(failed)
        segment = self.files.segment(state.segment)  # keeps a reference: without one the file would be closed
        with contextlib.suppress(DiskFailedError, DiskFullError):
            self.disk.truncate(segment.handle, state.length)
        with contextlib.suppress(DiskFailedError, DiskFullError):
            self.roll(failed)

    def _is_segment_expired(self, state: PartitionState, now: int) -> bool:
        segment, created = self._segment_created
        if segment != state.segment:
            frames = self.files.segment(state.segment).walk(0, state.length)
            created = next((frame.appended_at for frame in frames if frame.kind != FrameKind.SEGMENT_HEADER), 0)
            if not created:  # it holds no batch yet
                return False
            self._segment_created = (state.segment, created)
        return now - created > _SEGMENT_AGE

    def roll(self, state: PartitionState) -> PartitionState:
        """Start a new segment at the partition's end; only under the lock."""
        known = self._load_producers(state)
        known.remove_expired(self._clock.micros())
        recent, older = known.snapshot(), OlderProducers(self.disk, self.folder)
        older_file = known.save_older(older, recent, state.next_offset)
        self.publish(replace(state, dirty=True))
        same_base = state.next_offset == state.segment  # it holds no events yet: a new file under the same name
        closed = self.files.segment(state.segment)
        if same_base:
            header = closed.header()[1]
            previous, markers = header.previous, header.markers
        else:
            previous = (state.segment, state.length, state.appended_at)
            markers = self._event_counts.markers(closed, state.length)
        segment = Segment(self.disk, self.folder, state.next_offset)
        header = SegmentHeader(previous=previous, producers=recent, markers=markers, older_producers=older_file)
        length = segment.create(header, state.max_event_time)
        new = replace(
            state,
            segment=segment.base,
            length=length,
            last_frame=0,
            files_version=state.files_version + same_base,
            dirty=False,
            sync_failed=False,
        )
        self.files.invalidate()
        self._producers_position = (new.segment, new.length)
        self.publish(new)
        older.remove_others(older_file)
        return new

    def _load_producers(self, state: PartitionState) -> ProducerState:
        segment, length = self._producers_position
        if self._producers is None or segment != state.segment:
            self._producers = load_producers(self.files, state)
        elif length < state.length:
            for frame in self.files.segment(state.segment).walk(length, state.length):
                self._producers.record(frame)
        self._producers_position = (state.segment, state.length)
        return self._producers

    def last_sequence(self, producer: str) -> int:
        """Returns the highest sequence number of this producer; -1 when it has none."""
        with self.lock() as state:
            return self._load_producers(state).last_sequence(producer)

    def offsets_of(self, producer: str, sequences: Sequence[int]) -> list[int]:
        """Returns the offsets of a producer's sequence numbers; -1 where they are no longer known."""
        with self.lock() as state:
            known = self._load_producers(state)
            return [known.offset_of(producer, sequence) for sequence in sequences]

    # -- read ----------------------------------------------------------------------------------------------------

    def fetch(self, offset: int, max_bytes: int) -> list[tuple[Frame, memoryview]]:
        """Returns checked frames from the one that holds `offset`; none at the end of the partition."""
        files_version = -1
        while True:
            state = self.state()
            try:
                return self._fetch(offset, max_bytes, state)
            except (DamagedError, FileNotFoundError):
                if state.files_version == files_version:
                    raise
                files_version = state.files_version  # the file may have been rewritten since: try once more
                self.invalidate()

    def _fetch(self, offset: int, max_bytes: int, state: PartitionState) -> list[tuple[Frame, memoryview]]:
        check_offset(self.number, offset, state.start_offset, state.next_offset)
        found: list[tuple[Frame, memoryview]] = []
        while not found and offset < state.next_offset:
            segment, position, limit = self._index.locate(offset, state)
            try:
                for frame, data in segment.read(position, limit, max_bytes, offset):
                    position = frame.position + frame.length
                    if frame.next_offset > offset and frame.kind != FrameKind.SEGMENT_HEADER:
                        found.append((frame, data))
            except DamagedError:
                if not found:  # valid frames before the damage are returned first
                    raise
            if position < limit or segment.base == state.segment:
                self._index.cache_position(found[-1][0].next_offset if found else offset, segment, position)
            elif not found:
                offset = self._index.next_segment_base(segment, offset, state)
        return found

    def size(self, start: int, end: int) -> int:
        """Returns the bytes of the frames of `[start, end)`; both offsets are at frame boundaries.

        Frames are stored as they are in memory, so positions in the segments give their size. The position of the
        partition's end is cached, so a reader that continues there later needs no search.

        Raises:
            DataGoneError: Retention has removed the start.
        """
        state = self.state()
        check_offset(self.number, start, state.start_offset, state.next_offset)
        if start >= end:
            return 0
        first, position, length = self._index.locate(start, state)
        if end >= state.next_offset:
            last, until = self.files.segment(state.segment), state.length
            self._index.cache_position(state.next_offset, last, until)
        else:
            last, until, _ = self._index.locate(end, state)
        if first.base == last.base:
            return until - position
        between = (base for base in self.files.bases() if first.base < base < last.base)
        return length - position + sum(map(self.files.file_size, between)) + until

    def frame_headers(self, start: int, end: int) -> Iterator[Frame]:
        """Returns the headers of the frames that hold offsets in `[start, end)`, without reading bodies."""
        files_version = -1
        while True:
            state = self.state()
            try:
                for frame in self._frame_headers(start, end, state):
                    start = frame.next_offset
                    yield frame
            except (DamagedError, FileNotFoundError):
                if state.files_version == files_version:
                    raise
                files_version = state.files_version
                self.invalidate()
            else:
                return

    def _frame_headers(self, offset: int, end: int, state: PartitionState) -> Iterator[Frame]:
        check_offset(self.number, offset, state.start_offset, state.next_offset)
        while offset < min(end, state.next_offset):
            segment, position, limit = self._index.locate(offset, state)
            for frame in segment.walk(position, limit):
                if frame.base_offset >= end:
                    return
                if frame.next_offset > offset and frame.kind != FrameKind.SEGMENT_HEADER:
                    offset = frame.next_offset
                    yield frame
                position = frame.position + frame.length
            if position < limit:
                raise segment.damage_error(offset, position)
            if segment.base == state.segment:
                return
            offset = max(offset, self._index.next_segment_base(segment, offset, state))

    def tombstones_removed(self) -> int:
        """Returns the offset behind the last tombstone that compaction has removed; 0 if it has removed none.

        The segments themselves record it, so it is known after the loss of the state file, too. A segment that
        retention removes takes its record along: readers below its end are then below the start.
        """
        self.state()  # drops what is cached if files changed since
        found = self._tombstones_removed
        if found is None:
            found = max(map(self._tombstones_removed_from, self.files.bases(fresh=True)), default=0)
            self._tombstones_removed = found
        return found

    def _tombstones_removed_from(self, base: int) -> int:
        # A file that is rewritten or removed meanwhile changes the version of the files: the next call looks again.
        # Reading a damaged segment is an error of its own.
        with contextlib.suppress(FileNotFoundError, DamagedError):
            return self.files.segment(base).header()[1].tombstones_removed
        return 0

    def find_frame_by_time(self, time: int) -> tuple[Frame, memoryview] | None:
        """Returns the first frame at which the event time reaches `time`; None if it has not.

        The max event time never decreases, so segments are found by binary search.
        """
        found = self._find_header_by_time(time, self.state())
        if found is None:
            return None
        segment, frame = found
        return next(segment.read(frame.position, frame.position + frame.length, frame.length))

    def _find_header_by_time(self, time: int, state: PartitionState) -> tuple[Segment, Frame] | None:
        if state.max_event_time < time:
            return None
        bases = self.files.bases(fresh=True)
        later = bisect_left(bases, time, key=lambda base: self.files.segment(base).header()[0].max_event_time_before)
        for base in bases[max(0, later - 1) :]:
            segment = self.files.segment(base)
            for frame in segment.walk(0, self.files.valid_length(segment, state)):
                if frame.max_event_time >= time and frame.kind != FrameKind.SEGMENT_HEADER:
                    return segment, frame
        return None

    def count_events(self, start: int) -> int:
        """Returns the number of events from an offset to the end, without idle markers."""
        with self._mutex:
            try:
                return self._event_counts.count(start, self.state())
            except FileNotFoundError:  # another process removed or rewrote a segment meanwhile
                self.invalidate()
                return self._event_counts.count(start, self.state())

    def max_event_time_arrival(self) -> int:
        """Returns when the record arrived that set the max event time; if it was removed, an upper bound."""
        state = self.state()
        if self._max_arrival[0] != state.max_event_time:
            found = self._find_header_by_time(state.max_event_time, state)
            self._max_arrival = (state.max_event_time, found[1].appended_at if found else state.appended_at)
        return self._max_arrival[1]

    def close(self) -> None:
        """Close the lock file; segments close when their last reader ends."""
        handle, self._lock_handle = self._lock_handle, -1
        if handle >= 0:
            self.disk.close(handle)

    def __del__(self) -> None:
        # That of a deleted topic closes with its last user: other threads may be using it when it is forgotten.
        if not sys.is_finalizing():
            self.close()
