"""Connections to the store's file: how they are opened, and what SQLite's errors mean in our words."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    HeadwaterError,
    LockedError,
    NotWritableError,
    TooLargeError,
)
from headwater.store.bookkeeping.outbox import LARGEST

__all__ = ["BUSY", "connect", "quoted", "reading", "transaction", "translated"]

BUSY = 30.0  # seconds to wait for another process's transaction: the largest batch takes a few


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
    """Errors of SQLite as ours."""
    try:
        yield
    except sqlite3.Error as error:
        known = _known(error, path)
        if known is None:
            raise
        raise known from error


def _known(error: sqlite3.Error, path: Path) -> HeadwaterError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits tell kinds of one cause apart
    match code:
        case sqlite3.SQLITE_FULL:
            return DiskFullError("no space left for the store", detail=str(path), fix="free some space")
        case sqlite3.SQLITE_IOERR:
            return DiskFailedError("the store could not be written or read", detail=f"{path}: {error}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return NotWritableError("the store cannot be opened", detail=f"{path}: {error}")
        case sqlite3.SQLITE_BUSY:
            what = f"another process has been writing to the store for more than {BUSY:g} s"
            return LockedError(what, detail=str(path), fix="try again")
        case sqlite3.SQLITE_TOOBIG:
            return TooLargeError(
                "a batch is too large for the store", fix="use smaller batches", limit=LARGEST
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedError("the store is damaged", detail=f"{path}: {error}")
    return None
