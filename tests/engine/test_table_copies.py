"""A table, its changelog and a table made of the changelog are the same table."""

from __future__ import annotations

import random

import pytest

import headwater as hw
from headwater.testing import run

pytestmark = pytest.mark.spark


def shop() -> hw.App:
    app = hw.App("shop")
    app.table("products", "product_id int, name string, price decimal(6,2)", key="product_id", partitions=3)
    app.view("copy", key="product_id", sql="select * from products")
    app.view("copy_of_copy", key="product_id", sql="select * from copy")
    return app


def by_key(rows: list[dict]) -> dict:
    return {row["product_id"]: row for row in rows}


def test_a_table_comes_back_from_its_changelog():
    chance = random.Random(5)
    with run(shop()) as world:
        for _ in range(5):
            for _ in range(chance.randint(1, 12)):
                number = chance.randint(1, 9)
                if chance.random() < 0.3:
                    world.delete("products", key=number)
                else:
                    row = {"product_id": number, "name": chance.choice(["pen", None]), "price": chance.randint(1, 9)}
                    world.send("products", row)
            world.settle()
            table = by_key(world.client.table("products").rows())
            assert by_key(world.rows("copy")) == table
            assert by_key(world.rows("copy_of_copy")) == table
        replayed: dict = {}
        for change in world.client.view("copy").changes():
            if change.after is None:
                del replayed[change.key[0]]
            else:
                replayed[change.key[0]] = change.after
        assert replayed == table
        assert len(table) > 2
