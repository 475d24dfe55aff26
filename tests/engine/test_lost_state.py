"""State at the sink that is missing or damaged is rebuilt from the log; one bad event stops no operator."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run
from tests.engine.rooms import checkpoint, started

pytestmark = pytest.mark.spark
DAMAGES = {
    "gone": ("DELETE FROM hw$state", "DELETE FROM hw$spaces"),
    "gone in part": ("DELETE FROM hw$state WHERE key = x'00000000'",),
    "damaged": ("UPDATE hw$state SET value = x'c1' WHERE length(value) > 1",),
}


def shop() -> hw.App:
    app = hw.App("shop")
    app.table("products", "product_id int, category string, price int", key="product_id")
    app.view("totals", key="category", sql="select category, sum(price) total from products group by category")
    return app


@pytest.mark.parametrize("damage", DAMAGES)
def test_lost_state_is_made_anew_from_the_log(damage, tmp_path: Path):
    with started(shop(), tmp_path) as world:
        for number, category in enumerate("aabb"):
            world.send("products", {"product_id": number, "category": category, "price": number + 1})
        world.settle()
        assert world.rows("totals") == [{"category": "a", "total": 3}, {"category": "b", "total": 7}]
    with sqlite3.connect(tmp_path / "store" / "store.db") as connection:
        for statement in DAMAGES[damage]:
            assert connection.execute(statement).rowcount > 0
    connection.close()
    with started(shop(), tmp_path) as world:
        world.send("products", {"product_id": 0, "category": "b", "price": 10})
        world.settle()
        world.settle()
        assert world.rows("totals") == [{"category": "a", "total": 2}, {"category": "b", "total": 17}]
        assert world.counts("totals").in_ == 5


def test_an_event_on_which_the_code_before_an_operator_fails_is_kept_aside():
    app = hw.App("shop")
    app.topic("orders", "order_id int, price string, at timestamp", time="at")

    def count(order, events, state):
        return None, [{"order_id": order, "price": event["price"]} for event in events]

    def known(orders: DataFrame) -> DataFrame:
        whole = F.udf(lambda price: int(price), "int")  # noqa: PLW0108 - Spark looks for hints of a class
        return orders.withColumn("price", whole("price"))

    @app.view(key="order_id")
    def priced(orders: DataFrame) -> DataFrame:
        return hw.stateful(known(orders), by="order_id", fn=count, returns="order_id int, price int")

    @app.view(key="order_id")
    def summed(orders: DataFrame) -> DataFrame:
        """Another step follows, so that the first is in Spark."""
        rows = hw.stateful(known(orders), by="order_id", fn=count, returns="order_id int, price int")
        return rows.groupBy("order_id").agg(F.sum("price").alias("price"))

    with run(app, now="2026-01-01T00:00:00Z") as world:
        for number, price in enumerate(["1", "two", "3"]):
            world.send("orders", {"order_id": number, "price": price, "at": "2026-01-01T00:00:00Z"})
        world.settle()
        for view in ("priced", "summed"):
            assert [row["price"] for row in world.rows(view)] == [1, 3]
            counts = world.counts(view)
            assert (counts.in_, counts.used, counts.quarantined) == (3, 2, 1)


def test_a_first_start_that_was_cut_off_does_not_stop_the_second(tmp_path: Path):
    offsets = checkpoint(tmp_path, "totals") / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.1234.tmp").write_bytes(b"v1")
    with started(shop(), tmp_path) as world:
        world.send("products", {"product_id": 1, "category": "a", "price": 2})
        world.settle()
        assert world.rows("totals") == [{"category": "a", "total": 2}]
