"""Example 06 prints what DuckDB says about the same orders; a stranger who runs it as a program sees the same."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from headwater.testing import run
from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "06_first_view.py"
ORDERS = [
    {"category": "tea", "amount": Decimal("19.90")},
    {"category": "ink", "amount": Decimal("4.00")},
    {"category": "tea", "amount": Decimal("250.10")},
]


def test_the_view_says_what_a_batch_query_says():
    sql = "select category, sum(amount), count(*) from orders group by all order by all"
    rows = duck(sql, orders=ORDERS)
    lines = ran(NAME).lines
    assert lines[:2] == [f"{name}: revenue {total}, orders {count}" for name, total, count in rows]
    assert lines[2] == f"SQL says {sum(order['amount'] for order in ORDERS)} on 2026-01-01"
    assert [line.split()[0] for line in lines[3:]] == ["insert", "insert", "update"]


def test_a_stranger_who_runs_it_as_a_program_sees_the_same(printed):
    assert printed(NAME) == ran(NAME).lines


def test_many_orders_of_many_days_in_any_order_say_the_same():
    chance, start = random.Random(6), datetime(2026, 1, 1, tzinfo=UTC)
    orders = [
        {
            "category": chance.choice(["tea", "ink", "salt"]),
            "amount": Decimal(chance.randrange(1, 10_000)) / 100,
            "placed_at": start - timedelta(hours=chance.randrange(100)),
        }
        for _ in range(300)
    ]
    with run(ran(NAME).app, now=start) as world:
        for first in range(0, 300, 75):
            world.send("orders", *orders[first : first + 75])
        world.settle()
        found = [tuple(row.values()) for row in world.rows("revenue")]
        days = [tuple(row.values()) for row in world.rows("by_day")]
        assert world.counts("revenue").used == world.counts("by_day").used == 300
    by_category = "select category, sum(amount), count(*) from orders group by all order by all"
    by_day = "select placed_at::date, sum(amount) from orders group by all order by all"
    assert found == duck(by_category, orders=orders)
    assert days == duck(by_day, orders=orders)
