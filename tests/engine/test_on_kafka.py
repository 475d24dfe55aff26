"""Pipelines on a real Kafka give the rows that they give on the embedded log, late ones included."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import headwater as hw
from headwater.engine.engine import Engine
from headwater.engine.surroundings import Surroundings
from headwater.events import SystemClock
from headwater.log.places import open_log
from headwater.store import SqliteStore, Views
from headwater.testing import run
from headwater.testing.world import shared_spark
from tests.services.kafka import Broker

pytestmark = [pytest.mark.spark, pytest.mark.services]


class OnKafka:
    """An app on Kafka, with its views in a folder."""

    def __init__(self, engine: Engine, log: Any, store: SqliteStore) -> None:
        self.engine = engine
        self.log = log
        self.client = hw.Client(log, SystemClock())
        self.store = store
        self.views = Views(store)

    def settle(self) -> None:
        self.engine.settle()

    def rows(self, view: str) -> list[dict[str, Any]]:
        return self.views.rows(view, order=self.views.definition(view).key)

    def sql(self, text: str) -> list[Any]:
        return list(self.views.sql(text).rows)


@contextmanager
def on_kafka(app: hw.App, folder: Path, broker: Broker) -> Iterator[OnKafka]:
    log = open_log(f"kafka://{broker.address}", keeps_time=True, pages=folder / "pages")
    store = SqliteStore(folder / "store")
    around = Surroundings(folder, log, store, SystemClock(), wait=0.2)
    engine = Engine(app.resolve(), lambda: shared_spark().session, around)
    engine.start()
    world = OnKafka(engine, log, store)
    try:
        yield world
    finally:
        engine.stop()
        world.views.close()
        store.close()
        log.close()


def shop(orders: str) -> hw.App:
    """The functions are the same whatever the topic is called; Kafka keeps topics from test to test."""
    app = hw.App("shop")
    app.topic(
        orders, "id int, k int, v int, at timestamp", key="k", time="at", lateness="10 seconds", partitions=3
    )

    app.view(
        "totals_" + orders,
        key=("w", "k"),
        sql=f"""
        select window(at, '30 seconds') as w, k, sum(v) as total from {orders} group by window(at, '30 seconds'), k""",
    )
    app.view("large_" + orders, key="id", sql=f"select id, k, v from {orders} where v > 2")
    return app


def events(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "id": n,
            "k": chance.randrange(6),
            "v": chance.randrange(10),
            "at": f"2026-01-01T00:{(at := max(0, n + chance.choice([0, 3, -5, -40]))) // 60:02}:{at % 60:02}Z",
        }
        for n in range(count)
    ]


def test_rows_and_late_events_are_those_of_the_embedded_log(kafka: Broker, tmp_path: Path):
    name = "o" + uuid.uuid4().hex[:8]
    app, sent = shop(name), events(1, 400)
    with run(app, now="2026-01-01T01:00:00Z", rows=60) as world:
        for start in range(0, 400, 90):
            world.send(name, *sent[start : start + 90])
            world.settle()
        embedded = world.rows("totals_" + name)
        large = world.rows("large_" + name)
        late = sorted(world.client.sql("select value from hw_late").rows)
        counts = world.counts("totals_" + name)
    assert counts.late > 20
    with on_kafka(app, tmp_path, kafka) as world:
        for start in range(0, 400, 150):
            world.client.send_many(name, sent[start : start + 150])
            world.settle()
        assert world.rows("totals_" + name) == embedded
        assert world.rows("large_" + name) == large
        assert sorted(world.sql("select value from hw_late")) == late
        assert world.sql("select distinct unaccounted from hw_pipelines") == [(0,)]


def test_messages_of_others_are_read_and_bad_ones_are_set_aside(kafka: Broker, tmp_path: Path):
    name = "p" + uuid.uuid4().hex[:8]
    with on_kafka(shop(name), tmp_path, kafka) as world:
        world.settle()
        other = Producer({"bootstrap.servers": kafka.address})
        other.produce(name, b'{"id": 1, "k": 5, "v": 7, "at": "2026-01-01T00:00:01Z"}', key=b"5")
        other.produce(name, b'{"id": "x"', key=b"5")
        other.flush(10)
        world.settle()
        assert world.rows("large_" + name) == [{"id": 1, "k": 5, "v": 7}]
        counts = world.sql("select name, in_, used, quarantined, unaccounted from hw_pipelines order by name")
        assert [row[1:] for row in counts] == [(2, 1, 1, 0)] * 2
        (value, reason), _ = world.sql("select value, reason from hw_quarantine")
        assert "BAD_EVENT" in reason
        assert '{\\"id\\": \\"x\\"' in value
