"""The cost of a view's commit beside a bare upsert of the same rows: ledger, changes and checks.

    python -m benchmarks.bench_store [--rows 10000,200000] [--repeats 5]

Both start from the same Arrow table and write the same rows to a SQLite file with the same settings. They run
alternately and are measured in CPU seconds; the ratio is that of the medians. "Updated" changes one column of every
row, so the commit also reads all old rows; "same" sends unchanged rows.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from headwater.sql.sqlite_file import open_writer
from headwater.store import Commit, LedgerEntry, SqliteDialect, SqlStore, ViewTable
from headwater.store.columns import storage_columns
from headwater.store.sqlite.columns import column_type

_SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("country", pa.string()),
        ("orders", pa.int64()),
        ("revenue", pa.float64()),
        ("last_at", pa.timestamp("us", "UTC")),
    ]
)
VIEW = ViewTable("users", 1, _SCHEMA, ("user_id",))


def rows(count: int, seed: int) -> pa.Table:
    """Returns rows of a view of users, not in the order of the key."""
    numbers = np.random.default_rng(1).permutation(count)
    return pa.table(
        [
            pa.array([f"user-{number:08d}" for number in numbers]),
            pa.array([f"c{number % 40}" for number in numbers]),
            pa.array(numbers + seed),
            pa.array(numbers * 1.5),
            pa.array(numbers * 1_000_003).cast(pa.timestamp("us", "UTC")),
        ],
        schema=_SCHEMA,
    )


class Bare:
    """The minimum for storing rows by key: executemany of an upsert, times as text."""

    def __init__(self, folder: Path) -> None:
        self._connection = open_writer(folder / "bare.db", "benchmark")
        columns = ", ".join(f"{slot.name} {column_type(slot)}" for slot in storage_columns(VIEW))
        self._connection.execute(f"CREATE TABLE users ({columns}, PRIMARY KEY (user_id))")

    def write(self, table: pa.Table) -> None:
        """Upsert all rows in one transaction."""
        values = [column.to_pylist() for column in table.columns[:4]]
        moments = table.column("last_at").cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
        names = ", ".join(f"{name} = excluded.{name}" for name in _SCHEMA.names[1:])
        statement = f"INSERT INTO users VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id) DO UPDATE SET {names}"
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, zip(*values, moments, strict=True))
        self._connection.execute("COMMIT")


class ThroughStore:
    """The same rows through the store."""

    def __init__(self, folder: Path) -> None:
        self._store = SqlStore(SqliteDialect(folder / "store"))
        self._store.create(VIEW)
        self._epoch = self._store.open_epoch(VIEW.query)
        self._batch = 0

    def write(self, table: pa.Table) -> None:
        """Commit all rows as one batch."""
        entry = LedgerEntry(VIEW.query, self._batch, self._epoch, (), None, committed_at=0)
        self._store.commit(Commit(entry, VIEW, table))
        self._batch += 1


def _timed(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _case(writer: type[Bare] | type[ThroughStore], count: int) -> list[float]:
    """Returns the CPU seconds of fresh, updated and same rows."""
    first, second = rows(count, 0), rows(count, 1)
    with tempfile.TemporaryDirectory() as folder:
        target = writer(Path(folder))
        return [_timed(lambda table=table: target.write(table)) for table in (first, second, second)]  # type: ignore[misc]


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="10000,200000")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{'rows':>8}  {'case':8} {'bare':>9} {'store':>9}  ratio")
    for count in map(int, options.rows.split(",")):
        pairs = [(_case(Bare, count), _case(ThroughStore, count)) for _ in range(options.repeats)]
        for index, name in enumerate(("fresh", "updated", "same")):
            bare, kept = (statistics.median(pair[side][index] for pair in pairs) for side in (0, 1))
            print(f"{count:8}  {name:8} {bare * 1e3:7.1f}ms {kept * 1e3:7.1f}ms  {kept / bare:5.2f}")


if __name__ == "__main__":
    main()
