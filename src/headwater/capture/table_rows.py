"""The current rows of captured tables by key, in one SQLite file beside the position of the router in the journal.

`TableRows` is the file, `CurrentRows` one table in it. Changes gather in memory as references into their batches, and
are written when they are many or the router commits. One transaction holds rows and position, so after a crash routing
resumes where exactly these rows were current.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.capture.row_encoding import RowEncoding
from headwater.errors import LockedError
from headwater.log.storage import Disk
from headwater.sql.sqlite_file import apply_migrations, open_writer, translate_sqlite_errors

__all__ = ["CurrentRows", "TableRows", "fit_columns", "open_table_rows"]

_WHAT: Final = "rows of captured tables"
_MIGRATIONS: Final = (
    """CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), document TEXT NOT NULL);
       CREATE TABLE captured (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
       CREATE TABLE encoding (id INTEGER PRIMARY KEY, columns BLOB NOT NULL UNIQUE)""",
)
_MAX_KEYS: Final = 100_000  # that wait in memory
_MAX_BYTES: Final = 64 << 20  # of the batches that they refer to
_LOOKUP: Final = 500  # keys of one SELECT
_SCAN: Final = 10_000  # rows of one batch of a scan
_ROW_BITS: Final = 32
_GONE: Final = -1

Positions = npt.NDArray[np.int64]


def fit_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns of a batch under a later schema of its table; columns that it lacks are null.

    Example:
        >>> later = pa.schema([("a", pa.int64()), ("b", pa.string())])
        >>> fit_columns(pa.RecordBatch.from_pydict({"a": [1]}), later).to_pylist()
        [{'a': 1, 'b': None}]
    """
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TableRows:
    """The file with the current rows of all tables of a capture. It belongs to the one process that has the lease.

    Args:
        path: The file; created when it does not exist.

    Example:
        >>> import tempfile
        >>> rows = TableRows(Path(tempfile.mkdtemp()) / "rows.db")
        >>> rows.commit({"position": 7}); rows.state
        {'position': 7}
        >>> rows.close()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._disk = Disk()
        self._lock = self._disk.open(path.with_suffix(".lock"))
        if not self._disk.lock(self._lock, wait=False):
            self._disk.close(self._lock)
            raise LockedError(f"another process uses {path.name}", detail=str(path), fix="headwater capture status")
        self._connection = open_writer(path, _WHAT)
        with self.errors():
            # After a power cut the file may be at an earlier commit: the journal is routed again from there.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("BEGIN IMMEDIATE")
            apply_migrations(self._connection, path, _WHAT, _MIGRATIONS)
            self._connection.execute("COMMIT")
        self._tables: dict[str, CurrentRows] = {}
        self._encodings: dict[int, RowEncoding] = {}
        self.state = self._read_state()

    def _read_state(self) -> dict[str, Any]:
        with self.errors():
            row = self._connection.execute("SELECT document FROM state").fetchone()
        state: dict[str, Any] = msgspec.json.decode(row[0]) if row else {}
        return state

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that translates SQLite's errors."""
        return translate_sqlite_errors(self.path, _WHAT)

    def begin(self) -> sqlite3.Connection:
        """Returns the connection, in the transaction that `commit` ends."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def table(self, name: str) -> CurrentRows:
        """Returns the rows of a table; none if it is new."""
        if name not in self._tables:
            with self.errors():
                connection = self.begin()
                connection.execute("INSERT OR IGNORE INTO captured (name) VALUES (?)", [name])
                (number,) = connection.execute("SELECT number FROM captured WHERE name = ?", [name]).fetchone()
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS rows_{number} (key BLOB PRIMARY KEY, row BLOB NOT NULL, "
                    "encoding INTEGER NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID"
                )
            self._tables[name] = CurrentRows(self, f"rows_{number}")
        return self._tables[name]

    def encoding_id(self, schema: pa.Schema) -> int:
        """Returns the number of the encoding of rows with these columns."""
        columns = schema.remove_metadata().serialize().to_pybytes()
        with self.errors():
            connection = self.begin()
            connection.execute("INSERT OR IGNORE INTO encoding (columns) VALUES (?)", [columns])
            (number,) = connection.execute("SELECT id FROM encoding WHERE columns = ?", [columns]).fetchone()
        self._encodings.setdefault(number, RowEncoding(schema.remove_metadata()))
        return int(number)

    def encoding(self, number: int) -> RowEncoding:
        """Returns an encoding by its number."""
        if number not in self._encodings:
            with self.errors():
                (columns,) = self._connection.execute("SELECT columns FROM encoding WHERE id = ?", [number]).fetchone()
            self._encodings[number] = RowEncoding(pa.ipc.read_schema(pa.py_buffer(columns)))
        return self._encodings[number]

    def commit(self, state: dict[str, Any]) -> None:
        """Write everything that waits in memory, with the state of the router, in one transaction."""
        for table in self._tables.values():
            table.flush()
        with self.errors():
            connection = self.begin()
            connection.execute("INSERT OR REPLACE INTO state VALUES (0, ?)", [msgspec.json.encode(state).decode()])
            connection.execute("COMMIT")
        self.state = state

    def close(self) -> None:
        """Close the file; what was not committed is dropped."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.close()
        self._disk.close(self._lock)


def open_table_rows(folder: Path) -> TableRows:
    """Open the rows of a capture; a file of its own beside them if a former owner of the capture still has them open.

    A process that is stopped does not give up its files. What the new file lacks is routed again from the journal.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> stopped, rows = open_table_rows(folder), open_table_rows(folder)
        >>> stopped.path.name, rows.path.name
        ('rows.db', 'rows-2.db')
        >>> stopped.close(); rows.close()
    """
    for number in itertools.count(1):
        with contextlib.suppress(LockedError):
            return TableRows(folder / (f"rows-{number}.db" if number > 1 else "rows.db"))
    raise AssertionError


class CurrentRows:
    """The current rows of one table."""

    def __init__(self, file: TableRows, name: str) -> None:
        self._file = file
        self._name = name
        self._waiting: dict[bytes, int] = {}  # number of the batch and row in it, or _GONE
        self._batches: list[tuple[pa.RecordBatch, int]] = []  # with the epoch
        self._bytes = 0

    def put(self, keys: Sequence[bytes], batch: pa.RecordBatch, gone: npt.NDArray[np.bool_], epoch: int) -> None:
        """Apply changes in order: the row of each key, or that it is gone."""
        references = (len(self._batches) << _ROW_BITS) + np.arange(len(keys))
        if gone.any():
            references[gone] = _GONE
        self._waiting.update(zip(keys, references.tolist(), strict=True))
        self._batches.append((batch, epoch))
        self._bytes += batch.nbytes
        if len(self._waiting) > _MAX_KEYS or self._bytes > _MAX_BYTES:
            self.flush()

    def find(self, keys: Sequence[bytes], schema: pa.Schema) -> tuple[Positions, pa.RecordBatch]:
        """Returns the rows of keys: the position of each in the batch, -1 where there is none."""
        positions = np.full(len(keys), -1, np.int64)
        waiting: dict[int, list[tuple[int, int]]] = {}
        stored: dict[bytes, list[int]] = {}
        for index, key in enumerate(keys):
            reference = self._waiting.get(key)
            if reference is None:
                stored.setdefault(key, []).append(index)
            elif reference != _GONE:
                waiting.setdefault(reference >> _ROW_BITS, []).append((index, reference & 0xFFFFFFFF))
        parts: list[pa.RecordBatch] = []
        count = 0
        for number, places in waiting.items():
            batch = self._batches[number][0].take(pa.array([row for _, row in places], pa.int64()))
            parts.append(fit_columns(batch, schema))
            positions[[index for index, _ in places]] = count + np.arange(len(places))
            count += len(places)
        for found, batch in self._select(list(stored), schema):
            parts.append(batch)
            for row, key in enumerate(found):
                positions[stored[key]] = count + row
            count += len(found)
        return positions, _concat(parts, schema)

    def _select(self, keys: list[bytes], schema: pa.Schema) -> Iterator[tuple[list[bytes], pa.RecordBatch]]:
        rows: list[tuple[bytes, bytes, int]] = []
        with self._file.errors():
            connection = self._file.begin()
            for start in range(0, len(keys), _LOOKUP):
                some = keys[start : start + _LOOKUP]
                marks = ",".join("?" * len(some))
                statement = f"SELECT key, row, encoding FROM {self._name} WHERE key IN ({marks})"
                rows += connection.execute(statement, some).fetchall()
        yield from self._decode(rows, schema)

    def _decode(
        self, rows: list[tuple[bytes, bytes, int]], schema: pa.Schema
    ) -> Iterator[tuple[list[bytes], pa.RecordBatch]]:
        for number in sorted({row[2] for row in rows}):
            mine = [row for row in rows if row[2] == number]
            batch = self._file.encoding(number).decode([row[1] for row in mine])
            yield [row[0] for row in mine], fit_columns(batch, schema)

    def scan(self, schema: pa.Schema, before_epoch: int | None = None) -> Iterator[tuple[list[bytes], pa.RecordBatch]]:
        """Yields all rows in the order of their keys, or those that no epoch since `before_epoch` has brought."""
        self.flush()
        older = "" if before_epoch is None else f"AND epoch < {int(before_epoch)} "
        columns = f"SELECT key, row, encoding FROM {self._name}"
        after, sign = b"", ">="  # a key may be empty; only the first page begins with it
        while True:
            with self._file.errors():
                connection = self._file.begin()
                statement = f"{columns} WHERE key {sign} ? {older}ORDER BY key LIMIT {_SCAN}"
                rows = connection.execute(statement, [after]).fetchall()
            if not rows:
                return
            after, sign = rows[-1][0], ">"
            parts = list(self._decode(rows, schema))
            order = {key: index for index, key in enumerate(key for keys, _ in parts for key in keys)}
            keys = [row[0] for row in rows]
            yield keys, _concat([batch for _, batch in parts], schema).take(pa.array([order[key] for key in keys]))

    def remove(self, before_epoch: int | None = None) -> None:
        """Remove all rows, or those that no epoch since `before_epoch` has brought."""
        self.flush()
        where = "" if before_epoch is None else f" WHERE epoch < {int(before_epoch)}"
        with self._file.errors():
            self._file.begin().execute(f"DELETE FROM {self._name}{where}")

    def count(self) -> int:
        """Returns the number of rows."""
        self.flush()
        with self._file.errors():
            (count,) = self._file.begin().execute(f"SELECT count(*) FROM {self._name}").fetchone()
        return int(count)

    def flush(self) -> None:
        """Write what waits in memory, in the transaction that `TableRows.commit` ends."""
        if not self._waiting:
            return
        keys = list(self._waiting)
        references = np.fromiter(self._waiting.values(), np.int64, len(keys))
        gone = [(keys[index],) for index in np.flatnonzero(references == _GONE).tolist()]
        upserts: list[tuple[bytes, bytes, int, int]] = []
        numbers = references >> _ROW_BITS
        for number in np.unique(numbers[references != _GONE]).tolist():
            batch, epoch = self._batches[number]
            places = np.flatnonzero(numbers == number)
            wanted = references[places] & 0xFFFFFFFF
            encoding = self._file.encoding_id(batch.schema)
            encoded = self._file.encoding(encoding).encode(batch.take(pa.array(wanted)))
            upserts += [
                (keys[place], row, encoding, epoch) for place, row in zip(places.tolist(), encoded, strict=True)
            ]
        upserts.sort()  # neighbours in the tree are written together
        with self._file.errors():
            connection = self._file.begin()
            connection.executemany(f"DELETE FROM {self._name} WHERE key = ?", gone)
            connection.executemany(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?, ?, ?)", upserts)
        self._waiting, self._batches, self._bytes = {}, [], 0


def _concat(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, schema=schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
