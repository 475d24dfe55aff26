"""Batch planning: the end offsets of a batch, the max event times there, and its division into tasks.

`plan_batch` and `split_into_tasks` depend only on the log. `BatchPacer` decides when a query plans its
next batch: at once while there is input and CPU capacity, otherwise after a wait.
"""

from __future__ import annotations

import heapq
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.log.protocol import PartitionEnd, TimedLog, TimedPartition, TimedTopic
from headwater.log.storage.frame import Frame

__all__ = ["BatchLimits", "BatchPacer", "Span", "plan_batch", "split_into_tasks"]

_MAX_PAUSE = 5.0  # seconds
_PRESSURE_FILE = Path("/proc/pressure/cpu")


class BatchPacer:
    """Coordinates the inputs of one query: the first input waits on behalf of all.

    Spark asks each input in turn for new offsets, and asks again at once if there are none. So the first input waits
    until a topic of the query changes. It does not wait in the next round, because Spark may ask the inputs in any
    order. Each input records in a shared file whether it stopped before its topic's end; while one did, no input waits.

    After a batch that reached the end, the first input pauses for the duration of the batch times the CPU pressure. So
    an idle machine has low latency, and a busy one runs fewer and larger batches.

    Args:
        log: The log with the topics.
        topics: All topics of the query.
        number: The number of this input in the query; input 0 waits.
        notes: A file with one byte per input.
        wait: The longest wait in seconds; Spark can stop the query only between two waits.
    """

    def __init__(self, log: TimedLog, topics: list[str], number: int, notes: str, wait: float) -> None:
        self._number = number
        self._wait = wait
        self._waiter = log.watch_event_times(topics) if number == 0 and wait else None
        self._file = os.open(notes, os.O_RDWR)
        self._backlog = mmap.mmap(self._file, len(topics))
        self._planned_at: float | None = None
        self._woken = False

    def before_planning(self) -> None:
        """Pause after a batch, in proportion to the CPU load."""
        if self._planned_at is None:
            return
        took = time.monotonic() - self._planned_at
        self._planned_at = None
        if self._number == 0 and self._wait:
            time.sleep(min(_MAX_PAUSE, took * _cpu_pressure()))

    def wait(self) -> None:
        """Wait for events of any input, unless one of them stopped before its topic's end."""
        if self._waiter is None:
            return
        if self._woken or any(self._backlog[:]):
            self._woken = False
        else:
            self._woken = self._waiter.wait(self._wait)

    def record_plan(self, *, new: bool, more: bool) -> None:
        """Record whether this input stopped before its topic's end."""
        self._backlog[self._number] = more
        if new and not more:
            self._planned_at = time.monotonic()


def _cpu_pressure() -> float:
    """Returns the CPU pressure of the machine: 0 if no work waits for a CPU, 1 if some always does."""
    try:
        fields = _PRESSURE_FILE.read_text().split()
        return float(fields[1].removeprefix("avg10=")) / 100
    except (OSError, ValueError, IndexError):  # a kernel without pressure stall information
        return min(1.0, max(0.0, os.getloadavg()[0] / (os.cpu_count() or 1) - 0.5))


_SINGLE_TASK_ROWS = 20_000  # up to this size a second task costs more than it saves
_SINGLE_TASK_BYTES = 8 << 20  # a task's rows are held in memory together


