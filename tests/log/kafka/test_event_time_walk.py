"""Reads of indexed offset ranges find the same late rows, cached or not; judged by the definition on plain data."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from headwater.events import Codec
from headwater.log import LogBatch, Topic
from headwater.log.kafka.event_time_index import EventTimeWalk, OffsetRange, read_ranges
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind

LATENESS = 10
TOPIC = Topic.declare("orders", "at timestamp", time="at", lateness=timedelta(microseconds=LATENESS))
CODEC = Codec(TOPIC.schema)
ARRIVAL = 1_000_000


@dataclass
class PlainLog:
    """Stands for the log: records by offset, and the cached batches of some ranges."""

    times: dict[int, int]
    reads: random.Random
    topic: Topic = TOPIC
    cached: dict[int, LogBatch] = field(default_factory=dict)

    def batch(self, start: int, end: int) -> LogBatch:
        """Returns the records in `[start, end)`; gaps stand for commit markers and compacted records."""
        offsets = [offset for offset in range(start, end) if offset in self.times]
        values = pa.record_batch([pa.array([self.times[o] for o in offsets], pa.timestamp("us", "UTC"))], ["at"])
        frame = Frame(FrameKind.EVENTS, offsets[0], offsets[-1] + 1, count=len(offsets), appended_at=ARRIVAL)
        return LogBatch(self.topic, 0, frame, values, {"_hw.offset": pa.array(offsets, pa.int64())}, CODEC)

    def fetch(self, _: str, positions: dict[int, int], **__: Any) -> list[LogBatch]:
        left = sorted(offset for offset in self.times if offset >= positions[0])
        return [self.batch(left[0], left[min(len(left), self.reads.randint(1, 9)) - 1] + 1)] if left else []

    def get_cached_batch(self, _: str, __: int, base: int) -> LogBatch | None:
        return self.cached.get(base)

    def late(self, ranges: list[OffsetRange], start: int, end: int, *, use_cache: bool = True) -> list[int]:
        """Returns the offsets of the late rows of `[start, end)`, and checks that every row comes once, in order."""
        wanted = [each for each in ranges if each.base_offset < end]
        while wanted and max(wanted[0].next_offset, wanted[0].base_offset + 1) <= start:
            wanted.pop(0)
        found = list(read_ranges(self, "orders", 0, wanted, start, end, use_cache=use_cache))  # type: ignore[arg-type]
        assert [o for batch in found for o in batch.offsets.tolist()] == [o for o in self.times if start <= o < end]
        return [offset for batch in found for offset in batch.offsets[batch.late()].tolist()]


def index_randomly(chance: random.Random, log: PlainLog) -> tuple[list[OffsetRange], list[int]]:
    """Returns an index with random cuts and markers, and by definition the late offsets; caches every range."""
    ranges: list[OffsetRange] = []
    expected: list[int] = []
    base, maximum = 0, LOWEST_TIME
    offsets = list(log.times)
    while offsets:
        if chance.random() < 0.4:
            before, maximum = maximum, max(maximum, chance.randrange(200))
            ranges.append(OffsetRange(base, base, 0, 0, False, LOWEST_TIME, LOWEST_TIME, before, maximum))
        mine = [offsets.pop(0) for _ in range(min(len(offsets), chance.randint(1, 7)))]
        log.cached[base] = EventTimeWalk(maximum).annotate(log.batch(mine[0], mine[-1] + 1))
        ranges.append(OffsetRange.describe(base, log.cached[base]))
        for offset in mine:
            expected += [offset] if maximum > LOWEST_TIME and log.times[offset] < maximum - LATENESS else []
            maximum = max(maximum, log.times[offset])
        base = mine[-1] + 1
    return ranges, expected


@pytest.mark.parametrize("seed", range(60))
def test_cached_uncached_and_partly_cached_reads_find_the_same_late_rows(seed: int):
    chance = random.Random(seed)
    offsets = sorted(chance.sample(range(80), 50))
    log = PlainLog({offset: offset * 2 - chance.choice([0, 0, 5, 30]) for offset in offsets}, chance)
    ranges, expected = index_randomly(chance, log)
    everything = dict(log.cached)
    cuts = sorted(chance.sample(range(81), 4))
    for kept in (1.0, 0.0, 0.5):
        log.cached = {base: batch for base, batch in everything.items() if chance.random() < kept}
        assert log.late(ranges, 0, 80) == expected
        spans = zip([0, *cuts], [*cuts, 80], strict=True)
        assert [offset for start, end in spans for offset in log.late(ranges, start, end)] == expected


def test_a_batch_that_another_indexer_overtook_is_not_read_from_the_cache():
    log = PlainLog({0: 5, 1: 6}, random.Random(1))
    log.cached[0] = EventTimeWalk().annotate(log.batch(0, 2))  # written, but its range was never committed
    marker = OffsetRange(0, 0, 0, 0, False, LOWEST_TIME, LOWEST_TIME, LOWEST_TIME, 100)
    indexed = EventTimeWalk(100).annotate(log.batch(0, 2))
    assert log.late([marker, OffsetRange.describe(0, indexed)], 0, 2) == [0, 1]


def test_rows_are_judged_by_the_ahead_they_were_indexed_under():
    log = PlainLog({0: 5, 1: ARRIVAL + 100, 2: 6}, random.Random(1))
    strict = replace(TOPIC, ahead=timedelta(microseconds=50))
    ranges = [OffsetRange.describe(0, EventTimeWalk().annotate(replace(log.batch(0, 3), topic=strict)))]
    assert log.late(ranges, 0, 3) == []
    assert ranges[0].max_event_time == 6
