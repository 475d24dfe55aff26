"""Ranges of a topic's offsets: how far a batch goes, how it is cut into tasks, where its watermark stands."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from headwater.log.protocol import TimedTopic
from headwater.log.storage.frame import LOWEST_TIME, Frame

__all__ = ["Span", "advance", "slices_of", "watermark_at"]

_SMALL_BATCH = 20_000
_LARGEST_BATCH = 96 << 20
_MILLISECOND = 1_000
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Span:
    """Offsets `[start, end)` of one partition."""

    partition: int
    start: int
    end: int


def watermark_at(running: Mapping[int, int], lateness: int, usual: timedelta) -> int:
    """The watermark where partitions have these running maxima: no event that is in time lies below it.

    Args:
        running: Highest event time so far, per partition.
        lateness: How long the query waits, in microseconds; negative: as long as the topic says.
        usual: What the topic says.

    Whole milliseconds, because Spark counts in them.

    Example:
        >>> watermark_at({0: 9_000, 1: 7_100}, 2_000, timedelta())
        5000
    """
    lowest = min(running.values())
    allowed = usual // _MICROSECOND if lateness < 0 else lateness
    if lowest <= LOWEST_TIME + allowed:
        return LOWEST_TIME
    return (lowest - allowed) // _MILLISECOND * _MILLISECOND


def advance(
    topic: TimedTopic, positions: Mapping[int, int], rows: int, target: Mapping[int, int] | None = None
) -> tuple[dict[int, int], dict[int, int], bool]:
    """Where a batch from these positions ends.

    All there is, if that is about `rows` at most. Otherwise partitions move forward together in event time, frame by
    frame, the one that is furthest behind first: so a backlog keeps no more windows open than live events do. A
    partition that the topic was given since then is read from its start.

    Returns:
        The new positions, the running maxima there, and whether there is more.
    """
    slots = {partition.number: partition.slot() for partition in topic.partitions}
    ends = {number: slot.next_offset for number, slot in slots.items()}
    positions = {number: positions.get(number, 0) for number in slots}
    if target is not None:
        ends = {number: min(end, target.get(number, 0)) for number, end in ends.items()}
    elif sum(ends[number] - positions[number] for number in ends) <= rows:
        return ends, {number: slot.running_max for number, slot in slots.items()}, False
    return _together(topic, positions, ends, rows)


def _together(
    topic: TimedTopic, positions: Mapping[int, int], ends: Mapping[int, int], rows: int
) -> tuple[dict[int, int], dict[int, int], bool]:
    reached, running = dict(positions), {}
    waiting: list[tuple[int, int, Frame, Iterator[Frame]]] = []
    for number, position in positions.items():
        headers = topic.partitions[number].headers(position, ends[number])
        first = next(headers, None)
        running[number] = first.running_before if first else topic.partitions[number].slot().running_max
        if first is not None:
            heapq.heappush(waiting, (first.running_before, number, first, headers))
    taken = size = 0
    while waiting and taken < rows and size < _LARGEST_BATCH:
        _, number, frame, headers = heapq.heappop(waiting)
        reached[number], running[number] = frame.next_offset, frame.running_max
        taken, size = taken + frame.count, size + frame.length
        following = next(headers, None)
        if following is not None:
            heapq.heappush(waiting, (following.running_before, number, following, headers))
    return reached, running, bool(waiting)


def slices_of(
    topic: TimedTopic, start: Mapping[int, int], end: Mapping[int, int], cores: int
) -> list[list[Span]]:
    """The range in as many parts as there are cores; a small one stays whole, since each task has a price."""
    spans = [
        Span(number, start.get(number, 0), end[number])
        for number in sorted(end)
        if start.get(number, 0) < end[number]
    ]
    total = sum(span.end - span.start for span in spans)
    if total <= _SMALL_BATCH or cores == 1:
        return [spans]
    return _cut([piece for span in spans for piece in _pieces(topic, span, total // (2 * cores))], cores)


def _pieces(topic: TimedTopic, span: Span, rows: int) -> Iterator[Span]:
    """The span cut between frames into pieces of about so many rows."""
    start = at = span.start
    taken = 0
    for frame in topic.partitions[span.partition].headers(span.start, span.end):
        at, taken = frame.next_offset, taken + frame.count
        if taken >= rows:
            yield Span(span.partition, start, at)
            start, taken = at, 0
    if start < span.end:
        yield Span(span.partition, start, span.end)


def _cut(pieces: list[Span], tasks: int) -> list[list[Span]]:
    """Each piece to the task that has least."""
    loads: list[tuple[int, int, list[Span]]] = [(0, number, []) for number in range(tasks)]
    for piece in sorted(pieces, key=lambda piece: piece.start - piece.end):
        load, number, mine = heapq.heappop(loads)
        mine.append(piece)
        heapq.heappush(loads, (load + piece.end - piece.start, number, mine))
    order = sorted(loads, key=lambda load: load[1])
    return [sorted(mine, key=lambda piece: (piece.partition, piece.start)) for _, _, mine in order if mine]
