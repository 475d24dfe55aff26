"""F15, in one process: a query that dies at a failpoint continues from its checkpoint with the same result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.failpoints import _armed
from headwater.testing import World, run
from tests.engine.oracle import (
    batch_rows,
    expected_counts,
    in_time,
    rows_from_changes,
    same_rows,
    stream_rows,
    view_table,
)
from tests.faults.counts import times

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
POINTS = ("before-sink", "before-sink-commit", "in-sink-commit", "after-sink-commit", "in-publish", "after-publish")
TYPE = "id int, k int, v int, at timestamp"


def with_topics() -> hw.App:
    app = hw.App("crashes")
    app.topic("a", TYPE, key="k", time="at", lateness="10 seconds", partitions=2)
    app.topic("b", TYPE, key="k", time="at", lateness="10 seconds", partitions=2)
    return app


def windowed() -> hw.App:
    app = with_topics()

    @app.view(key=("w", "k"))
    def sums(a: DataFrame) -> DataFrame:
        return a.groupBy(F.window("at", "30 seconds").alias("w"), "k").agg(F.sum("v").alias("total"))

    return app


def stateless() -> hw.App:
    app = with_topics()

    @app.stream
    def doubled(a: DataFrame) -> DataFrame:
        return a.where("k <> 3").select("id", (F.col("v") * 2).alias("twice"), "at")

    return app


def chain() -> hw.App:
    app = windowed()

    @app.view(key="k")
    def behind(sums: DataFrame) -> DataFrame:
        return sums.groupBy("k").agg(F.sum("total").alias("all"), F.count("*").alias("windows"))

    return app


def joined() -> hw.App:
    app = with_topics()

    @app.stream
    def pairs(a: DataFrame, b: DataFrame) -> DataFrame:
        right = b.select(F.col("k").alias("bk"), F.col("at").alias("bat"), F.col("id").alias("other"))
        near = F.expr("k = bk and bat between at - interval 10 seconds and at + interval 10 seconds")
        return a.join(right, near).select("id", "k", "other", "at")

    return app


def send(world: World, step: int) -> None:
    """Some events of both topics; a few of them are late."""

    def row(number: int) -> dict[str, Any]:
        second = step * 20 + number * 2 - (60 if number == 3 and step > 2 else 0)
        at = T0 + timedelta(seconds=second)
        return {"id": step * 10 + number, "k": number % 4, "v": number, "at": at}

    world.send("a", *(row(number) for number in range(8)))
    world.send("b", *(row(number) for number in range(0, 8, 2)))


@pytest.mark.parametrize("make", [windowed, stateless, chain, joined], ids=lambda make: make.__name__)
def test_a_query_that_dies_at_any_point_makes_the_same_rows_once(make: Callable[[], hw.App]):
    app = make()
    with run(app, now=T0 + timedelta(minutes=1)) as world:
        send(world, 0)
        world.settle()
        for step, point in enumerate(POINTS * times(1, 4), 1):
            world.crash(point)
            send(world, step)
            world.settle()
            assert point not in _armed, f"nothing reached {point}"
        for _ in range(3):
            world.advance("1 hour")
        world.settle()
        _compare(world, app)


def _compare(world: World, app: hw.App) -> None:
    log = world._context.log
    inputs: dict[str, Any] = {}
    for name, pipeline in app.pipelines.items():
        plain = all(source in ("a", "b") for source in pipeline.inputs)
        timed = name != "doubled"
        given = None if plain else {source: inputs[source] for source in pipeline.inputs}
        wanted = inputs[name] = batch_rows(app, name, log, timed=timed, inputs=given)
        if pipeline.kind.value == "view":
            same_rows(view_table(world, name), wanted)
            same_rows(rows_from_changes(world, name), wanted)
        else:
            same_rows(stream_rows(world, name), wanted)
        if plain:
            assert world.counts(name) == expected_counts(log, app, name, timed=timed)
    assert in_time(log, "a", None).num_rows < in_time(log, "a", None, timed=False).num_rows
