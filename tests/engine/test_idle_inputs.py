"""Event time of pipelines whose inputs are idle, hold history, or never had an event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

pytestmark = pytest.mark.spark
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def shop() -> hw.App:
    app = hw.App("shop")
    for name in ("orders", "refunds"):
        app.topic(name, f"{name}_id int, {name}_at timestamp", time=f"{name}_at", lateness="10 s", idle="30 s")

    @app.view(key="span")
    def counted(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("orders_at", "1 minute").alias("span")).agg(F.count("*").alias("n"))

    @app.view(key="orders_id")
    def kept(orders: DataFrame, refunds: DataFrame) -> DataFrame:
        near = "orders_id = refunds_id and refunds_at between orders_at and orders_at + interval 1 minute"
        return orders.join(refunds, F.expr(near), "left").select("orders_id", "refunds_id")

    return app


def test_history_closes_its_last_window_when_it_is_complete():
    rows = [{"orders_id": n, "orders_at": NOON - timedelta(days=300) + timedelta(seconds=n)} for n in range(300)]
    with run(shop(), now=NOON) as world:
        for part in (rows[:150], rows[150:]):
            world.send("orders", *part)
            world.settle()
            world.advance("10 minutes")
        world.settle()
        assert world.counts("counted").used == 300
        closed = world.client.view("counted").rows(open=False)
        assert [row["n"] for row in closed] == [60] * 4  # of five minutes
        world.client.complete("orders")
        world.settle()
        assert [row["n"] for row in world.client.view("counted").rows(open=False)] == [60] * 5


def test_an_outer_join_ends_although_one_input_never_had_an_event():
    with run(shop(), now=NOON) as world:
        for minute in range(4):
            world.send("orders", {"orders_id": minute, "orders_at": world.clock.now()})
            world.settle()
            world.advance("1 minute")
        world.settle()
        world.advance("2 minutes")
        world.settle()
        found = {row["orders_id"]: row["refunds_id"] for row in world.rows("kept")}
        assert {0: None, 1: None}.items() <= found.items()
