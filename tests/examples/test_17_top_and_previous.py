"""Example 17: the best of each hour, and each hour beside the one before, as DuckDB computes them from the sales."""

from __future__ import annotations

import ast
import random
from datetime import UTC, datetime, timedelta

import pytest

from headwater.testing import run
from tests.examples.on_spark import duck, in_time, ran

pytestmark = pytest.mark.spark

NAME = "17_top_and_previous.py"
START = datetime(2026, 1, 1, tzinfo=UTC)
PER_HOUR = """with per_hour as (
    select date_trunc('hour', "at") h, category, sum(amount)::int revenue from sales group by all
)"""
BEST = f"""{PER_HOUR} select hour(h), category from per_hour
    qualify row_number() over (partition by h order by revenue desc, category) <= 2 order by all"""
COMPARED = f"""{PER_HOUR} select hour(n.h), n.category, n.revenue, b.revenue from per_hour n
    left join per_hour b on b.category = n.category and b.h + interval 1 hour = n.h order by all"""


def sales():
    return [
        {"category": category, "amount": amount, "at": START + timedelta(hours=hour)}
        for category, amount, hour in ran(NAME).names["SALES"]
    ]


def test_the_best_of_each_hour_are_those_of_the_query():
    assert ast.literal_eval(ran(NAME).lines[0].removeprefix("best: ")) == duck(BEST, sales=sales())


def test_each_hour_stands_beside_the_one_before():
    assert ran(NAME).lines[1:] == [" ".join(map(str, row)) for row in duck(COMPARED, sales=sales())]


def test_many_sales_with_stragglers_give_the_rows_of_the_query():
    chance, made = random.Random(17), []
    with run(ran(NAME).app, now=START + timedelta(hours=9)) as world:
        for hour in range(8):
            if hour != 4:  # an hour without sales: the one after it has nothing before it
                made += [
                    {
                        "category": chance.choice(["tea", "ink", "pens"]),
                        "amount": chance.randrange(9),
                        "at": START + timedelta(hours=hour, minutes=minute, seconds=chance.randrange(-90, 90)),
                    }
                    for minute in range(2, 50, 4)
                ]
                world.client.send_many("sales", made[-12:])
            if hour % 3 == 0:
                world.settle()
        world.settle()
        good = in_time(made, "at", timedelta(minutes=1))
        best = {(row["hour"]["start"].hour, row["category"]) for row in world.rows("best")}
        compared = {
            (row["hour"]["start"].hour, row["category"], row["revenue"], row["previous"])
            for row in world.rows("compared")
        }
        assert best == set(duck(BEST, sales=good))
        assert compared == set(duck(COMPARED, sales=good))
