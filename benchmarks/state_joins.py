"""Joins of events with a table: with the current row, and with the row that was valid at the event time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headwater as hw
from benchmarks.measure import Lap
from benchmarks.process_tree import compiler_cpu, tree_cpu
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.store import SqliteDialect, SqlStore

__all__ = ["JOINS", "Size", "fill_topics", "run_join"]

Join = Callable[[DataFrame, hw.Table], DataFrame]
JOINS: dict[str, Join] = {
    "stream-table join": lambda events, prices: hw.enrich(events, prices, on="product"),
    "as-of join": lambda events, prices: hw.join_as_of(events, prices, on="product"),
}
_EVENTS = "id bigint, product int, amount double, at timestamp"
_PRICES = "product int, price double, since timestamp"
_START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
_SPAN = 3_600_000_000
_GROUP = 10_000
_MOMENT = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Size:
    """The number of events, of keys of the table, and of versions of each row."""

    events: int
    keys: int
    versions: int


def _app(join: Join) -> hw.App:
    app = hw.App("bench")
    app.topic("events", _EVENTS, key="product", time="at", partitions=4)
    app.table("prices", _PRICES, key="product", time="since")

    @app.stream
    def result(events: DataFrame, prices: hw.Table) -> DataFrame:
        return join(events, prices)

    return app


def fill_topics(folder: Path, size: Size) -> None:
    """Write the versions of the table, round-robin over its keys, and an hour of events; none is late."""
    client = hw.connect(folder)
    random = np.random.default_rng(11)
    client.create_topic("events", _EVENTS, key="product", time="at", partitions=4)
    client.create_topic("prices", _PRICES, key="product", time="since", compact=True)
    rows = size.keys * size.versions
    for start in range(0, rows, _GROUP):
        ids = np.arange(start, min(start + _GROUP, rows))
        client.send_many("prices", _prices(ids % size.keys, _START + ids * _SPAN // rows, random))
    # The valid row of an event is final once the table's event time has passed it.
    client.send_many("prices", _prices(np.arange(64), np.full(64, _START + 2 * _SPAN), random))
    for start in range(0, size.events, _GROUP):
        ids = np.arange(start, min(start + _GROUP, size.events))
        products = random.integers(0, size.keys, len(ids)).astype(np.int32)
        times = pa.array(_START + ids * _SPAN // size.events).cast(_MOMENT)
        columns = {"id": ids, "product": products, "amount": random.random(len(ids)), "at": times}
        client.send_many("events", pa.record_batch(columns))
    client.log.close()


def _prices(products: np.ndarray, since: np.ndarray, random: np.random.Generator) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "product": products.astype(np.int32),
            "price": random.random(len(products)),
            "since": pa.array(since).cast(_MOMENT),
        }
    )


def run_join(folder: Path, size: Size, join: Join, spark: SparkSession, cores: int) -> Lap:
    """Run the join as an app; the lap starts after the first third of the events."""
    for name in ("store", "engine", "groups", "topics/result"):
        shutil.rmtree(folder / name, ignore_errors=True)
    clock = SystemClock()
    with EventLog(folder) as log:
        store = SqlStore(SqliteDialect(folder / "store"), clock)
        rows = max(size.events // 3, 1_000)
        context = EngineContext(log.folder, log, store, clock, rows=rows, cores=cores, wait=0.05)
        engine = Engine(_app(join).resolve(), lambda: spark, context)
        engine.start()
        first = _taken(store)
        while not first:
            time.sleep(0.01)
            first = _taken(store)
        wall, cpu = time.perf_counter(), tree_cpu(os.getpid()) - compiler_cpu(os.getpid())
        engine.catch_up()
        lap = Lap(
            _taken(store) - first, time.perf_counter() - wall, tree_cpu(os.getpid()) - compiler_cpu(os.getpid()) - cpu
        )
        engine.stop()
        store.close()
        # The last ten seconds of the hour are not complete yet.
        assert sum(end.end for end in log.ends("result")) > 0.99 * size.events
    return lap


def _taken(store: SqlStore) -> int:
    """Returns the number of events joined so far."""
    last = store.last_entry("result@1")
    ends = {topic: end for topic, _, end in last.ranges()} if last else {}
    return sum(ends.get("events", {}).values())
