"""The size of an operator's state is reported on every host; in Spark, with the commit of the batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.build.plan_analysis import state_text
from headwater.testing.world import World, run

pytestmark = pytest.mark.spark

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUESTION = "select space, keys, entries, largest, largest_key from hw_state where pipeline = '{}' order by space"


def shop() -> hw.App:
    """The same join with the past twice: as the last step, and with windows behind it."""
    app = hw.App("shop")
    app.topic("sales", "who string, n int, at timestamp", key="who", time="at", lateness="1 hour")
    app.table("goods", "who string, price int, since timestamp", key="who", time="since")

    @app.stream
    def last(sales: DataFrame, goods: hw.Table) -> DataFrame:
        return hw.join_as_of(sales, goods, on="who")

    @app.stream
    def windowed(sales: DataFrame, goods: hw.Table) -> DataFrame:
        joined = hw.join_as_of(sales, goods, on="who")
        return joined.groupBy(F.window("at", "1 minute").alias("w")).agg(F.sum("n").alias("n"))

    return app


def state_of(world: World, pipeline: str) -> list[tuple]:
    """What is said of its state, of spaces that are not empty."""
    rows = world.client.sql(QUESTION.format(pipeline)).rows
    return [(space.removesuffix(", in Spark, step 1"), *sizes) for space, *sizes in rows if sizes[0]]


def test_a_step_in_spark_keeps_as_much_as_one_at_the_sink_and_says_so():
    with run(shop(), now=NOW) as world:
        for number, who in enumerate(["bob", "bob", "ada", "bob", "bob", "eve"]):
            at = NOW - timedelta(minutes=number)
            world.send("sales", {"who": who, "n": number, "at": at})
            world.send("goods", {"who": who, "price": number, "since": at})
        world.settle()
        found = state_of(world, "windowed")
        assert found == state_of(world, "last")
        assert ("versions", 3, 3, 1, None) in found
        waiting = [row for row in found if row[0] == "waiting"]
        assert waiting == [("waiting", 1, 1, 1, None)]
        for hours in (3, 6):  # rows leave Spark when the watermark has passed them, and the next batch tells
            world.send("sales", {"who": "eve", "n": 9, "at": NOW + timedelta(hours=hours)})
            world.advance("7 hours")
            world.settle()
        assert state_of(world, "windowed") == state_of(world, "last") == [("versions", 3, 3, 1, None)]


class Shown:
    """A plan of Spark's, as far as its text goes."""

    def __init__(self, columns: str) -> None:
        self.columns = columns

    def toString(self) -> str:
        """As Spark prints it."""
        step = "TransformWithStateInPySpark transformWithStateUDF(bucket#260, rows#268)#285, 1"
        return f"Project [n#287]\n+- ~{step}, [{self.columns}], Append, EventTime, python_row, false, 0"


def test_the_columns_that_a_step_gives_are_no_part_of_its_state():
    found = {state_text(Shown(columns)) for columns in ("n#287, _hw_kept#294", "n#5", "a#1, ... 30 more fields")}
    assert len(found) == 1
    assert "transformWithStateUDF(bucket, rows)" in found.pop()
