"""What is known of the tombstones that brokers have removed."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import headwater as hw
from headwater.errors import DataGoneError
from headwater.events import SystemClock
from headwater.log.kafka import KafkaLog
from headwater.log.kafka.topics import KafkaTopics
from headwater.log.tombstones import TombstoneHorizon, check_tombstones
from tests.client.shop import fresh
from tests.log.kafka.plain import consume
from tests.services.kafka import Broker

HOUR = timedelta(hours=1) // timedelta(microseconds=1)
NOON = 20_000 * 24 * HOUR


def horizons(now: int, arrivals: list[int], policy: str = "compact") -> list[TombstoneHorizon]:
    """The horizon of one partition whose events arrived at these times, with tombstones kept for a day."""
    topics: Any = SimpleNamespace(
        _describe_config=lambda *_: {"cleanup.policy": policy, "delete.retention.ms": str(24 * HOUR // 1000)},
        end_offsets=lambda *_: {0: len(arrivals)},
        offset_for_time=lambda name, partition, micros: next(
            (offset for offset, at in enumerate(arrivals) if at >= micros), None
        ),
    )
    return KafkaTopics.tombstone_horizons(topics, "products", 1, now)


def test_a_topic_that_is_not_compacted_loses_no_tombstones():
    assert horizons(NOON, [NOON - 99 * HOUR], "delete") == []


def test_tombstones_may_be_gone_a_day_after_they_arrived():
    arrivals = [NOON - age * HOUR for age in (72, 48, 23, 1)]
    assert [horizon.until for horizon in horizons(NOON, arrivals)] == [2]
    assert [horizon.until for horizon in horizons(NOON + 48 * HOUR, arrivals)] == [4]
    check_tombstones("products", horizons(NOON, arrivals), {0: 2}, {})
    with pytest.raises(DataGoneError):
        check_tombstones("products", horizons(NOON, arrivals), {0: 1}, {})


def test_a_reader_that_began_at_the_start_is_right_for_a_day():
    arrivals = [NOON - age * HOUR for age in (72, 48, 23, 1)]
    marks = {horizon.partition: horizon.fresh for horizon in horizons(NOON, arrivals)}
    check_tombstones("products", horizons(NOON + 23 * HOUR, arrivals), {0: 1}, marks)
    with pytest.raises(DataGoneError):
        check_tombstones("products", horizons(NOON + 25 * HOUR, arrivals), {0: 1}, marks)


def test_a_group_that_was_away_while_brokers_removed_tombstones_is_refused(kafka: Broker):
    name, url = fresh(), f"kafka://{kafka.address}?session.timeout.ms=1500"
    eager = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
    with KafkaLog(url) as log:
        client = hw.Client(log, SystemClock())
        client.create_topic(name, "id int", key="id", compact=True)
        log.kafka_topics.configure(name, {"cleanup.policy": "compact"} | eager)
        client.send_many(name, [{"id": n} for n in range(3)])
        with client.consumer(name, group="away", timeout="5 s") as consumer:
            assert len(consumer.poll(5, most=1)) == 1
            consumer.commit()
        client.delete(name, key=1)
        deadline = time.monotonic() + 60
        while any(message.value() is None for message in consume(kafka.address, name)):
            assert time.monotonic() < deadline, "the brokers removed no tombstone"
            time.sleep(0.2)  # until the next append begins a segment
            client.send(name, {"id": 3})
    with KafkaLog(url) as log:
        client = hw.Client(log, SystemClock())
        with pytest.raises(DataGoneError) as caught, client.consumer(name, group="away", timeout="5 s") as consumer:
            consumer.poll(5)
        assert caught.value.data["first"] == 1
