"""Example 15: enriched rows are DuckDB's left join; an event without a row waits, and is then kept aside."""

from __future__ import annotations

import random

import pytest

import headwater as hw
from headwater.testing import run
from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "15_enrichment.py"
PRODUCTS = [{"product_id": 7, "category": "tea"}, {"product_id": 8, "category": "ink"}]
CUSTOMERS = [{"customer_id": 1, "country": "IT"}, {"customer_id": 2, "country": "NO"}]


def test_two_tables_at_once_are_two_left_joins():
    sql = """
        select category, country, sum(amount)::int from orders left join products using (product_id)
        left join customers using (customer_id) group by all order by all nulls first
    """
    rows = duck(sql, orders=ran(NAME).names["ORDERS"], products=PRODUCTS, customers=CUSTOMERS)
    assert ran(NAME).lines[0] == f"revenue: {rows}"


def test_only_orders_of_unknown_products_are_kept_aside():
    given = {"orders": ran(NAME).names["ORDERS"], "products": PRODUCTS}
    rows = duck("select order_id, category from orders join products using (product_id) order by all", **given)
    aside = duck("select count(*) from orders anti join products using (product_id)", **given)
    assert ran(NAME).lines[1:] == [f"checked: {rows}", f"kept aside: {aside[0][0]}"]


def small_app():
    """The second view of the example alone, which costs no window and no state in Spark."""
    names = ran(NAME, main=False).names
    app = hw.App("small")
    app.topic("orders", names["app"].topics["orders"].schema, time="at")
    app.table("products", names["app"].topics["products"].schema, key="product_id")
    app.view(key="order_id")(names["checked"].function)
    return app


def test_orders_get_the_row_of_their_moment_or_wait_for_one():
    chance, products, expected = random.Random(15), {}, {}
    order = ran(NAME, main=False).names["order"]
    waiting = []
    with run(small_app(), now="2026-01-01T12:00:10Z") as world:
        for batch in range(5):
            for number in chance.sample(range(12), 3):
                products[number] = f"{number} in {batch}"
                world.client.send("products", {"product_id": number, "category": products[number]})
            world.settle()
            orders = [order(batch * 20 + n, chance.randrange(14), 1, 1, batch) for n in range(20)]
            world.client.send_many("orders", orders)
            world.settle()
            waiting += orders
            found = {one["order_id"]: products[one["product_id"]] for one in waiting if one["product_id"] in products}
            expected |= found
            waiting = [one for one in waiting if one["order_id"] not in expected]
        world.advance("10 minutes")
        world.settle()
        assert {row["order_id"]: row["category"] for row in world.rows("checked")} == expected
        assert world.counts("checked").quarantined == len(waiting) > 0
        assert world.counts("checked").unaccounted == 0
