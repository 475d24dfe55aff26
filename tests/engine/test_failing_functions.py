"""Functions that fail on events: few Spark jobs find the events, and a pipeline whose function fails on most stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

import headwater as hw
from headwater.engine.engine import Engine
from headwater.engine.quarantine.failure import Failure
from headwater.engine.quarantine.probe_plan import probe_frame, probe_session
from headwater.engine.quarantine.probed_function import ROW
from headwater.errors import TooManyFailuresError
from headwater.testing import World, run
from headwater.testing.world import get_spark

pytestmark = pytest.mark.spark
NOW = "2026-01-01T00:00:00Z"
BAD = [3, 700, 701, 1_999]


def line_of(text: str) -> int:
    """Returns the line of this file that ends with a text; comments tell the lines apart."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


@F.udf(IntegerType())
def strict(v):
    return 100 // (v - 13)  # strict divides


@F.udf(IntegerType(), useArrow=True)
def strict_arrow(v):
    return 100 // (v - 13)


@F.udf(IntegerType())
def strict_about_seven(v):
    return {7: 1}[v] if v == 8 else v


@F.pandas_udf(LongType())
def strict_pandas(v: pd.Series) -> pd.Series:
    if (v == 13).any():
        raise KeyError("13")  # strict pandas
    return v + 1


