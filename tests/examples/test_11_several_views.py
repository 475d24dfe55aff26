"""Example 11: a view behind a view, and behind a stream, is what one query over the events gives."""

from __future__ import annotations

import pytest

from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "11_several_views.py"


def orders():
    columns = ("customer", "cents", "at")
    return [dict(zip(columns, row, strict=True)) for row in ran(NAME).names["ORDERS"]]


def test_the_chain_gives_what_a_nested_query_gives():
    sql = """
        with minutes as (select date_trunc('minute', "at") m, sum(cents) cents from orders group by m)
        select date_trunc('hour', m) h, max(cents)::int, count(*) from minutes group by h order by h
    """
    rows = duck(sql, orders=orders())
    lines = [line for line in ran(NAME).lines if line.startswith("busiest")]
    assert lines == [f"busiest {hour:%H:%M}: {best} of {minutes} minutes" for hour, best, minutes in rows]


def test_the_view_behind_the_stream_counts_what_the_stream_let_through():
    rows = duck("select customer, count(*) from orders where cents > 1000 group by all order by all", orders=orders())
    lines = [line for line in ran(NAME).lines if line.startswith("patron")]
    assert lines == [f"patron {customer}: {count}" for customer, count in rows]


def test_changes_add_up_and_no_event_is_unaccounted_for():
    assert ran(NAME).lines[-2:] == ["changes add up to the view: True", "events unaccounted for: 0"]
