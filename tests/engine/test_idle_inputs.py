"""Event time of pipelines whose inputs are idle, hold history, or never had an event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
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

    app.table("prices", "product int, price int, since timestamp", key="product", time="since", idle="30 s")

    @app.view(key="orders_id")
    def priced(orders: DataFrame, prices: hw.Table) -> DataFrame:
        product = orders.withColumn("product", F.expr("orders_id % 3"))
        return hw.join_as_of(product, prices, on="product").select("orders_id", "price")

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


def test_prices_that_are_loaded_after_the_app_ran_over_nothing_hold_from_their_own_time():
    begin = NOON - timedelta(days=300)
    prices = [
        {"product": n % 2, "price": n, "since": begin + timedelta(minutes=n - 10)} for n in range(60)
    ]  # none of product 2
    orders = [{"orders_id": n, "orders_at": begin + timedelta(seconds=9 * n)} for n in range(300)]
    with run(shop(), now=NOON) as world:
        for part in range(2):
            world.settle()
            world.advance("10 minutes")  # over nothing, and between two parts of history
            world.send("prices", *prices[30 * part : 30 * part + 30])
            world.send("orders", *orders[150 * part : 150 * part + 150])
        world.settle()
        world.client.complete("orders")
        world.advance("1 minute")  # the table follows, after its idle time
        world.settle()
        found = {(row["orders_id"], row["price"]) for row in world.rows("priced")}
    with duckdb.connect() as connection:
        connection.register("sent_orders", pa.Table.from_pylist(orders))
        connection.register("sent_prices", pa.Table.from_pylist(prices))
        query = """select orders_id, price from sent_orders asof left join sent_prices
            on orders_id % 3 = product and orders_at >= since"""
        assert found == set(connection.execute(query).fetchall())
