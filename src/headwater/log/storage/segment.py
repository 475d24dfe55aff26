"""One file of a partition: frames one after another, starting with a head frame.

A segment is named after the first offset it may hold. The head frame keeps what a reader needs to start there:
the running maximum, the producers seen, and, for a segment written by compaction, how far it covers.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right, insort
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headwater.errors import DamagedError, NewerFormatError
from headwater.log.storage.disk import Disk
from headwater.log.storage.frame import HEADER_SIZE, MAGIC, Frame, Kind, encode_frame, parse_header

__all__ = ["FORMAT", "Head", "Segment", "base_of", "segment_name"]

FORMAT = 1
_CHUNK = 1 << 20
_APART = 1 << 16  # bytes between two landmarks, at least half of it
_SUFFIX = ".segment"


def segment_name(base: int) -> str:
    """The file name of the segment that starts at this offset."""
    return f"{base:020d}{_SUFFIX}"


def base_of(name: str) -> int | None:
    """The first offset of the segment of this file name; None for other files."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if name.endswith(_SUFFIX) and stem.isdigit() else None


class Head(msgspec.Struct, omit_defaults=True):
    """Contents of a head frame.

    `covers_until` is set by compaction: the segment stands for all offsets below it, and older files with a base
    in that range are leftovers. `previous` tells of the segment before this one: its base, how many of its bytes
    count (one closed after a failed sync may have others behind them), when its last batch arrived. `producers` maps
    an id to (first and last sequence, base offset, rows, time).
    """

    format: int = FORMAT
    covers_until: int = 0
    previous: tuple[int, int, int] | None = None
    producers: dict[str, tuple[int, int, int, int, int]] = {}


