"""Tables of a topic of changes, through Spark: other pipelines read them like any table, at the time of each change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

import headwater as hw
from headwater.store import EventCounts
from headwater.testing import World, run

pytestmark = pytest.mark.spark
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG = 60 * 24 * 30
"""A month in minutes: so long ago was the first change."""
ROW = "product_id int, name string, price decimal(10,2)"


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "order_id int, product_id int, at timestamp", time="at", lateness="1 hour")
    app.table("products", app.topic("raw", hw.changes(ROW), time="at"), key="product_id")
    app.table("copies", app.topic("copied", hw.changes(ROW), time="at"), key="product_id")
    app.view("named", key="name", sql="select name, count(*) n, max(price) top from products group by 1")
    app.view("dear", key="product_id", sql="select product_id, upper(name) as name from products where price > 4")
    app.view("past", key="product_id", sql="select * from products", history=True)

    @app.stream
    def sold(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.join_as_of(orders, products, on="product_id")

    return app


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def put(op: str, minute: int, product: int, name: str | None = None, price: str | None = None, **more: Any):
    row = {"product_id": product, "name": name, "price": price}
    return {"op": op, "after": row, "at": at(minute)} | more


def order(world: World, *moments: tuple[int, int]) -> None:
    """Orders of products at minutes; their numbers are the minutes."""
    orders = [{"order_id": minute, "product_id": product, "at": at(minute)} for product, minute in moments]
    world.send("orders", *orders)


def rows(world: World, view: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in world.rows(view)]


def told(world: World, table: str) -> list[Any]:
    return [event.value for event in world.client.read(f"{table}.changes")]


def test_views_and_joins_follow_the_changes_of_a_source():
    with run(shop(), now=at(LONG)) as world:
        world.send(
            "raw",
            put("read", 0, 1, "tea", "3"),
            put("insert", 10, 2, "tea", "5"),
            put("update", 20, 1, price="4", unchanged=["name"]),
            put("update", 21, 9, price="4", unchanged=["name"]),
            put("update", 30, 3, "cup", "5", before={"product_id": 2}),
            {"op": "delete", "at": at(31)},
        )
        order(world, (1, 5), (1, 25), (2, 15), (2, 35))
        world.settle()
        assert rows(world, "products", "product_id", "name", "price") == [(1, "tea", 4), (3, "cup", 5)]
        assert rows(world, "named", "name", "n", "top") == [("cup", 1, 5), ("tea", 1, 4)]
        assert rows(world, "dear", "product_id", "name") == [(3, "CUP")]
        assert world.counts("products") == EventCounts(in_=6, used=4, quarantined=2)

        world.crash("after-sink-commit")
        world.send("raw", {"op": "truncate", "at": at(40)}, put("insert", 50, 1, "ink", "7"))
        order(world, (1, 45), (1, 55))
        world.settle()
        assert rows(world, "products", "product_id", "name", "price") == [(1, "ink", 7)]
        assert rows(world, "named", "name", "n", "top") == [("ink", 1, 7)]
        assert rows(world, "dear", "product_id", "name") == [(1, "INK")]
        assert world.counts("products") == EventCounts(in_=8, used=6, quarantined=2)

        world.send("copied", *told(world, "products"))
        order(world, (1, LONG))
        world.advance("2 hours")  # no change since then is news, too: answers are final
        world.settle()
        assert world.rows("copies") == world.rows("products")
        assert told(world, "copies") == told(world, "products")
        # Versions that came in one batch hold in their own time each.
        held = rows(world, "past", "product_id", "price", "valid_from", "valid_to")
        assert held == [
            (1, 3, at(0), at(20)),
            (1, 4, at(20), at(40)),
            (1, 7, at(50), None),
            (2, 5, at(10), at(30)),
            (3, 5, at(30), at(40)),
        ]
        sold = {event.value["order_id"]: event.value["price"] for event in world.client.read("sold")}
        assert sold == {5: 3, 15: 5, 25: 4, 35: None, 45: None, 55: 7, LONG: 7}
