"""Any order, duplicates, division into batches: the rows equal one batch query over the events that are not late."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import World, run
from tests.engine.oracle import (
    batch_rows,
    expected_counts,
    in_time,
    rows_from_changes,
    same_rows,
    stream_rows,
    view_table,
    walk_events,
)
from tests.faults.counts import injected, times

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
TYPE = "id int, k int, v int, at timestamp"


class Sent(NamedTuple):
    """An event of a test: when it happened in seconds, and how often it is delivered."""

    topic: str
    k: int
    second: int
    copies: int = 1


class Story(NamedTuple):
    """What is sent in what order, in what portions, and how much time passes after each portion."""

    events: list[Sent]
    portion: int
    pauses: list[int]
    rows: int


def story(seed: int) -> Story:
    """A story from a number: long ones cost seconds each, so none of them may be dull."""
    chance = random.Random(seed)
    events = [
        Sent(
            chance.choice("aab"),
            chance.randrange(5),
            max(0, number * 3 + chance.choice([0, 2, -8, -25, -70, 9])),
            chance.choice([1, 1, 1, 2, 3]),
        )
        for number in range(chance.randrange(30, 70))
    ]
    if chance.random() < 0.5:
        chance.shuffle(events)
    pauses = [chance.choice([0, 1, 20, 45]) for _ in range(12)]
    return Story(events, chance.choice([20, 45, 100]), pauses, (15, 400_000)[seed % 2])


def shop() -> hw.App:
    """Every kind of window and policy over two topics of several partitions."""
    app = small_shop()
    _windows(app)
    _between(app)
    return app


def small_shop(partitions: int = 3) -> hw.App:
    """Two views: one shows open windows, the other only what is final."""
    app = hw.App("properties")
    app.topic("a", TYPE, key="k", time="at", lateness="10 seconds", idle="30 seconds", partitions=partitions)
    app.topic("b", TYPE, key="k", time="at", lateness="25 seconds", idle="30 seconds", partitions=2)

    @app.view(key=("w", "k"))
    def tumbling(a: DataFrame) -> DataFrame:
        return _sums(a.groupBy(F.window("at", "30 seconds").alias("w"), "k"))

    @app.view(key=("w", "k"))
    def sessions(a: DataFrame) -> DataFrame:
        return _sums(a.groupBy(F.session_window("at", "7500 milliseconds").alias("w"), "k"))

    return app


def _windows(app: hw.App) -> None:
    @app.view(key="w", late="drop")
    def hopping(a: DataFrame) -> DataFrame:
        return _sums(a.where("v > 2").groupBy(F.window("at", "1 minute", "20 seconds").alias("w")))

    @app.view(key="w", late=hw.correct(for_="40 seconds"))
    def corrected(b: DataFrame) -> DataFrame:
        return _sums(b.groupBy(F.window("at", "30 seconds").alias("w")))


def _between(app: hw.App) -> None:
    """Filters, projections, unions, joins and deduplication between source and window; and what keeps no state."""

    @app.view(key="w")
    def together(a: DataFrame, b: DataFrame) -> DataFrame:
        both = a.select("at", "v").where("v % 2 = 0").union(b.select("at", (F.col("v") + 1).alias("v")))
        return _sums(both.groupBy(F.window("at", "30 seconds").alias("w")))

    @app.view(key="w")
    def distinct(a: DataFrame) -> DataFrame:
        once = a.dropDuplicates(["id", "at"])
        return once.groupBy(F.window("at", "30 seconds").alias("w")).agg(F.count("*").alias("n"))

    @app.stream
    def pairs(a: DataFrame, b: DataFrame) -> DataFrame:
        right = b.select(F.col("k").alias("bk"), F.col("at").alias("bat"), F.col("v").alias("bv"))
        near = F.expr("k = bk and bat between at - interval 10 seconds and at + interval 10 seconds")
        return a.where("v > 1").join(right, near).select("id", "k", "v", "bv", "at")

    @app.stream
    def alone(a: DataFrame, b: DataFrame) -> DataFrame:
        right = b.select(F.col("k").alias("bk"), F.col("at").alias("bat"), F.col("v").alias("bv"))
        near = F.expr("k = bk and bat between at and at + interval 10 seconds")
        return a.join(right, near, "left").select("id", "k", "bv", "at")

    @app.stream
    def doubled(a: DataFrame) -> DataFrame:
        return a.where("k <> 3").select("id", (F.col("v") * 2).alias("twice"))


TIMED = ("tumbling", "hopping", "sessions", "corrected", "together", "distinct", "pairs", "alone")


def _sums(groups: Any) -> DataFrame:
    return groups.agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def tell(world: World, story: Story) -> None:
    """Send a story, portion by portion, then let all windows close."""
    deliveries = [
        (event.topic, {"id": number, "k": event.k, "v": number % 7, "at": T0 + timedelta(seconds=event.second)})
        for number, event in enumerate(story.events)
        for _ in range(event.copies)
    ]
    # A topic without any event has no time at all, so each gets one.
    deliveries = [("a", _row(-1, 0)), ("b", _row(-2, 0)), *deliveries]
    for number, start in enumerate(range(0, len(deliveries), story.portion)):
        for topic, row in deliveries[start : start + story.portion]:
            world.send(topic, row)
        world.advance(timedelta(seconds=story.pauses[number % 12]))
        if number < 4:
            world.settle()
    for _ in range(3):
        world.advance("1 hour")
    world.settle()


def _row(id_: int, second: float) -> dict[str, Any]:
    return {"id": id_, "k": 1, "v": 3, "at": T0 + timedelta(seconds=second)}


@pytest.mark.parametrize("share", range(times(1, 3)))
@settings(
    max_examples=times(1, 20),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
@example(seed=1)
def test_any_order_any_copies_any_cuts_give_the_rows_of_a_batch_query(share, seed):
    injected()
    app, told = shop(), story(seed)
    with run(app, rows=told.rows) as world:
        tell(world, told)
        log = world._context.log
        for name in (*TIMED, "doubled"):
            timed = name in TIMED
            wanted = batch_rows(app, name, log, timed=timed)
            kept = app.pipelines[name].kind.value == "view"
            same_rows(view_table(world, name) if kept else stream_rows(world, name), wanted)
            assert world.counts(name) == expected_counts(log, app, name, timed=timed), name
            if kept:
                same_rows(rows_from_changes(world, name), wanted)
        _late_are_kept(world, app)
        _duckdb_agrees(world)


def _late_are_kept(world: World, app: hw.App) -> None:
    """Exactly the late events stand beside the result, each with its place."""
    found = world.client.sql("select partition, offset from hw_late where pipeline = 'tumbling'").rows
    log = world._context.log
    late = [(e.partition, e.offset) for e in walk_events(log, "a") if e.behind > 10_000_000]
    assert sorted(map(tuple, found)) == sorted(late)
    assert not world.client.sql("select 1 from hw_late where pipeline = 'hopping'").rows


def _duckdb_agrees(world: World) -> None:
    """Another engine says the same."""
    events = in_time(world._context.log, "a", None)
    sql = """
        select epoch(time_bucket(interval 30 seconds, "at")) w, k, count(*) n, sum(v)::bigint total
        from events group by all order by all
    """
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("events", events)
        wanted = database.execute(sql).fetchall()
    rows = [(row["w"]["start"].timestamp(), row["k"], row["n"], row["total"]) for row in world.rows("tumbling")]
    assert sorted(rows) == wanted


def test_an_event_dated_2099_is_used_and_moves_no_time():
    """F41: an event dated decades ahead closes no window."""
    app = small_shop()
    with run(app, now=T0 + timedelta(minutes=1)) as world:
        world.send("a", _row(1, 0), {"id": 2, "k": 1, "v": 1, "at": datetime(2099, 1, 1, tzinfo=UTC)})
        world.settle()
        world.send("a", _row(3, 5), _row(4, -3))
        world.settle()
        assert world.counts("tumbling").late == 0
        assert world.counts("tumbling").used == 4
        same_rows(view_table(world, "tumbling"), batch_rows(app, "tumbling", world._context.log))
        watermark = world.client.sql("select watermark from hw_pipelines where name = 'tumbling'").rows[0][0]
        assert watermark is None or watermark < T0.timestamp() * 1e6 + 60e6


def test_an_event_exactly_at_the_watermark_counts():
    """What is in time by the log's rule is in time for Spark, to the millisecond."""
    app = small_shop(partitions=1)
    with run(app, now=T0 + timedelta(minutes=1)) as world:
        for number in range(3):  # Spark forgets windows one batch later, and leaves rows out two batches later
            world.send("a", _row(number, 39.999))
            world.settle()
        world.send("a", _row(3, 29.999), _row(4, 29.998))
        world.settle()
        counts = world.counts("tumbling")
        assert (counts.used, counts.late) == (4, 1)
        assert [row["n"] for row in world.rows("tumbling")] == [1, 3]


