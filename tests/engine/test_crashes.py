"""F15, in one process: a query that dies at a failpoint continues from its checkpoint with the same result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.compatibility import Rebuild
from headwater.engine.failpoints import _armed
from headwater.errors import StateChangedError, TooManyFailuresError
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
from tests.engine.rooms import started
from tests.faults.counts import injected, times

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
POINTS = ("before-sink", "before-sink-commit", "in-sink-commit", "after-sink-commit", "in-publish", "after-publish")
TYPE = "id int, k int, v int, at timestamp"
LATENESS = timedelta(seconds=10)


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


def deduplicated() -> hw.App:
    """Steps that keep state in Spark: both drop rows that are behind Spark's watermark."""
    app = with_topics()

    @app.view(key="w")
    def distinct(a: DataFrame) -> DataFrame:
        return (
            a.dropDuplicates(["id", "at"]).groupBy(F.window("at", "10 seconds").alias("w")).agg(F.count("*").alias("n"))
        )

    return app


def send(world: World, step: int) -> None:
    """Some events of both topics, on whole seconds; a few of them are late, and others exactly at the watermark."""

    def row(number: int) -> dict[str, Any]:
        second = step * 20 + number * 2 - (60 if number == 3 and step > 2 else 0)
        at = T0 + timedelta(seconds=second)
        return {"id": step * 10 + number, "k": number % 4, "v": number, "at": at}

    for topic, numbers in (("a", range(8)), ("b", range(0, 8, 2))):
        rows = [row(number) for number in numbers]
        receipts = world.send(topic, *rows)
        keys = {receipt.partition: one["k"] for receipt, one in zip(receipts, rows, strict=True)}
        for end in world._context.log.ends(topic):
            if end.partition in keys:  # the earliest event that is in time, to the microsecond
                at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=end.max_event_time) - LATENESS
                world.send(topic, {"id": step * 10 + 9, "k": keys[end.partition], "v": 1, "at": at})


@pytest.mark.parametrize("make", [windowed, stateless, chain, joined, deduplicated], ids=lambda make: make.__name__)
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
            injected()
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


PIPELINES = ("counted", "texts", "shares")
BAD = 13
"""The number of an event that breaks its pipeline."""


