"""Counts of events: idle markers and offsets that compaction removed are not events."""

from __future__ import annotations

import random

import pytest

import headwater as hw
from headwater.log import Retention
from headwater.log.maintenance.maintenance import Maintenance
from tests.log.given import declared, events, rows_of, tombstone

SIZES = [1, 700, 1 << 20]


def filled(log, size: int, **options):
    """Two hundred appends of some events or an idle marker, in segments of this size."""
    chance, topic = random.Random(size), log.create(declared(segment_size=size, time="at", **options))
    for number in range(200):
        if chance.random() < 0.3:
            log.open_topic("orders").partitions[0].append_idle_marker(number)
        else:
            rows = [{"id": str(chance.randrange(9)), "at": log.clock.now()}] * chance.randint(1, 3)
            log.append("orders", rows_of(topic, rows))
    return topic


@pytest.mark.parametrize("size", SIZES)
def test_events_are_counted_from_every_offset(log, size):
    filled(log, size)
    offsets = [event.offset for event in events(log)]
    end = log.ends("orders")[0].end
    assert end > len(offsets)
    for start in range(end + 1):
        assert log.count_events("orders", {0: start}) == {0: sum(offset >= start for offset in offsets)}


@pytest.mark.parametrize("size", SIZES)
def test_counts_grow_with_the_log(log, size):
    topic = filled(log, size)
    before = log.count_events("orders")[0]
    log.open_topic("orders").partitions[0].append_idle_marker(1)
    log.append("orders", rows_of(topic, [{"id": "a", "at": log.clock.now()}]))
    assert log.count_events("orders") == {0: before + 1}


def test_what_retention_and_compaction_removed_is_not_counted(log, clock):
    topic = filled(log, 700, key="id", compact=True, retention=Retention(size=5_000))
    log.append("orders", tombstone(topic, "3"))
    maintenance = Maintenance(log)
    maintenance.compact(log.open_topic("orders"), eager=True)
    assert log.count_events("orders") == {0: len(events(log))}
    maintenance.apply_retention(log.open_topic("orders"))
    start = log.ends("orders")[0].start
    assert log.count_events("orders") == {0: len(events(log, offset=start))}


def test_lag_counts_events_and_no_markers(log, clock):
    topic = log.create(declared(time="at"))
    with hw.Client(log, clock) as client:
        with client.consumer("orders", group="billing") as consumer:
            log.append("orders", rows_of(topic, [{"id": "a", "at": clock.now()}] * 5))
            for time in range(3):
                log.open_topic("orders").partitions[0].append_idle_marker(time)
            assert [lag.events for lag in client.lag("billing")] == [5]
            next(iter(consumer))
            consumer.commit()
        assert [lag.events for lag in client.lag("billing")] == [4]
