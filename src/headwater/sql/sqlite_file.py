"""SQLite files: connections for writing and reading, transactions, migrations, and translation of SQLite's errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from headwater.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    HeadwaterError,
    LockedError,
    NewerFormatError,
    NotWritableError,
    TooLargeError,
)

__all__ = [
    "BUSY_TIMEOUT",
    "ReaderPool",
    "SqliteSession",
    "apply_migrations",
    "open_reader",
    "open_writer",
    "transaction",
    "translate_sqlite_errors",
]

BUSY_TIMEOUT = 30.0  # seconds to wait for another process's transaction: the largest batch takes a few
_MAX_VALUE_BYTES = 1_000_000_000  # SQLite stores no longer value
_MAX_IDLE = 4  # connections kept for the next reader


class SqliteSession(sqlite3.Connection):
    """A connection with the methods of `headwater.store.dialect.Session` that `sqlite3` lacks."""

    def execute_raw(self, statement: str) -> None:
        """Execute a statement as it is; SQLite needs no translation."""
        self.execute(statement)

    def pipeline(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that does nothing: there is no server to wait for."""
        return contextlib.nullcontext()


def open_writer(path: Path, what: str) -> SqliteSession:
    """Open a connection for writing. It syncs at every commit, and readers never wait for it.

    Raises:
        NotWritableError: The file cannot be created or written.
        DamagedError: The file is not a database.
    """
    with translate_sqlite_errors(path, what):
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, factory=SqliteSession
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")  # KiB
        connection.execute("PRAGMA journal_size_limit = 67108864")  # bytes; a large batch does not leave a large file
        return connection


def open_reader(path: Path, what: str, *, immutable: bool = False) -> SqliteSession:
    """Open a read-only connection.

    `immutable` is for a file that no process has open: SQLite then creates no -wal and -shm files beside it.
    """
    with translate_sqlite_errors(path, what):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}",
            uri=True,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            factory=SqliteSession,
        )
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, path: Path, what: str) -> Iterator[None]:
    """Run the block in one transaction; other writers wait from its beginning."""
    with translate_sqlite_errors(path, what):
        # A plain BEGIN takes the write lock at the first write, and fails if another process wrote in between.
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # SQLite itself rolls back on some errors, such as a full disk.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


class ReaderPool:
    """A pool of read-only connections to one file; thread-safe.

    Args:
        path: The file.
        what: The content of the file, for messages.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._idle: list[SqliteSession] = []
        self._lock = Lock()  # guards the list of idle connections, never a query

    @contextlib.contextmanager
    def session(self) -> Iterator[SqliteSession]:
        """Yields a connection that sees one snapshot of the file."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = open_reader(self._path, self._what) if connection is None else connection
        try:
            with translate_sqlite_errors(self._path, self._what):
                connection.execute("BEGIN")
                yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            with self._lock:
                keep = len(self._idle) < _MAX_IDLE
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


@contextlib.contextmanager
def translate_sqlite_errors(path: Path, what: str) -> Iterator[None]:
    """Translate SQLite's errors; `what` names the content of the file in messages.

    Example:
        >>> with translate_sqlite_errors(Path("/nowhere/store.db"), "store"):
        ...     sqlite3.connect("/nowhere/store.db")
        Traceback (most recent call last):
        headwater.errors.NotWritableError: NOT_WRITABLE: the store cannot be opened
          /nowhere/store.db: unable to open database file
    """
    try:
        yield
    except sqlite3.Error as error:
        translated_error = _translate_error(error, path, what)
        if translated_error is None:
            raise
        raise translated_error from error


def apply_migrations(connection: sqlite3.Connection, path: Path, what: str, steps: Sequence[str]) -> None:
    """Apply the missing migrations; runs in the caller's transaction.

    Raises:
        NewerFormatError: A newer version of Headwater has written the file; nothing was touched.

    Example:
        >>> connection = sqlite3.connect(":memory:")
        >>> apply_migrations(connection, Path("notes.db"), "notes", ["CREATE TABLE note (text TEXT)"])
        >>> connection.execute("PRAGMA user_version").fetchone()
        (1,)
        >>> connection.close()
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > len(steps):
        raise NewerFormatError(
            f"the {what} has format {found}, this version of Headwater knows {len(steps)}",
            detail=str(path),
            fix="use the newer version of Headwater",
            format=found,
        )
    for step in steps[found:]:
        for statement in step.split(";"):
            if statement.strip():
                connection.execute(statement)
    if found < len(steps):
        connection.execute(f"PRAGMA user_version = {len(steps)}")


def _translate_error(error: sqlite3.Error, path: Path, what: str) -> HeadwaterError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; the upper bits are details
    match code:
        case sqlite3.SQLITE_FULL:
            return DiskFullError(f"no space left for the {what}", detail=str(path), fix="free some space")
        case sqlite3.SQLITE_IOERR:
            return DiskFailedError(f"the {what} could not be written or read", detail=f"{path}: {error}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return NotWritableError(f"the {what} cannot be opened", detail=f"{path}: {error}")
        case sqlite3.SQLITE_BUSY:
            busy = f"another process has been writing to the {what} for more than {BUSY_TIMEOUT:g} s"
            return LockedError(busy, detail=str(path), fix="try again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedError(f"the {what} is damaged", detail=f"{path}: {error}")
        case sqlite3.SQLITE_TOOBIG:
            too_big = f"a value is too large for the {what}"
            return TooLargeError(too_big, fix="use smaller batches", limit=_MAX_VALUE_BYTES)
    return None
