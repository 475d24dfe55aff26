"""The work of bench_spine: the same functions in a Headwater app and in hand-written Structured Streaming."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headwater as hw
from benchmarks.spine_events import EVENTS_DDL, EventFiles
from headwater.engine.build.build import new_session
from headwater.engine.build.inputs import Input, InputOptions, stream_inputs
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.store import SqliteDialect, SqlStore

__all__ = ["WORK", "Work", "by_hand", "by_headwater", "read_only"]


@dataclass(frozen=True)
class Work:
    """One function, and how its result is stored.

    Args:
        name: Its name in the table.
        function: The function from events to result.
        key: The result's key, as columns of the SQLite table.
        mode: The output mode of the hand-written query.
        keys: The number of customers in the events.
    """

    name: str
    function: Callable[[DataFrame], DataFrame]
    key: tuple[str, ...]
    mode: str
    keys: int


def counted(events: DataFrame) -> DataFrame:
    """Count and sum per customer and minute."""
    grouped = events.groupBy(F.window("at", "1 minute").alias("minute"), "customer")
    return grouped.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


def mapped(events: DataFrame) -> DataFrame:
    """One event in ten, with a computed column."""
    return events.where("product < 100").select("event_id", "customer", (F.col("amount") * 2).alias("double"), "at")


def sessions(events: DataFrame) -> DataFrame:
    """Sessions per customer."""
    grouped = events.groupBy("customer", F.session_window("at", "5 seconds").alias("session"))
    return grouped.agg(F.count("*").alias("n"))


def joined(events: DataFrame) -> DataFrame:
    """Events of one customer with a later one of another product within five seconds."""
    left = events.where("product < 20").select("event_id", "customer", "at")
    right = events.where("product >= 980").select(
        F.col("event_id").alias("other"), F.col("customer").alias("who"), F.col("at").alias("later_at")
    )
    return left.join(right, F.expr("customer = who and later_at between at and at + interval 5 seconds"))


WORK = (
    Work("windowed count, 10k keys", counted, ("minute", "customer"), "update", 10_000),
    Work("windowed count, 200k keys", counted, ("minute", "customer"), "update", 200_000),
    Work("filter and map", mapped, ("event_id",), "append", 10_000),
    Work("session windows", sessions, ("customer", "session"), "append", 10_000),
    Work("stream-stream join", joined, ("event_id", "other"), "append", 10_000),
)


def by_headwater(work: Work, given: EventFiles, spark: SparkSession, cores: int) -> int:
    """Run it as an app with view, ledger, changelog and accounting; returns the number of rows."""
    for name in ("store", "engine", "groups", "topics/result.changes"):
        shutil.rmtree(given.data / name, ignore_errors=True)
    app = hw.App("bench")
    app.topic("events", EVENTS_DDL, key="customer", time="at", lateness="10 seconds", partitions=4)
    app.view("result", key=work.key)(_named(work.function))
    clock = SystemClock()
    with EventLog(given.data) as log:
        store = SqlStore(SqliteDialect(given.data / "store"), clock)
        engine = Engine(
            app.resolve(), lambda: spark, EngineContext(log.folder, log, store, clock, cores=cores, wait=0.05)
        )
        engine.start()
        engine.catch_up()
        engine.stop()
        store.close()
    return _count(given.data / "store" / "store.db")


def _named(function: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    def result(events: DataFrame) -> DataFrame:
        return function(events)

    return result


def by_hand(work: Work, given: EventFiles, spark: SparkSession, folder: Path, form: str) -> int:
    """Run it as hand-written code: files, `foreachBatch`, upserts into SQLite, and none of the guarantees."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = spark.readStream.schema(EVENTS_DDL).option("maxFilesPerTrigger", 2)
    frame = getattr(source, form)(str(given.json if form == "json" else given.parquet))
    result = work.function(frame.withWatermark("at", "10 seconds"))
    connection = sqlite3.connect(folder / "result.db", check_same_thread=False, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=normal")
    columns = [name for field in result.schema for name in _flat(field.name)]
    key = [name for column in work.key for name in _flat(column)]
    connection.execute(f"create table result ({', '.join(columns)}, primary key ({', '.join(key)}))")
    marks = ", ".join("?" * len(columns))

    def keep(batch: DataFrame, _: int) -> None:
        rows = batch.toArrow().flatten()
        values = [
            column.cast("string").to_pylist() if str(column.type).startswith("timestamp") else column.to_pylist()
            for column in rows.columns
        ]
        connection.execute("begin")
        connection.executemany(f"insert or replace into result values ({marks})", zip(*values, strict=True))
        connection.execute("commit")

    query = result.writeStream.outputMode(work.mode).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).foreachBatch(keep).start().awaitTermination()
    connection.close()
    return _count(folder / "result.db")


def _flat(column: str) -> list[str]:
    return [f"{column}_start", f"{column}_end"] if column in ("minute", "session") else [column]


def _count(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        found: int = connection.execute("select count(*) from result").fetchone()[0]
    return found


def read_only(given: EventFiles, spark: SparkSession, cores: int, *, late: bool) -> int:
    """Read all events into Spark and drop them; returns their number."""
    folder = given.data / "engine" / "read"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for shared in ("notes", "loaded"):
        (folder / shared).write_bytes(b"\0")
    with EventLog(given.data) as log:
        starts = {end.partition: end.start for end in log.ends("events")}
        input_ = Input("events", log.topic("events"))
    reading = InputOptions(
        str(given.data),
        str(folder / "notes"),
        str(folder / "loaded"),
        {"events": str(folder / "skips")},
        {"events": starts},
        drop_late=late,
        cores=cores,
    )
    session = new_session(spark, empty_batches=False)
    frame = stream_inputs(session, (input_,), reading)["events"]
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    last = running.lastProgress
    assert last is not None
    reached = json.loads(last["sources"][0]["endOffset"])
    return sum(position for name, position in reached.items() if name.startswith("p"))
