"""The file of one queue: group commit of transactions, group sync, and the queue's clock.

Callers submit steps. One caller, the leader, runs all waiting steps in one transaction. No transaction waits for
the disk: a caller that needs durability then syncs the write-ahead log, outside of any lock; one sync serves all
who wait.

`QueueClock` measures visibility timeouts, delays and TTL. The wall clock may jump. A jump forward would take messages
from receivers that still work on them; a jump back would leave messages with dead receivers. So the queue's time
starts at the wall clock's time and advances with the machine's monotonic clock, which all processes share. After a
restart of the machine it starts at the wall clock's time again, but never before a time it has reached.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from headwater.errors import (
    DamagedError,
    DiskFailedError,
    HeadwaterError,
    NotWritableError,
    UnknownQueueError,
    UsageError,
)
from headwater.events import Clock
from headwater.log.notifier import SharedNotifier
from headwater.log.topic import Durability, Overload
from headwater.log.write.append_buffer import AppendBuffer, PendingAppend
from headwater.queues.embedded.transaction import QueueTransaction, clean_up, migrate
from headwater.queues.queue import Queue, merge_definition
from headwater.sql.sqlite_file import BUSY_TIMEOUT, translate_sqlite_errors

__all__ = ["QueueClock", "QueueFile"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class QueueClock:
    """The time of one queue, in microseconds.

    Example:
        >>> from headwater.events import ManualClock
        >>> from headwater.queues.embedded.transaction import migrate
        >>> connection = sqlite3.connect(":memory:"); migrate(connection, Path("queue"))
        >>> clock = ManualClock(); time = QueueClock(clock, connection)
        >>> before = time.micros(); clock.advance("1 second"); time.micros() - before
        1000000
    """

    def __init__(self, clock: Clock, connection: sqlite3.Connection) -> None:
        self._clock = clock
        self._offset = self._load_offset(connection)

    def _load_offset(self, connection: sqlite3.Connection) -> int:
        """Returns what to add to the monotonic clock; inside the caller's transaction."""
        # The first process after a restart of the machine stores the offset; the others of this boot use it.
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        (reached,) = connection.execute("SELECT coalesce(max(changed), 0) FROM grp").fetchone()
        found = connection.execute("SELECT value FROM setting WHERE name = 'time'").fetchone()
        if found is not None:
            known = msgspec.json.decode(found[0])
            if known["boot"] == boot and known["offset"] + self._monotonic() >= reached:
                return int(known["offset"])
        offset: int = max(self._clock.micros(), reached) - self._monotonic()
        value = msgspec.json.encode({"boot": boot, "offset": offset})
        connection.execute("INSERT OR REPLACE INTO setting VALUES ('time', ?)", (value,))
        return offset

    def _monotonic(self) -> int:
        return round(self._clock.monotonic() * 1e6)

    def micros(self) -> int:
        """Returns the queue's time."""
        return self._offset + self._monotonic()


T = TypeVar("T")
# A forked child inherits SQLite's records of its locks, but not the locks, which belong to the process.
_open_files: weakref.WeakSet[QueueFile] = weakref.WeakSet()
_paths_open_in_parent: set[Path] = set()
_FILE_NAME: Final = "messages.db"
_SHARED_MEMORY: Final = Path("/dev/shm")
_CLEANUP_INTERVAL: Final = 64  # transactions
_CHECKPOINT_PAGES: Final = 2_000


