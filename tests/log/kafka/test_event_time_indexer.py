"""Event time on Kafka equals that of the embedded log, whichever process indexes it and after restarts."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import headwater as hw
from headwater.events import ManualClock
from headwater.log import EventLog, Topic
from headwater.log.kafka import KafkaLog, event_time_indexer
from headwater.log.storage.frame import LOWEST_TIME
from tests.client.shop import fresh
from tests.log.kafka.plain import produce
from tests.services.kafka import Broker

pytestmark = pytest.mark.services
TYPE = "id int, at timestamp"


@pytest.fixture
def open_log(kafka: Broker) -> Iterator[Callable[..., KafkaLog]]:
    """Opens logs that index event time, as several processes would."""
    made: list[KafkaLog] = []

    def make(**options: object) -> KafkaLog:
        made.append(KafkaLog(f"kafka://{kafka.address}", index_time=True, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for log in made:
        log.close()


def topic(name: str, **options: object) -> Topic:
    return Topic.declare(name, TYPE, time="at", lateness="10 seconds", **options)  # type: ignore[arg-type]


def rows(seed: int, count: int) -> list[dict[str, object]]:
    chance = random.Random(seed)
    seconds = [max(0, n + chance.choice([0, 3, -5, -40])) for n in range(count)]
    return [{"id": n, "at": f"2026-01-01T00:{s // 60:02}:{s % 60:02}Z"} for n, s in enumerate(seconds)]


def late(log: KafkaLog | EventLog, name: str) -> list[int]:
    """Which ids are late, by the log's own rule."""
    opened = log.open_topic(name)
    end = opened.partitions[0].state().next_offset
    return [
        int(batch.values.column("id")[int(row)].as_py())
        for batch in opened.batches(0, 0, end)
        for row in batch.late().nonzero()[0]
    ]


def test_the_same_events_are_late_as_in_the_embedded_log(open_log: Callable[..., KafkaLog], tmp_path: Path):
    name, sent = fresh(), rows(1, 300)
    with EventLog(tmp_path) as embedded:
        embedded.create(topic(name))
        hw.Client(embedded, embedded.clock).send_many(name, sent)
        expected = late(embedded, name)
        running_max = embedded.open_topic(name).partitions[0].state().max_event_time
    log = open_log()
    log.create(topic(name))
    log.open_topic(name)
    client = hw.Client(log, log.clock)
    for start in range(0, 300, 70):
        client.send_many(name, sent[start : start + 70])
        log.await_event_time(name)
    assert len(expected) > 20
    assert late(log, name) == expected
    assert log.open_topic(name).partitions[0].state().max_event_time == running_max


def test_offset_ranges_are_contiguous_over_restarts(open_log: Callable[..., KafkaLog]):
    name, sent = fresh(), rows(2, 120)
    for start in range(0, 120, 40):
        log = open_log()
        log.create(topic(name))
        log.open_topic(name)
        hw.Client(log, log.clock).send_many(name, sent[start : start + 40])
        log.await_event_time(name)
        log.close()
    log = open_log()
    (partition,) = log.open_topic(name).partitions
    frames = list(partition.frame_headers(0, 120))
    assert next(frame.base_offset for frame in frames) == 0
    assert all(one.next_offset == two.base_offset for one, two in itertools.pairwise(frames))
    assert all(one.max_event_time == two.max_event_time_before for one, two in itertools.pairwise(frames))
    assert sum(frame.count for frame in frames) == 120


def test_a_newer_process_takes_over_and_the_older_one_resumes_when_it_is_gone(
    open_log: Callable[..., KafkaLog], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_time_indexer, "_TAKEOVER_TIMEOUT", 0.5)
    name = fresh()
    older = open_log()
    older.create(topic(name))
    client = hw.Client(older, older.clock)
    older.open_topic(name)
    client.send_many(name, rows(3, 10))
    older.await_event_time(name)
    newer = open_log()
    newer.open_topic(name)
    client.send_many(name, rows(3, 10))
    newer.await_event_time(name)
    older.await_event_time(name)
    newer.close()
    client.send_many(name, rows(3, 10))
    older.await_event_time(name)
    (partition,) = older.open_topic(name).partitions
    assert sum(frame.count for frame in partition.frame_headers(0, 30)) == 30
    assert partition.state().next_offset == 30


def test_idle_markers_advance_an_idle_partition_and_external_time(open_log: Callable[..., KafkaLog]):
    name, clock = fresh(), ManualClock("2026-01-01T00:00:00Z")
    log = open_log(clock=clock)
    log.create(topic(name, partitions=2, idle="30 seconds"))
    opened = log.open_topic(name)
    hw.Client(log, clock).send(name, {"id": 1, "at": datetime.now(UTC)})
    log.await_event_time(name)
    before = [partition.state().max_event_time for partition in opened.partitions]
    assert LOWEST_TIME in before
    deadline = time.monotonic() + 20
    while LOWEST_TIME in [partition.state().max_event_time for partition in opened.partitions]:
        assert time.monotonic() < deadline
        clock.advance("31 seconds")
        time.sleep(0.6)
    external = fresh()
    log.create(topic(external, external_time=True))
    (partition,) = log.open_topic(external).partitions
    hw.Client(log, clock).send(external, {"id": 1, "at": "2026-01-01T00:00:07Z"})
    log.await_event_time(external)
    partition.append_idle_marker(1_000_000)
    (partition,) = log.open_topic(external).partitions
    assert (partition.state().next_offset, partition.state().max_event_time) == (1, 1_000_000)


