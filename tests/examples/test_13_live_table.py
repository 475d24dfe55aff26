"""Example 13: after every change, and after many random ones, both views are DuckDB's over the table as it is."""

from __future__ import annotations

import ast
import random
from decimal import Decimal

import pytest

from headwater.testing import run
from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "13_live_table.py"
GROUPED = "select category, count(*), max(price) from products group by category order by all"
DEAR = """
    select product_id, category from products
    qualify row_number() over (partition by category order by price desc, product_id) <= 2 order by all
"""


def changed(products, change):
    """The table after a change: a row, or the key of one that is deleted."""
    if isinstance(change, dict):
        return products | {change["product_id"]: change | {"price": Decimal(change["price"])}}
    return {key: row for key, row in products.items() if key != change}


def asked(sql, products):
    return duck(sql, products=list(products.values())) if products else []


def test_every_line_is_the_query_over_the_table():
    products = {}
    *lines, last = ran(NAME).lines
    for change, line in zip(ran(NAME).names["CHANGES"], lines, strict=True):
        products = changed(products, change)
        rows = ast.literal_eval(line.removeprefix("by category: "))
        assert [(category, n, Decimal(top)) for category, n, top in rows] == asked(GROUPED, products)
    assert last == f"dear: {asked(DEAR, products)}"


def test_random_changes_leave_the_rows_of_the_query():
    chance, products = random.Random(13), {}
    with run(ran(NAME).app) as world:
        for _ in range(6):
            for _ in range(25):
                number = chance.randrange(20)
                if chance.random() < 0.3:
                    world.client.delete("products", key=number)  # often one that is not there
                    products = changed(products, number)
                    continue
                category, price = chance.choice(["books", "toys", None]), f"{chance.randrange(900)}.50"
                change = {"product_id": number, "category": category, "price": price}
                world.client.send("products", change)
                products = changed(products, change)
            world.settle()
            grouped = {(row["category"], row["n"], row["top"]) for row in world.rows("by_category")}
            dear = {(row["product_id"], row["category"]) for row in world.rows("dear")}
            assert grouped == set(asked(GROUPED, products))
            assert dear == set(asked(DEAR, products))
