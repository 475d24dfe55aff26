"""The store in one SQLite file, shared by several processes: one writes at a time, and readers never wait.

A commit is one transaction, synced to disk before the call returns.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from headwater.errors import NotWritableError
from headwater.events import Clock, SystemClock
from headwater.log.notifier import FileNotifier
from headwater.store.commit import Commit, OutboxEntry, PipelineReport, SideOutput, ViewTable
from headwater.store.ledger import LedgerEntry, find_entry, last_entry
from headwater.store.sqlite.connection import open_writer, transaction, translate_store_errors
from headwater.store.sqlite.migrations import create_system_views, has_system_views, is_up_to_date, migrate_store
from headwater.store.sqlite.states import SqliteStateStore, write_states
from headwater.store.sqlite.upsert import SqliteViewWriter
from headwater.store.sqlite.view_tables import create_table, promote_table
from headwater.store.status import write_report
from headwater.store.transaction import (
    check_epoch,
    commit_batch,
    mark_published,
    open_epoch,
    read_outbox,
    read_side_outputs,
    write_side_outputs,
)
from headwater.store.view_registry import current_table

__all__ = ["SqliteStore"]

_COUNT = struct.Struct("<Q")


class SqliteStore:
    """The store in the file `store.db` of a folder; implements `headwater.store.Store`.

    It may be used from several threads, and the folder from several processes.

    Args:
        folder: Where `store.db` is or will be.
        clock: The source of the current time.
        before_commit: Called when a batch is written and not yet committed; an exception rolls it back.

    Example:
        >>> import tempfile
        >>> store = SqliteStore(Path(tempfile.mkdtemp()) / "store")
        >>> store.open_epoch("revenue@1"), store.open_epoch("revenue@1"), store.last_entry("revenue@1")
        (1, 2, None)
        >>> store.close()

    Raises:
        NewerFormatError: A newer version of Headwater has written the store.
        NotWritableError: The folder cannot be written.
    """

    def __init__(
        self, folder: Path, clock: Clock | None = None, before_commit: Callable[[], None] | None = None
    ) -> None:
        self._before_commit = before_commit or (lambda: None)
        self.folder = Path(folder)
        self.path = self.folder / "store.db"
        self._clock: Clock = SystemClock() if clock is None else clock
        # Serializes this object's only connection between threads. Other processes wait in SQLite's own lock.
        self._lock = threading.RLock()
        self._notify_path = self.folder / "commits"
        self._notify_file = _open_notify_file(self.folder, self._notify_path)
        self._connection = open_writer(self.path)
        self._prepare()

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query, larger than all before; it fences runners with an older one."""
        with self._transaction():
            return open_epoch(self._connection, query)

    def check_epoch(self, query: str, epoch: int) -> None:
        """Check that this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
        """
        with self._session():
            check_epoch(self._connection, query, epoch)

    def last_entry(self, query: str) -> LedgerEntry | None:
        """Returns the newest entry of the ledger."""
        with self._session():
            return last_entry(self._connection, query)

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """Returns the entry of one batch, if it was committed and is not yet folded into the totals."""
        with self._session():
            return find_entry(self._connection, query, batch)

    def create(self, table: ViewTable) -> None:
        """Create the table of a version; idempotent. The first version of a view becomes current at once.

        Raises:
            SchemaConflictError: The version is there with other columns or another key.
            BadNameError: The name is reserved.
        """
        with self._transaction():
            create_table(self._connection, table)

    def current_table(self, name: str) -> ViewTable | None:
        """Returns the version that readers see."""
        with self._session():
            return current_table(self._connection, name)

    def make_current(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, in one transaction.

        Raises:
            UnknownViewError: There is no such version.
        """
        with self._transaction():
            promote_table(self._connection, name, version)

    def stager(self) -> None:
        """Returns None: workers cannot write to a file of this machine."""

    def commit(self, commit: Commit) -> bool:
        """Commit one batch; returns False if exactly this batch was committed before.

        The `rows` of the entry are counted here. When it returns, the batch is on disk; when it raises, nothing of it
        is there.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
            LedgerMismatchError: The batch was committed with other offsets.
            KeyNotUniqueError: Two rows have the same key.
        """
        writer = None if commit.table is None else SqliteViewWriter(commit.table, commit)
        apply = None if writer is None else partial(writer.apply, self._connection)
        write_state = partial(write_states, self._connection, commit.entry.query)
        with self._lock:
            with transaction(self._connection, self.path):
                written = commit_batch(self._connection, commit, apply, write_state)
                self._before_commit()
            if written:
                self._notify()
        return written

    def state_store(self, query: str) -> SqliteStateStore:
        """Returns the operator state of a query; a commit changes it."""
        return SqliteStateStore(self._session, query)

    def outbox(self, query: str) -> list[OutboxEntry]:
        """Returns the unpublished entries, oldest first."""
        with self._session():
            return read_outbox(self._connection, query)

    def mark_published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """Record that the entries of a batch are in the topic, below these offsets; idempotent."""
        with self._transaction():
            mark_published(self._connection, query, batch, ends)

    def skip(self, query: str, events: Sequence[SideOutput]) -> None:
        """Record events to skip when their batch runs again; idempotent."""
        with self._transaction():
            write_side_outputs(self._connection, "skips", query, -1, events)

    def skips(self, query: str) -> list[SideOutput]:
        """Returns the events to skip."""
        with self._session():
            return read_side_outputs(self._connection, "skips", query)

    def report(self, report: PipelineReport) -> None:
        """Store the status report of a pipeline, for the system views."""
        with self._transaction():
            write_report(self._connection, report, self._clock.micros())

    def watch(self) -> FileNotifier:
        """Returns a notifier for every write to the store, by any process."""
        return FileNotifier([self._notify_path])

    def close(self) -> None:
        """Close files and connections."""
        with self._lock:
            self._connection.close()
            if self._notify_file >= 0:
                os.close(self._notify_file)
                self._notify_file = -1

    def _prepare(self) -> None:
        """Migrate the file to the current format; takes no write lock if it is up to date."""
        with self._session() as connection:
            ready = is_up_to_date(connection) and has_system_views(connection)
        if not ready:
            with self._transaction(notify=False):
                migrate_store(self._connection, self.path)
                create_system_views(self._connection)

    @contextlib.contextmanager
    def _transaction(self, *, notify: bool = True) -> Iterator[None]:
        with self._lock:
            with transaction(self._connection, self.path):
                yield
            if notify:
                self._notify()

    @contextlib.contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translate_store_errors(self.path):
            yield self._connection

    def _notify(self) -> None:
        """Wake waiting processes by writing to the notify file; its content has no meaning.

        A commit is done before this; a full disk cannot undo it.
        """
        with contextlib.suppress(OSError):
            os.pwrite(self._notify_file, _COUNT.pack(self._clock.micros() & (1 << 63) - 1), 0)


def _open_notify_file(folder: Path, path: Path) -> int:
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(folder.parent)  # SQLite syncs the folder of its files, not the one above
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        what = f"the store's folder cannot be written: {error.strerror}"
        raise NotWritableError(what, detail=str(folder)) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
