"""Example 16: prices are those of DuckDB's ASOF join, in any order; the history is its lead()."""

from __future__ import annotations

import ast
import random
from datetime import UTC, datetime, timedelta

import pytest

from headwater.testing import run
from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "16_price_history.py"
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
PRICED = """
    select order_id, price from orders o asof left join prices p on o.product_id = p.product_id and o.at >= p.since
    order by all
"""
HISTORY = """
    select product_id, price, since, lead(since) over (partition by product_id order by since) from prices order by all
"""


def moments(rows, column):
    return [row | {column: datetime.fromisoformat(row[column])} for row in rows]


def test_a_price_that_comes_later_corrects_the_rows():
    names = ran(NAME).names
    orders, prices = moments(names["ORDERS"], "at"), moments(names["PRICES"], "since")
    first, second = (ast.literal_eval(line.removeprefix("priced: ")) for line in ran(NAME).lines[:2])
    assert first == duck(PRICED, orders=orders, prices=prices[:1])
    assert second == duck(PRICED, orders=orders, prices=prices)


def test_the_history_says_how_long_each_price_held():
    prices = moments(ran(NAME).names["PRICES"], "since")
    lines = [
        f"price {price} from {since.replace(tzinfo=UTC)} to {until and until.replace(tzinfo=UTC)}"
        for _, price, since, until in duck(HISTORY, prices=prices)
    ]
    assert ran(NAME).lines[2:] == lines


def random_events(chance):
    """Prices in the order of their times, orders in any order, between each other in any way."""
    minutes = sorted(chance.sample(range(60), 30))
    prices = [
        {"product_id": chance.randrange(4), "price": chance.randrange(99), "since": START + timedelta(minutes=at)}
        for at in minutes
    ]
    orders = [
        {"order_id": n, "product_id": chance.randrange(5), "at": START + timedelta(minutes=chance.randrange(60))}
        for n in range(120)
    ]
    mixed = ["prices"] * len(prices) + ["orders"] * len(orders)
    chance.shuffle(mixed)
    return prices, orders, mixed


@pytest.mark.parametrize("seed", [1, 2])
def test_any_interleaving_gives_the_rows_of_an_as_of_join(seed):
    chance = random.Random(seed)
    prices, orders, mixed = random_events(chance)
    left = {"prices": iter(prices), "orders": iter(orders)}
    with run(ran(NAME).app, now=START + timedelta(hours=1)) as world:
        for number, topic in enumerate(mixed):
            world.client.send(topic, next(left[topic]))
            if number % 50 == 20:  # a batch ends here
                world.settle()
        world.settle()
        priced = {(row["order_id"], row["price"]) for row in world.rows("priced")}
        assert priced == set(duck(PRICED, orders=orders, prices=prices))
        history = {
            (row["product_id"], row["price"], bare(row["valid_from"]), bare(row["valid_to"]))
            for row in world.rows("price_history")
        }
        assert history == set(duck(HISTORY, prices=prices))


def bare(time):
    return time and time.replace(tzinfo=None)
