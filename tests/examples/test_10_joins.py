"""Example 10: joined rows are DuckDB's, and over many events in any order those of a batch join."""

from __future__ import annotations

import ast
import random
from datetime import UTC, datetime, timedelta

import pytest

from headwater.testing import run
from tests.examples.on_spark import batch, duck, in_time, ordered, ran

pytestmark = pytest.mark.spark

NAME = "10_joins.py"
START = datetime(2026, 1, 1, tzinfo=UTC)
NEAR = "paid_at between placed_at and placed_at + interval 10 minutes"


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def tables():
    names = ran(NAME).names
    orders = [
        {"order_id": order_id, "card": card, "city": city, "placed_at": minute(at)}
        for order_id, card, city, at in names["ORDERS"]
    ]
    payments = [
        {"payment_id": payment_id, "order_ref": order, "paid_at": minute(at)}
        for payment_id, order, at in names["PAYMENTS"]
    ]
    return {"orders": orders, "payments": payments}


def test_orders_meet_their_payments_and_stay_alone_without():
    inner = f"select order_id, payment_id from orders join payments on order_id = order_ref and {NEAR} order by all"
    left = inner.replace("join", "left join")
    found = dict(line.split(": ", 1) for line in ran(NAME).lines)
    assert sorted(ast.literal_eval(found["paid"])) == duck(inner, **tables())
    assert ast.literal_eval(found["settled"]) == dict(duck(left, **tables()))


def test_a_stream_meets_itself():
    sql = """
        select a.order_id, b.order_id, a.card from orders a join orders b on a.card = b.card and a.city <> b.city
        and b.placed_at > a.placed_at and b.placed_at <= a.placed_at + interval 5 minutes
    """
    assert ran(NAME).lines[2] == f"travellers: {duck(sql, **tables())}"


def test_many_events_with_stragglers_give_the_rows_of_a_batch():
    app, chance = ran(NAME).app, random.Random(10)
    orders, payments = [], []
    with run(app, now=START) as world:
        for number in range(0, 120, 6):
            world.clock.advance("2 minutes")
            now = world.clock.now()
            some = [
                {
                    "order_id": number + n,
                    "card": chance.choice("xyz"),
                    "city": chance.choice(["Rome", "Oslo"]),
                    "placed_at": now - timedelta(seconds=chance.choice([0, 3, 9, 20])),
                }
                for n in range(6)
            ]
            paying = [
                {
                    "payment_id": 1000 + number + n,
                    "order_ref": number - 20 + chance.randrange(20) * 10 + n,
                    "paid_at": now - timedelta(seconds=chance.choice([0, 5, 15])),
                }
                for n in range(3)
            ]
            world.client.send_many("orders", some)  # not `world.send`, which lets the quiet topic move on in between
            world.client.send_many("payments", paying)
            orders, payments = orders + some, payments + paying
        world.advance("1 hour")
        world.settle()
        ten = timedelta(seconds=10)
        good = {"orders": in_time(orders, "placed_at", ten), "payments": in_time(payments, "paid_at", ten)}
        paid = [event.value for event in world.client.read("paid")]
        assert ordered(paid) == batch(app, "paid", **good)
        assert ordered(world.rows("settled")) == batch(app, "settled", **good)
        assert ordered(world.rows("travellers")) == batch(app, "travellers", orders=good["orders"])
        assert world.counts("paid").unaccounted == world.counts("travellers").unaccounted == 0
        assert world.counts("paid").late == len(orders + payments) - sum(map(len, good.values())) > 0
