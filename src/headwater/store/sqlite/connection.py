"""Connections to the store's file: how they are opened, and what SQLite's errors mean in our words."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headwater import sqlite_file
from headwater.errors import TooLargeError
from headwater.sqlite_file import BUSY
from headwater.store.bookkeeping.outbox import LARGEST

__all__ = ["connect", "quoted", "reading", "transaction", "translated"]


def quoted(name: str) -> str:
    """An identifier for SQL text; every name that comes from outside goes through here.

    Example:
        >>> print(quoted("revenue"), quoted('a"b'))
        "revenue" "a""b"
    """
    return '"' + name.replace('"', '""') + '"'


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes: synced at every commit, readers never wait for it.

    Raises:
        NotWritableError: The file cannot be made or written.
        DamagedError: The file is not a database.
    """
    with translated(path):
        connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection


def reading(path: Path, *, still: bool = False) -> sqlite3.Connection:
    """A connection that cannot write; of a file that nobody has open, `still` keeps it from making files beside it."""
    with translated(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}",
            uri=True,
            timeout=BUSY,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Everything inside is there together or not at all; other writers wait from its beginning on."""
    with translated(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite as ours, a batch that it cannot hold among them."""
    try:
        with sqlite_file.translated(path, "store"):
            yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_TOOBIG:
            raise
        what = "a batch is too large for the store"
        raise TooLargeError(what, fix="use smaller batches", limit=LARGEST) from error
