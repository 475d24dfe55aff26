"""Segment files: frames one after another, starting with a header frame.

A segment is named after the first offset it may hold. Its header frame keeps what a reader needs to start
there: the max event time, the known producers and, for a segment written by compaction, the range it
covers. `SegmentFiles` lists the segments of a partition and keeps a few open. `OffsetIndex` finds the
segment and position of an offset, with the sparse index entries of earlier walks and the positions at which
reads stopped.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import BadOffsetError, DamagedError, DataGoneError, NewerFormatError
from headwater.log.storage.disk import Disk
from headwater.log.storage.frame import HEADER_SIZE, MAGIC, Frame, FrameKind, encode_frame, parse_header
from headwater.log.storage.partition_state import PartitionState

__all__ = [
    "FORMAT_VERSION",
    "OffsetIndex",
    "Segment",
    "SegmentFiles",
    "SegmentHeader",
    "check_offset",
    "parse_base_offset",
    "segment_file_name",
]

FORMAT_VERSION: Final = 1
_CHUNK_BYTES: Final = 1 << 20  # read at a time when all frames of a file are visited
_INDEX_INTERVAL: Final = 1 << 16  # bytes between two sparse index entries; at least half of it
_MAX_OPEN: Final = 8  # segments that a partition keeps open
_MAX_CURSORS: Final = 64
_SUFFIX: Final = ".segment"


def segment_file_name(base: int) -> str:
    """Returns the file name of the segment that starts at this offset."""
    return f"{base:020d}{_SUFFIX}"


def parse_base_offset(name: str) -> int | None:
    """Returns the first offset of the segment with this file name; None for other files."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if name.endswith(_SUFFIX) and stem.isdigit() else None


class SegmentHeader(msgspec.Struct, omit_defaults=True):
    """The contents of a header frame.

    `covers_until` is set by compaction: the segment replaces all offsets below it, and older files with a
    base in that range are leftovers. `previous` describes the segment before this one: its base, its valid
    length (a segment closed after a failed sync may have more bytes), and the arrival of its last batch.
    `markers` is the number of idle markers in it; None in files of older versions. `tombstones_removed` is set
    by compaction, too: the offset behind the last tombstone that is no longer in the segment. `producers` maps
    an id to (first and last sequence, base offset, rows, time). `older_producers` is the file of those that are not
    among them: the offset that names it, and how many of its bytes count.
    """

    format: int = FORMAT_VERSION
    covers_until: int = 0
    previous: tuple[int, int, int] | None = None
    producers: dict[str, tuple[int, int, int, int, int]] = {}
    tombstones_removed: int = 0
    markers: int | None = None
    older_producers: tuple[int, int] | None = None


