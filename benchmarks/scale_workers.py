"""One Spark worker against two, each with one core, on a CPU-bound pipeline.

    python -m benchmarks.scale_workers MASTER FOLDER CORES

measures one run in its own process, because a process has one Spark session.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from benchmarks.bench_options import Options
from benchmarks.measure import say
from benchmarks.spine_events import EVENTS_DDL, make_events
from benchmarks.table import Row
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.engine.spark.session import Spark, SparkSettings
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.services.spark_cluster import launch_master, launch_worker
from headwater.store import SqliteDialect, SqlStore

__all__ = ["worker_rows"]

_ROUNDS = 60  # hashes for each event


def busy(events: DataFrame) -> DataFrame:
    """Compute a long chain of hashes for each event, then aggregate to few rows."""
    hashed = F.col("note")
    for _ in range(_ROUNDS):
        hashed = F.sha2(hashed, 512)
    grouped = events.groupBy(F.window("at", "1 minute").alias("minute"), "product")
    return grouped.agg(F.max(hashed).alias("hash"))


def worker_rows(options: Options) -> Iterator[Row]:
    """Yields events per second with two workers, beside one."""
    events = options.size(full=options.events // 10, quick=5_000)
    given = make_events(options.folder / "busy", events, 10_000, files=False)
    seconds = {workers: _with_workers(options.folder, given.data, workers) for workers in (1, 2)}
    one, two = (events / seconds[workers] for workers in (1, 2))
    yield Row(
        "CPU-bound view, two workers",
        two,
        "events/s",
        seconds[2],
        compared_with=f"one worker: {one:,.0f}",
        ratio=two / one,
    )


def _with_workers(folder: Path, data: Path, workers: int) -> float:
    place = folder / f"cluster-{workers}"
    started = [launch_master(place)]
    try:
        started[0].wait()
        page = started[0].ports[1]
        for number in range(1, workers + 1):
            started.append(launch_worker(place, started[0].url, page, number=number, cores=1, memory="1g"))
            started[-1].wait()
        command = [sys.executable, "-m", "benchmarks.scale_workers", started[0].url, str(data), str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        for each in reversed(started):
            each.stop()
    say(f"  {workers} workers: {done.stdout.strip()} s")
    return float(done.stdout)


def run(master: str, data: Path, cores: int) -> float:
    """Returns the seconds in which the view processes all events, after warm-up."""
    spark = Spark(data.parent / "spark", SparkSettings(cores=cores, memory="1g", master=master))
    took = 0.0
    for _ in range(2):
        for name in ("store", "engine", "groups", "topics/result.changes"):
            shutil.rmtree(data / name, ignore_errors=True)
        app = hw.App("busy")
        app.topic("events", EVENTS_DDL, key="customer", time="at", lateness="10 seconds", partitions=4)
        app.view("result", key=("minute", "product"))(busy)
        clock = SystemClock()
        with EventLog(data) as log:
            store = SqlStore(SqliteDialect(data / "store"), clock)
            context = EngineContext(log.folder, log, store, clock, cores=cores, wait=0.05)
            engine = Engine(app.resolve(), lambda: spark.session, context)
            began = time.monotonic()
            engine.start()
            engine.catch_up()
            took = time.monotonic() - began
            engine.stop()
            store.close()
    spark.stop()
    return took


if __name__ == "__main__":
    print(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
