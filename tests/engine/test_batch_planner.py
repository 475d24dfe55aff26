"""How far a batch goes, and how it is divided into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headwater as hw
from headwater.engine.source import batch_planner
from headwater.engine.source.batch_planner import BatchLimits, Span, plan_batch, split_into_tasks
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.protocol import TimedTopic
from headwater.log.storage.frame import LOWEST_TIME
from tests.log.given import rows_of

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
SECOND = 1_000_000


def rows(count: int) -> BatchLimits:
    """Limits that events of these tests reach by their number only."""
    return BatchLimits(count, 1 << 30)


def micros(second: int) -> int:
    return int((START + timedelta(seconds=second)).timestamp()) * SECOND


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Callable[..., TimedTopic]]:
    """A topic with a frame for each event; each argument has the seconds of one partition."""
    with EventLog(tmp_path, clock=ManualClock(START)) as log:

        def make(*partitions: list[int]) -> TimedTopic:
            log.create(hw.Topic.declare("t", "at timestamp", time="at", partitions=len(partitions)))
            for number, seconds in enumerate(partitions):
                for second in seconds:
                    value = {"at": START + timedelta(seconds=second)}
                    log.append("t", rows_of(log.topic("t"), [value], partition=number))
            return log.open_topic("t")

        yield make


def test_a_batch_takes_all_there_is_if_it_is_small(topic):
    ends, times, more = plan_batch(topic([0, 1], [5]), {0: 1, 1: 0}, rows(2))
    assert (ends, times, more) == ({0: 2, 1: 1}, {0: micros(1), 1: micros(5)}, False)


def test_partitions_of_a_backlog_advance_together_in_event_time(topic):
    made = topic([0, 1, 2, 30, 31], [3, 20, 21])
    positions, order, more = {0: 0, 1: 0}, [], True
    while more:
        ends, _, more = plan_batch(made, positions, rows(1))
        order += [partition for partition in ends if ends[partition] > positions[partition]]
        positions = ends
    assert order == [0, 1, 0, 0, 0, 1, 1, 0]  # the partition with the lower event time so far
    assert plan_batch(made, {0: 0, 1: 0}, rows(6))[0] == {0: 4, 1: 2}  # the same order within a batch
    assert plan_batch(made, {0: 4, 1: 1}, rows(2)) == ({0: 4, 1: 3}, {0: micros(30), 1: micros(21)}, True)


def sizes(partition: Any, end: int) -> list[int]:
    """The bytes of each frame."""
    return [frame.length for frame in partition.frame_headers(0, end)]


def test_a_batch_is_limited_by_bytes_although_there_are_few_events(topic):
    made = topic([0, 1, 2, 3])
    frame = sizes(made.partitions[0], 4)[0]
    assert plan_batch(made, {0: 0}, BatchLimits(100, 4 * frame)) == ({0: 4}, {0: micros(3)}, False)
    assert plan_batch(made, {0: 0}, BatchLimits(100, 4 * frame - 1)) == ({0: 3}, {0: micros(2)}, True)
    assert plan_batch(made, {0: 3}, BatchLimits(100, frame)) == ({0: 4}, {0: micros(3)}, False)


def test_a_batch_takes_one_frame_however_large_it_is(topic):
    assert plan_batch(topic([0, 1, 2, 3], [1]), {0: 0, 1: 0}, BatchLimits(100, 1)) == (
        {0: 1, 1: 0}, {0: micros(0), 1: LOWEST_TIME}, True
    )  # fmt: skip


def test_bytes_of_all_partitions_count_together(topic):
    made = topic([0, 1], [0, 1])
    limits = BatchLimits(100, sum(sizes(made.partitions[0], 2)))
    assert sum(plan_batch(made, {0: 0, 1: 0}, limits)[0].values()) == 2


def test_small_input_is_planned_without_a_walk_over_frames(topic):
    """Once a plan has reached the end, the next ones cost the same however much the log holds."""
    made = topic([0, 1, 2, 3])
    plan_batch(made, {0: 0}, rows(100))
    walked = []
    for partition in made.partitions:
        segment = partition.files.segment(0)
        segment.walk = lambda *arguments, **_: walked.append(arguments) or iter(())
    made.partitions[0].append_idle_marker(micros(9))
    assert plan_batch(made, {0: 4}, rows(100)) == ({0: 5}, {0: micros(9)}, False)
    assert not walked


def test_a_query_with_an_end_stops_there(topic):
    ends, _, more = plan_batch(topic([0, 1, 2], [3]), {0: 0, 1: 0}, rows(100), target={0: 2})
    assert (ends, more) == ({0: 2, 1: 0}, False)


class AppendsBeforeFrames:
    """A partition to which another process appends just before the planner reads the frames of the next one."""

    def __init__(self, partition: Any, append: Callable[[], None]) -> None:
        self._partition, self._append = partition, append
        self.number, self.state = partition.number, partition.state

    def frame_headers(self, start: int, end: int) -> Iterator[Any]:
        self._append()
        return self._partition.frame_headers(start, end)


def test_an_event_that_arrives_while_a_batch_is_planned_does_not_advance_its_watermark(topic, tmp_path):
    made = topic([0], [0, 1, 2])
    log, appended = EventLog(tmp_path, clock=ManualClock(START)), []

    def append() -> None:
        if not appended:
            appended.extend([5, 60])  # the first is in time by then, and above the watermark of the second
            rows = [{"at": START + timedelta(seconds=second)} for second in appended]
            log.append("t", rows_of(log.topic("t"), rows, partition=0))

    partitions = [AppendsBeforeFrames(partition, append) for partition in made.partitions]
    planned = plan_batch(SimpleNamespace(partitions=partitions), {0: 1, 1: 0}, rows(1))
    assert appended
    assert planned == ({0: 1, 1: 1}, {0: micros(0), 1: micros(0)}, True)


def test_events_after_the_end_of_a_query_do_not_advance_its_watermark(topic):
    made = topic([0, 60], [0, 1])
    ends, times, _ = plan_batch(made, {0: 1, 1: 0}, rows(100), target={0: 1, 1: 2})
    assert (ends, times) == ({0: 1, 1: 2}, {0: micros(0), 1: micros(1)})


def test_a_new_partition_is_read_from_its_start(topic):
    assert plan_batch(topic([0, 1], [5]), {0: 2}, rows(100))[0] == {0: 2, 1: 1}


def test_a_small_range_is_one_task(topic):
    made = topic([0, 1, 2], [3])
    assert split_into_tasks(made, {0: 1}, {0: 3, 1: 1}, 4) == [[Span(0, 1, 3), Span(1, 0, 1)]]
    assert split_into_tasks(made, {0: 3, 1: 1}, {0: 3, 1: 1}, 4) == [[]]


def test_a_small_number_of_large_events_is_divided_into_tasks(topic, monkeypatch):
    monkeypatch.setattr(batch_planner, "_SINGLE_TASK_BYTES", 3)
    tasks = split_into_tasks(topic(list(range(12))), {0: 0}, {0: 12}, 2)
    assert sorted((span.end - span.start) for task in tasks for span in task) == [3, 3, 3, 3]


def test_a_large_range_is_divided_evenly_and_completely(topic, monkeypatch):
    monkeypatch.setattr(batch_planner, "_SINGLE_TASK_ROWS", 3)
    tasks = split_into_tasks(topic(list(range(12)), [1, 2]), {0: 2, 1: 0}, {0: 12, 1: 2}, 3)
    assert [sum(span.end - span.start for span in task) for task in tasks] == [4, 4, 4]
    read = sorted((span.partition, offset) for task in tasks for span in task for offset in range(span.start, span.end))
    assert read == [*((0, offset) for offset in range(2, 12)), (1, 0), (1, 1)]
