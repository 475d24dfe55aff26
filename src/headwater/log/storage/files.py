"""The segment files of a partition: which there are, and open ones at hand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import DamagedError
from headwater.log.storage.disk import Disk
from headwater.log.storage.ends import Slot
from headwater.log.storage.frame import Frame
from headwater.log.storage.segment import Segment, base_of, segment_name

__all__ = ["Files"]

_MOST_OPEN = 8
_CHUNK = 1 << 20


class Files:
    """Segments by their base offset; remembers the listing and a few open files until told to forget them."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk = disk
        self.folder = folder
        self._lock = threading.Lock()  # never held across a sync
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []

    def segment(self, base: int) -> Segment:
        """The segment that starts at this offset."""
        with self._lock:
            found = self._segments.get(base)
            if found is None:
                while len(self._segments) >= _MOST_OPEN:
                    self._segments.pop(next(iter(self._segments)))
                found = self._segments[base] = Segment(self.disk, self.folder, base)
            return found

    def bases(self, *, fresh: bool = False) -> list[int]:
        """First offsets of all segments, in order."""
        if fresh or not self._bases:
            names = self.disk.names(self.folder)
            self._bases = sorted(base for name in names if (base := base_of(name)) is not None)
        return self._bases

    def base_below(self, offset: int, slot: Slot) -> int:
        """Base of the segment that holds an offset."""
        bases = self._all(slot)
        if not bases or bases[0] > offset:
            bases = self.bases(fresh=True)
        if not bases or bases[0] > offset:
            raise FileNotFoundError(self.folder / segment_name(offset))
        return max(base for base in bases if base <= offset)

    def next_base(self, base: int, slot: Slot) -> int:
        """Base of the segment behind this one; the partition's end when it is the last."""
        return min((other for other in self._all(slot) if other > base), default=slot.next_offset)

    def _all(self, slot: Slot) -> list[int]:
        """The bases up to the one being written: another process may have rolled since they were listed."""
        bases = self.bases()
        return bases if bases and bases[-1] >= slot.segment else self.bases(fresh=True)

    def limit(self, segment: Segment, slot: Slot) -> int:
        """How many bytes of a segment count."""
        if segment.base == slot.segment:
            return slot.length
        if segment.sealed_length is None:
            segment.sealed_length = min(self.disk.size(segment.handle), self._closed_at(segment, slot))
        return segment.sealed_length

    def _closed_at(self, segment: Segment, slot: Slot) -> int:
        """How many bytes counted when the segment was closed; the one behind it knows, unless it is damaged."""
        whole = self.disk.size(segment.handle)
        with contextlib.suppress(DamagedError):
            previous = self.segment(self.next_base(segment.base, slot)).head()[1].previous
            if previous and previous[0] == segment.base and not segment.head()[1].covers_until:
                return previous[1]
        return whole

    def size_of(self, base: int) -> int:
        """Bytes of a segment's file."""
        segment = self.segment(base)  # held by name: the file is closed with the last reference
        return self.disk.size(segment.handle)

    def frames(self, base: int, slot: Slot) -> Iterator[tuple[Frame, memoryview]]:
        """All frames of a segment, read in pieces, checksums compared."""
        segment = self.segment(base)
        position, limit = 0, self.limit(segment, slot)
        while position < limit:
            for frame, data in segment.read(position, limit, _CHUNK):
                position = frame.position + frame.length
                yield frame, data

    def forget(self) -> None:
        """Look at the folder anew; whoever still reads an old file keeps it open."""
        with self._lock:
            self._segments.clear()
            self._bases = []