def test_silence_does_not_advance_history(open_log: Callable[..., KafkaLog]):
    name, clock = fresh(), ManualClock()  # the brokers stamp the arrival with the present
    log = open_log(clock=clock)
    log.create(topic(name, partitions=2, idle="1 second"))
    hw.Client(log, clock).send(name, {"id": 1, "at": "2020-01-01T00:00:07Z"})
    opened = log.open_topic(name)
    log.await_event_time(name)
    for _ in range(4):
        clock.advance("31 seconds")
        time.sleep(0.4)
    assert sorted(partition.state().max_event_time for partition in opened.partitions) == [
        LOWEST_TIME,
        1_577_836_807_000_000,
    ]


def test_a_topic_without_events_follows_the_other_inputs_of_its_readers(open_log: Callable[..., KafkaLog]):
    orders, returns, void, stream = (fresh() for _ in range(4))
    here, elsewhere = open_log(), open_log()
    for name in (orders, returns, void):
        here.create(topic(name, idle="1 second" if name != orders else "1 hour"))
    here.create(topic(stream, external_time=True))
    at = datetime.now(UTC)
    hw.Client(elsewhere, elsewhere.clock).send(orders, {"id": 1, "at": at})
    elsewhere.await_event_time(orders)  # another process indexes this topic
    opened = here.open_topic(returns)
    assert opened.partitions[0].state().max_event_time == LOWEST_TIME
    # One pipeline reads the returns and writes the stream; another one reads the stream, the orders and the void.
    for pipeline, names in ((stream, [returns]), (fresh(), [stream, orders, void])):
        for name in names:
            here.groups.reset(f"hw.pipeline.{pipeline}", name, {0: 0})
    wait_until(lambda: opened.partitions[0].state().max_event_time > LOWEST_TIME)
    # By definition: the last whole millisecond below the max event time minus the lateness of ten seconds.
    expected = (round(at.timestamp() * 1e6) - 10_000_000 - 1) // 1000 * 1000
    assert opened.partitions[0].state().max_event_time == expected


def test_a_table_of_history_has_no_late_version_until_live_inputs_wait_for_it(open_log: Callable[..., KafkaLog]):
    prices, orders, clock = fresh(), fresh(), ManualClock()
    log = open_log(clock=clock)
    client = hw.Client(log, clock)
    log.create(Topic.declare(prices, TYPE, key="id", time="at", compact=True, idle="30 seconds"))
    log.create(topic(orders, idle="30 seconds"))
    pipeline = fresh()
    for name in (prices, orders):
        log.groups.reset(f"hw.pipeline.{pipeline}", name, {0: 0})

    def pass_time() -> None:
        for _ in range(4):
            clock.advance("31 seconds")
            time.sleep(0.4)

    opened, _ = log.open_topic(prices), log.open_topic(orders)
    for piece in range(2):
        pass_time()  # the app runs over nothing, then between two pieces
        client.send_many(prices, [{"id": n, "at": f"2020-01-01T0{piece}:00:0{n}Z"} for n in range(5)])
        client.send(orders, {"id": piece, "at": "2020-01-01T02:00:00Z"})
        log.await_event_time(prices)
        log.await_event_time(orders)
    assert late(log, prices) == []
    client.send(orders, {"id": 2, "at": datetime.now(UTC)})
    present = clock.micros()

    def raised() -> bool:
        clock.advance("31 seconds")
        return opened.partitions[0].state().max_event_time >= present

    wait_until(raised)


def test_a_new_partition_starts_at_the_lowest_time_of_the_others(open_log: Callable[..., KafkaLog]):
    name = fresh()
    log, reader = open_log(), open_log()
    log.create(topic(name, partitions=2, key="id"))
    log.open_topic(name)
    client = hw.Client(log, log.clock)
    client.send_many(name, rows(4, 60))
    log.await_event_time(name)
    reader._index_time = False
    lowest = min(partition.state().max_event_time for partition in reader.open_topic(name).partitions)
    log.kafka_topics.add_partitions(name, 3)
    wait_until(lambda: len(log.open_topic(name).partitions) == 3)
    produce(log.address.servers, name, *([(b"1", b'{"id": 1, "at": "2026-01-01T00:00:00Z"}')] * 2), partition=2)
    wait_until(lambda: log.open_topic(name).partitions[2].state().next_offset == 2)
    new = reader.open_topic(name).partitions[2]  # a reader that knows later times knows the new partition, too
    assert (new.state().max_event_time, new.state().next_offset) == (lowest, 2)
    assert next(frame.max_event_time for frame in new.frame_headers(0, 2)) == lowest
    assert [list(batch.late()) for batch in reader.open_topic(name).batches(2, 1, 2)] == [[True]]


def test_an_idle_marker_counts_for_the_event_after_it(open_log: Callable[..., KafkaLog]):
    name, log = fresh(), open_log()
    log.create(topic(name, external_time=True))
    (partition,) = log.open_topic(name).partitions
    partition.append_idle_marker(2_000_000_000_000_000)
    hw.Client(log, log.clock).send(name, {"id": 1, "at": "2026-01-01T00:00:07Z"})
    log.await_event_time(name)
    (batch,) = log.open_topic(name).batches(0, 0, 1)
    assert list(batch.late()) == [True]


def test_commit_markers_at_the_end_are_indexed_after_the_idle_timeout(
    open_log: Callable[..., KafkaLog], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_time_indexer, "_IDLE_TIMEOUT", 0.3)
    name, log = fresh(), open_log()
    log.create(topic(name))
    opened = log.open_topic(name)
    with hw.Client(log, log.clock).producer(name, id="till") as producer:
        producer.send({"id": 1, "at": "2026-01-01T00:00:07Z"})
    wait_until(lambda: opened.partitions[0].state().next_offset == 2)
    assert [frame.count for frame in opened.partitions[0].frame_headers(0, 2)] == [1, 0]
    assert sum(batch.values.num_rows for batch in opened.batches(0, 0, 2)) == 1


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
