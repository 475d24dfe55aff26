"""Example 12: its tests pass on its app, and fail on an app that is wrong."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run
from tests.examples.on_spark import ran

pytestmark = pytest.mark.spark

NAMES = ran("12_testing_an_app.py", main=False).names
STRAGGLERS = NAMES["test_a_minute_is_open_until_its_stragglers_had_their_time"]
CRASH = NAMES["test_a_crash_changes_nothing"]


def test_its_test_of_stragglers_passes():
    STRAGGLERS(run)


def test_its_test_of_crashes_passes_at_every_point_it_names():
    (points,) = (mark.args[1] for mark in CRASH.pytestmark)
    assert len(points) == 3
    for point in points:
        CRASH(run, point)


def test_its_tests_see_that_a_repeated_order_counts_twice():
    wrong = hw.App("shop")
    wrong.topic("orders", "order_id int, cents int, at timestamp", key="order_id", time="at", lateness="1 minute")

    @wrong.view(key="minute")
    def revenue(orders):
        return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("cents").alias("cents"))

    with pytest.raises(AssertionError) as failed:
        STRAGGLERS(lambda app, now: run(wrong, now=now))
    assert "== [570]" in str(failed.traceback[-1].statement)
