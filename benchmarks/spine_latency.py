"""The latency from `send` to a visible row, and the cost of idle pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headwater as hw
from benchmarks.bench_options import Options
from benchmarks.measure import percentile, say
from benchmarks.process_tree import tree_cpu, tree_memory
from benchmarks.table import Row, at_most
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.store import SqliteDialect, SqlStore, ViewReader

__all__ = ["idle_rows", "latency_rows"]

Function = Callable[[DataFrame], DataFrame]
_DDL = "id bigint, amount int, at timestamp"


def plain(events: DataFrame) -> DataFrame:
    """A stateless query."""
    return events.where("amount >= 0").select("id", "amount", "at")


def windowed(events: DataFrame) -> DataFrame:
    """A query with windows."""
    return events.groupBy(F.window("at", "1 second").alias("second")).agg(F.max("id").alias("id"))


def latency_rows(options: Options, spark: SparkSession) -> Iterator[Row]:
    """Yields the latency from event to visible row, one event at a time, beside that of an empty Spark batch."""
    tries = options.size(full=60, quick=5)
    floor = _floor(options, spark, tries)
    for name, function, key, aim in (("stateless", plain, "id", 150), ("windowed", windowed, "second", 300)):
        say(f"latency, {name}")
        seconds = _latencies(options.folder / name, spark, function, key, tries)
        p50, p95 = percentile(seconds, 0.5) * 1000, percentile(seconds, 0.95) * 1000
        beside = f"Spark's floor, {floor * 1000:.0f} ms"
        ratio, bound = p50 / floor / 1000, at_most(aim, unit="ms")
        yield Row(f"event to row, {name}, p50", p50, "ms", compared_with=beside, ratio=ratio, aim=bound)
        yield Row(f"event to row, {name}, p95", p95, "ms")


def _latencies(folder: Path, spark: SparkSession, function: Function, key: str, tries: int) -> list[float]:
    app = hw.App("latency")
    app.topic("events", _DDL, time="at", lateness="1 second")
    app.view("result", key=key)(_named(function))
    found: list[float] = []
    with running(app, folder, spark) as store, hw.connect(folder) as client:
        views = ViewReader(store)
        waiter = store.watch()
        for number in range(tries + 5):
            sent = time.perf_counter()
            client.send("events", {"id": number, "amount": 1, "at": datetime.now(UTC)})
            while not views.sql("select 1 from result where id = ?", [number]).rows:
                waiter.wait(1.0)
            found.append(time.perf_counter() - sent)
            time.sleep(0.05)
    return found[5:]


def _named(function: Function) -> Function:
    def result(events: DataFrame) -> DataFrame:
        return function(events)

    return result


def _floor(options: Options, spark: SparkSession, tries: int) -> float:
    """Returns the median duration of a batch that reads ten rows of Spark's rate source and drops them."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(options.folder / "floor")).start()
    while query.lastProgress is None or query.lastProgress["batchId"] < tries + 20:
        time.sleep(0.1)
    took = [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]
    query.stop()
    return percentile(took, 0.5)


def idle_rows(options: Options, spark: SparkSession) -> Iterator[Row]:
    """Yields the CPU time and memory of all processes with ten idle pipelines."""
    pipelines = options.size(full=10, quick=2)
    seconds = options.size(full=30, quick=2)
    say(f"{pipelines} idle pipelines")
    app = hw.App("idle")
    app.topic("events", _DDL, time="at", lateness="1 second")
    for number in range(pipelines):
        app.view(f"idle_{number}", key="second")(_named(windowed))
    with running(app, options.folder / "idle", spark, wait=1.0):
        time.sleep(5)
        before = tree_cpu(os.getpid())
        time.sleep(seconds)
        share = (tree_cpu(os.getpid()) - before) / seconds * 100
        memory = tree_memory(os.getpid()) / 1e6
    yield Row(f"{pipelines} idle pipelines", share, "% of a core", aim=at_most(3, unit="%"))
    yield Row(f"memory with {pipelines} pipelines", memory, "MB")


@contextmanager
def running(app: hw.App, folder: Path, spark: SparkSession, wait: float = 1.0) -> Iterator[SqlStore]:
    """Run an app on an existing session during the block; its pipelines are running."""
    clock = SystemClock()
    with EventLog(folder) as log:
        store = SqlStore(SqliteDialect(folder / "store"), clock)
        engine = Engine(app.resolve(), lambda: spark, EngineContext(log.folder, log, store, clock, wait=wait))
        engine.start()
        for supervisor in engine.supervisors.values():
            supervisor.wait_until_running()
        try:
            yield store
        finally:
            engine.stop()
            store.close()
