"""The social timeline: an incremental join of follows and posts, beside the same SQL recomputed for each batch."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.state.state import DELETED, OFFSET, PARTITION, TIME
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.engine.tables.dataflow import Dataflow, TableInput, compile_tables
from headwater.store import Commit, LedgerEntry, SqliteDialect, SqlStore

__all__ = ["Events", "TimelineCost", "run_pathway", "run_timeline"]

Numbers = npt.NDArray[np.int64]

_SQL = """
    select f.follower, p.post_id, p.author, p.words from follows f join posts p on p.author = f.followee
"""
_FOLLOWS = pa.schema([("follower", pa.int64()), ("followee", pa.int64())])
_POSTS = pa.schema([("post_id", pa.int64()), ("author", pa.int64()), ("words", pa.string())])
_QUERY = "timeline@1"


@dataclass(frozen=True)
class Events:
    """The followee of each follower, the authors of old posts, and the authors of the posts of each batch."""

    followees: Numbers
    old: Numbers
    new: Numbers

    @classmethod
    def generate(cls, follows: int, old: int, posts: int, batches: int) -> Events:
        """Returns random events; an author has a hundred followers on average."""
        random, authors = np.random.default_rng(5), max(1, follows // 100)
        sizes = (follows, old, (batches, posts))
        return cls(*(random.integers(0, authors, size) for size in sizes))

    def batches(self) -> Iterator[pa.Table]:
        """Yields the posts: all old ones, then the others batch by batch."""
        first = 0
        for authors in (self.old, *self.new):
            ids = np.arange(first, first + len(authors))
            yield pa.table({"post_id": ids, "author": authors, "words": ["hello"] * len(ids)}, schema=_POSTS)
            first += len(authors)


@dataclass(frozen=True)
class TimelineCost:
    """The cost of new posts: their rows, the CPU seconds of the incremental join, and those of a full join per batch.

    `before` is the number of rows of the timeline before them.
    """

    before: int
    rows: int
    cpu: float
    wall: float
    recomputed_cpu: float


def run_timeline(folder: Path, events: Events) -> TimelineCost:
    """Load the follows and old posts, then measure new posts batch by batch."""
    shutil.rmtree(folder, ignore_errors=True)
    edges = pa.table({"follower": np.arange(len(events.followees)), "followee": events.followees})
    timeline, recomputed = _Timeline(folder), _Recomputed(edges)
    timeline.take(edges.cast(_FOLLOWS), None)
    old, *batches = events.batches()
    before = timeline.take(None, old)
    recomputed.take(old)
    rows, ours, wall, theirs = 0, 0.0, 0.0, 0.0
    for new in batches:
        begun, cpu = time.perf_counter(), time.process_time()
        rows += timeline.take(None, new)
        ours, wall = ours + time.process_time() - cpu, wall + time.perf_counter() - begun
        theirs += recomputed.take(new)
    assert recomputed.rows() == before + rows
    timeline.close()
    return TimelineCost(before, rows, ours, wall, theirs)


def run_pathway(python: Path, folder: Path, events: Events) -> tuple[int, float]:
    """Run the same in Pathway, in memory; returns the number of rows of new posts, and CPU seconds."""
    file = folder / "events.npz"
    np.savez(file, followees=events.followees, old=events.old, new=events.new)
    script = Path(__file__).with_name("pathway_timeline.py")
    done = subprocess.run([python, script, file], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["rows"], found["cpu"]


class _Recomputed:
    """The same query, which DuckDB computes in full for each batch."""

    def __init__(self, follows: pa.Table) -> None:
        self._duckdb = duckdb.connect()
        self._duckdb.execute("set threads = 1")
        self._duckdb.register("given", follows)
        self._duckdb.execute("create table follows as select * from given")
        self._duckdb.execute("create table posts (post_id bigint, author bigint, words varchar)")

    def take(self, posts: pa.Table) -> float:
        """Add posts and run the query; returns its CPU seconds."""
        self._duckdb.register("new", posts)
        self._duckdb.execute("insert into posts select * from new")
        cpu = time.process_time()
        self._duckdb.execute(f"create or replace table timeline as {_SQL}")
        return time.process_time() - cpu

    def rows(self) -> int:
        ((count,),) = self._duckdb.execute("select count(*) from timeline").fetchall()
        return int(count)


class _Timeline:
    """The view as the sink maintains it: the join's state and the ledger in one transaction of the store."""

    def __init__(self, folder: Path) -> None:
        tables = {"follows": TableInput(_FOLLOWS, ("follower", "followee")), "posts": TableInput(_POSTS, ("post_id",))}
        self._flow: Dataflow = compile_tables(_SQL, tables, key=("follower", "post_id"))
        self._store = SqlStore(SqliteDialect(folder))
        self._epoch = self._store.open_epoch(_QUERY)
        self._recent = PageCache()
        self._batch = 0

    def take(self, follows: pa.Table | None, posts: pa.Table | None) -> int:
        """Process one batch; returns the number of new rows of the timeline."""
        given = {"follows": _changes(follows, _FOLLOWS), "posts": _changes(posts, _POSTS)}
        state = StoreState(self._store.state_store(_QUERY), self._recent)
        made = self._flow.step(state, [given[name] for name in self._flow.inputs], 0)
        entry = LedgerEntry(_QUERY, self._batch, self._epoch, (), None, committed_at=0)
        self._store.commit(Commit(entry, None, made.slice(0, 0), states=state.build_writes()))
        state.on_commit()
        self._batch += 1
        return int(made.num_rows)

    def close(self) -> None:
        self._store.close()


def _changes(rows: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """Returns new rows with the columns of a table's topic."""
    table = schema.empty_table() if rows is None else rows
    number = table.num_rows
    hidden: dict[str, Any] = {
        DELETED: pa.array(np.zeros(number, bool)),
        TIME: pa.array(np.arange(number)),
        PARTITION: pa.array(np.zeros(number, np.int32)),
        OFFSET: pa.array(np.arange(number)),
    }
    for name, column in hidden.items():
        table = table.append_column(name, column)
    return table
