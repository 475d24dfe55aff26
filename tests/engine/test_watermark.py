"""Events exactly at the watermark: the log has them in time, and every step with event time uses them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.compatibility import Rebuild
from headwater.errors import StateChangedError
from headwater.testing import run
from tests.engine.rooms import started

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = 10
ROUNDS = [[0, 20], [20], [10, 9, 11], [60]]
"""Seconds of the events that arrive together; Spark leaves rows out by the watermark of two batches before."""


def at_the_watermark() -> hw.App:
    app = hw.App("watermark")
    for name in ("clicks", "sales"):
        app.topic(name, "id int, at timestamp", time="at", lateness=f"{LATENESS} seconds")

    @app.view(key=("id", "at"))
    def distinct(clicks: DataFrame) -> DataFrame:
        return clicks.dropDuplicates(["id", "at"])

    @app.view(key="id")
    def pairs(clicks: DataFrame, sales: DataFrame) -> DataFrame:
        sold = sales.withColumnsRenamed({"id": "sold_id", "at": "sold_at"})
        near = F.expr("id = sold_id and sold_at >= at and sold_at <= at + interval 2 seconds")
        return clicks.join(sold, near).select("id", "at")

    @app.view(key="second")
    def by_second(clicks: DataFrame) -> DataFrame:
        first = hw.deduplicate(clicks, by="id", within="1 hour")  # in Spark, because a window follows
        return first.groupBy(F.window("at", "1 second").alias("second")).agg(F.count("*").alias("clicks"))

    @app.view(key="odd")
    def for_ever(clicks: DataFrame) -> DataFrame:
        return clicks.dropDuplicates(["id"]).groupBy((F.col("id") % 2).alias("odd")).agg(F.count("*").alias("clicks"))

    @app.view(key="span")
    def downstream(by_second: DataFrame) -> DataFrame:
        span = F.window("occurred_at", "7 seconds").alias("span")
        return by_second.groupBy(span).agg(F.sum("clicks").alias("clicks"))

    return app


def in_time() -> list[int]:
    """The seconds of the events that are not late, by the definition."""
    found, highest = [], -100
    for second in (second for round_ in ROUNDS for second in round_):
        if second >= highest - LATENESS:
            found.append(second)
        highest = max(highest, second)
    return found


def second_of(time: datetime) -> int:
    return int((time - T0).total_seconds())


def spans_of(world: Any, view: str, column: str) -> dict[int, int]:
    """The closed windows of a view: their events by the second of their end."""
    rows = world.client.view(view).rows(open=False)
    return {second_of(row[column]["end"]): row["clicks"] for row in rows}


def test_an_event_exactly_at_the_watermark_is_used_by_every_step_that_keeps_state():
    with run(at_the_watermark(), now=T0) as world:
        sent = 0
        for round_ in ROUNDS:
            events = [{"id": sent + number, "at": T0 + timedelta(seconds=at)} for number, at in enumerate(round_)]
            sent += len(round_)
            world.send("clicks", *events)
            world.send("sales", *events)
            world.settle()
        expected = sorted(in_time())
        assert expected == [0, 10, 11, 20, 20, 60]
        assert sorted(second_of(row["at"]) for row in world.rows("distinct")) == expected
        assert sorted(second_of(row["at"]) for row in world.rows("pairs")) == expected
        assert spans_of(world, "by_second", "second") == Counter(at + 1 for at in expected if at + 1 < 50)
        ends = [at + 7 - (int(T0.timestamp()) + at) % 7 for at in expected]  # spans are aligned to 1970
        assert spans_of(world, "downstream", "span") == Counter(end for end in ends if end < 50)
        assert sum(row["clicks"] for row in world.rows("for_ever")) == len(expected)
        for name in ("distinct", "by_second", "for_ever"):
            assert (world.counts(name).used, world.counts(name).late) == (len(expected), 1)


def shop(lateness: str) -> hw.App:
    app = hw.App("lateness")
    app.topic("orders", "id int, at timestamp", time="at", lateness=lateness)

    @app.view(key="minute")
    def by_minute(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("orders"))

    @app.view(key="id")
    def listed(orders: DataFrame) -> DataFrame:
        return orders.select("id", "at")

    return app


def order(number: int, second: int) -> dict[str, Any]:
    return {"id": number, "at": T0 + timedelta(seconds=second)}


def test_a_raised_lateness_needs_a_rebuild_only_where_event_time_matters(tmp_path: Path):
    with started(shop("10 seconds"), tmp_path) as world:
        world.send("orders", order(1, 0), order(2, 100))
        world.settle()
    raised = shop("2 minutes")
    with started(raised, tmp_path) as world:
        world.send("orders", order(3, 5))  # late by the old lateness
        with pytest.raises(StateChangedError) as refused:
            world.settle()
        assert (refused.value.data["pipeline"], refused.value.fix) == (
            "by_minute",
            "stop the app; headwater run app.py --rebuild by_minute",
        )
    with started(raised, tmp_path, rebuild={"by_minute": Rebuild()}) as world:
        world.settle()
        assert [row["orders"] for row in world.rows("by_minute")] == [2, 1]
        assert [row["id"] for row in world.rows("listed")] == [1, 2, 3]
        assert (world.counts("by_minute").late, world.counts("by_minute").used) == (0, 3)
