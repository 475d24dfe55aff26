"""Rows that are emitted only when they are final are not late for the next pipeline."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

pytestmark = pytest.mark.spark
S = datetime(2026, 1, 1, tzinfo=UTC)


def given() -> hw.App:
    app = hw.App("x")
    app.topic("a", "ka int, ta timestamp", time="ta")
    app.topic("b", "kb int, tb timestamp", time="tb")
    return app


def session(app):
    @app.view("first", key=("v", "ka"))
    def first(a):
        return a.groupBy(F.session_window("ta", "1 minute").alias("v"), "ka").count()

    return "occurred_at", 3


def windowed_stream(app):
    @app.stream("first")
    def first(a):
        return a.groupBy(F.window("ta", "1 minute").alias("v"), "ka").count()

    return "occurred_at", 15


def left_join(app):
    @app.stream("first")
    def first(a, b):
        near = F.expr("ka = kb and tb between ta and ta + interval 1 minute")
        return a.join(b, near, "left").select("ka", "ta")

    return "ta", 40


@pytest.mark.parametrize("make", [session, windowed_stream, left_join])
def test_rows_of_an_append_pipeline_are_in_time_for_the_next(make):
    app = given()
    time, expected = make(app)

    @app.view("hours", key="h")
    def hours(first):
        return first.groupBy(F.window(time, "1 hour").alias("h")).agg(F.count("*").alias("n"))

    with run(app) as world:
        world.send("a", *({"ka": i % 3, "ta": S + timedelta(seconds=i * 7)} for i in range(40)))
        world.send("b", {"kb": 99, "tb": S})
        world.advance("5 hours")
        world.settle()
        assert [row["n"] for row in world.rows("hours")] == [expected], world.counts("hours")