@F.pandas_udf(LongType())
def strict_iterator(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for v in batches:
        yield v.map({number: number for number in range(20) if number != 13}.__getitem__)


def strict_map_arrow(batches):
    for batch in batches:
        if 13 in batch.column("v").to_pylist():
            raise RuntimeError("13")
        yield batch


def strict_map_pandas(frames):
    for frame in frames:
        if (frame.v == 13).any():
            raise RuntimeError("13")
        yield frame


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("a", "id int, v int, at timestamp", time="at", lateness="10 seconds")
    return app


def send(world: World, values: list[int]) -> None:
    world.send("a", *({"id": number, "v": v, "at": NOW} for number, v in enumerate(values)))


def jobs() -> int:
    """Returns the number of jobs that no streaming query has started."""
    return len(get_spark().session.sparkContext.statusTracker().getJobIdsForGroup(None))


def quarantined(world: World, pipeline: str) -> dict[int, str]:
    sql = 'select "offset", reason from hw_quarantine where pipeline = ?'
    return {offset: reason for offset, reason in world.client.sql(sql, [pipeline]).rows}


def test_any_number_of_failing_events_costs_three_jobs():
    app = shop()

    @app.stream
    def divided(a: DataFrame) -> DataFrame:
        return a.select("id", strict("v").alias("share"), "at")

    with run(app, now=NOW) as world:
        send(world, [13 if number in BAD else number % 13 for number in range(2_000)])
        before = jobs()
        world.settle()
        assert jobs() - before <= 3
        reasons = quarantined(world, "divided")
        assert sorted(reasons) == BAD
        counts = world.counts("divided")
        assert (counts.in_, counts.used, counts.quarantined) == (2_000, 1_996, 4)
        exception, location = reasons[700].splitlines()
        assert exception == "ZeroDivisionError: integer division or modulo by zero"
        assert f"test_failing_functions.py:{line_of('strict divides')}" in location


def test_a_function_that_fails_on_most_events_stops_its_pipeline_and_loses_none():
    app, mended = shop(), list[bool]()

    @app.stream
    def typo(a: DataFrame) -> DataFrame:
        @F.udf(IntegerType())
        def priced(v):
            return v + tax if not mended else v  # type: ignore[name-defined]  # noqa: F821  # no such name

        return a.select("id", priced("v").alias("v"), "at")

    with run(app, now=NOW) as world:
        send(world, list(range(200)))
        before = jobs()
        with pytest.raises(TooManyFailuresError) as stopped:
            world.settle()
        assert jobs() - before <= 3
        assert (stopped.value.data["failed"], stopped.value.data["events"]) == (200, 200)
        assert "NameError" in stopped.value.what
        assert stopped.value.location is not None
        assert stopped.value.location.file.endswith("test_failing_functions.py")
        assert stopped.value.location.line == line_of("no such name")
        assert stopped.value.exit_code
        store = world._context.store
        assert (store.skips("typo@1"), store.last_entry("typo@1")) == ([], None)
        mended.append(True)
        world._engine.stop()
        again = Engine(app.resolve(), lambda: get_spark().session, world._context)
        again.start()
        again.catch_up()
        again.stop()
        assert [event.value["v"] for event in world.client.read("typo")] == list(range(200))
        counts = world.counts("typo")
        assert (counts.in_, counts.used, counts.quarantined) == (200, 200, 0)


def test_a_stateful_function_that_fails_on_most_events_stops_its_pipeline():
    app = shop()

    def counted(key, events, state):
        return state, [{"v": key, "n": len(event)}]  # type: ignore[name-defined]  # noqa: F821  # no such variable

    @app.view(key="v")
    def per_value(a: DataFrame) -> DataFrame:
        return hw.stateful(a, by="v", fn=counted, returns="v int, n int")

    with run(app, now=NOW) as world:
        send(world, list(range(30)))
        with pytest.raises(TooManyFailuresError) as stopped:
            world.settle()
        assert stopped.value.data["failed"] == 30
        assert stopped.value.location is not None
        assert stopped.value.location.line == line_of("no such variable")
        assert world._context.store.last_entry("per_value@1") is None


def test_failures_after_a_shuffle_are_found_by_halves():
    app = shop()

    @app.view(key="v")
    def divided(a: DataFrame) -> DataFrame:
        return a.groupBy("v").count().select("v", strict("v").alias("share"))

    with run(app, now=NOW) as world:
        send(world, [13 if number == 5 else number % 3 for number in range(16)])
        world.settle()
        [(offset, reason)] = quarantined(world, "divided").items()
        assert offset == 5
        assert f"test_failing_functions.py:{line_of('strict divides')}" in reason
        assert {row["v"] for row in world.rows("divided")} == {0, 1, 2}


STATIC = [(number, f"n{number}") for number in range(0, 20, 2)]
STEPS: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[int, str]]] = {
    "Python": (lambda a: a.where("v is not null").select(strict("v")), {13: "ZeroDivisionError"}),
    "Python over Arrow": (lambda a: a.where("id <> 11").select(strict_arrow("v")), {13: "ZeroDivisionError"}),
    "two in a chain": (
        lambda a: a.where("v > 0").select(strict(strict_about_seven("v"))),
        {8: "KeyError: 8", 13: "ZeroDivisionError"},
    ),
    "given by name": (lambda a: a.select(strict_about_seven(v=F.col("v"))), {8: "KeyError: 8"}),
    "in a condition": (lambda a: a.where("id > 12").where(strict("v") > 0).select("id"), {13: "ZeroDivisionError"}),
    "after a filter that Spark moves": (lambda a: a.withColumn("s", strict("v")).where("v > 13"), {}),
    "pandas": (lambda a: a.where("id <> 11").select(strict_pandas("v").alias("y")).where("y > 1"), {13: "KeyError"}),
    "pandas, iterator": (lambda a: a.where("id <> 11").select(strict_iterator("v")), {13: "KeyError: 13"}),
    "mapInArrow": (lambda a: a.mapInArrow(strict_map_arrow, a.schema), {13: "RuntimeError: 13"}),
    "mapInPandas": (
        lambda a: a.select("id", strict_about_seven("v").alias("v")).mapInPandas(strict_map_pandas, "id int, v int"),
        {8: "KeyError: 8", 13: "RuntimeError: 13"},
    ),
    "division": (lambda a: a.selectExpr("100 div (v - 13) as share"), {13: "div"}),
    "cast": (lambda a: a.select(F.col("t").cast("int").alias("x")).where("x > 2"), {4: "CAST(t AS INT)"}),
    "guarded": (lambda a: a.selectExpr("case when v <> 13 then 100 div (v - 13) end as share"), {}),
    "aggregate": (lambda a: a.groupBy("id").agg(F.sum(F.expr("100 div (v - 13)"))), {13: "div"}),
    "group": (lambda a: a.groupBy(F.expr("100 div (v - 13)")).count(), {13: "div"}),
    "not needed": (lambda a: a.withColumn("s", F.expr("100 div (v - 13)")).groupBy("id").count(), {}),
    "explode": (lambda a: a.select(F.explode(F.array("t")).alias("c")).selectExpr("cast(c as int)"), {4: "CAST(c AS"}),
    "explode itself": (lambda a: a.select(F.explode(F.expr("array(100 div (v - 13))"))), {13: "div"}),
    "union": (
        lambda a: a.select(strict_about_seven("v")).union(a.selectExpr("cast(t as int)")),
        {4: "CAST(t AS INT)", 8: "KeyError: 8"},
    ),
    "static table": (
        lambda a: (
            a.select("id", strict_about_seven("v").alias("x"))
            .join(F.broadcast(a.sparkSession.createDataFrame(STATIC, "k int, n string")), F.expr("id = k"), "left")
            .selectExpr("x", "n", "1 div (id - 6)")
        ),
        {6: "div", 8: "KeyError: 8"},
    ),
    "SQL": (
        lambda a: a.sparkSession.sql("with q as (select cast(t as int) x from {a}) select * from q where x > 3", a=a),
        {4: "CAST(t AS INT)"},
    ),
    "repartition": (lambda a: a.repartition(3).selectExpr("100 div (v - 13)"), {13: "div"}),
}


@pytest.fixture(scope="module")
def events() -> DataFrame:
    """Twenty events: row 11 has no value, row 4 a text that is no number."""
    columns: dict[str, Any] = {
        "id": pa.array(range(20), pa.int32()),
        "v": pa.array([None if number == 11 else number for number in range(20)], pa.int32()),
        "t": pa.array(["x" if number == 4 else str(number) for number in range(20)]),
        ROW: pa.array(range(20), pa.int64()),
    }
    return probe_session(get_spark().session).createDataFrame(pa.table(columns)).drop(ROW)


@pytest.mark.parametrize("step", STEPS)
def test_one_job_finds_the_rows_on_which_a_step_fails(events: DataFrame, step: str):
    function, expected = STEPS[step]
    probe = probe_frame(function(events))
    assert probe is not None
    found = {row: Failure.of_row(why).reason for row, why in probe.collect()}
    assert sorted(found) == sorted(expected)
    assert all(words in found[row] for row, words in expected.items()), found
