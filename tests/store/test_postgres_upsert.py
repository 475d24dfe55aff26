"""Large batches: workers stage their parts at once, one commit publishes them."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pyarrow as pa
import pytest

from headwater.errors import BadTypeError, FencedError, KeyNotUniqueError, UnreachableError, UsageError
from headwater.store import SqliteDialect, SqlStore, StagedPart, ViewReader
from headwater.store.postgres import PostgresDialect
from tests.store.given import MINUTE, REVENUE, TOTALS, Runner, minute

STORES = ("postgres",)


def part(store, *rows, batch=0, table=TOTALS):
    return store.dialect.stage(table, batch, pa.Table.from_pylist(list(rows), schema=table.schema))


def rows(store):
    return {row["k"]: row["n"] for row in ViewReader(store).rows("totals")}


def leftovers(store):
    with store.dialect.pool.session() as session:
        tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'staged\\_%'"
        return session.connection.execute(tables).fetchall()


def staged_by(url, number):
    store = SqlStore(PostgresDialect(url))
    found = part(store, *({"k": f"{number}-{row}", "n": row} for row in range(1_000)))
    store.close()
    return found


def test_parts_of_several_processes_are_published_by_one_commit(store, url):
    runner = Runner(store)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.starmap(staged_by, [(url, number) for number in range(4)])
    assert rows(store) == {}
    assert runner.commit(staged=tuple(parts))
    assert len(rows(store)) == 4_000
    assert store.last_entry(runner.query).rows == 4_000
    assert store.outbox(runner.query)[0].changes.num_rows == 4_000
    assert leftovers(store) == []


def test_staged_rows_make_the_same_changes(store):
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "c", "n": 3}, {"k": None, "n": 4}])
    parts = (
        part(store, {"k": "a", "n": 10}, {"k": "b", "n": 2}),
        part(store, {"k": "new", "n": 5}, {"k": None, "n": 6}),
    )
    runner.commit(staged=parts, deletes=pa.table({"k": ["c"]}))
    assert sorted(runner.changes()[1], key=repr) == sorted(
        [
            ("delete", {"k": "c", "n": 3}, None),
            ("insert", None, {"k": "new", "n": 5}),
            ("update", {"k": "a", "n": 1}, {"k": "a", "n": 10}),
            ("update", {"k": None, "n": 4}, {"k": None, "n": 6}),
        ],
        key=repr,
    )


def test_staged_windows_become_final(store):
    runner = Runner(store, REVENUE)
    found = part(store, {"w": minute(0), "category": None, "amount": 1}, table=REVENUE)
    runner.commit(staged=(found,), watermark=MINUTE, finals=True)
    assert [op for op, *_ in runner.changes()[0]] == ["insert", "final"]


def test_two_parts_with_one_key_are_refused(store):
    runner = Runner(store)
    parts = (part(store, {"k": "a", "n": 1}), part(store, {"k": "a", "n": 2}))
    with pytest.raises(KeyNotUniqueError) as caught:
        runner.commit(staged=parts)
    assert caught.value.data["key"] == {"k": "a"}
    with pytest.raises(KeyNotUniqueError):
        runner.commit(staged=parts[:1], deletes=pa.table({"k": ["a"]}))
    assert rows(store) == {}


def test_a_part_that_nobody_names_is_dropped_with_the_next_commit(store):
    runner = Runner(store)
    part(store, {"k": "twice", "n": 1})
    runner.commit(staged=(part(store, {"k": "a", "n": 1}),))
    assert rows(store) == {"a": 1}
    assert leftovers(store) == []


def test_the_same_staged_batch_again_writes_nothing(store):
    runner = Runner(store)
    runner.commit(staged=(part(store, {"k": "a", "n": 1}),))
    assert not runner.commit(staged=(part(store, {"k": "a", "n": 9}),), batch=0)
    assert rows(store) == {"a": 1}
    assert leftovers(store) == []


def test_rows_that_a_restart_emptied_are_missed(postgres, store):
    runner = Runner(store)
    found = part(store, {"k": "a", "n": 1})
    postgres.stop("immediate")
    postgres.start()
    with pytest.raises(UnreachableError) as caught:
        runner.commit(staged=(found,))
    assert caught.value.retryable
    assert store.last_entry(runner.query) is None
    assert runner.commit(staged=(part(store, {"k": "a", "n": 1}),))
    assert rows(store) == {"a": 1}


def test_a_fenced_runner_publishes_nothing(store):
    runner = Runner(store)
    found = part(store, {"k": "a", "n": 1})
    store.open_epoch(runner.query)
    with pytest.raises(FencedError):
        runner.commit(staged=(found,))
    assert rows(store) == {}


def test_equal_rows_of_several_parts_can_count_once(store):
    runner = Runner(store)
    parts = tuple(part(store, {"k": "a", "n": 1}, {"k": None, "n": n}) for n in (2, 2))
    with pytest.raises(KeyNotUniqueError):
        runner.commit(staged=parts)
    assert runner.commit(staged=parts, distinct=True)
    assert rows(store) == {"a": 1, None: 2}
    other = tuple(part(store, {"k": "a", "n": n}) for n in (3, 4))
    with pytest.raises(KeyNotUniqueError):
        runner.commit(staged=other, distinct=True)


def test_what_workers_are_given_shows_no_password(store):
    assert repr(store.stager()) == "PostgresStager()"


def test_staged_rows_of_other_columns_are_refused(store):
    store.create(TOTALS)
    with pytest.raises(BadTypeError):
        store.dialect.stage(TOTALS, 0, pa.table({"x": [1]}))


def test_a_store_in_a_file_refuses_what_was_staged(tmp_path):
    store = SqlStore(SqliteDialect(tmp_path))
    runner = Runner(store)
    with pytest.raises(UsageError):
        store.commit(replace(runner.work(), staged=(StagedPart("x", 1, (False,)),)))
    store.close()
