"""Chains of stateful steps, and inputs that several of them read, through Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

pytestmark = pytest.mark.spark
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic(
        "orders", "number int, id int, buyer string, seller string, at timestamp", time="at", lateness="0 seconds"
    )
    app.table("users", "name string, town string", key="name")
    app.table("towns", "town string, land string", key="town")

    @app.view(key="number")
    def lands(orders: DataFrame, users: hw.Table, towns: hw.Table) -> DataFrame:
        return hw.enrich(hw.enrich(orders, users, on={"buyer": "name"}), towns, on="town")

    @app.view(key="number")
    def both(orders: DataFrame, users: hw.Table) -> DataFrame:
        bought = hw.enrich(orders, users, on={"buyer": "name"}).withColumnRenamed("town", "buys_in")
        return hw.enrich(bought, users, on={"seller": "name"})

    @app.stream
    def firsts(orders: DataFrame) -> DataFrame:
        once = hw.deduplicate(orders, by="id", within="1 hour")
        return hw.deduplicate(once, by="buyer", within="1 hour")

    @app.view(key=("hour", "buyer"))
    def counted(orders: DataFrame) -> DataFrame:
        """Each event, once more if it is the first of its id, and once more if it is the first of its seller."""
        ids = hw.deduplicate(orders, by="id", within="1 hour").select("buyer", "at")
        sellers = hw.deduplicate(orders, by="seller", within="1 hour").select("buyer", "at")
        all_ = orders.select("buyer", "at").union(ids).union(sellers)
        return all_.groupBy(F.window("at", "1 hour").alias("hour"), "buyer").count()

    return app


def first_of_each(orders: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """The events that have no equal one within the hour before; by definition, in the order of time."""
    kept: list[dict[str, Any]] = []
    for order in sorted(orders, key=lambda order: order["at"]):
        if not any(one[by] == order[by] and order["at"] - one["at"] < HOUR for one in kept):
            kept.append(order)
    return kept


def test_steps_with_state_follow_each_other_and_share_inputs():
    chance = Random(3)
    towns = {"ada": "Rome", "bob": "Oslo"}
    orders: list[dict[str, Any]] = []
    for number in range(40):
        buyer, seller = chance.choice(["ada", "bob", "eve"]), chance.choice("xyz")
        at = NOON + timedelta(minutes=7 * number, seconds=chance.randint(0, 59))
        orders.append({"number": number, "id": chance.randint(1, 9), "buyer": buyer, "seller": seller, "at": at})
    end = {"number": 40, "id": 0, "buyer": "end", "seller": "bob", "at": NOON + 24 * HOUR}
    with run(shop(), now=NOON + 25 * HOUR) as world:
        world.send("users", *({"name": name, "town": town} for name, town in towns.items()))
        world.send("towns", {"town": "Oslo", "land": "Norway"})
        world.settle()
        for part in (orders[:15], orders[15:], [end]):
            world.send("orders", *part)
            world.settle()
        lands = {row["number"]: (row["town"], row["land"]) for row in world.rows("lands")}
        both = {row["number"]: (row["buys_in"], row["town"]) for row in world.rows("both")}
        firsts = [event.value for event in world.client.read("firsts")]
        counted = {(row["hour"]["start"], row["buyer"]): row["count"] for row in world.rows("counted")}
        counts = [world.counts(name) for name in ("lands", "both", "firsts", "counted")]
    lands_of = {"Oslo": "Norway"}
    assert lands == {
        order["number"]: (towns.get(order["buyer"]), lands_of.get(towns.get(order["buyer"], "")))
        for order in [*orders, end]
    }
    assert both == {
        order["number"]: (towns.get(order["buyer"]), towns.get(order["seller"])) for order in [*orders, end]
    }
    once = first_of_each(first_of_each(orders, "id"), "buyer")
    assert sorted(order["at"] for order in firsts) == [order["at"] for order in once]
    expected: dict[tuple[datetime, str], int] = {}
    for order in [*orders, *first_of_each(orders, "id"), *first_of_each(orders, "seller")]:
        hour = order["at"].replace(minute=0, second=0), order["buyer"]
        expected[hour] = expected.get(hour, 0) + 1
    assert {key: n for key, n in counted.items() if key[1] != "end"} == expected
    assert all(found.in_ == found.used for found in counts)
