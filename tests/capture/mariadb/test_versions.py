"""Copies follow writers without a gap or a repeat, whatever is restarted and when."""

from __future__ import annotations

import random

import pymysql
import pytest

from headwater.capture.source import RecordKind
from tests.capture.mariadb.copies import Copy, copy_of
from tests.capture.mariadb.server import Database
from tests.capture.version_chain import Writers, follow, read_all, rows_of

pytestmark = pytest.mark.services

CHAIN = """CREATE TABLE {} (id INT PRIMARY KEY, life BIGINT, ver INT, note VARCHAR(200), big MEDIUMTEXT)"""
RETRY = (pymysql.err.IntegrityError, pymysql.err.OperationalError)


def writers(database: Database, table: str = "chain", **options: object) -> Writers:
    return Writers(lambda: database.connect(autocommit=False), table, retry=RETRY, large=3000, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_versions_have_no_gap_and_no_repeat_through_restarts(database: Database, seed: int) -> None:
    database.run(CHAIN.format("chain"))
    copy, tables = Copy([f"{database.name}.chain"]), database.tables("chain")
    with writers(database, seed=seed) as running:
        resume, restarts = follow(
            database.source, tables, copy, until=lambda one: one.changes > 2500, seed=seed, restart=0.15
        )
        running.stop()
    assert restarts > 5
    source = database.source()
    source.open(resume, tables)
    read_all(source, copy)
    source.close()
    copy.expect(f"{database.name}.chain", rows_of(database.connect(), "chain"))


def test_two_tables_of_the_same_transactions_stay_whole_through_restarts(database: Database) -> None:
    database.run(CHAIN.format("chain"), CHAIN.format("other"))
    names = ("chain", "other")
    copy, tables = Copy([f"{database.name}.{one}" for one in names]), database.tables(*names)
    with writers(database, threads=3, seed=1) as first, writers(database, "other", threads=3, seed=2) as second:
        resume, restarts = follow(
            database.source, tables, copy, until=lambda one: one.changes > 3000, seed=3, restart=0.3
        )
        first.stop()
        second.stop()
    assert restarts > 5
    source = database.source()
    source.open(resume, tables)
    read_all(source, copy)
    for one in names:
        copy.expect(f"{database.name}.{one}", rows_of(database.connect(), one))


def test_a_table_added_later_joins_the_stream_exactly(database: Database) -> None:
    database.run(CHAIN.format("chain"), CHAIN.format("other"))
    copy = Copy([f"{database.name}.chain", f"{database.name}.other"])
    with writers(database, threads=2, seed=4) as first, writers(database, "other", threads=2, seed=5) as second:
        resume, _ = follow(database.source, database.tables("chain"), copy, until=lambda one: one.changes > 300, seed=1)
        tables = database.tables("chain", "other")
        resume, _ = follow(
            database.source, tables, copy, until=lambda one: one.changes > 1500, seed=2, restart=0.3, resume=resume
        )
        first.stop()
        second.stop()
    assert f"{database.name}.other" in copy.rows
    source = database.source()
    source.open(resume, tables)
    read_all(source, copy)
    for one in ("chain", "other"):
        copy.expect(f"{database.name}.{one}", rows_of(database.connect(), one))


def test_a_requested_snapshot_changes_nothing_in_an_exact_copy(database: Database) -> None:
    database.run(CHAIN.format("chain"))
    with writers(database, seed=6) as running:
        source, copy = copy_of(database, "chain", chained=True)
        before = copy.changes
        source.request_snapshot(f"{database.name}.chain")
        for _ in range(600):
            for record in source.poll(0.05):
                copy.apply(record)
            if copy.kinds().count(RecordKind.SNAPSHOT_DONE) == 2 and copy.changes > before + 300:
                break
        running.stop()
    read_all(source, copy)
    assert copy.kinds().count(RecordKind.EPOCH) == 2
    copy.expect(f"{database.name}.chain", rows_of(database.connect(), "chain"))


def test_every_record_is_a_point_to_continue_from(database: Database) -> None:
    database.run(CHAIN.format("chain"), CHAIN.format("other"))
    source, copy = copy_of(database, "chain", "other")
    with writers(database, threads=2, seed=7) as first, writers(database, "other", threads=2, seed=8) as second:
        while copy.changes < 400:
            for record in source.poll(0.05):
                copy.apply(record)
        first.stop()
        second.stop()
    read_all(source, copy)
    source.close()
    records = copy.records
    streamed = [n for n, one in enumerate(records) if one.kind is RecordKind.CHANGES]
    for cut in [0, 1, 2, 3, *random.Random(1).sample(streamed, 12)]:
        replayed = Copy([f"{database.name}.chain", f"{database.name}.other"])
        for record in records[: cut + 1]:
            replayed.apply(record)
        again = database.source()
        again.open(records[cut].resume, database.tables("chain", "other"))
        read_all(again, replayed)
        again.close()
        for one in ("chain", "other"):
            replayed.expect(f"{database.name}.{one}", rows_of(database.connect(), one))
