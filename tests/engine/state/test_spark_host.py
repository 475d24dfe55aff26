"""Operators inside real Spark queries: totals, windows behind them, restarts, timers, and state that is let go."""

from __future__ import annotations

from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.engine.build.plan_analysis import plan_of
from headwater.engine.operators.stateful import Stateful, VectorizedStateful
from headwater.engine.state.spark_host import apply_in_spark
from headwater.testing.world import get_spark
from tests.engine.state.running import Stream

pytestmark = pytest.mark.spark
EVENTS = "who string, n bigint, at timestamp"


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def event(who: str | None, n: int, second: int) -> dict[str, Any]:
    return {"who": who, "n": n, "at": at(second)}


def added(events, at, states, keys):
    np.add.at(states["n"], at, 1)
    np.add.at(states["total"], at, events["n"].to_numpy())
    return keys.append_column("n", pa.array(states["n"])).append_column("total", pa.array(states["total"]))


def totals(frames):
    events = frames["events"]
    operator = VectorizedStateful(
        to_arrow_schema(events.schema, timezone="UTC"),
        by=["who"],
        fn=added,
        returns="who string, n bigint, total bigint",
        state="n bigint, total bigint",
    )
    return apply_in_spark(operator, [events], times=["at"], key_groups=5, metric="kept")


def numbered(key, events, state):
    """Each event with its number among those of its key."""
    first = (state or {"n": 0})["n"]
    rows = [{"who": key, "number": first + i, "at": event["at"]} for i, event in enumerate(events, 1)]
    return {"n": first + len(events)}, rows


def forgotten(key, state):
    return [{"who": key, "number": -state["n"]}]


def numbers(frames, key_groups=4, **options):
    events = frames["events"]
    operator = Stateful(
        to_arrow_schema(events.schema, timezone="UTC"),
        by=["who"],
        fn=numbered,
        returns="who string, number bigint, at timestamp",
        **options,
    )
    return apply_in_spark(operator, [events], times=["at"], key_groups=key_groups, time="at", metric="kept")


def kept_key_groups(folder) -> int:
    """How many values the newest state has."""
    reader = get_spark().session.read.format("statestore").option("stateVarName", "bucket")
    return reader.load(str(folder / "checkpoint")).count()


def test_totals_equal_those_of_a_batch_after_a_restart(tmp_path):
    random = Random(5)
    sent = [event(random.choice(["a", "b", "c", None]), random.randint(0, 9), 0) for _ in range(60)]
    stream = Stream(tmp_path, {"events": EVENTS}, totals)
    found: dict[Any, Any] = {}
    for half in (sent[:25], sent[25:]):
        with stream.running() as settle:
            for start in range(0, len(half), 15):
                stream.send("events", *half[start : start + 15])
                found |= {row["who"]: (row["n"], row["total"]) for row in settle()}
    stream.close()
    events = pa.Table.from_pylist(sent)  # noqa: F841 - DuckDB reads it by its name
    expected = duckdb.sql("select who, count(*), sum(n) from events group by who").fetchall()
    assert found == {who: (n, total) for who, n, total in expected}


def test_a_window_may_follow_in_the_query(tmp_path):
    def windows(frames):
        rows = numbers(frames).groupBy(F.window("at", "10 seconds").alias("w"), "who")
        return rows.agg(F.max("number").alias("number")).select("who", "number", F.col("w.start").alias("start"))

    stream = Stream(tmp_path, {"events": EVENTS}, windows)
    found = []
    with stream.running() as settle:
        for second in (1, 4, 12, 31):
            stream.send("events", event("a", 0, second), event("b", 0, second))
            found.append({(row["who"], row["number"], row["start"].second) for row in settle()})
    stream.close()
    closed = [set(), set(), {("a", 2, 0), ("b", 2, 0)}, {("a", 3, 10), ("b", 3, 10)}]
    assert found == closed


def test_timers_fire_on_a_quiet_stream(tmp_path):
    def query(frames):
        return numbers(frames, expire="10 seconds", on_expire=forgotten)

    stream = Stream(tmp_path, {"events": EVENTS}, query)
    with stream.running() as settle:
        stream.send("events", event("a", 0, 1), event("a", 0, 3), event("b", 0, 4))
        assert {(row["who"], row["number"]) for row in settle()} == {("a", 1), ("a", 2), ("b", 1)}
        assert kept_key_groups(tmp_path) > 0
        stream.advance("1 minute")
        assert {(row["who"], row["number"]) for row in settle()} == {("a", -2), ("b", -1)}
    assert kept_key_groups(tmp_path) == 0
    stream.close()


def test_another_number_of_key_groups_stops_the_query(tmp_path):
    asked = iter([2, 4])
    stream = Stream(tmp_path, {"events": EVENTS}, lambda frames: numbers(frames, key_groups=next(asked)))
    with stream.running() as settle:
        stream.send("events", *(event(who, 0, 1) for who in "abcdefgh"))
        settle()
    with stream.running() as settle:
        stream.send("events", *(event(who, 0, 2) for who in "abcdefgh"))
        with pytest.raises(StreamingQueryException, match="STATE_CHANGED"):
            settle()
    stream.close()


def test_the_source_packs_rows_as_a_task_behind_spark_does(tmp_path):
    """The query goes on from one way to the other: a key in another key group would begin anew."""
    sent = [event(who, number, 0) for number, who in enumerate(["a", "b", None, "c", "d", "e"] * 4)]
    steps = iter([lambda events: events, lambda events: events.where("n >= 0"), lambda events: events])
    plans = []

    def query(frames):
        result = totals({"events": next(steps)(frames["events"])})
        plans.append(plan_of(result).toString())
        return result

    stream = Stream(tmp_path, {"events": EVENTS}, query)
    found: dict[Any, Any] = {}
    for third in (sent[:8], sent[8:16], sent[16:]):
        with stream.running() as settle:
            stream.send("events", *third)
            found |= {row["who"]: (row["n"], row["total"]) for row in settle()}
    stream.close()
    assert ["MapInArrow" in plan for plan in plans] == [False, True, False]
    assert found == {
        who: (4, sum(one["n"] for one in sent if one["who"] == who)) for who in {one["who"] for one in sent}
    }
