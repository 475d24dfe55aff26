"""Connections to a captured SQLite file: opening, transactions, errors, and waiting for another program's commit."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headwater.errors import (
    BadCredentialsError,
    BadSettingError,
    DamagedError,
    DiskFullError,
    HeadwaterError,
    NotCapturableError,
    UnreachableError,
)
from headwater.log.notifier import FileNotifier

__all__ = ["BUSY_TIMEOUT", "CapturedFile", "CommitWatch", "parse_path"]

BUSY_TIMEOUT: Final = 10.0  # seconds to wait for a transaction of another program
_SCHEME: Final = "sqlite:///"
_MAX_WAIT: Final = 0.25  # seconds between looks at the database when the operating system reports no change of the file


def parse_path(url: str) -> Path:
    """Returns the path of a SQLite URL, or of a plain path.

    Example:
        >>> parse_path("sqlite:///shop.db"), parse_path("sqlite:////data/shop.db"), parse_path("shop.sqlite3")
        (PosixPath('shop.db'), PosixPath('/data/shop.db'), PosixPath('shop.sqlite3'))
    """
    text = url.removeprefix(_SCHEME)
    if not text or "://" in text or text.startswith(":"):
        what = f"{url!r} is not the URL of a SQLite file"
        raise BadSettingError(what, detail="write sqlite:///shop.db, or sqlite:////data/shop.db for an absolute path")
    return Path(text).expanduser()


class CapturedFile:
    """A connection to a SQLite file that exists; it never creates one.

    Args:
        path: The file.
        busy_timeout: Seconds to wait for a transaction of another program.

    Example:
        >>> CapturedFile(Path("/nowhere/shop.db"))
        Traceback (most recent call last):
        headwater.errors.UnreachableError: UNREACHABLE: there is no SQLite file /nowhere/shop.db
    """

    def __init__(self, path: Path, busy_timeout: float = BUSY_TIMEOUT) -> None:
        self.path = path
        with self.translate_errors():
            try:
                self.inode = path.stat().st_ino
            except OSError:
                raise UnreachableError(f"there is no SQLite file {path}") from None
            self.connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=busy_timeout,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self.connection.execute("PRAGMA cache_size = -16384")  # KiB
                self.connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except BaseException:
                self.connection.close()
                raise

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        return self.connection.execute(statement, parameters)

    def pragma(self, name: str) -> Any:
        """Returns the value of a pragma."""
        return self.execute(f"PRAGMA {name}").fetchone()[0]

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Run the block in one read transaction: all statements see one state of the file."""
        with self.translate_errors(), self._transaction("BEGIN"):
            # The first statement takes the snapshot; a plain BEGIN does not.
            self.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            yield

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Run the block in one write transaction."""
        with self.translate_errors(), self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self.execute(begin)
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:  # SQLite itself rolls back on some errors, such as a full disk
                self.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate SQLite's errors."""
        try:
            yield
        except sqlite3.Error as error:
            translated = _translate_error(error, self.path)
            if translated is None:
                raise
            raise translated from error

    def check_current(self) -> None:
        """Raise if the path leads to another file by now: the open one is no longer written by anybody."""
        try:
            current = self.path.stat().st_ino == self.inode
        except OSError:
            current = False
        if not current:
            what = f"the SQLite file {self.path} was removed or replaced while it was open"
            raise UnreachableError(what, detail="it is opened again", path=str(self.path))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class CommitWatch:
    """Waits for a commit of another connection, of this process or another."""

    def __init__(self, file: CapturedFile) -> None:
        self._file = file
        self._version = self._data_version()
        self._notifier: FileNotifier | None = None
        self._watched: list[Path] = []

    def _data_version(self) -> int:
        with self._file.translate_errors():
            return int(self._file.pragma("data_version"))

    def mark(self) -> None:
        """Remember the present state of the file; `wait` returns once it has changed."""
        self._watch()
        self._version = self._data_version()

    def wait(self, timeout: float) -> bool:
        """Returns whether there was a commit; waits up to `timeout` seconds for one."""
        deadline = time.monotonic() + timeout
        while self._data_version() == self._version:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            assert self._notifier is not None
            self._notifier.wait(min(left, _MAX_WAIT))
            self._watch()
        return True

    def _watch(self) -> None:
        """Watch the file and its write-ahead log, which appears and goes with the journal mode."""
        log = self._file.path.with_name(self._file.path.name + "-wal")
        paths = [self._file.path, log] if log.exists() else [self._file.path]
        if self._notifier is not None and paths == self._watched and self._notifier.is_current():
            return
        self.close()
        self._file.check_current()
        try:
            self._notifier = FileNotifier(paths)
        except FileNotFoundError:
            self._notifier = FileNotifier(paths[:1])
        self._watched = paths

    def close(self) -> None:
        """Stop watching."""
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None


def _translate_error(error: sqlite3.Error, path: Path) -> HeadwaterError | None:
    name, where = getattr(error, "sqlite_errorname", "") or "", f"{path}: {error}"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        what = f"the SQLite file {path} is locked by another program"
        return UnreachableError(what, detail="its transaction lasts too long; the capture tries again", path=str(path))
    if name.startswith("SQLITE_CANTOPEN"):
        return UnreachableError(f"the SQLite file {path} cannot be opened", detail=where, path=str(path))
    if name.startswith("SQLITE_READONLY"):
        what, fix = f"the SQLite file {path} cannot be written, and capture needs triggers in it", f"chmod u+w {path}"
        return BadCredentialsError(what, detail=where, fix=fix, path=str(path))
    if name.startswith("SQLITE_NOTADB"):
        return NotCapturableError(f"{path} is not a SQLite file", detail=where, path=str(path))
    if name.startswith("SQLITE_CORRUPT"):
        return DamagedError(f"the SQLite file {path} is damaged", detail=where, fix=f"sqlite3 {path} .recover")
    if name.startswith("SQLITE_FULL"):
        return DiskFullError(f"the disk of the SQLite file {path} is full", detail=where)
    if name.startswith("SQLITE_IOERR"):
        return UnreachableError(f"the SQLite file {path} cannot be read or written", detail=where, path=str(path))
    return None
