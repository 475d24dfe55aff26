"""The store in a SQLite file: the contract of all stores, and what only a file can do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from headwater.errors import DamagedError, NewerFormatError, NotWritableError
from headwater.store import PipelineReport, SqliteStore, Views
from headwater.store.sqlite import ledger_rows
from headwater.store.sqlite.migrations import FORMAT
from tests.store.contract import StoreContract
from tests.store.given import Runner, aside


class TestSqliteStore(StoreContract):
    def rows_of(self, store, name):
        views = Views(store)
        found = views.rows(name)
        views.close()
        return found


def test_everything_is_there_after_opening_again(tmp_path):
    store = SqliteStore(tmp_path)
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}], late=(aside(1),), quarantined=(aside(2, data=b"x"),))
    before = (store.last(runner.query), runner.changes())
    store.close()
    again = SqliteStore(tmp_path)
    assert (again.last(runner.query), [again.pending(runner.query)[0].changes.num_rows]) == (before[0], [1])
    assert again.take(runner.query) == 2
    again.close()


def test_a_store_of_a_newer_format_is_not_touched(tmp_path):
    SqliteStore(tmp_path).close()
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute(f"PRAGMA user_version = {FORMAT + 1}")
    other.close()
    with pytest.raises(NewerFormatError) as caught:
        SqliteStore(tmp_path)
    assert caught.value.data["format"] == FORMAT + 1


def test_a_file_that_is_no_database_is_damaged(tmp_path):
    (tmp_path / "store.db").write_bytes(b"nothing of that kind" * 500)
    with pytest.raises(DamagedError):
        SqliteStore(tmp_path)


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotWritableError):
        SqliteStore(tmp_path / "file" / "store")


def test_a_commit_is_synced_and_readers_do_not_wait(store):
    ask = store._connection.execute
    assert ask("PRAGMA synchronous").fetchone() == (2,)
    assert ask("PRAGMA journal_mode").fetchone() == ("wal",)


def test_old_entries_are_folded_into_the_totals(store, monkeypatch):
    monkeypatch.setattr(ledger_rows, "KEPT_BATCHES", 5)
    runner = Runner(store)
    for _ in range(12):
        runner.commit()
    assert store.entry(runner.query, 6) is None
    assert store.entry(runner.query, 7) is not None
    batches, read = store._connection.execute("SELECT batches, in_ FROM hw_pipelines").fetchone()
    assert (batches, read) == (12, 120)


def test_the_identity_is_checked_by_one_query(store):
    runner = Runner(store)
    for _ in range(3):
        runner.commit()
    question = "SELECT count(*) FROM hw_batches WHERE in_ <> used + late + quarantined + dropped"
    assert store._connection.execute(question).fetchone() == (0,)


def test_names_that_differ_by_case_are_one_view(store, views):
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}])
    assert views.sql("select n from TOTALS").rows == [(1,)]


OTHER = """
    import sys
    from pathlib import Path
    from headwater.store import PipelineReport, SqliteStore
    from tests.store.given import Runner
    store = SqliteStore(Path(sys.argv[1]))
    sys.stdin.readline()
    Runner(store).commit([{"k": "a", "n": 7}])
    store.close()
"""


def test_a_commit_by_another_process_wakes_and_is_seen(store, views):
    watch = store.watch()
    command = [sys.executable, "-c", textwrap.dedent(OTHER), str(store.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=os.getcwd()) as other:
        other.communicate("now\n", timeout=60)
    assert watch.wait(5)
    watch.close()
    assert views.rows("totals") == [{"k": "a", "n": 7}]


def test_two_processes_write_in_turns(store):
    command = [sys.executable, "-c", textwrap.dedent(OTHER), str(store.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=os.getcwd()) as other:
        threads = 0
        while other.poll() is None and threads < 200:
            store.tell(PipelineReport("p", 1, "stream", "running", detail=str(threads)))
            threads += 1
            if threads == 50:
                other.stdin.write("now\n")
                other.stdin.flush()
        other.communicate(timeout=60)
        assert other.returncode == 0
    assert store.last("totals@1").batch == 0
