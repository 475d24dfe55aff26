"""Events at and before 1970, where Spark's own watermark begins: used, or quarantined where Spark would drop them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.store import EventCounts
from headwater.testing import run

pytestmark = pytest.mark.spark
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROUNDS = [[-300, -295], [-400, 0, 1], [-20, 65, 3_000], [2_900, 3_001]]
"""Seconds after 1970 of the events that arrive together; -400, -20 and 2,900 are late."""
WAITING = {3_000, 3_001}
"""Of these, `hw.deduplicate` does not know yet whether they are the first."""
LATE = {-400, -20, 2_900}


def weather() -> hw.App:
    app = hw.App("weather")
    app.topic("readings", "id int, at timestamp", time="at", lateness="15 seconds")

    @app.view(key=("id", "at"))
    def distinct(readings: DataFrame) -> DataFrame:
        return readings.dropDuplicates(["id", "at"])

    @app.view(key="minute")
    def by_minute(readings: DataFrame) -> DataFrame:
        first = hw.deduplicate(readings, by="id", within="1 hour")  # in Spark, because a window follows
        return first.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("readings"))

    @app.view(key="id")
    def firsts(readings: DataFrame) -> DataFrame:
        return hw.deduplicate(readings, by="id", within="1 hour")  # at the sink

    return app


def seconds(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int((row["at"] - EPOCH).total_seconds()) for row in rows)


def test_events_up_to_1970_are_counted_and_stop_no_pipeline():
    every = [at for round_ in ROUNDS for at in round_]
    in_time = [at for at in every if at not in LATE]
    after = [at for at in in_time if at > 0]
    with run(weather()) as world:
        sent = iter(range(len(every)))
        for round_ in ROUNDS:
            world.send("readings", *({"id": next(sent), "at": EPOCH + timedelta(seconds=at)} for at in round_))
            world.settle()
        assert seconds(world.rows("firsts")) == sorted(set(in_time) - WAITING)
        assert world.counts("firsts") == EventCounts(in_=len(every), used=len(in_time), late=len(LATE))
        assert seconds(world.rows("distinct")) == sorted(after)
        assert sum(row["readings"] for row in world.rows("by_minute")) == len(set(after) - WAITING)
        expected = EventCounts(in_=len(every), used=len(after), late=len(LATE), quarantined=len(in_time) - len(after))
        assert (world.counts("distinct"), world.counts("by_minute")) == (expected, expected)
        kept = world.client.sql("select pipeline, \"offset\" from hw_quarantine where reason like '%1970%'").rows
        assert sorted(kept) == [(name, offset) for name in ("by_minute", "distinct") for offset in (0, 1, 3)]
        store = world._context.store
        assert [event.outcome for event in store.preview_retry("by_minute@1")] == ["never"] * 3
        assert store.request_retry("by_minute@1", [("readings", 0, 0)]) == []
