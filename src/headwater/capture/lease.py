"""Leases: at most one process captures a database. The next one takes over seconds after the owner has ended.

A `FileLease` is for the processes of one machine, a `PostgresLease` for several machines with one store. A lease is a
courtesy between processes; that two owners never both write is ensured by the producer id and the sequence numbers of
the journal: a new owner takes them over before it reads where to continue.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from headwater.errors import FencedError, LockedError
from headwater.log.storage import Disk

__all__ = ["FileLease", "Lease", "PostgresLease", "await_lease", "watch_lease"]

_RETRY: Final = 1.0  # seconds between two attempts to take a lease
_CHECK_INTERVAL: Final = 1.0
_SILENCE: Final = 6.0  # seconds without a check, then the store's server ends the connection of an owner
_NAMESPACE: Final = 0x28770CA9  # the first of the two numbers of an advisory lock; the second is of the capture's name


class Lease(Protocol):
    """The right to capture one database."""

    def acquire(self) -> None:
        """Take the lease.

        Raises:
            LockedError: Another process has it.
        """

    def check(self) -> None:
        """Return if the lease is still held.

        Raises:
            FencedError: It was lost.
        """

    def release(self) -> None:
        """Give the lease back."""


class FileLease:
    """A lock on a file; the kernel releases it when the process ends.

    Args:
        folder: The folder of the capture.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> lease = FileLease(folder); lease.acquire()
        >>> FileLease(folder).acquire()
        Traceback (most recent call last):
        headwater.errors.LockedError: LOCKED_BY: ...
        >>> lease.release(); FileLease(folder).acquire()
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = Disk()
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lease."""
        self._disk.make_folder(self._folder)
        handle = self._disk.open(self._folder / "lock")
        if not self._disk.lock(handle, wait=False):
            self._disk.close(handle)
            pid = (self._disk.read_file(self._folder / "owner") or b"").decode(errors="replace")
            what = f"another process captures {self._folder.name!r}" + (f": {pid}" if pid else "")
            raise LockedError(what, detail=str(self._folder), fix="headwater capture status", pid=int(pid or 0))
        self._handle = handle
        self._disk.write_file(self._folder / "owner", str(os.getpid()).encode(), sync=False)

    def check(self) -> None:
        """Return: a lock on a file is not lost."""

    def release(self) -> None:
        """Give the lease back."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._disk.close(handle)


class PostgresLease:
    """An advisory lock of the store's server, held by a connection of its own.

    The server notices at once that the owner's process is gone. It ends the connection of an owner that is stopped or
    cut off, because the owner has not checked its lease for six seconds.

    Args:
        url: The store.
        name: The capture.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: Any = None

    def acquire(self) -> None:
        """Take the lease."""
        from headwater.sql.postgres_pool import PostgresPool

        connection = PostgresPool(self._url).open().connection
        held = connection.execute(
            "SELECT pg_try_advisory_lock(%s, hashtext(%s)), set_config('idle_session_timeout', %s, false)",
            [_NAMESPACE, self._name, f"{_SILENCE:g}s"],
        ).fetchone()
        if held is None or not held[0]:
            pid = self._owner(connection)
            connection.close()
            what = f"another process captures {self._name!r}: its connection to the store has the id {pid}"
            raise LockedError(what, fix="headwater capture status", pid=pid)
        self._connection = connection

    def _owner(self, connection: Any) -> int:
        row = connection.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = "
            "(hashtext(%s)::bigint & 4294967295)::oid AND granted",
            [_NAMESPACE, self._name],
        ).fetchone()
        return int(row[0]) if row else 0

    def check(self) -> None:
        """Return if the connection that holds the lock is alive."""
        try:
            self._connection.execute("SELECT 1")
        except Exception as error:
            what = f"the lease on capture {self._name!r} was lost: its connection to the store has ended"
            raise FencedError(what, detail=str(error), fix="it is taken again") from None

    def release(self) -> None:
        """Give the lease back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def await_lease(lease: Lease, stopping: threading.Event, on_wait: Callable[[LockedError], None]) -> bool:
    """Take a lease as soon as it is free; returns False if `stopping` was set before.

    Args:
        lease: The lease.
        stopping: Ends the wait.
        on_wait: Called once with the error that names the owner, if another process has the lease.
    """
    told = False
    while not stopping.is_set():
        try:
            lease.acquire()
        except LockedError as error:
            if not told:
                on_wait(error)
            told = True
            stopping.wait(_RETRY)
        else:
            return True
    return False


def watch_lease(lease: Lease, stopping: threading.Event, on_loss: Callable[[FencedError], None]) -> threading.Thread:
    """Check a lease in a thread until `stopping` is set; calls `on_loss` once if it is lost."""

    def watch() -> None:
        while not stopping.wait(_CHECK_INTERVAL):
            try:
                lease.check()
            except FencedError as error:
                on_loss(error)
                return

    thread = threading.Thread(target=watch, name="headwater-lease", daemon=True)
    thread.start()
    return thread
