"""Connections to the store's SQLite file, and translation of SQLite's errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import TooLargeError
from headwater.sql import sqlite_file
from headwater.sql.sqlite_file import BUSY_TIMEOUT
from headwater.store.transaction import MAX_OUTBOX_BYTES

__all__ = ["open_reader", "open_writer", "quote", "transaction", "translate_store_errors"]


def quote(name: str) -> str:
    """Quote an identifier for SQL text; every name from outside passes through here.

    Example:
        >>> print(quote("revenue"), quote('a"b'))
        "revenue" "a""b"
    """
    return '"' + name.replace('"', '""') + '"'


def open_writer(path: Path) -> sqlite3.Connection:
    """Open a connection for writing: it syncs at every commit, and readers never wait for it.

    Raises:
        NotWritableError: The file cannot be made or written.
        DamagedError: The file is not a database.
    """
    with translate_store_errors(path):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Opens a read-only connection.

    `immutable` is for a file that no process has open: SQLite then creates no -wal and -shm files beside it.
    """
    with translate_store_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}",
            uri=True,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Run the block in one transaction; other writers wait from its beginning."""
    with translate_store_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def translate_store_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors, including that of a batch that is too large for it."""
    try:
        with sqlite_file.translate_sqlite_errors(path, "store"):
            yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_TOOBIG:
            raise
        what = "a batch is too large for the store"
        raise TooLargeError(what, fix="use smaller batches", limit=MAX_OUTBOX_BYTES) from error
