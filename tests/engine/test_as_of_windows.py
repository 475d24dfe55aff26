"""As-of joins with steps behind them: events wait for the table alone, however long late events correct the view."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import World, run

pytestmark = pytest.mark.spark
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
POINTS = ["before-sink", "before-sink-commit", "in-sink-commit", "after-sink-commit", "in-publish", "after-publish"]
REVENUE = """
    select date_trunc('minute', orders.at) as minute, category, sum(amount)::bigint as revenue
    from orders asof left join products on orders.product = products.product and orders.at >= since group by all
"""


def shop(late: Any = "keep", *, lateness: str = "2 seconds") -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "id int, product int, amount long, at timestamp", time="at", lateness="10 minutes")
    columns, idle = "product int, category string, since timestamp", "1 second"
    app.table("products", columns, key="product", time="since", lateness=lateness, idle=idle)

    @app.view(key=("minute", "category"), late=late)
    def revenue(orders: DataFrame, products: hw.Table) -> DataFrame:
        joined = hw.join_as_of(orders, products, on="product")
        return joined.groupBy(F.window("at", "1 minute").alias("minute"), "category").agg(F.sum("amount").alias("sum"))

    @app.view(key="id", late=late)
    def sold(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.join_as_of(orders, products, on="product").select("id", "category")

    @app.view(key="id", late=late)
    def corrected(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.join_as_of(orders, products, on="product")

    @app.stream(late=late)
    def stream(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.join_as_of(orders, products, on="product")

    return app


def order(number: int, at: datetime, product: int = 7) -> dict[str, Any]:
    return {"id": number, "product": product, "amount": 10**number, "at": at}


def product(category: str, since: datetime, product: int = 7) -> dict[str, Any]:
    return {"product": product, "category": category, "since": since}


def revenue(world: World, **options: Any) -> dict[tuple[datetime, str | None], int]:
    rows = world.rows("revenue", **options)
    return {(row["minute"]["start"], row["category"]): row["sum"] for row in rows}


def categories(world: World, view: str) -> dict[int, str | None]:
    return {row["id"]: row["category"] for row in world.rows(view)}


@pytest.mark.parametrize("late", ["keep", hw.correct(for_="1 hour")], ids=["keep", "correct"])
def test_an_order_shows_within_seconds_and_late_ones_correct_its_minute(late: Any):
    correct = late != "keep"
    with run(shop(late), now=NOON, only=["revenue", "sold", "stream"]) as world:
        world.send("products", product("tea", NOON - HOUR))
        world.settle()
        world.send("orders", order(1, NOON))
        world.advance("4 seconds")  # an idle marker: the table is complete up to two seconds ago
        world.settle()
        assert revenue(world) == {(NOON, "tea"): 10}
        assert revenue(world, open=False) == {}
        assert categories(world, "sold") == {1: "tea"}
        assert [event.value["category"] for event in world.client.read("stream")] == ["tea"]
        world.send("orders", order(2, NOON + 30 * MINUTE))
        world.advance("30 minutes")
        world.send("orders", order(3, NOON + 30 * SECOND))  # half an hour late
        world.settle()
        assert revenue(world)[NOON, "tea"] == (1010 if correct else 10)
        assert world.counts("revenue").late == (0 if correct else 1)
        world.send("orders", order(4, NOON + 2 * HOUR))
        world.advance("2 hours")
        world.settle()
        assert revenue(world, open=False)[NOON, "tea"] == (1010 if correct else 10)


def test_a_late_version_corrects_rows_where_the_join_is_the_last_step_of_a_view():
    with run(shop(hw.correct(for_="1 hour")), now=NOON) as world:
        world.send("products", product("tea", NOON - HOUR))
        world.settle()
        world.send("orders", *(order(n, NOON + 20 * n * SECOND) for n in range(3)))
        world.advance("1 minute")
        world.settle()
        emitted = dict.fromkeys(range(3), "tea")
        assert categories(world, "sold") == categories(world, "corrected") == emitted
        # Complete up to 12:00:58: there the version begins for all whose rows are final.
        world.send("products", product("cup", NOON + 30 * SECOND))
        world.send("orders", order(3, NOON + 57 * SECOND), order(4, NOON + 58 * SECOND), order(5, NOON + 59 * SECOND))
        world.advance("1 minute")
        world.settle()
        assert categories(world, "sold") == emitted | {3: "tea", 4: "cup", 5: "cup"}
        assert {event.value["id"]: event.value["category"] for event in world.client.read("stream")} == categories(
            world, "sold"
        )
        assert categories(world, "corrected") == emitted | {2: "cup", 3: "cup", 4: "cup", 5: "cup"}
        assert revenue(world) == {(NOON, "tea"): 1111, (NOON, "cup"): 110_000}


def test_two_joins_with_one_table_wait_for_it_alone():
    """Spark reads the table twice, so its rows and its watermark reach the operators in another way."""
    app = shop(hw.correct(for_="1 hour"))

    @app.view("pairs", key=("minute", "one", "other"), late=hw.correct(for_="1 hour"))
    def paired(orders: DataFrame, products: hw.Table) -> DataFrame:
        one = hw.join_as_of(orders, products, on="product").withColumnRenamed("category", "one").drop("since")
        both = hw.join_as_of(
            one.withColumn("next", F.expr("product + 1")), products, on={"next": "product"}, how="inner"
        )
        both = both.withColumnRenamed("category", "other")
        return both.groupBy(F.window("at", "1 minute").alias("minute"), "one", "other").agg(
            F.sum("amount").alias("sum")
        )

    def pairs() -> dict[tuple[str, str], int]:
        return {(row["one"], row["other"]): row["sum"] for row in world.rows("pairs")}

    with run(app, now=NOON, only=["pairs"]) as world:
        world.send("products", product("tea", NOON - HOUR), product("cup", NOON - HOUR, 8))
        world.settle()
        world.send("orders", order(1, NOON), order(2, NOON + 3 * SECOND), order(3, NOON, 8))
        world.advance("4 seconds")
        world.settle()
        assert pairs() == {("tea", "cup"): 10}
        world.send("products", product("pot", NOON + 3 * SECOND, 8))
        world.advance("2 seconds")
        world.settle()
        assert pairs() == {("tea", "cup"): 10, ("tea", "pot"): 100}


def arrivals(chance: Random) -> list[tuple[str, dict[str, Any]]]:
    """Versions up to a minute out of order, and orders up to 75 minutes late, of which 70 are in time."""
    found: list[tuple[str, dict[str, Any]]] = []
    for number in range(30):
        now = NOON + number * 5 * MINUTE
        if chance.random() < 0.5:
            since = now - chance.randint(0, 59) * SECOND
            found.append(("products", product(chance.choice("abc"), since, chance.randrange(3))))
        delay = chance.choice([0, 0, 0, chance.randint(0, 69), chance.randint(71, 75)])
        found.append(("orders", order(0, now - delay * MINUTE, chance.randrange(4)) | {"id": number}))
    return found


def expected(sent: list[tuple[str, dict[str, Any]]]) -> tuple[dict[tuple[datetime, str | None], int], int]:
    """The minutes by DuckDB over the orders up to which the table is complete, and the number of late orders."""
    rows: dict[str, list[dict[str, Any]]] = {"orders": [], "products": []}
    newest = late = 0
    for topic, row in sent:
        at = row["at" if topic == "orders" else "since"]
        if topic == "orders" and newest and at < newest - 70 * MINUTE:
            late += 1
            continue
        newest = max(newest or at, at) if topic == "orders" else newest
        rows[topic].append(row)
    complete = max((row["since"] for row in rows["products"]), default=NOON - 24 * HOUR) - MINUTE
    orders = pa.Table.from_pylist([row for row in rows["orders"] if row["at"] < complete], ORDERS)
    products = pa.Table.from_pylist(rows["products"], PRODUCTS)
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("orders", orders)
        database.register("products", products)
        found = database.sql(REVENUE).to_arrow_table().to_pylist()
    return {(row["minute"], row["category"]): row["revenue"] for row in found}, late


TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema([("id", pa.int32()), ("product", pa.int32()), ("amount", pa.int64()), ("at", TIME)])
PRODUCTS = pa.schema([("product", pa.int32()), ("category", pa.string()), ("since", TIME)])


@pytest.mark.parametrize("rows", [10, 400_000])
def test_any_order_of_arrival_with_crashes_gives_the_rows_of_duckdb(rows: int):
    chance = Random(rows)
    sent: list[tuple[str, dict[str, Any]]] = []
    app = shop(hw.correct(for_="1 hour"), lateness="1 minute")
    with run(app, now=NOON + 3 * HOUR, only=["revenue"], rows=rows) as world:
        for topic, row in arrivals(chance):
            world.client.send(topic, row)
            sent.append((topic, row))
            if chance.random() < 0.15:
                if chance.random() < 0.5:
                    world.crash(chance.choice(POINTS))
                world.settle()
                minutes, late = expected(sent)
                assert revenue(world) == minutes
                assert world.counts("revenue").late == late
