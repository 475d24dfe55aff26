"""Keys of a view, batches of a ledger and pipelines of a store, without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

import headwater as hw
from benchmarks.growth.figures import Figure, cost, count_syncs, disk_row, memory_rows, run_command
from benchmarks.growth.log_cases import Case, events, node_rows
from headwater.backends import open_views
from headwater.log import EventLog
from headwater.server.routes.dashboard import PipelineSnapshot
from headwater.store import (
    Commit,
    EventCounts,
    InputRange,
    LedgerEntry,
    PipelineReport,
    SideOutput,
    SqliteDialect,
    SqlStore,
    ViewTable,
)

__all__ = ["BATCHES", "KEYS", "PIPELINES"]

_SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("name", pa.string())])
_BLOCK = 250_000


class _Runner:
    """Commits batches of ten events of a topic, as the engine does."""

    def __init__(self, store: SqlStore, name: str = "totals") -> None:
        self.store = store
        self.table = ViewTable(name, 1, _SCHEMA, ("k",))
        store.create(self.table)
        self.epoch = store.open_epoch(self.table.query)
        last = store.last_entry(self.table.query)
        self.batch = last.batch + 1 if last else 0

    def commit(self, rows: pa.Table, asides: int = 0) -> None:
        """Commit a batch with late and quarantined events, and publish it."""
        query, start = self.table.query, self.batch * 10
        counts = EventCounts(10, 10 - 2 * asides, asides, asides)
        read = InputRange("t0", {0: start}, {0: start + 10}, counts)
        entry = LedgerEntry(query, self.batch, self.epoch, (read,), 1_000, committed_at=self.batch)
        late = tuple(_aside(start + n) for n in range(asides))
        bad = tuple(_aside(start + 5 + n) for n in range(asides))
        if bad:
            self.store.skip(query, bad)
        self.store.commit(Commit(entry, self.table, rows, late=late, quarantined=bad))
        for outgoing in self.store.outbox(query):
            self.store.last_published(query)
            self.store.mark_published(query, outgoing.batch, {0: start})
        self.batch += 1

    def read_as_engine(self) -> None:
        """Read what the engine reads for each batch."""
        query = self.table.query
        self.store.check_epoch(query, self.epoch)
        self.store.skips(query, [("t0", 0, self.batch * 10, self.batch * 10 + 10)])
        self.store.entry(query, self.batch)
        self.store.newest_retries()


def _aside(offset: int) -> SideOutput:
    return SideOutput("t0", 0, offset, 1_000, 2_000, '{"id": 1}', "behind by 1 s", b"x" * 200)


def _rows(keys: np.ndarray, n: int) -> pa.Table:
    names = pa.array(np.char.add("name-", keys.astype(str)))
    return pa.table([pa.array(keys), pa.array(np.full(len(keys), n)), names], schema=_SCHEMA)


def _open(folder: Path) -> SqlStore:
    return SqlStore(SqliteDialect(folder / "store"))


def _switch_off_syncs(store: SqlStore) -> None:
    assert isinstance(store.dialect, SqliteDialect)
    store.dialect.connection.execute("PRAGMA synchronous = OFF")


def _create_log(folder: Path) -> None:
    with hw.connect(folder) as client:
        client.create_topic("t0", "id bigint, k bigint, at timestamp", key="k", time="at", durability="fast")
        client.send_many("t0", events(0, 10))


def _create_keys(folder: Path, size: int) -> None:
    _create_log(folder)
    store = _open(folder)
    runner = _Runner(store)
    for start in range(0, size, _BLOCK):
        runner.commit(_rows(np.arange(start, min(size, start + _BLOCK)), 0))
    store.close()


def _measure_keys(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    repeats, chance = 3 if quick else 30, np.random.default_rng(7)
    yield disk_row("store on disk", folder / "store")
    yield cost("store, opened and closed", lambda: _open(folder).close(), repeats)
    store = _open(folder)
    runner, numbers = _Runner(store), count(1)

    def commit() -> None:
        runner.commit(_rows(np.unique(chance.integers(0, size, 100)), next(numbers)))

    yield cost("commit of 100 changed rows, published", commit, repeats)
    with count_syncs([os.getpid()]) as syncs:
        commit()
    if syncs:
        yield Figure("commit, syncs", syncs[0], "")
    with hw.connect(folder) as client:
        view = client.view("totals")
        yield cost("one row of a view by key", lambda: view.get(int(chance.integers(0, size))), repeats)
    yield from memory_rows("process with store and client", [os.getpid()])
    store.close()


def _create_batches(folder: Path, size: int) -> None:
    _create_log(folder)
    store = _open(folder)
    runner, table = _Runner(store), _rows(np.arange(10), 0)
    # One transaction for all: the syncs of each would take most of the time. The rows are those of single commits.
    _switch_off_syncs(store)
    for number in range(size):
        runner.commit(table.set_column(1, "n", pa.array(np.full(10, number))), asides=2)
    store.close()


def _measure_batches(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    repeats = 3 if quick else 50
    yield disk_row("store on disk", folder / "store")
    store = _open(folder)
    runner, numbers = _Runner(store), count(10**6)

    def commit() -> None:
        runner.commit(_rows(np.arange(10), next(numbers)), asides=2)

    yield cost("commit with late and quarantined events", commit, repeats)
    yield cost("what the engine reads for a batch", runner.read_as_engine, repeats)
    store.close()
    yield from _status_rows(folder, repeats)


def _status_rows(folder: Path, repeats: int) -> Iterator[Figure]:
    with hw.connect(folder) as client:
        for name in ("hw_pipelines", "hw_batches", "hw_late", "hw_quarantine", "hw_state"):
            text = f"select * from {name} limit 20"
            yield cost(f"20 rows of {name}", lambda text=text: client.sql(text), repeats)  # type: ignore[misc]
        yield cost("lag of all pipelines", client.pipeline_lag, repeats)
        with EventLog(folder) as log:
            views = open_views(log)
            yield cost("dashboard snapshot", PipelineSnapshot(log, views).read, repeats)
            views.close()
    yield run_command("headwater status", "status", folder=folder)


def _create_pipelines(folder: Path, size: int) -> None:
    _create_log(folder)
    store = _open(folder)
    _switch_off_syncs(store)
    for number in range(size):
        name = f"view_{number}"
        runner = _Runner(store, name)
        for batch in range(20):
            runner.commit(_rows(np.arange(10), batch))
        store.report(PipelineReport(name, 1, "view", "running", inputs=("t0",)))
    store.close()


def _measure_pipelines(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    repeats = 3 if quick else 20
    store = _open(folder)
    runner, numbers = _Runner(store, "view_0"), count(10**6)
    yield cost("commit of one of the pipelines", lambda: runner.commit(_rows(np.arange(10), next(numbers))), repeats)
    store.close()
    yield from _status_rows(folder, repeats)
    yield from node_rows(folder, quick=quick)


KEYS: Case = (_create_keys, _measure_keys)
BATCHES: Case = (_create_batches, _measure_batches)
PIPELINES: Case = (_create_pipelines, _measure_pipelines)
