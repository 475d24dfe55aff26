"""Pipelines on a real Kafka give the rows that they give on the embedded log, late ones included."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from confluent_kafka import Producer

import headwater as hw
from headwater.backends import open_store
from headwater.events import SystemClock
from headwater.testing import run
from tests.engine.on_kafka import events, fresh_name, on_kafka, shop
from tests.services.kafka import Broker
from tests.services.postgres import Server, postgres

__all__ = ["postgres"]
pytestmark = [pytest.mark.spark, pytest.mark.services]


def test_rows_and_late_events_are_those_of_the_embedded_log(kafka: Broker, tmp_path: Path):
    name = fresh_name()
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
    with on_kafka(app, tmp_path, kafka.address) as world:
        for start in range(0, 400, 150):
            world.client.send_many(name, sent[start : start + 150])
            world.settle()
        assert world.rows("totals_" + name) == embedded
        assert world.rows("large_" + name) == large
        assert sorted(world.sql("select value from hw_late")) == late
        assert world.sql("select distinct unaccounted from hw_pipelines") == [(0,)]


def test_messages_of_others_are_read_and_bad_ones_are_set_aside(kafka: Broker, tmp_path: Path):
    name = fresh_name()
    with on_kafka(shop(name), tmp_path, kafka.address) as world:
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


def growing(name: str) -> hw.App:
    """Views whose rows are within the limit as columns, and beyond it as JSON."""
    app = hw.App("growing")
    app.topic(name, "id int, body string, times int", key="id")
    app.view("texts_" + name, key="id", sql=f"select id, repeat(body, times) as body from {name}")
    app.view("flags_" + name, key="id", sql=f"select id, array_repeat(false, times) as flags from {name}")
    return app


def test_rows_that_are_too_large_as_json_are_quarantined_also_if_workers_stage_them(
    kafka: Broker, tmp_path: Path, postgres: Server
):
    name = fresh_name()
    sent = [{"id": 1, "body": "\x01", "times": 800_000}, {"id": 2, "body": "a", "times": 3}]
    with (
        contextlib.closing(open_store(postgres.url(postgres.emptied()), tmp_path, SystemClock())) as store,
        on_kafka(growing(name), tmp_path, kafka.address, store, stage_above=0) as world,
    ):
        for event in sent:
            world.client.send(name, event)
        world.settle()
        assert world.rows("texts_" + name) == [{"id": 2, "body": "aaa"}]
        assert world.rows("flags_" + name) == [{"id": 2, "flags": [False] * 3}]
        assert world.sql("select in_, used, quarantined, unaccounted from hw_pipelines") == [(2, 1, 1, 0)] * 2
        changes = [event.value for event in world.client.read(f"texts_{name}.changes")]
        assert [change["after"]["id"] for change in changes if change] == [2]