class Segment:
    """A segment file, opened on first use.

    Example:
        >>> import tempfile
        >>> segment = Segment(Disk(), Path(tempfile.mkdtemp()), 0)
        >>> length = segment.create(Head(), running_max=5)
        >>> [frame.kind.name for frame in segment.walk(0, length)]
        ['HEAD']
    """

    def __init__(self, disk: Disk, folder: Path, base: int) -> None:
        self.base = base
        self.path = folder / segment_name(base)
        self.path_beside = self.path.with_suffix(".new")
        self._disk = disk
        self.sealed_length: int | None = None
        self._handle: int | None = None
        self._lock = threading.Lock()
        self._landmarks: list[tuple[int, int]] = []

    @property
    def handle(self) -> int:
        """The open file."""
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    self._handle = self._disk.open(self.path, create=False)
        return self._handle

    def create(self, head: Head, running_max: int, *, beside: bool = False) -> int:
        """Write a new file with just its head frame, durably; returns its length.

        It gets its name once it is whole, so that a fault on the way leaves no segment that only looks sound; with
        `beside` it stays under `path_beside` for the caller to rename.
        """
        self._handle = self._disk.open(self.path_beside)
        frame = Frame(Kind.HEAD, self.base, self.base, running_before=running_max, running_max=running_max)
        data = encode_frame(frame, msgspec.json.encode(head))
        self._disk.truncate(self._handle, 0)
        self._disk.write(self._handle, 0, data)
        self._disk.sync(self._handle)
        if not beside:
            self._disk.replace(self.path_beside, self.path)
        return len(data)

    def head(self) -> tuple[Frame, Head]:
        """The head frame and its contents."""
        data = memoryview(self._disk.read(self.handle, 0, 4096))
        frame = parse_header(data)
        if frame and frame.length > len(data):
            data = memoryview(self._disk.read(self.handle, 0, frame.length))
        body = frame.body(data) if frame and frame.length <= len(data) else None
        if frame is None or body is None:
            raise self.damaged(self.base, 0)
        head = msgspec.json.decode(bytes(body).rstrip(b"\0"), type=Head)
        if head.format > FORMAT:
            raise NewerFormatError(
                f"{self.path.name} has format {head.format}, this version reads up to {FORMAT}",
                fix="pip install --upgrade headwater",
            )
        return frame, head

    def walk(self, position: int, limit: int, *, check: bool = False) -> Iterator[Frame]:
        """Headers from `position` up to `limit` bytes; ends early at the first that is not whole and sound.

        Args:
            position: A frame's start.
            limit: Bytes of the file to look at.
            check: Also read the bodies and compare their checksums.
        """
        data, start = memoryview(b""), position
        passed = position
        while position + HEADER_SIZE <= limit:
            frame = parse_header(data, position - start, position)
            needed = (frame.length if check else frame.body_at) if frame else limit
            if position - start + needed > len(data):
                data, start = self._at_least_one_frame(position, limit, _CHUNK, whole=check), position
                frame = parse_header(data, 0, position)
            if frame is None or frame.length < HEADER_SIZE or position + frame.length > limit:
                return
            at = position - start
            if check and frame.body(data[at : at + frame.length]) is None:
                return
            if position - passed >= _APART:
                self._set_landmark(frame.base_offset, position)
                passed = position
            yield frame
            position += frame.length

    def landmark(self, offset: int) -> tuple[int, int]:
        """The last frame that an earlier walk has noted at an offset or before it: its offset and position.

        So a look at an offset need not begin at the head, however many small frames there are.
        """
        at = bisect_right(self._landmarks, (offset, math.inf)) - 1
        return self._landmarks[at] if at >= 0 else (self.base, 0)

    def _set_landmark(self, offset: int, position: int) -> None:
        with self._lock:
            at = bisect_right(self._landmarks, (offset, position))
            near = self._landmarks[max(0, at - 1) : at + 1]
            if all(abs(position - other) >= _APART // 2 for _, other in near):
                insort(self._landmarks, (offset, position))

    def read(
        self, position: int, limit: int, max_bytes: int, offset: int | None = None
    ) -> Iterator[tuple[Frame, memoryview]]:
        """Whole frames with their bytes, checksums compared; at least one if there is one below `limit`.

        Args:
            position: A frame's start.
            limit: Bytes of the file to look at.
            max_bytes: About how many of them to read.
            offset: What is expected there; named in the error if the header does not tell.
        """
        data = self._at_least_one_frame(position, limit, max_bytes)
        if not data and limit > position:
            raise self.damaged(offset, position)
        at = 0
        while at < len(data):
            frame = parse_header(data, at, position + at)
            if frame is None or at + frame.length > len(data):
                if at == 0 or (frame is None and len(data) - at >= HEADER_SIZE):
                    raise self.damaged(frame.base_offset if frame else offset, position + at)
                return  # the rest of this frame comes with the next read
            whole = data[at : at + frame.length]
            if frame.body(whole) is None:
                raise self.damaged(frame.base_offset, position + at)
            yield frame, whole
            offset = frame.next_offset
            at += frame.length

    def _at_least_one_frame(
        self, position: int, limit: int, max_bytes: int, *, whole: bool = True
    ) -> memoryview:
        """About `max_bytes` of the file, more if its first frame is larger and `whole` is wanted."""
        length = min(max(max_bytes, HEADER_SIZE), limit - position)
        data = memoryview(self._disk.read(self.handle, position, length))
        frame = parse_header(data, 0, position)
        if whole and frame and len(data) < frame.length <= limit - position:
            data = memoryview(self._disk.read(self.handle, position, frame.length))
        return data

    def sound(self, position: int, limit: int) -> Iterator[Frame]:
        """Headers of all frames from `position` on, over damage to those behind it."""
        start: int | None = position
        while start is not None:
            end = start
            for frame in self.walk(start, limit):
                end = frame.position + frame.length
                yield frame
            start = self.next_sound(end, limit) if end < limit else None

    def next_sound(self, position: int, limit: int) -> int | None:
        """Where behind `position` the next whole, sound frame starts; frames start at multiples of eight."""
        raw = self._disk.read(self.handle, position, limit - position)
        data = memoryview(raw)
        at = raw.find(MAGIC)
        while at >= 0:
            frame = parse_header(data, at, position + at) if (position + at) % 8 == 0 else None
            if (
                frame
                and at + frame.length <= len(data)
                and frame.body(data[at : at + frame.length]) is not None
            ):
                return position + at
            at = raw.find(MAGIC, at + 1)
        return None

    def damaged(self, offset: int | None, position: int) -> DamagedError:
        """The error for a frame that fails its checksum."""
        at = f"the batch at offset {offset}" if offset is not None else "a batch"
        facts: dict[str, Any] = {"segment": self.path.name, "offset": offset, "position": position}
        return DamagedError(
            f"{at} in {self.path.parent.name}/{self.path.name} is damaged",
            detail=f"the checksum at byte {position} of {self.path} does not match",
            fix="headwater verify",
            **facts,
        )

    def __del__(self) -> None:
        # Not by whoever drops it from a cache: another thread may be reading.
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
