"""Rows changed per second by a commit into PostgreSQL, beside bare COPY and upsert of the same rows.

    python -m benchmarks.bench_postgres [--quick]

Both start from the same Arrow table, copy it as CSV into a temporary table, and upsert from there in one statement;
the server syncs its commits. The store also reads the old rows, finds the unchanged ones, and writes ledger and
changes. In the staged case two connections send half of the rows each. CPU is that of this process and of all backends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa

from benchmarks.bench_options import Options, bench_options
from benchmarks.bench_store import VIEW, rows
from benchmarks.machine import this_machine
from benchmarks.measure import Case, Watch, measure
from benchmarks.table import Row, at_least, print_table, rate_row
from headwater.store import Commit, LedgerEntry, SqlStore
from headwater.store.columns import storage_columns
from headwater.store.postgres import PostgresDialect
from headwater.store.postgres.columns import column_type, to_csv
from tests.services.postgres import postgres_server

__all__ = ["figures", "main"]


class Bare:
    """The minimum for storing rows by key."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        columns = ", ".join(f"{slot.name} {column_type(slot.kind)}" for slot in storage_columns(VIEW))
        self.connection.execute(f"CREATE TABLE users ({columns}, PRIMARY KEY (user_id))")
        self.connection.execute(f"CREATE TEMP TABLE staged ({columns}) ON COMMIT DELETE ROWS")

    def write(self, table: pa.Table) -> None:
        """Upsert all rows in one transaction."""
        names = ", ".join(f"{name} = excluded.{name}" for name in VIEW.schema.names[1:])
        with self.connection.transaction(), self.connection.cursor() as cursor:
            with cursor.copy("COPY staged FROM STDIN (FORMAT csv)") as copy:
                copy.write(to_csv([column.combine_chunks() for column in table.columns]))
            cursor.execute(f"INSERT INTO users SELECT * FROM staged ON CONFLICT (user_id) DO UPDATE SET {names}")

    def clear(self) -> None:
        """Remove all rows."""
        self.connection.execute("TRUNCATE users")


class ThroughStore:
    """The same rows through the store."""

    def __init__(self, url: str) -> None:
        self.dialect = PostgresDialect(url)
        self.store = SqlStore(self.dialect)
        self.store.create(VIEW)
        self._epoch = self.store.open_epoch(VIEW.query)
        self._batch = 0

    def write(self, table: pa.Table) -> None:
        """Commit all rows as one batch."""
        entry = LedgerEntry(VIEW.query, self._batch, self._epoch, (), None, committed_at=0)
        self.store.commit(Commit(entry, VIEW, table))
        self._batch += 1

    def write_staged(self, table: pa.Table) -> None:
        """Stage two halves in parallel, as two workers would, and publish them in one commit."""
        halves = [table.slice(0, table.num_rows // 2), table.slice(table.num_rows // 2)]
        with ThreadPoolExecutor(2) as workers:
            parts = workers.map(lambda half: self.dialect.stage(VIEW, self._batch, half), halves)
        entry = LedgerEntry(VIEW.query, self._batch, self._epoch, (), None, committed_at=0)
        self.store.commit(Commit(entry, VIEW, VIEW.schema.empty_table(), staged=tuple(parts)))
        self._batch += 1

    def clear(self) -> None:
        """Remove all rows and the outbox."""
        with self.dialect.pool.session() as session:
            session.execute("TRUNCATE headwater.v1_users, hw$outbox")


def _case(
    target: Bare | ThroughStore, tables: Sequence[pa.Table], write: Callable[[pa.Table], None], *, fresh: bool
) -> Case:
    """Returns a case that writes a table, into an empty table or over other rows with the same keys."""

    def work(watch: Watch) -> None:
        target.clear()
        if not fresh:
            target.write(tables[0])
        with watch.lap(tables[1].num_rows):
            write(tables[1])

    return work


def figures(options: Options) -> list[Row]:
    """Returns one row per size, for new and for changed rows."""
    found: list[Row] = []
    with postgres_server(durable=True) as server:
        url = server.url()
        bare, kept = Bare(url), ThroughStore(url)
        kept.write_staged(rows(10, 0))  # opens all connections
        backends = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        processes = [pid for (pid,) in bare.connection.execute(backends)]
        for count in (options.size(full=1_000, quick=100), options.size(full=200_000, quick=1_000)):
            tables = [rows(count, 0), rows(count, 1)]
            for name, fresh in (("new", True), ("changed", False)):
                cases = {
                    f"bare, {count:,} {name} rows": _case(bare, tables, bare.write, fresh=fresh),
                    f"commit, {count:,} {name} rows": _case(kept, tables, kept.write, fresh=fresh),
                    f"staged, {count:,} {name} rows": _case(kept, tables, kept.write_staged, fresh=fresh),
                }
                measured = measure(cases, repeats=options.repeats, processes=processes)
                (plain, theirs), *others = measured.items()
                aim = at_least(0.8, of="ratio")
                found += [rate_row(figure, ours, (plain, theirs), aim) for figure, ours in others]
        bare.connection.close()
        kept.store.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    with bench_options("commits into PostgreSQL", arguments) as options:
        title = "Rows changed by a commit into PostgreSQL, per second"
        print_table(title, this_machine(options.folder), figures(options), as_json=options.json)


if __name__ == "__main__":
    main()
