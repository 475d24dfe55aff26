"""Rows per second, and CPU seconds per million rows, from a PostgreSQL log and from a snapshot to records.

    python -m benchmarks.capture_postgres [--rows 300000]

The table has 7 columns: bigint, int, numeric(12,2), 41 characters, timestamptz, jsonb, double. Changes are a backlog of
single-row updates, in transactions of 100, of 1, and in one transaction. Records are made and thrown away: no journal.
CPU is that of this process; the server's walsender has its own.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.source import RecordKind, SourceTable
from tests.capture.postgres.servers import Database, capture_server

__all__ = ["CHANGE", "FILL", "TABLE", "Figure", "figures", "main"]

TABLE = """
    CREATE TABLE item (
        id bigint PRIMARY KEY, n int, price numeric(12,2), name text, at timestamptz, more jsonb, x float8
    )
"""
FILL = """
    INSERT INTO item SELECT g, g % 1000, g / 7.0, md5(g::text) || 'abcdefghi',
           '2026-01-01'::timestamptz + g * interval '1 s', jsonb_build_object('a', g, 'b', 'text'), g / 3.0
    FROM generate_series(1, {rows}) g
"""
CHANGE = """
    CREATE PROCEDURE change(total int, size int) LANGUAGE plpgsql AS $$
    BEGIN
        FOR one IN 1..total LOOP
            UPDATE item SET n = n + 1, price = price + 1 WHERE id = 1 + (one - 1) % (SELECT max(id) FROM item);
            IF one % size = 0 THEN COMMIT; END IF;
        END LOOP;
    END $$
"""


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    name: str
    rows: int
    wall: float
    cpu: float

    def __str__(self) -> str:
        rate, cost = self.rows / self.wall, self.cpu / self.rows * 1e6
        return f"{self.name:28} {rate:>12,.0f} rows/s {cost:>8.2f} CPU s per million rows   ({self.rows:,} rows)"


def figures(rows: int) -> list[Figure]:
    """Returns the measurements with this many rows."""
    with capture_server(18) as server, server.database() as database:
        database.execute(TABLE, FILL.format(rows=rows), CHANGE, "VACUUM ANALYZE item")
        source = PostgresSource(database.url, "bench")
        tables = [SourceTable("public.item", "item")]
        source.open(None, tables)
        found = [_measure("snapshot", source, RecordKind.SNAPSHOT, source.reached_end)]
        for name, size, total in (("transactions of 100", 100, rows), ("transactions of 1", 1, rows // 5),
                                  ("one transaction", rows, rows)):  # fmt: skip
            _change(database, total, size)
            source.reached_end()
            found.append(_measure(name, source, RecordKind.CHANGES, source.reached_end))
        source.close()
    return found


def _change(database: Database, total: int, size: int) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("CALL change(%s, %s)", [total, size])


def _measure(name: str, source: PostgresSource, kind: RecordKind, done: Callable[[], bool]) -> Figure:
    rows, wall, cpu = 0, time.perf_counter(), time.process_time()
    last = (wall, cpu)
    while not done():
        for record in source.poll(0.05):
            if record.kind is kind and record.batch is not None:
                rows += record.batch.changes.num_rows
                last = (time.perf_counter(), time.process_time())
            source.confirm(record.resume)
    return Figure(name, rows, last[0] - wall, last[1] - cpu)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    for figure in figures(parser.parse_args().rows):
        print(figure)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
