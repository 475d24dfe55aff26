"""The store in a SQLite file: the contract of all stores, and what only a file can do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from headwater.errors import (
    BadEventError,
    DamagedError,
    DiskFullError,
    LockedError,
    NewerFormatError,
    NotWritableError,
    TooLargeError,
)
from headwater.store import PipelineReport, SqliteDialect, SqlStore, ViewReader
from headwater.store.commit import ledger, transaction
from headwater.store.sqlite.migrations import FORMAT
from tests.store.contract import UNSIGNED, StoreContract
from tests.store.given import Runner, aside


class TestSqliteDialect(StoreContract):
    def rows_of(self, store, name):
        return ViewReader(store).rows(name)

    def test_the_largest_unsigned_integer_is_kept(self, store):
        """Integers of SQLite end at 2^63 - 1: a larger one is refused with its column, and nothing is written."""
        runner = Runner(store, UNSIGNED)
        with pytest.raises(BadEventError) as caught:
            runner.commit([{"k": "a", "n": 2**63}])
        assert caught.value.data == {"field": "n"}
        runner.commit([{"k": "a", "n": 2**63 - 1}, {"k": "b", "n": None}])
        assert self.rows_of(store, "unsigned") == [{"k": "a", "n": 2**63 - 1}, {"k": "b", "n": None}]


def test_everything_is_there_after_opening_again(tmp_path):
    store = SqlStore(SqliteDialect(tmp_path))
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}], late=(aside(1),), quarantined=(aside(2, data=b"x"),))
    before = (store.last_entry(runner.query), runner.changes())
    store.close()
    again = SqlStore(SqliteDialect(tmp_path))
    assert (again.last_entry(runner.query), [again.outbox(runner.query)[0].changes.num_rows]) == (before[0], [1])
    assert again.open_epoch(runner.query) == 2
    again.close()


def test_a_store_of_a_newer_format_is_not_touched(tmp_path):
    SqlStore(SqliteDialect(tmp_path)).close()
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute(f"PRAGMA user_version = {FORMAT + 1}")
    other.close()
    with pytest.raises(NewerFormatError) as caught:
        SqlStore(SqliteDialect(tmp_path))
    assert caught.value.data["format"] == FORMAT + 1


def test_a_file_that_is_no_database_is_damaged(tmp_path):
    (tmp_path / "store.db").write_bytes(b"nothing of that kind" * 500)
    with pytest.raises(DamagedError):
        SqlStore(SqliteDialect(tmp_path))


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotWritableError):
        SqlStore(SqliteDialect(tmp_path / "file" / "store"))


def test_a_commit_is_synced_and_readers_do_not_wait(store):
    ask = store.dialect.connection.execute
    assert ask("PRAGMA synchronous").fetchone() == (2,)
    assert ask("PRAGMA journal_mode").fetchone() == ("wal",)


def test_old_entries_are_folded_into_the_totals(store, monkeypatch):
    monkeypatch.setattr(ledger, "KEPT_BATCHES", 5)
    runner = Runner(store)
    for _ in range(12):
        runner.commit()
    assert store.entry(runner.query, 6) is None
    assert store.entry(runner.query, 7) is not None
    batches, read = store.dialect.connection.execute("SELECT batches, in_ FROM hw_pipelines").fetchone()
    assert (batches, read) == (12, 120)


def test_the_identity_is_checked_by_one_query(store):
    runner = Runner(store)
    for _ in range(3):
        runner.commit()
    question = "SELECT count(*) FROM hw_batches WHERE in_ <> used + late + quarantined + dropped"
    assert store.dialect.connection.execute(question).fetchone() == (0,)


def test_names_that_differ_by_case_are_one_view(store, views):
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}])
    assert views.sql("select n from TOTALS").rows == [(1,)]


def test_a_full_disk_is_told_and_nothing_is_half_there(store, views):
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}])
    (pages,) = store.dialect.connection.execute("PRAGMA page_count").fetchone()
    store.dialect.connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    rows = [{"k": str(number), "n": number} for number in range(20_000)]
    with pytest.raises(DiskFullError):
        runner.commit(rows)
    assert views.rows("totals") == [{"k": "a", "n": 1}]
    assert store.last_entry(runner.query).batch == 0
    store.dialect.connection.execute("PRAGMA max_page_count = 1000000")
    assert runner.commit(rows)
    assert len(views.rows("totals")) == 20_001


def test_a_writer_that_does_not_end_is_told(store):
    other = sqlite3.connect(store.dialect.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.dialect.connection.execute("PRAGMA busy_timeout = 50")
    with pytest.raises(LockedError):
        store.open_epoch("totals@1")
    other.execute("ROLLBACK")
    other.close()
    assert store.open_epoch("totals@1") == 1


def test_opening_does_not_wait_for_a_writer(store):
    store.dialect.connection.execute("BEGIN IMMEDIATE")
    other = SqlStore(SqliteDialect(store.dialect.folder))
    store.dialect.connection.execute("ROLLBACK")
    assert other.last_entry("totals@1") is None
    other.close()


def test_a_batch_of_too_many_changes_is_told(store, monkeypatch):
    monkeypatch.setattr(transaction, "MAX_OUTBOX_BYTES", 2_000)
    runner = Runner(store)
    with pytest.raises(TooLargeError):
        runner.commit([{"k": str(number), "n": number} for number in range(1_000)])
    assert store.last_entry(runner.query) is None


def test_late_events_are_found_by_their_query(store):
    plan = store.dialect.connection.execute("EXPLAIN QUERY PLAN SELECT count(*) FROM hw_late").fetchall()
    assert any("SEARCH a USING" in str(row) for row in plan)


OTHER = """
    import sys
    from pathlib import Path
    from headwater.store import PipelineReport, SqlStore, SqliteDialect
    from tests.store.given import Runner
    store = SqlStore(SqliteDialect(Path(sys.argv[1])))
    sys.stdin.readline()
    Runner(store).commit([{"k": "a", "n": 7}])
    store.close()
"""


def test_a_commit_by_another_process_wakes_and_is_seen(store, views):
    watch = store.watch()
    command = [sys.executable, "-c", textwrap.dedent(OTHER), str(store.dialect.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=os.getcwd()) as other:
        other.communicate("now\n", timeout=60)
    assert watch.wait(5)
    watch.close()
    assert views.rows("totals") == [{"k": "a", "n": 7}]


def test_two_processes_write_in_turns(store):
    command = [sys.executable, "-c", textwrap.dedent(OTHER), str(store.dialect.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=os.getcwd()) as other:
        threads = 0
        while other.poll() is None and threads < 200:
            store.report(PipelineReport("p", 1, "stream", "running", detail=str(threads)))
            threads += 1
            if threads == 50:
                other.stdin.write("now\n")
                other.stdin.flush()
        other.communicate(timeout=60)
        assert other.returncode == 0
    assert store.last_entry("totals@1").batch == 0
