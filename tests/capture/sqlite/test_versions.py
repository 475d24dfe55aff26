"""The version-chain test on SQLite, in both journal modes."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from headwater.capture.source import SourceTable
from headwater.capture.sqlite.source import SqliteSource
from tests.capture.version_chain import Replica, Writers, follow, read_all, rows_of
from tests.faults.counts import times

TABLES = [SourceTable("chain", "chain")]


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_versions_of_each_row_run_without_gap(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "shop.db"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA journal_mode = {mode}")
    database.execute("CREATE TABLE chain (id INTEGER PRIMARY KEY, life INTEGER, ver INTEGER, note TEXT, big TEXT)")
    database.executemany("INSERT INTO chain VALUES (?, ?, 1, 'first', NULL)", [(i, -i) for i in range(1, 300)])
    database.commit()

    def connect() -> sqlite3.Connection:
        opened = sqlite3.connect(path, timeout=10, check_same_thread=False)
        opened.execute("PRAGMA synchronous = OFF")
        return opened

    replica, end = Replica({"chain"}), time.monotonic() + times(4, 60)
    retry = (sqlite3.IntegrityError, sqlite3.OperationalError)  # a key that is taken; a lock
    with Writers(connect, "chain", retry=retry, keys=400, threads=3, placeholder="?", large=300) as writers:
        resume, restarts = follow(
            lambda: SqliteSource(str(path), "shop"),
            TABLES,
            replica,
            until=lambda _: time.monotonic() > end and writers.commits > 50 and "chain" in replica.loaded,
            restart=0.3,
            seed=5,
        )
        writers.stop()
    source = SqliteSource(str(path), "shop")
    source.open(resume, TABLES)
    read_all(source, replica)
    source.close()
    replica.expect("chain", rows_of(database, "chain"))
    assert restarts > 1
    assert replica.changes > 50
    database.close()
