"""Views with state at the sink: their rows are DuckDB's after every batch, and after a crash at every point."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import World, run
from tests.faults.counts import FULL

pytestmark = pytest.mark.spark
START = datetime(2026, 1, 1, tzinfo=UTC)
POINTS = ("before-sink", "before-sink-commit", "in-sink-commit", "after-sink-commit", "in-publish", "after-publish")
PRODUCT = "product_id int, category string, price int, since timestamp"
ORDER = "order_id int, product_id int, amount int, at timestamp"
BY_CATEGORY = "select category, count(*) n, sum(price) total, max(price) top from products group by category"
PAIRS = """
    select a.product_id one, b.product_id other from products a join products b
    on a.category = b.category and a.product_id < b.product_id
"""
ENRICHED = "select order_id, category from orders left join present using (product_id)"
AS_OF = """
    select order_id, category, price from orders asof left join versions on orders.product_id = versions.product_id
    and orders.at >= versions.since
"""


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", ORDER, key="order_id", time="at", lateness="1 hour", partitions=2)
    app.table("products", PRODUCT, key="product_id", time="since")
    app.view("by_category", key="category", sql=BY_CATEGORY)
    app.view("pairs", key=("one", "other"), sql=PAIRS)

    @app.view(key="order_id")
    def priced(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.join_as_of(orders, products, on="product_id")

    @app.view(key="category")
    def sold(orders: DataFrame, products: hw.Table) -> DataFrame:
        """State in Spark: the join, and the sums behind it."""
        joined = hw.join_as_of(orders, products, on="product_id")
        return joined.groupBy("category").agg(F.sum("amount").alias("amount"))

    @app.view(key="product_id")
    def counted(orders: DataFrame) -> DataFrame:
        return hw.stateful(orders, by="product_id", fn=count, returns="product_id int, n int, amount bigint")

    return app


def count(product, orders, state):
    state = state or {"n": 0, "amount": 0}
    state = {"n": state["n"] + len(orders), "amount": state["amount"] + sum(order["amount"] for order in orders)}
    return state, [{"product_id": product, **state}]


def picky(product, orders, state):
    """Changes the state in place before it fails."""
    if any(order["amount"] < 0 for order in orders):
        (state or {}).update(n=100, amount=100)
        raise ValueError("no order is negative")
    return count(product, orders, state)


SUM = "product_id int, amount bigint"


def added(orders, at, states, keys):
    amounts = orders["amount"].to_numpy()
    if (amounts < 0).any():
        raise ValueError("no order is negative")
    np.add.at(states["amount"], at, amounts)
    return keys.append_column("amount", pa.array(states["amount"]))


class Sent:
    """What was sent, for the oracle."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.products: dict[int, dict[str, Any]] = {}
        self.versions: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.minute = 0

    def some(self) -> None:
        """A few changes and orders."""
        for _ in range(self.chance.randint(1, 4)):
            self.minute += self.chance.randint(1, 3)
            self._change()
        for _ in range(self.chance.randint(1, 4)):
            at = START + timedelta(minutes=self.minute - self.chance.randint(0, 20), seconds=30)
            product, amount = self.chance.randint(1, 4), self.chance.randint(1, 9)
            number = len(self.orders)
            self.orders.append({"order_id": number, "product_id": product, "amount": amount, "at": at})
            self.world.send("orders", self.orders[-1])

    def _change(self) -> None:
        number, category, price = (self.chance.randint(1, 4), self.chance.choice("abc"), self.chance.randint(1, 9))
        since = START + timedelta(minutes=self.minute)
        row = {"product_id": number, "category": category, "price": price, "since": since}
        self.world.send("products", row)
        self.versions.append(row)
        self.products[number] = row

    def oracle(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query over everything that was sent."""
        connection = duckdb.connect()
        schema = pa.schema([("product_id", pa.int32()), ("category", pa.string()), ("price", pa.int32()),
                            ("since", pa.timestamp("us", "UTC"))])  # fmt: skip
        connection.register("products", pa.Table.from_pylist(list(self.products.values()), schema))
        connection.register("versions", pa.Table.from_pylist(self.versions, schema))
        connection.register("orders", pa.Table.from_pylist(self.orders))
        return sorted(connection.execute(sql).fetchall(), key=repr)


def rows(world: World, view: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[column] for column in columns) for row in world.rows(view)), key=repr)


def check(world: World, sent: Sent) -> None:
    assert rows(world, "by_category", "category", "n", "total", "top") == sent.oracle(BY_CATEGORY)
    assert rows(world, "pairs", "one", "other") == sent.oracle(PAIRS)
    assert rows(world, "priced", "order_id", "category", "price") == sent.oracle(AS_OF)
    counted = "select product_id, count(*)::int, sum(amount)::bigint from orders group by product_id"
    assert rows(world, "counted", "product_id", "n", "amount") == sent.oracle(counted)
    for view in ("by_category", "pairs", "priced", "counted"):
        assert world.counts(view).unaccounted == 0


def test_rows_are_right_after_every_batch():
    with run(shop(), now=START) as world:
        sent = Sent(world, seed=1)
        for _ in range(8):
            sent.some()
            world.settle()
            check(world, sent)
        world.advance("1 day")
        world.settle()
        world.advance("1 day")
        world.settle()
        final = f"select category, sum(amount)::bigint from ({AS_OF.replace('price', 'amount')}) group by category"
        assert rows(world, "sold", "category", "amount") == sent.oracle(final)


def test_a_crash_at_any_point_changes_no_row():
    with run(shop(), now=START) as world:
        sent = Sent(world, seed=2)
        for point in POINTS if FULL else POINTS[1:4]:
            sent.some()
            world.crash(point)
            world.settle()
            check(world, sent)


def test_an_event_on_which_the_function_fails_is_kept_aside():
    app = hw.App("shop")
    app.topic("orders", ORDER, key="order_id", time="at")

    @app.view(key="product_id")
    def counted(orders: DataFrame) -> DataFrame:
        return hw.stateful(orders, by="product_id", fn=picky, returns="product_id int, n int, amount bigint")

    with run(app, now=START) as world:
        for amounts in ((1, 2), (-1, 4), (3, 5)):
            for product, amount in enumerate(amounts):
                world.send("orders", {"order_id": 0, "product_id": product, "amount": amount, "at": START})
            world.settle()
        assert rows(world, "counted", "product_id", "n", "amount") == [(0, 2, 4), (1, 3, 11)]
        counts = world.counts("counted")
        assert (counts.in_, counts.used, counts.quarantined) == (6, 5, 1)
        ((value, reason),) = world.client.sql("select value, reason from hw_quarantine").rows
        assert '"amount":-1' in value
        assert reason.startswith("ValueError: no order is negative, in picky")
        assert "for the key 0" in reason


def test_events_on_which_an_operator_in_spark_fails_are_kept_aside():
    """Steps follow all of them; the vectorised one is the last, at the sink."""
    app = hw.App("shop")
    app.topic("orders", ORDER, key="order_id", time="at")
    app.table("products", PRODUCT, key="product_id", time="since")

    @app.view(key="product_id")
    def in_spark(orders: DataFrame) -> DataFrame:
        counted = hw.stateful(orders, by="product_id", fn=picky, returns="product_id int, n int, amount bigint")
        return counted.groupBy("product_id").agg(F.max("amount").alias("amount"))

    @app.view(key="product_id")
    def at_sink(orders: DataFrame) -> DataFrame:
        return hw.stateful(orders, by="product_id", fn=added, returns=SUM, state="amount bigint")

    @app.view(key="product_id")
    def summed(orders: DataFrame) -> DataFrame:
        sums = hw.stateful(orders, by="product_id", fn=added, returns=SUM, state="amount bigint")
        return sums.groupBy("product_id").agg(F.max("amount").alias("amount"))

    @app.view(key="name")
    def known(orders: DataFrame, products: hw.Table) -> DataFrame:
        found = hw.enrich(orders, products, on="product_id", missing="quarantine")
        return found.groupBy(F.col("category").alias("name")).agg(F.sum("amount").alias("amount"))

    with run(app, now=START) as world:
        world.send("products", *({"product_id": n, "category": "a", "price": 1, "since": START} for n in (0, 1)))
        for amounts in ((1, 2, 3), (-1, 4, 5), (3, 5, 6)):
            for product, amount in enumerate(amounts):
                world.send("orders", {"order_id": 0, "product_id": product, "amount": amount, "at": START})
            world.settle()
        for view in ("in_spark", "at_sink", "summed"):
            assert rows(world, view, "product_id", "amount") == [(0, 4), (1, 11), (2, 14)]
            counts = world.counts(view)
            assert (counts.in_, counts.used, counts.quarantined) == (9, 8, 1)
        assert rows(world, "known", "name", "amount") == [("a", 14)]
        assert world.counts("known").quarantined == 3
        asked = "select pipeline, value->>'amount', reason from hw_quarantine where pipeline <> 'known' order by 1"
        kept = [tuple(row) for row in world.client.sql(asked).rows]
        assert [(pipeline, amount) for pipeline, amount, _ in kept] == [
            ("at_sink", -1),
            ("in_spark", -1),
            ("summed", -1),
        ]
        assert all(reason.startswith("ValueError: no order is negative, in ") for _, _, reason in kept)


def test_a_function_sees_events_in_the_order_of_time_when_asked():
    app = hw.App("shop")
    app.topic("orders", ORDER, key="order_id", time="at", lateness="1 hour", partitions=3)

    def told(product, orders, state):
        seen = [*(state or {"seen": []})["seen"], *(order["order_id"] for order in orders)]
        return {"seen": seen}, [{"product_id": product, "seen": seen}]

    @app.view(key="product_id")
    def in_order(orders: DataFrame) -> DataFrame:
        returns = "product_id int, seen array<int>"
        return hw.stateful(orders, by="product_id", fn=told, returns=returns, ordered=True)

    with run(app, now=START) as world:
        for minute in (3, 1, 2, 0, 4):
            at = START + timedelta(minutes=minute)
            world.send("orders", {"order_id": minute, "product_id": 1, "amount": 1, "at": at})
            world.settle()
        world.advance("1 day")
        world.settle()
        assert rows(world, "in_order", "seen") == [([0, 1, 2, 3, 4],)]
