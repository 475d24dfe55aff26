"""Batches that the indexer decoded are cached for readers on the machine; others read from Kafka."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.engine.build.inputs import Input
from headwater.engine.sink.accounting import account_input
from headwater.engine.sink.checkpoint import PlannedInput
from headwater.engine.source.batch_planner import BatchLimits, plan_batch
from headwater.engine.source.visible_rows import VisibleRows
from headwater.events import SystemClock
from headwater.log import Topic
from headwater.log.batch import LogBatch
from headwater.log.kafka import KafkaLog, event_time_index
from headwater.log.kafka.timed_topic import BatchCache
from headwater.units import micros, moment
from tests.client.shop import fresh
from tests.log.kafka.plain import consume, produce
from tests.services.kafka import Broker

pytestmark = pytest.mark.services
TYPE = "id int, note string, at timestamp"


def visible_rows(batch: LogBatch) -> list[tuple[object, ...]]:
    """Everything a pipeline sees of a batch."""
    ids = batch.values.column("id").to_pylist()
    notes = batch.values.column("note").to_pylist()
    late, bad = batch.late().tolist(), batch.bad.tolist()
    seen = (batch.offsets.tolist(), batch.event_times.tolist(), batch.arrival_times.tolist(), late, bad)
    return list(zip(ids, notes, *seen, strict=True))


def all_rows(log: KafkaLog, name: str) -> list[tuple[object, ...]]:
    topic = log.open_topic(name)
    ends = [(part.number, part.state().next_offset) for part in topic.partitions]
    return [row for number, end in ends for batch in topic.batches(number, 0, end) for row in visible_rows(batch)]


def test_cached_batches_equal_those_from_kafka(kafka: Broker, tmp_path: Path):
    name, url = fresh(), f"kafka://{kafka.address}"
    events = [{"id": n, "note": None if n % 3 else "x", "at": f"2026-01-01T00:{n % 50:02}:00Z"} for n in range(200)]
    with KafkaLog(url, index_time=True, cache=tmp_path) as indexer, KafkaLog(url) as plain:
        indexer.create(Topic.declare(name, TYPE, time="at", lateness="10 minutes", partitions=2))
        indexer.open_topic(name)
        hw.Client(indexer, SystemClock()).send_many(name, events)
        indexer.await_event_time(name)
        expected = all_rows(plain, name)
        with KafkaLog(indexer.url) as worker:
            worker.open_topic(name)
            read: list[object] = []
            worker.fetch = lambda *given, **_: read.append(given) or []  # type: ignore[method-assign,func-returns-value]
            assert all_rows(worker, name) == expected
        assert not read
        for path in list(tmp_path.rglob("*.arrow"))[::2]:
            path.unlink()
        assert all_rows(indexer, name) == expected
    assert len(expected) == 200
    assert any(row[5] for row in expected)


def test_the_oldest_cached_batches_are_removed_first(kafka: Broker, tmp_path: Path):
    name = fresh()
    with KafkaLog(f"kafka://{kafka.address}") as log:
        log.create(Topic.declare(name, TYPE, time="at", lateness="1 minute"))
        client = hw.Client(log, SystemClock())
        client.send_many(name, [{"id": n, "at": "2026-01-01T00:00:00Z"} for n in range(100)])
        (batch,) = log.fetch(name, {0: 0})
        cache = BatchCache(tmp_path, max_bytes=3 * batch.values.nbytes)
        for base in range(5):
            cache.put(base, batch)
        codec = log._topic_handle(name).codec
        found = [base for base in range(5) if cache.get(codec, 0, base) is not None]
        assert found == [2, 3, 4]
        cache.clear(name)
        assert cache.get(codec, 0, 4) is None
        cache.put(9, batch)
        assert cache.get(codec, 0, 9) is not None
        cache.clear()
        assert not tmp_path.exists()
        tmp_path.touch()  # a file in place of the folder: every write fails
        cache.put(9, batch)
        assert cache.get(codec, 0, 9) is None


def test_an_offset_range_that_is_read_in_parts_is_counted_whole(kafka: Broker, monkeypatch: pytest.MonkeyPatch):
    name, allowed = fresh(), timedelta(seconds=10)
    seconds = [30 if n % 20 == 7 and n > 100 else 60 + n // 100 for n in range(2_000)]
    with KafkaLog(f"kafka://{kafka.address}", index_time=True) as log:
        log.create(Topic.declare(name, TYPE, time="at", lateness="10 seconds"))
        events = [{"id": n, "at": f"2026-01-01T00:{s // 60:02}:{s % 60:02}Z"} for n, s in enumerate(seconds)]
        hw.Client(log, SystemClock()).send_many(name, events)
        log.await_event_time(name)
        end = log.open_topic(name).partitions[0].state().next_offset
        monkeypatch.setattr(event_time_index, "_READ_BYTES", 8 << 10)
        assert len(list(log.open_topic(name).batches(0, 0, end))) > 1
        found = account_input(log, Input(name, log.topic(name)), PlannedInput({0: 0}, {0: end}, 0), allowed, ())
    late = [n for n, s in enumerate(seconds) if s < max([0, *seconds[:n]]) - 10]
    assert [event.offset for event in found.late] == late
    assert (found.in_, found.ready) == (2_000, 2_000 - len(late))


def test_events_late_by_an_idle_marker_are_late_for_readers_without_the_cache(kafka: Broker, tmp_path: Path):
    name, url = fresh(), f"kafka://{kafka.address}"
    with KafkaLog(url, index_time=True, cache=tmp_path) as indexer, KafkaLog(url) as elsewhere:
        indexer.create(Topic.declare(name, TYPE, time="at", lateness="1 minute"))
        client = hw.Client(indexer, SystemClock())
        (partition,) = indexer.open_topic(name).partitions
        for first in (0, 3):
            client.send_many(name, [{"id": first + n, "at": "2026-01-01T12:00:00Z"} for n in range(3)])
            indexer.await_event_time(name)
            partition.append_idle_marker(micros(moment("2026-01-01T13:00:00Z")))
        planned, allowed = PlannedInput({0: 0}, {0: 6}, 0), timedelta(minutes=1)
        for log in (indexer, elsewhere):
            assert [row[5] for row in all_rows(log, name)] == [False] * 3 + [True] * 3
            found = account_input(log, Input(name, log.topic(name)), planned, allowed, ())
            assert (found.in_, [event.offset for event in found.late]) == (6, [3, 4, 5])


def count_as_spark(log: KafkaLog, input_: Input, end: int) -> int:
    """Returns how many rows a pipeline receives of an input."""
    visible = VisibleRows(("id",), "at", side=input_.side)
    return sum(int(visible.mask(batch).sum()) for batch in log.open_topic(input_.name).batches(0, 0, end))


@pytest.mark.parametrize("foreign", [False, True], ids=["declared", "created-by-another-tool"])
def test_a_compacted_topic_is_counted_by_the_records_that_are_left(kafka: Broker, tmp_path: Path, foreign: bool):
    name, url = fresh(), f"kafka://{kafka.address}"
    eager = {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}
    with KafkaLog(url, index_time=True, cache=tmp_path) as indexer, KafkaLog(url) as elsewhere:
        if foreign:
            indexer.kafka_topics.create(name, 1, {})
        indexer.create(Topic.declare(name, TYPE, time="at", key="id", compact=not foreign, lateness="1 minute"))
        indexer.kafka_topics.configure(name, eager)
        client = hw.Client(indexer, SystemClock())
        indexer.open_topic(name)
        for minute in range(4):
            client.send_many(name, [{"id": n, "at": f"2026-01-01T12:{minute:02}:00Z"} for n in range(3 + minute)])
            time.sleep(0.1)  # until the next append begins a new segment
        client.delete(name, key=0)
        indexer.await_event_time(name)
        end = indexer.open_topic(name).partitions[0].state().next_offset
        deadline = time.monotonic() + 30
        while len(left := consume(kafka.address, name)) > 7:  # the newest of each key, and the tombstone
            assert time.monotonic() < deadline, "the brokers did not compact"
            time.sleep(0.2)
        whole = Input(name, indexer.topic(name))
        for input_ in (whole, whole.as_table()):
            for log in (indexer, elsewhere):
                found = account_input(log, input_, PlannedInput({0: 0}, {0: end}, 0), None, ())
                assert (found.in_, found.ready) == (len(left), count_as_spark(log, input_, end))


def test_unreadable_records_of_a_table_are_left_out_of_its_count(kafka: Broker):
    name = fresh()
    with KafkaLog(f"kafka://{kafka.address}", index_time=True) as log:
        log.create(Topic.declare(name, TYPE, time="at", key="id", compact=True, lateness="1 minute"))
        log.open_topic(name)
        produce(kafka.address, name, (b"1", b"not json"), (b"2", b'{"id": 2, "at": "2026-01-01T12:00:00Z"}'))
        log.await_event_time(name)
        table = Input(name, log.topic(name)).as_table()
        found = account_input(log, table, PlannedInput({0: 0}, {0: 2}, 0), None, ())
        assert (found.in_, found.ready, [one.offset for one in found.unreadable]) == (2, 1, [0])
        assert count_as_spark(log, table, 2) == 1


def test_batches_of_large_events_are_limited_by_bytes(kafka: Broker):
    name = fresh()
    with KafkaLog(f"kafka://{kafka.address}", index_time=True) as log:
        log.create(Topic.declare(name, TYPE, time="at"))
        topic, client = log.open_topic(name), hw.Client(log, SystemClock())
        for number in range(6):
            note = "x" * (1 << 19)
            client.send_many(name, [{"id": number, "note": note, "at": "2026-01-01T00:00:00Z"}] * 2)
            log.await_event_time(name)
        (partition,) = topic.partitions
        end = partition.state().next_offset
        size = partition.size(0, end)
        assert 12 << 19 <= size < 13 << 19
        assert plan_batch(topic, {0: 0}, BatchLimits(100, size))[::2] == ({0: end}, False)
        positions, batches, more = {0: 0}, [], True
        while more:
            ends, _, more = plan_batch(topic, positions, BatchLimits(100, 3 << 20))
            batches.append(partition.size(positions[0], ends[0]))
            positions = ends
    assert positions == {0: end}
    assert max(batches) <= 3 << 20
    assert sum(batches) == size
