"""Pipelines on a real Kafka give the rows that they give on the embedded log, late ones included."""

from __future__ import annotations

import contextlib
import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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


def minutes(orders: str, products: str) -> hw.App:
    """A window after an as-of join; the function is the same whatever its topics are called."""
    app = hw.App("minutes")
    columns, versions = "id int, product int, at timestamp", "product int, name string, since timestamp"
    app.topic(orders, columns, time="at", lateness="10 minutes", idle="1 hour")
    app.table(products, versions, key="product", time="since", lateness="2 seconds", idle="1 hour")

    def counted(**inputs: Any) -> DataFrame:
        joined = hw.join_as_of(inputs[orders], inputs[products], on="product")
        return joined.groupBy(F.window("at", "1 minute").alias("minute"), "name").agg(F.count("*").alias("n"))

    kind = inspect.Parameter.KEYWORD_ONLY
    counted.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(orders, kind), inspect.Parameter(products, kind, annotation=hw.Table)]
    )
    app.view("minutes_" + orders, key=("minute", "name"), late=hw.correct(for_="1 hour"))(counted)
    return app


def test_a_window_after_an_as_of_join_shows_an_event_once_the_table_is_complete(kafka: Broker, tmp_path: Path):
    orders, products = fresh_name(), fresh_name()
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=5)

    def shown() -> list[tuple[str, int]]:
        return [(str(row["name"]), row["n"]) for row in world.rows("minutes_" + orders)]

    def version(product: int, name: str, second: int) -> dict[str, Any]:
        return {"product": product, "name": name, "since": start + timedelta(seconds=second)}

    with on_kafka(minutes(orders, products), tmp_path, kafka.address) as world:
        world.client.send(products, version(1, "tea", 0))
        world.client.send(orders, {"id": 1, "product": 1, "at": start + timedelta(seconds=10)})
        world.settle()
        assert shown() == []
        world.client.send(products, version(2, "cup", 13))
        world.settle()
        assert shown() == [("tea", 1)]
        world.client.send(products, version(1, "pot", 20))
        late = start - timedelta(minutes=50)
        world.client.send_many(
            orders, [{"id": 2, "product": 1, "at": late}, {"id": 3, "product": 1, "at": start + timedelta(seconds=17)}]
        )
        world.settle()
        assert sorted(shown()) == [("None", 1), ("tea", 2)]
