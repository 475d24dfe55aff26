"""Measures capture from MariaDB: rows a second and CPU seconds per million rows, without the journal.

    python -m benchmarks.capture_mariadb [ROWS]

Starts a server of its own (package mariadb-server). The table has seven columns; the stream is read as a backlog.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.capture.mariadb.maria_source import MariaSource
from headwater.capture.source import RecordKind, SourceTable
from tests.capture.mariadb.server import Database, Server

TABLE = """CREATE TABLE events (id BIGINT PRIMARY KEY, customer INT NOT NULL, amount DECIMAL(12,2), note VARCHAR(100),
    at TIMESTAMP(6) NULL, document JSON, ratio DOUBLE)"""
FILL = """INSERT INTO events SELECT seq, seq % 1000, seq / 100,
    CONCAT('a note of forty-one characters, ', LPAD(seq, 9, '0')),
    '2026-01-01 00:00:00.123456', CONCAT('{"n": ', seq, '}'), seq / 7 FROM seq_1_to_ROWS"""


def main() -> None:
    """Print one line for each figure."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    program = shutil.which("mariadbd", path="/usr/sbin:/usr/bin")
    if program is None:
        sys.exit("mariadbd is not installed; apt-get install -y --no-install-recommends mariadb-server")
    server = Server(program, "--innodb-buffer-pool-size=1G")
    try:
        measure(server.database(), rows)
    finally:
        server.remove()


def measure(database: Database, rows: int) -> None:
    """Measure the snapshot, then one large transaction, then transactions of 100 updates of one row each."""
    database.run(TABLE, FILL.replace("ROWS", str(rows)))
    source = MariaSource(database.url, "bench")
    source.open(None, [SourceTable(f"{database.name}.events", "events")])
    with figures("snapshot", rows):
        read(source, lambda kind: kind is RecordKind.SNAPSHOT_DONE)
    settle(source)
    database.run("UPDATE events SET amount = amount + 1, customer = customer + 1")
    with figures("stream, one transaction", rows):
        settle(source)
    many = min(rows, 300_000)
    update_singly(database, many)
    with figures("stream, transactions of 100", many):
        settle(source)
    source.close()


def update_singly(database: Database, rows: int) -> None:
    """Update one row with each statement, 100 in each transaction; a procedure of the server does it."""
    database.run(
        f"""CREATE PROCEDURE work() BEGIN
        FOR n IN 1..{rows} DO
            IF n % 100 = 1 THEN START TRANSACTION; END IF;
            UPDATE events SET amount = amount + 1 WHERE id = n;
            IF n % 100 = 0 THEN COMMIT; END IF;
        END FOR; COMMIT; END"""
    )
    database.run("CALL work()")


def read(source: MariaSource, done: Callable[[RecordKind], bool]) -> None:
    """Poll until a record of that kind comes."""
    while not any(done(record.kind) for record in source.poll(1.0)):
        pass


def settle(source: MariaSource) -> None:
    """Poll until everything that is committed is delivered."""
    while not source.reached_end():
        source.poll(0.05)


@contextmanager
def figures(what: str, rows: int) -> Iterator[None]:
    """Print the figures of a block."""
    began, cpu = time.perf_counter(), time.process_time()
    yield
    took, used = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what}: {rows / took:,.0f} rows/s, {used / rows * 1e6:.1f} CPU s per million, peak {peak} MB")


if __name__ == "__main__":
    main()
