"""Where in a partition's files an offset is."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headwater.errors import BadOffsetError, DamagedError, DataGoneError
from headwater.log.storage.ends import Slot
from headwater.log.storage.files import Files
from headwater.log.storage.segment import Segment, segment_name

__all__ = ["Finder"]

_MOST_CURSORS = 64


class Finder:
    """Finds offsets, and remembers where reads stopped, so that one that goes on need not search.

    Args:
        files: The partition's segments.
        number: Which partition, for errors.
        slot: The partition's published state, read anew.
    """

    def __init__(self, files: Files, number: int, slot: Callable[[], Slot]) -> None:
        self._files = files
        self._number = number
        self._slot = slot
        self._lock = threading.Lock()
        self._cursors: dict[int, tuple[Segment, int]] = {}

    def forget(self) -> None:
        """Drop what is remembered, after files changed."""
        with self._lock:
            self._cursors.clear()

    def require_there(self, offset: int, slot: Slot) -> None:
        """The partition holds this offset, or ends there.

        Raises:
            BadOffsetError: It is outside.
            DataGoneError: Retention has removed it.
        """
        if offset > slot.next_offset or offset < 0:
            raise BadOffsetError(
                f"offset {offset} is outside partition {self._number}, which ends at {slot.next_offset}",
                offset=offset,
                end=slot.next_offset,
                partition=self._number,
            )
        if offset < slot.start_offset:
            raise DataGoneError(
                f"offsets {offset} to {slot.start_offset - 1} of partition {self._number} are gone",
                detail=f"retention removed them; the partition now starts at {slot.start_offset}",
                fix='start="earliest", or headwater reset GROUP --to earliest',
                partition=self._number,
                first=offset,
                last=slot.start_offset - 1,
                start=slot.start_offset,
            )

    def locate(self, offset: int, slot: Slot, tries: int = 3) -> tuple[Segment, int, int]:
        """Segment, position and readable bytes for an offset that is there.

        Raises:
            DamagedError: Its segment is missing, or cannot be read up to it.
        """
        known = self._cursors.get(offset)
        try:
            segment = known[0] if known else self._files.segment(self._files.base_below(offset, slot))
            limit = self._files.limit(segment, slot)
        except FileNotFoundError:  # removed or rewritten since it was listed
            self.forget()
            self._files.forget()
            fresh = self._slot()
            self.require_there(offset, fresh)
            if not tries:
                raise self._missing(offset, self._files.next_base(offset, fresh)) from None
            return self.locate(offset, fresh, tries - 1)
        if known:
            return segment, known[1], limit
        reached, position = segment.landmark(offset)
        for frame in segment.walk(position, limit) if offset > segment.base else ():
            if frame.next_offset > offset:
                return segment, frame.position, limit
            position, reached = frame.position + frame.length, frame.next_offset
        if 0 < position < limit:
            raise segment.damaged(reached, position)
        return segment, position, limit

    def behind(self, segment: Segment, offset: int, slot: Slot) -> int:
        """Where the segment behind one that ends before `offset` starts; a gap is compaction's, or damage."""
        self._cursors.pop(offset, None)
        following = self._files.next_base(segment.base, slot)
        if following > offset and segment.head()[1].covers_until < following:
            raise self._missing(offset, following)
        return following

    def _missing(self, offset: int, following: int) -> DamagedError:
        return DamagedError(
            f"offsets {offset} to {following - 1} of {self._files.folder.parent.name}/{self._number} are missing",
            detail=f"no segment in {self._files.folder} holds them",
            fix="headwater verify",
            segment=segment_name(offset),
            offset=offset,
            position=0,
        )

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """A read that ended before this offset stopped here: the next one goes on without a search."""
        with self._lock:
            while len(self._cursors) >= _MOST_CURSORS:
                self._cursors.pop(next(iter(self._cursors)))
            self._cursors[offset] = (segment, position)