@dataclass(frozen=True)
class Span:
    """Offsets `[start, end)` of one partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class BatchLimits:
    """The limits of what one input adds to a batch. A batch takes at least one frame, however large.

    Args:
        rows: The approximate limit of rows.
        size: The limit of bytes in memory.
    """

    rows: int
    size: int


def plan_batch(
    topic: TimedTopic, positions: Mapping[int, int], limits: BatchLimits, target: Mapping[int, int] | None = None
) -> tuple[dict[int, int], dict[int, int], bool]:
    """Plan a batch from these positions.

    A batch takes all available events if these are within the limits. Otherwise partitions advance together in event
    time, frame by frame, the one that is furthest behind first. So a backlog has no more open windows, and no more late
    events, than live input. A partition that was added to the topic is read from its start.

    Args:
        topic: The topic.
        positions: The start offset of each partition.
        limits: The limits of rows and bytes.
        target: End offsets that the query must not exceed, if it has an end.

    Returns:
        The end offsets, the max event times there, and whether there is more input.
    """
    # Read once: an event that is appended after its partition's end was fixed must not advance the watermark.
    partitions = topic.partitions
    states = {partition.number: partition.state() for partition in partitions}
    ends = {number: slot.next_offset for number, slot in states.items()}
    positions = {number: positions.get(number, 0) for number in states}
    if target is not None:
        ends = {number: min(end, target.get(number, 0)) for number, end in ends.items()}
    elif sum(ends[number] - positions[number] for number in ends) <= limits.rows:
        new = [(partitions[number], start) for number, start in positions.items() if start < ends[number]]
        if sum(partition.size(start, ends[partition.number]) for partition, start in new) <= limits.size:
            return ends, {number: slot.max_event_time for number, slot in states.items()}, False
    max_event_times = {
        number: _max_event_time_at(partitions[number], position, states[number])
        for number, position in positions.items()
    }
    frames = {number: partitions[number].frame_headers(start, ends[number]) for number, start in positions.items()}
    return _plan_by_event_time(frames, dict(positions), max_event_times, limits)


def _max_event_time_at(partition: TimedPartition, position: int, state: PartitionEnd) -> int:
    """Returns the max event time before an offset; `state` is the end of the partition."""
    following = next(partition.frame_headers(position, state.next_offset), None)
    return state.max_event_time if following is None else following.max_event_time_before


def _plan_by_event_time(
    frames: Mapping[int, Iterator[Frame]], reached: dict[int, int], max_event_times: dict[int, int], limits: BatchLimits
) -> tuple[dict[int, int], dict[int, int], bool]:
    """Advance `reached` and `max_event_times` through the frames of the partitions, in order of event time."""
    # Partition numbers differ, so the heap never compares frames.
    waiting: list[tuple[int, int, Frame, Iterator[Frame]]] = []
    for number, headers in frames.items():
        first = next(headers, None)
        if first is not None:
            heapq.heappush(waiting, (first.max_event_time_before, number, first, headers))
    count = size = 0
    while waiting and count < limits.rows:
        _, number, frame, headers = waiting[0]
        if count and frame.count and size + frame.length > limits.size:
            break
        reached[number], max_event_times[number] = frame.next_offset, frame.max_event_time
        count, size = count + frame.count, size + frame.length
        following = next(headers, None)
        if following is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following.max_event_time_before, number, following, headers))
    return reached, max_event_times, bool(waiting)


def split_into_tasks(
    topic: TimedTopic, start: Mapping[int, int], end: Mapping[int, int], cores: int
) -> list[list[Span]]:
    """Split a range into one task per core; a small range is one task, because each task has a fixed cost."""
    spans = [
        Span(number, start.get(number, 0), end[number]) for number in sorted(end) if start.get(number, 0) < end[number]
    ]
    total = sum(span.end - span.start for span in spans)
    partitions = topic.partitions
    size = sum(partitions[span.partition].size(span.start, span.end) for span in spans)
    if (total <= _SINGLE_TASK_ROWS and size <= _SINGLE_TASK_BYTES) or cores == 1:
        return [spans]
    # About two pieces per task: frames differ in size, and smaller pieces balance better.
    limits = BatchLimits(total // (2 * cores), size // (2 * cores))
    pieces = [piece for span in spans for piece in _split_span(partitions[span.partition], span, limits)]
    loads: list[tuple[float, int, list[Span]]] = [(0.0, number, []) for number in range(cores)]
    # Largest first, to the least loaded task.
    for load, piece in sorted(pieces, key=lambda each: -each[0]):
        assigned_load, number, assigned = heapq.heappop(loads)
        assigned.append(piece)
        heapq.heappush(loads, (assigned_load + load, number, assigned))
    tasks = [assigned for _, _, assigned in sorted(loads, key=lambda load: load[1]) if assigned]
    return [sorted(task, key=lambda piece: (piece.partition, piece.start)) for task in tasks]


def _split_span(partition: TimedPartition, span: Span, limits: BatchLimits) -> Iterator[tuple[float, Span]]:
    """Split a span at frame boundaries into pieces of about the limits; yields each with its share of them."""
    start = at = span.start
    rows = size = 0

    def load() -> float:
        return max(rows / max(1, limits.rows), size / max(1, limits.size))

    for frame in partition.frame_headers(span.start, span.end):
        at, rows, size = frame.next_offset, rows + frame.count, size + frame.length
        if rows >= limits.rows or size >= limits.size:
            yield load(), Span(span.partition, start, at)
            start, rows, size = at, 0, 0
    if start < span.end:
        yield load(), Span(span.partition, start, span.end)