class QueueFile:
    """The open file of one queue; safe to share between threads.

    Example:
        >>> import tempfile
        >>> from headwater.events import SystemClock
        >>> file = QueueFile(Path(tempfile.mkdtemp()) / "emails", SystemClock(), Queue.declare("emails"))
        >>> file.run(lambda transaction: transaction.queue.name)
        'emails'
        >>> file.close()
    """

    def __init__(self, folder: Path, clock: Clock, definition: Queue | None = None) -> None:
        self.path = folder / _FILE_NAME
        self.clock = clock
        self._check_not_forked()
        if definition is not None:
            _create_folder(folder, definition)
        self.queue: Queue
        """The definition, as last read by this process."""
        self._definition_json = b""
        self._groups: dict[str, int] = {}
        self._closed = False
        self._wal_fd = -1
        self._commits = 0
        self._sync_failed = False
        # Both buffers elect one of the waiting callers as the leader for all; see `AppendBuffer`.
        self._commit_buffer = AppendBuffer(self._commit, Overload(), count=lambda decisions: None)
        self._sync_buffer = AppendBuffer(self._sync_wal, Overload(), count=lambda decisions: None)
        _open_files.add(self)
        with contextlib.ExitStack() as opened:
            self._open(folder, definition, opened)
            self._resources = opened.pop_all()

    def _open(self, folder: Path, definition: Queue | None, resources: contextlib.ExitStack) -> None:
        with _translate_errors(self.path):
            self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            resources.callback(os.close, self._lock_fd)
            self.notifier = resources.enter_context(contextlib.closing(SharedNotifier(folder / "news")))
            self.capacity_notifier = resources.enter_context(contextlib.closing(SharedNotifier(folder / "room")))
            with self._process_lock():
                self._connection = resources.enter_context(contextlib.closing(_connect(self.path)))
        with self._transaction():
            self._update_definition(definition)
            self.queue_clock = QueueClock(self.clock, self._connection)

    def _check_not_forked(self) -> None:
        if self.path in _paths_open_in_parent:
            raise UsageError(
                "this process was forked from one that has the queue open",
                detail="SQLite locks do not survive a fork: the child would damage the file",
                fix='start the process without a fork, such as by multiprocessing.get_context("spawn")',
            )

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is a queue in a folder."""
        return (folder / _FILE_NAME).exists()

    # -- definition --------------------------------------------------------------------------------------------

    def declare(self, definition: Queue) -> Queue:
        """Update the queue to a definition."""

        def step(transaction: QueueTransaction) -> Queue:
            transaction.queue, transaction.notify_receivers = self._update_definition(definition), True
            transaction.groups = self._groups
            return transaction.queue

        return self.run(step)

    def _update_definition(self, definition: Queue | None) -> Queue:
        """Update the stored definition, if one is given, and return it; inside a transaction."""
        if definition is not None:
            migrate(self._connection, self.path)
            known = self._read_definition()
            new = definition if known is None else merge_definition(known, definition)
            data = new.to_json()
            self._connection.execute("INSERT OR REPLACE INTO setting VALUES ('queue', ?)", (data,))
            names = [(group.name,) for group in new.groups]
            self._connection.executemany("INSERT OR IGNORE INTO grp (name) VALUES (?)", names)
        elif self._connection.execute("PRAGMA user_version").fetchone() == (0,):
            raise UnknownQueueError(f'no queue "{self.path.parent.name}"', detail="it was never declared")
        return self._load_definition()

    def _load_definition(self) -> Queue:
        """Returns the definition that is stored; inside a transaction."""
        found = self._read_definition()
        if found is None:
            raise DamagedError("a queue's file has no definition", detail=str(self.path))
        return found

    def _read_definition(self) -> Queue | None:
        row = self._connection.execute("SELECT value FROM setting WHERE name = 'queue'").fetchone()
        if row is None:
            return None
        if row[0] != self._definition_json:
            groups = self._connection.execute("SELECT name, number FROM grp ORDER BY number")
            self._groups = dict(groups.fetchall())
            self.queue, self._definition_json = Queue.from_json(row[0]), row[0]
        return self.queue

    # -- steps -------------------------------------------------------------------------------------------------

    def run(self, step: Callable[[QueueTransaction], T], *, rows: int = 1) -> T:
        """Run a step in a transaction, possibly together with others; returns when it is committed.

        A step that raises a `HeadwaterError` must not have changed anything: the transaction commits all the same.
        """
        if self._closed:
            raise UsageError(f'queue "{self.path.parent.name}" is closed', fix="open the broker again")
        self._check_not_forked()
        outcome: T = self._commit_buffer.append(PendingAppend(step, rows)).outcome
        return outcome

    def sync(self) -> None:
        """Wait until committed data survives a power cut, if the queue's durability requires it."""
        if self.queue.durability is Durability.DURABLE:
            self._sync_buffer.append(PendingAppend(None, 1))

    def _commit(self, entries: list[PendingAppend]) -> None:
        with self._transaction():
            queue = self._load_definition()
            now, wall = self.queue_clock.micros(), self.clock.micros()
            transaction = QueueTransaction(self._connection, queue, self._groups, now, wall)
            for entry in entries:
                try:
                    entry.outcome = entry.content(transaction)
                except HeadwaterError as error:
                    entry.error = error
            transaction.write_counts()
            self._commits += 1
            if self._commits % _CLEANUP_INTERVAL == 0:
                clean_up(transaction)
        # After the commit: a receiver woken earlier would find nothing and wait again.
        if transaction.notify_receivers:
            self.notifier.notify()
        if transaction.notify_publishers and self.queue.limit is not None:
            self.capacity_notifier.notify()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block in a transaction under the lock of all processes."""
        with _translate_errors(self.path), self._process_lock():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._definition_json = b""  # it may have been read from a definition that is rolled back
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _process_lock(self) -> Iterator[None]:
        """Exclude other processes; waiters wake at once, where SQLite's own lock would poll."""
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            if self.is_deleted:
                raise UnknownQueueError(f'queue "{self.path.parent.name}" was deleted', fix="declare it again")
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _sync_wal(self, entries: list[PendingAppend]) -> None:
        """Sync the write-ahead log, which has all commits that no checkpoint has synced into the main file."""
        try:
            if self._sync_failed:
                # After a failed sync a later one proves nothing: write everything to the main file and sync that.
                with _translate_errors(self.path), contextlib.closing(_connect(self.path)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._sync_failed = False
            if self._wal_fd < 0:
                self._wal_fd = os.open(f"{self.path.resolve()}-wal", os.O_RDONLY | os.O_CLOEXEC)
                self._resources.callback(os.close, self._wal_fd)
            os.fdatasync(self._wal_fd)
        except OSError as error:
            self._sync_failed = True
            what = "messages could not be synced to disk"
            raise DiskFailedError(what, detail=f"{self.path}: {error}", fix="publish them again") from error

    @property
    def is_deleted(self) -> bool:
        """Whether the queue was deleted, by any process."""
        return os.fstat(self._lock_fd).st_nlink == 0

    def delete(self) -> None:
        """Delete the queue for all processes; the caller closes this file afterwards."""

        def step(transaction: QueueTransaction) -> None:
            folder, target = self.path.parent, self.path.resolve()
            # Renamed first: after a crash at any point, the queue is there as a whole or not at all.
            removed = folder.rename(folder.with_name(f"{folder.name}~{secrets.token_hex(4)}"))
            for path in (target, Path(f"{target}-wal"), Path(f"{target}-shm")):
                path.unlink(missing_ok=True)
            shutil.rmtree(removed)
            transaction.notify_receivers = True

        self.run(step)

    def close(self) -> None:
        """Finish running steps, then close the file."""
        if self._closed:
            return
        self._closed = True
        _open_files.discard(self)
        self._commit_buffer.close()
        self._sync_buffer.close()
        with contextlib.suppress(UnknownQueueError), self._process_lock():
            self._connection.close()
        self._resources.close()


os.register_at_fork(after_in_child=lambda: _paths_open_in_parent.update(file.path for file in _open_files))


def _create_folder(folder: Path, queue: Queue) -> None:
    """Create the folder of a queue; with durability "memory" the file is a link into shared memory."""
    path = folder / _FILE_NAME
    with _translate_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        in_memory = queue.durability is Durability.MEMORY and os.access(_SHARED_MEMORY, os.W_OK)
        if in_memory and not path.is_symlink() and not path.exists():
            with contextlib.suppress(FileExistsError):  # another process was faster
                path.symlink_to(_SHARED_MEMORY / f"headwater-queue-{secrets.token_hex(8)}.db")


_PRAGMAS: Final = (
    "auto_vacuum = INCREMENTAL",
    "journal_mode = WAL",
    # A commit does not sync; `QueueFile.sync` does, for queues that promise it.
    "synchronous = NORMAL",
    "secure_delete = FAST",
    "temp_store = MEMORY",
    "cache_size = -16384",
    "journal_size_limit = 16777216",
    f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        for setting in _PRAGMAS:
            connection.execute(f"PRAGMA {setting}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the operating system."""
    try:
        with translate_sqlite_errors(path, "queue"):
            yield
    except OSError as error:
        raise NotWritableError("a queue cannot be opened", detail=f"{path}: {error}") from error
