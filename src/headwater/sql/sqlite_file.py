"""Helpers for SQLite files: error translation and migrations."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from headwater.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    HeadwaterError,
    LockedError,
    NewerFormatError,
    NotWritableError,
)

__all__ = ["BUSY_TIMEOUT", "apply_migrations", "translate_sqlite_errors"]

BUSY_TIMEOUT = 30.0  # seconds to wait for another process's transaction: the largest batch takes a few


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
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits tell kinds of one cause apart
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
    return None
