"""Counts the events of a partition from an offset on.

Offsets are not events: an idle marker takes one, and compaction leaves gaps. Each segment header records the idle
markers of the segment before it, so only the segment that holds the first offset and the active one are walked.
"""

from __future__ import annotations

from itertools import pairwise

from headwater.log.storage.frame import FrameKind
from headwater.log.storage.partition_state import PartitionState
from headwater.log.storage.segment import Segment, SegmentFiles

__all__ = ["EventCounts"]


class EventCounts:
    """The offsets of a partition that hold no event, as far as they were needed.

    Args:
        files: The partition's segments.
    """

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        # By segment: walked bytes, next offset, and runs of offsets without an event as (first offset, length).
        self._walked: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
        self._closed: dict[int, int] = {}  # by closed segment: its offsets without an event

    def invalidate(self) -> None:
        """Forget everything after files changed."""
        self._walked, self._closed = {}, {}

    def count(self, start: int, state: PartitionState) -> int:
        """Returns the number of events from an offset to the end."""
        start = min(max(start, state.start_offset), state.next_offset)
        bases = [base for base in self._files.bases(fresh=True) if base <= state.segment]
        ranges = [pair for pair in pairwise([*bases, state.next_offset]) if pair[1] > start]
        return state.next_offset - start - sum(self._empty(*pair, start, state) for pair in ranges)

    def _empty(self, base: int, end: int, start: int, state: PartitionState) -> int:
        """Returns how many offsets of a segment, from `start` on, hold no event."""
        whole = start <= base and base != state.segment
        if whole and base in self._closed:
            return self._closed[base]
        segment = self._files.segment(base)
        empty = None
        if whole and not segment.header()[1].covers_until:
            empty = self._files.segment(end).header()[1].markers
        if empty is None:
            reached, runs = self._walk(segment, self._files.valid_length(segment, state))
            empty = sum(length for first, length in runs if first >= start) + max(0, end - max(reached, start))
        if whole:
            self._closed[base] = empty
        return empty

    def markers(self, segment: Segment, length: int) -> int:
        """Returns the number of idle markers in the active segment."""
        return sum(run for _, run in self._walk(segment, length)[1])

    def _walk(self, segment: Segment, length: int) -> tuple[int, list[tuple[int, int]]]:
        position, reached, runs = self._walked.get(segment.base, (0, segment.base, []))
        for frame in segment.walk(position, length):
            position = frame.position + frame.length
            if frame.kind is not FrameKind.SEGMENT_HEADER:
                empty = frame.next_offset - reached - frame.count
                if empty:
                    runs.append((reached, empty))
                reached = frame.next_offset
        self._walked[segment.base] = (position, reached, runs)
        return reached, runs
