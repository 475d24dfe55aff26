"""The version-chain test on PostgreSQL: first rows, changes, restarts."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.source import SourceTable
from tests.capture.postgres.servers import Database
from tests.capture.version_chain import Replica, Writers, follow, read_all, rows_of
from tests.faults.counts import times

pytestmark = pytest.mark.services

CHAIN = "CREATE TABLE chain (id int PRIMARY KEY, life bigint, ver int, note varchar(200), big text)"
TABLES = [SourceTable("public.chain", "chain")]
RETRY = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.InFailedSqlTransaction,
    psycopg.errors.LockNotAvailable,
)


def maker(database: Database, **options: object) -> Callable[[], PostgresSource]:
    return lambda: PostgresSource(database.url, "shop", **{"position_interval": 0.3, **options})


def fill(database: Database, count: int) -> None:
    large = "(SELECT string_agg(md5(g::text || s::text), '') FROM generate_series(1, 200) s)"
    database.execute(
        f"INSERT INTO chain SELECT g, -g, 1, 'first', CASE WHEN g % 10 = 0 THEN {large} END"
        f" FROM generate_series(1, {count}) g"
    )


def test_versions_of_each_row_run_without_gap_with_whole_old_rows(database: Database) -> None:
    """First rows in small chunks and changes at once, with restarts at random records."""
    database.execute(CHAIN, "ALTER TABLE chain REPLICA IDENTITY FULL")
    fill(database, 400)
    replica = Replica({"public.chain"})
    end = time.monotonic() + times(2, 60)
    with Writers(database.connect, "chain", retry=RETRY, keys=500, seed=3) as writers:
        resume, restarts = follow(
            maker(database, chunk_rows=37),
            TABLES,
            replica,
            until=lambda _: time.monotonic() > end and "public.chain" in replica.loaded,
            restart=0.1,
            seed=5,
        )
        writers.stop()
    source = maker(database)()
    source.open(resume, TABLES)
    read_all(source, replica)
    source.close()
    with database.connect() as connection:
        replica.expect("public.chain", rows_of(connection, "chain"))
    assert restarts > 2
    assert writers.commits > 100
