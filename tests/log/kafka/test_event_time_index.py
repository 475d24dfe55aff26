"""Late records on Kafka are those that are late in the embedded log, whatever the batches."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.log.kafka import EventTimeWalk, KafkaLog, event_time_index, walk
from headwater.log.storage.frame import LOWEST_TIME
from tests.client.shop import NOON, fresh
from tests.log.kafka.plain import consume, produce
from tests.services.kafka import Broker

pytestmark = pytest.mark.services


def rows(count: int) -> list[dict[str, object]]:
    chance = random.Random(5)
    return [
        {"n": n, "at": NOON + timedelta(seconds=n - (chance.random() < 0.2) * chance.randrange(60))}
        for n in range(count)
    ]


def test_the_same_records_are_late_as_in_the_embedded_log(client: hw.Client, tmp_path: Path):
    name, sent = fresh(), rows(300)
    with hw.connect(tmp_path) as embedded:
        for place in (embedded, client):
            place.create_topic(name, "n int, at timestamp", time="at", lateness="10 seconds")
            for at in range(0, 300, 50):
                place.send_many(name, sent[at : at + 50])
        expected = [event.value["n"] for event in embedded.read(name) if event.late and event.value]
        running_max = embedded.log.ends(name)[0].max_event_time
    batches = list(walk(client.log, name, 0, 0, 300))
    late = [n for batch in batches for n in np.array(batch.values["n"].to_pylist())[batch.late()].tolist()]
    assert late == expected
    assert len(late) > 10
    assert batches[-1].frame.max_event_time == running_max


def test_ranges_of_any_size_give_the_same_answer(client: hw.Client):
    name = fresh()
    client.create_topic(name, "n int, at timestamp", time="at", lateness="10 seconds")
    client.send_many(name, rows(200))
    whole = np.concatenate([batch.late() for batch in walk(client.log, name, 0, 0, 200)])
    running, parts = LOWEST_TIME, []
    for start in range(0, 200, 37):
        for batch in walk(client.log, name, 0, start, min(200, start + 37), running):
            parts.append(batch.late())
            running = batch.frame.max_event_time
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert whole.any()


def test_a_clock_far_ahead_and_bad_records_move_no_time(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, "n int, at timestamp", time="at", lateness="10 seconds")
    client.send_many(name, [{"n": 0, "at": NOON}, {"n": 1, "at": NOON.replace(year=2099)}])
    produce(kafka.address, name, (None, b"not json"))
    client.send_many(name, [{"n": 2, "at": NOON + timedelta(seconds=1)}])
    [batch] = walk(client.log, name, 0, 0, 4)
    micros = int(NOON.timestamp()) * 10**6
    assert batch.max_event_times.tolist() == [LOWEST_TIME, micros, micros, micros]
    assert batch.frame.max_event_time == micros + 10**6
    assert not batch.late().any()


def test_a_walk_over_no_rows_keeps_the_maximum(client: hw.Client):
    name = fresh()
    client.create_topic(name, "n int")
    assert list(walk(client.log, name, 0, 0, 0, 42)) == []
    client.send(name, {"n": 1})
    [batch] = client.log.fetch(name, {0: 0}, max_bytes=1, timeout=0, waiter=None)
    walking = EventTimeWalk(42)
    walking.annotate(batch.select(np.array([False])))
    assert walking.max_event_time == 42


def test_a_long_index_is_read_whole_from_any_offset(client: hw.Client, kafka: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_time_index, "_MAX_CACHED_RANGES", 8)
    monkeypatch.setattr(event_time_index, "_SAMPLE_INTERVAL", 4)
    name = fresh()
    client.create_topic(name, "n int, at timestamp", time="at")
    with KafkaLog(f"kafka://{kafka.address}", index_time=True) as log, KafkaLog(f"kafka://{kafka.address}") as reader:
        (partition,) = log.open_topic(name).partitions
        for n in range(12):
            client.send(name, {"n": n, "at": NOON})
            partition.append_idle_marker(int(NOON.timestamp()) * 10**6 + n + 1)
        index = reader.open_topic(name).index
        written = [json.loads(message.value())[:3] for message in consume(kafka.address, index.name)]
        assert len(written) == 24
        for start in (0, 5, 11, 2):
            found = [[each.base_offset, each.next_offset, each.count] for each in index.ranges(0, start, 10)]
            expected = [each for each in written if each[0] < 10 and (each[1] > start or each[:2] == [start, start])]
            assert found == expected
            batches = reader.open_topic(name).batches(0, start, 12)
            assert [offset for batch in batches for offset in batch.offsets] == list(range(start, 12))