def broken(*, mended: bool = False) -> hw.App:
    """Functions that fail on an event, one of them after it has changed its state; and rows that no store can hold."""
    app = hw.App("broken")
    for name in PIPELINES:  # each has its own, so that a crash hits the pipeline that it is meant for
        app.topic(f"for_{name}", "id int, k int, v int, text string", key="k", partitions=2)

    def count(key: Any, events: list[dict[str, Any]], state: Any) -> Any:
        state = state or {"n": 0}
        for event in events:
            state["n"] += event["v"]
            if event["v"] == BAD and not mended:
                raise ValueError(event["v"])
        return state, [{"k": key, "n": state["n"]}]

    @app.view(key="k")
    def counted(for_counted: DataFrame) -> DataFrame:
        return hw.stateful(for_counted, by="k", fn=count, returns="k int, n int")

    @app.view(key="id")
    def texts(for_texts: DataFrame) -> DataFrame:
        return for_texts.select("id", "text")

    @app.stream
    def shares(for_shares: DataFrame) -> DataFrame:
        share = F.udf(lambda v: v if mended else 100 // (v - BAD), "int")
        return for_shares.select("id", share("v").alias("share"))

    return app


def lines(step: int) -> list[dict[str, Any]]:
    """Eight events, the fourth of which breaks every pipeline."""
    numbers = range(step * 8, step * 8 + 8)
    return [
        {"id": n, "k": n % 3, "v": BAD if n % 8 == 3 else 1, "text": f"a\0{n}" if n % 8 == 3 else f"a{n}"}
        for n in numbers
    ]


def crash_everywhere(world: World, name: str, work: Callable[[int], object]) -> None:
    """Do something for each failpoint, and let the pipeline crash there."""
    for step, point in enumerate(POINTS * times(1, 4), 1):
        world.crash(point)
        work(step)
        world._engine.supervisors[name].catch_up()
        assert point not in _armed, f"{name} has not reached {point}"
        injected()


def test_failing_events_are_quarantined_once_and_retried_once_whatever_crashes(tmp_path: Path):
    steps = len(POINTS) * times(1, 4)
    sent = [line for step in range(steps + 1) for line in lines(step)]
    good = [line for line in sent if line["v"] != BAD]
    # A call has the events of a key in a batch: all of them are as if it had not run.
    called = [line for step in range(steps + 1) for line in lines(step) if line["k"] != lines(step)[3]["k"]]
    with started(broken(), tmp_path) as world:
        for name, used in zip(PIPELINES, (called, good, good), strict=True):
            world.send(f"for_{name}", *lines(0))
            world.settle()
            crash_everywhere(world, name, lambda step, name=name: world.send(f"for_{name}", *lines(step)))  # type: ignore[misc]
            counts = world.counts(name)
            assert (counts.in_, counts.used, counts.quarantined) == (len(sent), len(used), len(sent) - len(used)), name
        assert {row["k"]: row["n"] for row in world.rows("counted")} == totals(called)
        assert [row["id"] for row in world.rows("texts")] == [line["id"] for line in good]
        assert sorted(event.value["id"] for event in world.client.read("shares")) == [line["id"] for line in good]
    with started(broken(mended=True), tmp_path, names=["shares"]) as world:
        world.settle()
        crash_everywhere(world, "shares", lambda step: retry_one(world, "shares@1"))
        retry_one(world, "shares@1")
        world.settle()
        assert sorted(event.value["id"] for event in world.client.read("shares")) == [line["id"] for line in sent]
        counts = world.counts("shares")
        assert (counts.in_, counts.used, counts.quarantined) == (len(sent), len(sent), 0)
        assert world.counts("texts").quarantined == len(sent) - len(good)


def totals(given: list[dict[str, Any]]) -> dict[int, int]:
    return {k: sum(line["v"] for line in given if line["k"] == k) for k in range(3)}


def retry_one(world: World, query: str) -> None:
    """Request a retry of one quarantined event."""
    store = world._context.store
    event = next(event for event in store.preview_retry(query) if event.outcome == "retry")
    assert len(store.request_retry(query, [event.position])) == 1
    world._engine.take_retries()


def by_minute(lateness: str = "10 seconds", *, failing: bool = False, doubled: bool = False) -> hw.App:
    """A view that waits for event time, and its edits: another lateness, a function that fails, one that is mended."""
    app = hw.App("minutes")
    app.topic("a", TYPE, key="k", time="at", lateness=lateness, partitions=2)

    def value(v):  # without type hints: Spark warns that it cannot use them
        if failing:
            raise ValueError(v)
        return 2 * v if doubled else v

    @app.view(key="w")
    def windows(a: DataFrame) -> DataFrame:
        rows = a.select("at", F.udf(value, "int")("v").alias("v"))
        return rows.groupBy(F.window("at", "10 seconds").alias("w")).agg(F.count("*").alias("n"), F.sum("v").alias("v"))

    return app


def rebuild_through_crashes(app: hw.App, folder: Path) -> None:
    """Rebuild the view in many batches, crash at each failpoint on the way, and compare its rows and counts."""
    for _ in range(times(1, 4)):
        with started(app, folder, rebuild={"windows": Rebuild()}, rows=8) as world:
            for point in POINTS:
                world.crash(point)
            world.settle()
            assert not _armed, f"nothing reached {_armed}"
            injected(len(POINTS))
            log = world._context.log
            world.advance("1 hour")
            world.settle()
            same_rows(view_table(world, "windows"), batch_rows(app, "windows", log))
            assert world.counts("windows") == expected_counts(log, app, "windows")


def test_a_rebuild_crosses_crashes_after_a_changed_lateness_and_after_one_that_failed(tmp_path: Path):
    with started(by_minute(), tmp_path) as world:
        rows = [{"id": n, "k": n % 4, "v": n, "at": T0 + timedelta(seconds=n - 60 * (n % 5 == 4))} for n in range(60)]
        world.send("a", *rows)
        world.settle()
        assert world.counts("windows").late > 0
    raised = by_minute("2 minutes")
    with started(raised, tmp_path) as world, pytest.raises(StateChangedError):
        world.settle()
    rebuild_through_crashes(raised, tmp_path)
    with started(by_minute("2 minutes", failing=True), tmp_path, rebuild={"windows": Rebuild()}) as world:
        with pytest.raises(TooManyFailuresError):
            world.settle()
        same_rows(view_table(world, "windows"), batch_rows(raised, "windows", world._context.log))
    rebuild_through_crashes(by_minute("2 minutes", doubled=True), tmp_path)
