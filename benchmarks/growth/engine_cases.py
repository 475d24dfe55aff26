"""Pipelines that run on Spark in one engine process: what they hold and do while idle, and one small batch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame

import headwater as hw
from benchmarks.growth.figures import Figure, count_syncs, disk_row, idle_rows, memory_rows
from benchmarks.growth.log_cases import Case
from benchmarks.process_tree import tree_cpu, tree_processes
from benchmarks.spine_latency import running
from headwater.engine.spark.session import Spark, SparkSettings
from headwater.store import ViewReader

__all__ = ["ENGINE"]


def _app(size: int) -> hw.App:
    app = hw.App("growth")
    for number in range(size):
        topic = f"t{number}"
        app.topic(topic, "id bigint, amount int, at timestamp", time="at", lateness="1 second")
        app.view(f"view_{number}", key="id")(_function(topic))
    return app


def _function(topic: str) -> Callable[..., DataFrame]:
    """Returns a function whose parameter has the name of a topic."""
    names: dict[str, Callable[..., DataFrame]] = {}
    exec(f"def latest({topic}):\n    return {topic}.select('id', 'amount', 'at')", names)
    return names["latest"]


def _create(folder: Path, size: int) -> None:
    folder.mkdir(exist_ok=True)


def _measure(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    spark = Spark(folder / "spark", SparkSettings())
    seconds = 1 if quick else 15
    try:
        began, cpu = time.perf_counter(), tree_cpu(os.getpid())
        with running(_app(size), folder / "data", spark.session) as store, hw.connect(folder / "data") as client:
            started = time.perf_counter() - began
            yield Figure("start of Java and all pipelines", (tree_cpu(os.getpid()) - cpu) * 1e3, "ms", started * 1e3)
            send = _Sender(client, ViewReader(store))
            send(5)
            time.sleep(1 if quick else 10)
            processes = tree_processes(os.getpid())
            yield Figure("engine, processes", len(processes), "")
            yield Figure("engine, threads of the driver in Python", threading.active_count(), "")
            yield from memory_rows("idle engine", processes)
            yield from idle_rows("idle engine", processes, seconds)
            batches = 3 if quick else 20
            cpu, began = tree_cpu(os.getpid()), time.perf_counter()
            send(batches)
            wall, cpu = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu
            yield Figure("one small batch of one pipeline", cpu / batches * 1e3, "ms", wall / batches * 1e3)
            with count_syncs(processes) as syncs:
                send(batches)
            if syncs:
                yield Figure("syncs per small batch", syncs[0] / batches, "")
            yield disk_row("engine on disk", folder / "data" / "engine")
    finally:
        spark.stop()


class _Sender:
    """Sends an event and waits for its row, so that each is a batch."""

    def __init__(self, client: hw.Client, views: ViewReader) -> None:
        self._client, self._views, self._next = client, views, 0

    def __call__(self, number: int) -> None:
        for _ in range(number):
            self._next += 1
            self._client.send("t0", {"id": self._next, "amount": 1, "at": datetime.now(UTC)})
            while not self._views.sql("select 1 from view_0 where id = ?", [self._next]).rows:
                time.sleep(0.005)


ENGINE: Case = (_create, _measure)
