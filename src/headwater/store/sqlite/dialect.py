"""`SqliteDialect`: a store in one SQLite file, which needs no server.

Several processes may share the file: one writes at a time, and readers never wait.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, RLock
from typing import Any, Final, TypeVar

import pyarrow as pa

from headwater.errors import BadTypeError, HeadwaterError, NotWritableError
from headwater.log.notifier import FileNotifier
from headwater.sql.guard import StoreEngine
from headwater.sql.identifiers import quote
from headwater.sql.sqlite_file import ReaderPool, SqliteSession, open_writer, transaction, translate_sqlite_errors
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import Commit, ViewTable
from headwater.store.commit.transaction import open_epoch
from headwater.store.dialect import RowsReader, StateEntry, StateSql, TableSql
from headwater.store.protocol import QueryLimits, SqlResult, TableRows
from headwater.store.sqlite.columns import column_type, decode_rows, encode_columns
from headwater.store.sqlite.migrations import is_up_to_date, migrate_store
from headwater.store.sqlite.sandbox import SqliteSandbox
from headwater.store.sqlite.upsert import ROW_ID, SqliteViewWriter
from headwater.store.view_registry import find_view

__all__ = ["SqliteDialect"]

_T = TypeVar("_T")
_CHUNK_SIZES: Final = (2048, 128, 8, 1)
_MAX_SIZED_BYTES: Final = 512 << 20  # of a file whose tables are measured: every page is read
"""How many entries of state one statement asks for: few different statements, so that each is prepared once."""


class SqliteDialect:
    """The file `store.db` of a folder; implements `headwater.store.dialect.Dialect`.

    Args:
        folder: The folder of the file. Both are created if they are missing.

    Raises:
        NewerFormatError: A newer version of Headwater has written the store.
        NotWritableError: The folder cannot be written.
    """

    engine: StoreEngine = "sqlite"
    table_sql = TableSql(first_column=f"{ROW_ID} INTEGER PRIMARY KEY, ")

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "store.db"
        self.state: StateSql[SqliteSession] = _SqliteState()
        # Serializes the only writing connection between threads. Other processes wait in SQLite's own lock.
        self._lock = RLock()
        self._readers = ReaderPool(self.path, "store")
        self._notify_path = self.folder / "commits"
        self._notify_file = _open_notify_file(self.folder, self._notify_path)
        self.connection = open_writer(self.path, "store")
        try:
            # A store that is up to date opens without a write lock, also while another process commits.
            if not self.read(is_up_to_date):
                with self._lock, transaction(self.connection, self.path, "store"):
                    migrate_store(self.connection, self.path)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"SqliteDialect({str(self.folder)!r})"

    # -- connections -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close files and connections."""
        with self._lock:
            self._readers.close()
            self.connection.close()
            if self._notify_file >= 0:
                os.close(self._notify_file)
                self._notify_file = -1

    def read(self, work: Callable[[SqliteSession], _T]) -> _T:
        """Run statements on the writing connection, whose page cache has what the last commits wrote."""
        with self._lock, translate_sqlite_errors(self.path, "store"):
            return work(self.connection)

    def read_snapshot(self, work: Callable[[SqliteSession], _T]) -> _T:
        """Run statements that all see one snapshot of the store. They never wait for a commit."""
        with self._readers.session() as session:
            return work(session)

    def write(self, work: Callable[[SqliteSession], _T], before: Callable[[SqliteSession], None] | None = None) -> _T:
        """Run one transaction, then wake all notifiers of `watch`."""
        with self._lock:
            if before is not None:
                before(self.connection)
            with transaction(self.connection, self.path, "store"):
                found = work(self.connection)
            # The content of this file has no meaning. The transaction is committed already: a full disk cannot undo it.
            with contextlib.suppress(OSError):
                os.pwrite(self._notify_file, time.time_ns().to_bytes(8, "little"), 0)
        return found

    def watch(self) -> FileNotifier:
        """Returns a notifier for every write to the store, by any process."""
        return FileNotifier([self._notify_path])

    def table_sizes(self) -> dict[str, int] | None:
        """Returns the bytes of each table with its indexes; None if the file is large or SQLite cannot tell."""
        if self.path.stat().st_size > _MAX_SIZED_BYTES:
            return None
        found = """
            SELECT m.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_master m ON m.name = d.name
            WHERE d.aggregate = 1 GROUP BY m.tbl_name
        """
        try:
            return dict(self.read_snapshot(lambda session: session.execute(found).fetchall()))
        except (HeadwaterError, sqlite3.Error):  # this SQLite was built without dbstat
            return None

    # -- commits ---------------------------------------------------------------------------------------------------

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query."""
        return self.write(lambda session: open_epoch(session, query))

    def lock_query(self, session: SqliteSession, query: str) -> None:
        """Do nothing: a transaction excludes all other writers from its start."""

    def view_writer(self, table: ViewTable, commit: Commit) -> SqliteViewWriter:
        """Returns a writer for the rows of a commit."""
        return SqliteViewWriter(table, commit)

    def stager(self) -> None:
        """Returns None: workers on other machines cannot write to a file of this one."""

    # -- tables and rows -------------------------------------------------------------------------------------------

    def column_type(self, kind: pa.DataType) -> str:
        """Returns the type of a column for CREATE TABLE."""
        return column_type(kind)

    def check_table(self, session: SqliteSession, table: ViewTable, *, exists: bool) -> None:
        """Refuse a column with the name of the row number."""
        if ROW_ID in map(str.lower, table.schema.names):
            raise BadTypeError(f'no column of a view can be called "{ROW_ID}"', field=ROW_ID)

    def key_condition(self, table: ViewTable, key: pa.Table) -> tuple[str, list[Any]]:
        """Returns the condition that finds the row with this key; IS also finds nulls."""
        names = [column.name for column in storage_columns(table) if column.view_column in table.key]
        condition = " AND ".join(f"{quote(name)} IS ?" for name in names)
        return condition, [column[0] for column in encode_columns(table, key)]

    def fetch_rows(self, session: SqliteSession, table: ViewTable, select: str, values: Sequence[Any]) -> pa.Table:
        """Returns the rows of a SELECT over all stored columns of a view."""
        return decode_rows(table, session.execute(select, values).fetchall())

    # -- SQL of users ----------------------------------------------------------------------------------------------

    def query_rows(self, name: str, read: RowsReader, limits: QueryLimits, cancel: Event | None) -> pa.Table:
        """Read a view in the sandbox, for a user's condition or order."""
        with SqliteSandbox(self.path, limits, cancel) as sandbox:
            table = find_view(sandbox.tables, name)
            return read(table, lambda select: (decode_rows(table, rows) for rows in sandbox.query_chunks(select)))

    def query(
        self,
        text: str,
        parameters: Sequence[Any],
        limits: QueryLimits,
        cancel: Event | None,
        tables: Sequence[TableRows] = (),
    ) -> SqlResult:
        """Returns the result of one SELECT of a user, in SQLite's SQL."""
        with SqliteSandbox(self.path, limits, cancel) as sandbox:
            for table in tables:
                sandbox.add_table(table)
            return sandbox.query(text, parameters)


