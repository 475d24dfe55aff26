"""Spark's own steps with state run under Headwater's watermark, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import headwater as hw
from headwater.errors import BadPipelineError
from headwater.testing import run

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = "user string, clicks long"


def click(user: str, seconds: int) -> dict:
    return {"user": user, "at": T0 + timedelta(seconds=seconds)}


def count_until_idle(key: tuple[str], events: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Returns the number of clicks of a user when the watermark is ten seconds after the last one."""
    if state.hasTimedOut:
        yield pd.DataFrame({"user": [key[0]], "clicks": [state.get[0]]})
        state.remove()
        return
    frames = list(events)
    last = max(frame["at"].max() for frame in frames).timestamp()
    state.update((sum(map(len, frames)) + (state.get[0] if state.exists else 0),))
    state.setTimeoutTimestamp(int(last * 1000) + 10_000)


def clicks_app() -> hw.App:
    app = hw.App("clicks")
    app.topic("clicks", "user string, at timestamp", key="user", time="at", lateness="5 seconds", idle="1 minute")
    return app


def test_a_timeout_of_spark_fires_when_the_watermark_has_passed_it():
    app = clicks_app()

    @app.stream
    def sums(clicks: DataFrame) -> DataFrame:
        return clicks.groupBy("user").applyInPandasWithState(
            count_until_idle, ROWS, "clicks long", "append", GroupStateTimeout.EventTimeTimeout
        )

    def read(world) -> list[tuple[str, int]]:
        return [(event.value["user"], event.value["clicks"]) for event in world.client.read("sums", stop="end")]

    with run(app, now=T0) as world:
        world.send("clicks", click("ada", 0), click("ada", 2), click("bob", 4))
        world.settle()
        assert read(world) == []
        world.send("clicks", click("bob", 18))  # the watermark is at 13: after the end of ada, not of bob
        world.settle()
        assert read(world) == [("ada", 2)]


def test_deduplication_that_never_expires_is_refused_with_its_replacement():
    app = clicks_app()

    @app.stream
    def once(clicks: DataFrame) -> DataFrame:
        return clicks.dropDuplicatesWithinWatermark(["user"])

    with run(app) as world, pytest.raises(BadPipelineError) as refused:
        world._engine.supervisors["once"].wait_until_running()
    assert refused.value.data["columns"] == ("user",)
    assert 'hw.deduplicate(…, by="user"' in refused.value.fix