def test_windows_of_a_topic_with_a_quiet_partition_close():
    """F43: one partition is silent from the beginning, another falls silent; time goes on by the idle time."""
    app = small_shop()
    with run(app) as world:
        world.send("a", _row(1, 0), _row(2, 4))
        world.settle()
        assert view_table(world, "sessions").num_rows == 0
        for _ in range(3):
            world.advance("1 minute")
        world.settle()
        assert [row["n"] for row in world.rows("sessions")] == [2]
        ops = [event.value["op"] for event in world.client.read("tumbling.changes", stop="end")]
        assert ops in (["insert", "final"], ["insert", "update", "final"])


@pytest.mark.parametrize("jump", ["-1 hour", "1 hour", "365 days", "-365 days"][: times(1, 4)])
def test_a_jump_of_the_clock_changes_no_row(jump):
    """F40: what the wall clock says is not event time."""
    app = small_shop()
    with run(app, now=T0 + timedelta(minutes=1)) as world:
        for number in range(3):
            world.send("a", *(_row(i, number * 20 + i) for i in range(5)))
            world.settle()
            by = timedelta(days=365) if "days" in jump else timedelta(hours=1)
            world.clock._start += -by if jump[0] == "-" else by
        same_rows(view_table(world, "tumbling"), batch_rows(app, "tumbling", world._context.log))
        assert world.counts("tumbling") == expected_counts(world._context.log, app, "tumbling")
        assert world.counts("tumbling").late == 0