class Segment:
    """A segment file, opened on first use.

    Example:
        >>> import tempfile
        >>> segment = Segment(Disk(), Path(tempfile.mkdtemp()), 0)
        >>> length = segment.create(SegmentHeader(), max_event_time=5)
        >>> [frame.kind.name for frame in segment.walk(0, length)]
        ['SEGMENT_HEADER']
    """

    def __init__(self, disk: Disk, folder: Path, base: int) -> None:
        self.base = base
        self.path = folder / segment_file_name(base)
        self.temporary_path = self.path.with_suffix(".new")
        self._disk = disk
        self.sealed_length: int | None = None  # valid bytes of a closed segment; None until it is determined
        self._handle: int | None = None
        self._lock = threading.Lock()  # guards the first opening and the sparse index
        self._sparse_index: list[tuple[int, int]] = []  # offset and position of some frames, sorted

    @property
    def handle(self) -> int:
        """Returns the open file."""
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    self._handle = self._disk.open(self.path, create=False)
        return self._handle

    def create(self, header: SegmentHeader, max_event_time: int, *, temporary: bool = False) -> int:
        """Write a new file with only its header frame, durably; returns its length.

        The file gets its final name once it is complete, so an interrupted creation leaves no segment that
        looks valid. With `temporary` it stays under `temporary_path` for the caller to rename.
        """
        self._handle = self._disk.open(self.temporary_path)
        data = self._encode_header(header, max_event_time)
        self._disk.truncate(self._handle, 0)
        self._disk.write(self._handle, 0, data)
        self._disk.sync(self._handle)
        if not temporary:
            self._disk.replace(self.temporary_path, self.path)
        return len(data)

    def rewrite_header(self, header: SegmentHeader, max_event_time: int) -> None:
        """Replace the header of a temporary file; the new one must not be longer."""
        old = parse_header(memoryview(self._disk.read(self.handle, 0, HEADER_SIZE)))
        assert old is not None
        self._disk.write(self.handle, 0, self._encode_header(header, max_event_time, old.length - HEADER_SIZE))

    def _encode_header(self, header: SegmentHeader, max_event_time: int, size: int = 0) -> bytes:
        frame = Frame(
            FrameKind.SEGMENT_HEADER,
            self.base,
            self.base,
            max_event_time_before=max_event_time,
            max_event_time=max_event_time,
        )
        return encode_frame(frame, msgspec.json.encode(header).ljust(size, b"\0"))

    def header(self) -> tuple[Frame, SegmentHeader]:
        """Returns the header frame and its contents."""
        data = memoryview(self._disk.read(self.handle, 0, 4096))
        frame = parse_header(data)
        if frame and frame.length > len(data):
            data = memoryview(self._disk.read(self.handle, 0, frame.length))
        body = frame.body(data) if frame and frame.length <= len(data) else None
        if frame is None or body is None:
            raise self.damage_error(self.base, 0)
        header = msgspec.json.decode(bytes(body).rstrip(b"\0"), type=SegmentHeader)
        if header.format > FORMAT_VERSION:
            raise NewerFormatError(
                f"{self.path.name} has format {header.format}, this version reads up to {FORMAT_VERSION}",
                fix="pip install --upgrade headwater",
            )
        return frame, header

    def walk(self, position: int, limit: int, *, check: bool = False) -> Iterator[Frame]:
        """Yields headers from `position` up to `limit` bytes; ends at the first invalid one.

        Args:
            position: A frame's start.
            limit: Bytes of the file to look at.
            check: Also read the bodies and compare their checksums.
        """
        data, start, last_indexed = memoryview(b""), position, position
        while position + HEADER_SIZE <= limit:
            frame = parse_header(data, position - start, position)
            needed = (frame.length if check else frame.body_at) if frame else limit
            if position - start + needed > len(data):
                data, start = self._read_chunk(position, limit, _CHUNK_BYTES, whole=check), position
                frame = parse_header(data, 0, position)
            if frame is None or frame.length < HEADER_SIZE or position + frame.length > limit:
                return
            at = position - start
            if check and frame.body(data[at : at + frame.length]) is None:
                return
            if position - last_indexed >= _INDEX_INTERVAL:
                self._add_index_entry(frame.base_offset, position)
                last_indexed = position
            yield frame
            position += frame.length

    def find_index_entry(self, offset: int) -> tuple[int, int]:
        """Returns the last index entry at or before an offset: its offset and position.

        Entries come from earlier walks. With them a lookup need not start at the header frame.
        """
        at = bisect_right(self._sparse_index, (offset, math.inf)) - 1
        return self._sparse_index[at] if at >= 0 else (self.base, 0)

    def _add_index_entry(self, offset: int, position: int) -> None:
        with self._lock:
            at = bisect_right(self._sparse_index, (offset, position))
            near = self._sparse_index[max(0, at - 1) : at + 1]
            if all(abs(position - other) >= _INDEX_INTERVAL // 2 for _, other in near):
                insort(self._sparse_index, (offset, position))

    def read(
        self, position: int, limit: int, max_bytes: int, offset: int | None = None
    ) -> Iterator[tuple[Frame, memoryview]]:
        """Returns whole frames with their bytes, checksums compared; at least one if there is one below `limit`.

        Args:
            position: A frame's start.
            limit: Bytes of the file to look at.
            max_bytes: Approximate number of bytes to read.
            offset: The expected offset; named in the error if the header is damaged.
        """
        data = self._read_chunk(position, limit, max_bytes)
        if not data and limit > position:
            raise self.damage_error(offset, position)
        at = 0
        while at < len(data):
            frame = parse_header(data, at, position + at)
            if frame is None or at + frame.length > len(data):
                if at == 0 or (frame is None and len(data) - at >= HEADER_SIZE):
                    raise self.damage_error(frame.base_offset if frame else offset, position + at)
                return  # the rest of this frame comes with the next read
            whole = data[at : at + frame.length]
            if frame.body(whole) is None:
                raise self.damage_error(frame.base_offset, position + at)
            yield frame, whole
            offset = frame.next_offset
            at += frame.length

    def _read_chunk(self, position: int, limit: int, max_bytes: int, *, whole: bool = True) -> memoryview:
        """Returns about `max_bytes` of the file; more if its first frame is larger and `whole` is set."""
        length = min(max(max_bytes, HEADER_SIZE), limit - position)
        data = memoryview(self._disk.read(self.handle, position, length))
        frame = parse_header(data, 0, position)
        if whole and frame and len(data) < frame.length <= limit - position:
            data = memoryview(self._disk.read(self.handle, position, frame.length))
        return data

    def walk_past_damage(self, position: int, limit: int) -> Iterator[Frame]:
        """Yields the headers of all frames from `position`, skipping damaged parts."""
        start: int | None = position
        while start is not None:
            end = start
            for frame in self.walk(start, limit):
                end = frame.position + frame.length
                yield frame
            start = self.find_valid_frame(end, limit) if end < limit else None

    def find_valid_frame(self, position: int, limit: int) -> int | None:
        """Returns the position of the next valid frame; frames start at multiples of eight."""
        raw = self._disk.read(self.handle, position, limit - position)
        data = memoryview(raw)
        at = raw.find(MAGIC)
        while at >= 0:
            frame = parse_header(data, at, position + at) if (position + at) % 8 == 0 else None
            if frame and at + frame.length <= len(data) and frame.body(data[at : at + frame.length]) is not None:
                return position + at
            at = raw.find(MAGIC, at + 1)
        return None

    def damage_error(self, offset: int | None, position: int) -> DamagedError:
        """Returns the error for a frame that fails its checksum."""
        batch = f"the batch at offset {offset}" if offset is not None else "a batch"
        return DamagedError(
            f"{batch} in {self.path.parent.name}/{self.path.name} is damaged",
            detail=f"the checksum at byte {position} of {self.path} does not match",
            fix="headwater verify",
            segment=self.path.name,
            offset=offset,
            position=position,
        )

    def __del__(self) -> None:
        # Closed with the last reference, not when a cache drops it: another thread may be reading. While the
        # interpreter ends, a daemon thread may have stopped for good with the pool's lock.
        if self._handle is not None and not sys.is_finalizing():
            self._disk.close(self._handle)
            self._handle = None


class SegmentFiles:
    """The segments of a partition by base offset; caches the listing and a few open files."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk = disk
        self.folder = folder
        self._lock = threading.Lock()  # never held across a sync
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []

    def segment(self, base: int) -> Segment:
        """Returns the segment that starts at this offset."""
        with self._lock:
            found = self._segments.get(base)
            if found is None:
                while len(self._segments) >= _MAX_OPEN:
                    self._segments.pop(next(iter(self._segments)))
                found = self._segments[base] = Segment(self.disk, self.folder, base)
            return found

    def bases(self, *, fresh: bool = False) -> list[int]:
        """Returns the first offsets of all segments, in order."""
        if fresh or not self._bases:
            names = self.disk.names(self.folder)
            self._bases = sorted(base for name in names if (base := parse_base_offset(name)) is not None)
        return self._bases

    def base_for_offset(self, offset: int, state: PartitionState) -> int:
        """Returns the base of the segment that holds an offset."""
        bases = self._current_bases(state)
        if not bases or bases[0] > offset:
            bases = self.bases(fresh=True)
        if not bases or bases[0] > offset:
            raise FileNotFoundError(self.folder / segment_file_name(offset))
        return max(base for base in bases if base <= offset)

    def next_base(self, base: int, state: PartitionState) -> int:
        """Returns the base of the next segment; the partition's end for the last."""
        return min((other for other in self._current_bases(state) if other > base), default=state.next_offset)

    def _current_bases(self, state: PartitionState) -> list[int]:
        """Returns the bases up to the active segment; another process may have rolled since the listing."""
        bases = self.bases()
        return bases if bases and bases[-1] >= state.segment else self.bases(fresh=True)

    def valid_length(self, segment: Segment, state: PartitionState) -> int:
        """Returns the number of valid bytes of a segment."""
        if segment.base == state.segment:
            return state.length
        if segment.sealed_length is None:
            length = self.disk.size(segment.handle)
            with contextlib.suppress(DamagedError):  # if the next header is damaged, the size of the file counts
                previous = self.segment(self.next_base(segment.base, state)).header()[1].previous
                if previous and previous[0] == segment.base and not segment.header()[1].covers_until:
                    length = min(length, previous[1])
            segment.sealed_length = length
        return segment.sealed_length

    def file_size(self, base: int) -> int:
        """Returns the size of a segment's file in bytes."""
        segment = self.segment(base)  # keeps a reference: without one the file would be closed
        return self.disk.size(segment.handle)

    def read_frames(self, base: int, state: PartitionState) -> Iterator[tuple[Frame, memoryview]]:
        """Yields all frames of a segment, read in pieces, checksums compared."""
        segment = self.segment(base)
        position, limit = 0, self.valid_length(segment, state)
        while position < limit:
            for frame, data in segment.read(position, limit, _CHUNK_BYTES):
                position = frame.position + frame.length
                yield frame, data

    def invalidate(self) -> None:
        """Discard the cached listing; readers of an old file keep it open."""
        with self._lock:
            self._segments.clear()
            self._bases = []


def check_offset(partition: int, offset: int, start: int, end: int) -> None:
    """Check that a partition with the offsets `[start, end)` holds this offset or ends there.

    Raises:
        BadOffsetError: It is outside.
        DataGoneError: Retention has removed it.
    """
    if offset > end or offset < 0:
        what = f"offset {offset} is outside partition {partition}, which ends at {end}"
        raise BadOffsetError(what, offset=offset, end=end, partition=partition)
    if offset < start:
        raise DataGoneError(
            f"offsets {offset} to {start - 1} of partition {partition} are gone",
            detail=f"retention removed them; the partition now starts at {start}",
            fix='start="earliest", or headwater reset GROUP --topic TOPIC --to earliest',
            partition=partition,
            first=offset,
            last=start - 1,
            start=start,
        )


class OffsetIndex:
    """Finds offsets in segments; caches where reads stopped, so the next read needs no search.

    Args:
        files: The partition's segments.
        number: Which partition, for errors.
        read_state: The partition's published state, read anew.
    """

    def __init__(self, files: SegmentFiles, number: int, read_state: Callable[[], PartitionState]) -> None:
        self._files = files
        self._number = number
        self._read_state = read_state
        self._lock = threading.Lock()  # guards changes of `_cursors`; lookups need none
        self._cursors: dict[int, tuple[Segment, int]] = {}  # next offset of a reader: segment and position

    def invalidate(self) -> None:
        """Drop cached positions after files changed."""
        with self._lock:
            self._cursors.clear()

    def locate(self, offset: int, state: PartitionState, tries: int = 3) -> tuple[Segment, int, int]:
        """Returns segment, position and readable bytes of an offset.

        Raises:
            DamagedError: Its segment is missing, or cannot be read up to it.
        """
        known = self._cursors.get(offset)
        try:
            segment = known[0] if known else self._files.segment(self._files.base_for_offset(offset, state))
            limit = self._files.valid_length(segment, state)
        except FileNotFoundError:  # removed or rewritten since it was listed
            self.invalidate()
            self._files.invalidate()
            fresh = self._read_state()
            check_offset(self._number, offset, fresh.start_offset, fresh.next_offset)
            if not tries:
                raise self._gap_error(offset, self._files.next_base(offset, fresh)) from None
            return self.locate(offset, fresh, tries - 1)
        if known:
            return segment, known[1], limit
        reached, position = segment.find_index_entry(offset)
        for frame in segment.walk(position, limit) if offset > segment.base else ():
            if frame.next_offset > offset:
                return segment, frame.position, limit
            position, reached = frame.position + frame.length, frame.next_offset
        if 0 < position < limit:
            raise segment.damage_error(reached, position)
        return segment, position, limit

    def next_segment_base(self, segment: Segment, offset: int, state: PartitionState) -> int:
        """Returns the base of the segment after one that ends before `offset`; a gap is from compaction or damage."""
        self._cursors.pop(offset, None)
        following = self._files.next_base(segment.base, state)
        if following > offset and segment.header()[1].covers_until < following:
            raise self._gap_error(offset, following)
        return following

    def _gap_error(self, offset: int, following: int) -> DamagedError:
        return DamagedError(
            f"offsets {offset} to {following - 1} of {self._files.folder.parent.name}/{self._number} are missing",
            detail=f"no segment in {self._files.folder} holds them",
            fix="headwater verify",
            segment=segment_file_name(offset),
            offset=offset,
            position=0,
        )

    def cache_position(self, offset: int, segment: Segment, position: int) -> None:
        """Store where a read stopped, so that the next one continues without a search."""
        with self._lock:
            while len(self._cursors) >= _MAX_CURSORS:
                self._cursors.pop(next(iter(self._cursors)))
            self._cursors[offset] = (segment, position)
