"""Pipelines on a real Kafka give the rows that they give on the embedded log, late ones included."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from headwater.testing import run
from tests.engine.on_kafka import events, fresh_name, on_kafka, shop
from tests.services.kafka import Broker

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
