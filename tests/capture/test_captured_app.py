"""A captured table in an app on Spark: views, tables and as-of joins over it, and the same from the command line."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.testing import run


def write(shop: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(shop)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    write(
        path,
        "create table products (id integer primary key, category text, price real)",
        "insert into products values (1, 'drinks', 1.5), (2, 'cups', 3), (3, 'cups', 5)",
    )
    return path


def select(shop: Path, sql: str) -> list[dict[str, Any]]:
    """The oracle: the database itself."""
    with contextlib.closing(sqlite3.connect(shop)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


@pytest.mark.spark
def test_view_and_as_of_join_over_a_captured_table(shop: Path) -> None:
    app = hw.App("shop")
    app.topic("orders", "order_id int, id bigint, at timestamp", key="order_id", time="at", lateness="1 second")
    app.table("products", hw.capture(str(shop), table="products"))
    by_category = "select category, count(*) n, max(price) top from products group by category"
    app.view("by_category", key="category", sql=by_category)

    @app.stream(key="order_id")
    def priced(orders, products: hw.Table):  # type: ignore[no-untyped-def]
        return hw.join_as_of(orders, products, on="id").select("order_id", "price")

    with run(app) as world:
        world.settle()
        assert world.rows("by_category") == select(shop, f"{by_category} order by category")
        world.send("orders", {"order_id": 1, "id": 2, "at": "2026-01-01T00:00:00Z"})
        write(
            shop,
            "update products set price = 9 where id = 2",
            "delete from products where id = 3",
            "insert into products values (4, 'pots', 7)",
        )
        world.advance("1 minute")
        world.settle()
        assert world.rows("by_category") == select(shop, f"{by_category} order by category")
        assert world.client.view("products").rows() == select(shop, "select * from products order by id")
        found = [event.value for event in world.client.read("priced", start="earliest", stop="end")]
    assert found == [{"order_id": 1, "price": 3.0}]  # the price at the time of the order, not the present one