class _SqliteState:
    """Operator state in SQLite; implements `headwater.store.dialect.StateSql`."""

    def values(
        self, session: SqliteSession, space: int, keys: Sequence[bytes], names: Sequence[bytes]
    ) -> list[bytes | None]:
        found: dict[tuple[bytes, bytes], bytes] = {}
        for start, size in _chunks(len(keys)):
            # CROSS JOIN keeps the order: few entries that are sought before the large table.
            select = f"""
                WITH sought(key, name) AS (VALUES {", ".join(["(?, ?)"] * size)})
                SELECT s.key, s.name, s.value FROM sought CROSS JOIN hw$state s
                ON s.space = ? AND s.key = sought.key AND s.name = sought.name
            """
            pairs = zip(keys[start : start + size], names[start : start + size], strict=True)
            parameters = [part for pair in pairs for part in pair]
            for key, name, value in session.execute(select, (*parameters, space)):
                found[key, name] = value
        return [found.get(pair) for pair in zip(keys, names, strict=True)]

    def entries(
        self, session: SqliteSession, space: int, keys: Sequence[bytes]
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        for start, size in _chunks(len(keys)):
            marks = ", ".join("?" * size)
            query = f"SELECT key, name, value FROM hw$state WHERE space = ? AND key IN ({marks}) ORDER BY key, name"
            yield from session.execute(query, (space, *keys[start : start + size]))

    def write(
        self, session: SqliteSession, space: int, puts: list[StateEntry], deletes: list[tuple[bytes, bytes]]
    ) -> None:
        # Sorted, because neighbours share a page of the file.
        session.executemany(f"INSERT OR REPLACE INTO hw$state VALUES ({space}, ?, ?, ?, ?)", sorted(puts))
        session.executemany(f"DELETE FROM hw$state WHERE space = {space} AND key = ? AND name = ?", sorted(deletes))


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Returns the start of each statement and the number of entries it reads.

    Example:
        >>> list(_chunks(138))
        [(0, 128), (128, 8), (136, 1), (137, 1)]
    """
    start = 0
    for size in _CHUNK_SIZES:
        while count - start >= size:
            yield start, size
            start += size


def _open_notify_file(folder: Path, path: Path) -> int:
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            # SQLite syncs the folder of its files. Without this, a power failure could lose the folder itself.
            parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        what = f"the store's folder cannot be written: {error.strerror}"
        raise NotWritableError(what, detail=str(folder)) from error
