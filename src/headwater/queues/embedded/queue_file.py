"""The file of one queue, as one process has it open: a transaction for many callers at a time, and one sync for many.

Callers hand in their step; one of them, the leader, runs all that wait in one transaction. No transaction waits for
the disk: a step that must be safe is followed by a sync of the write-ahead log outside of any lock, again one for all
who wait.
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

from headwater.errors import (
    DamagedError,
    DiskFailedError,
    HeadwaterError,
    NotWritableError,
    UnknownQueueError,
    UsageError,
)
from headwater.events import Clock
from headwater.log.door import Door, Entry, Overload
from headwater.log.keeping import Durability
from headwater.queues.definition import Queue, brought_up
from headwater.queues.embedded.bell import Bell
from headwater.queues.embedded.queue_time import QueueTime
from headwater.queues.embedded.tables import migrate
from headwater.queues.embedded.tidying import tidy
from headwater.queues.embedded.transaction import Transaction
from headwater.sqlite_file import BUSY, translated

__all__ = ["QueueFile"]

T = TypeVar("T")
# SQLite's locks belong to a process: a child that is forked has their records, but not the locks.
_open_here: weakref.WeakSet[QueueFile] = weakref.WeakSet()
_open_in_parent: set[Path] = set()
_NAME: Final = "messages.db"
_SHARED_MEMORY: Final = Path("/dev/shm")
_TIDY_EVERY: Final = 64  # transactions
_CHECKPOINT_PAGES: Final = 2_000


class QueueFile:
    """A queue that is open; safe to share between threads.

    Example:
        >>> import tempfile
        >>> from headwater.events import SystemClock
        >>> file = QueueFile(Path(tempfile.mkdtemp()) / "emails", SystemClock(), Queue.declare("emails"))
        >>> file.run(lambda transaction: transaction.queue.name)
        'emails'
        >>> file.close()
    """

    def __init__(self, folder: Path, clock: Clock, wanted: Queue | None = None) -> None:
        self.path = folder / _NAME
        self.clock = clock
        self._refuse_forked()
        if wanted is not None:
            _make(folder, wanted)
        self._stored = b""
        self._groups: dict[str, int] = {}
        self._closed = False
        self._wal = -1
        self._commits = 0
        self._unsafe = False
        self._door = Door(self._commit, Overload(), count=lambda decisions: None)
        self._sync_door = Door(self._sync, Overload(), count=lambda decisions: None)
        _open_here.add(self)
        with contextlib.ExitStack() as opened:
            self._open(folder, wanted, opened)
            self._opened = opened.pop_all()

    def _open(self, folder: Path, wanted: Queue | None, opened: contextlib.ExitStack) -> None:
        with _translated(self.path):
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opened.callback(os.close, self._lock)
            self.bell = opened.enter_context(contextlib.closing(Bell(folder / "news")))
            self.room = opened.enter_context(contextlib.closing(Bell(folder / "room")))
            with self._alone():
                self._connection = opened.enter_context(contextlib.closing(_connect(self.path)))
        with self._locked():
            self._define(wanted)
            self.time = QueueTime(self.clock, self._connection)

    def _refuse_forked(self) -> None:
        if self.path in _open_in_parent:
            raise UsageError(
                "this process was forked from one that has the queue open",
                detail="its file is locked by process: a copy of a process would damage it",
                fix='start it afresh, such as multiprocessing.get_context("spawn")',
            )

    @staticmethod
    def there(folder: Path) -> bool:
        """Whether there is a queue in a folder."""
        return (folder / _NAME).exists()

    @property
    def queue(self) -> Queue:
        """The definition, as this process has last seen it."""
        return self._queue

    # -- definition --------------------------------------------------------------------------------------------

    def declare(self, wanted: Queue) -> Queue:
        """Bring the queue up to a definition."""

        def step(transaction: Transaction) -> Queue:
            transaction.queue, transaction.rings = self._define(wanted), True
            transaction.groups = self._groups
            return transaction.queue

        return self.run(step)

    def _define(self, wanted: Queue | None) -> Queue:
        """The definition that is stored, after bringing it up to the one that is wanted; inside a transaction."""
        if wanted is not None:
            migrate(self._connection, self.path)
            known = self._read()
            new = wanted if known is None else brought_up(known, wanted)
            data = new.to_json()
            self._connection.execute("INSERT OR REPLACE INTO setting VALUES ('queue', ?)", (data,))
            names = [(group.name,) for group in new.groups]
            self._connection.executemany("INSERT OR IGNORE INTO grp (name) VALUES (?)", names)
        elif self._connection.execute("PRAGMA user_version").fetchone() == (0,):
            raise UnknownQueueError(f'no queue "{self.path.parent.name}"', detail="it was never declared")
        return self._current()

    def _current(self) -> Queue:
        """The definition that is stored; inside a transaction."""
        found = self._read()
        if found is None:
            raise DamagedError("a queue's file has no definition", detail=str(self.path))
        return found

    def _read(self) -> Queue | None:
        row = self._connection.execute("SELECT value FROM setting WHERE name = 'queue'").fetchone()
        if row is None:
            return None
        if row[0] != self._stored:
            groups = self._connection.execute("SELECT name, number FROM grp ORDER BY number")
            self._groups = dict(groups.fetchall())
            self._queue, self._stored = Queue.from_json(row[0]), row[0]
        return self._queue

    # -- steps -------------------------------------------------------------------------------------------------

    def run(self, step: Callable[[Transaction], T], *, rows: int = 1) -> T:
        """Run a step in a transaction, perhaps together with others; comes back when it is committed.

        A step that raises an error of ours must not have changed anything before.
        """
        if self._closed:
            raise UsageError(f'queue "{self.path.parent.name}" is closed', fix="open the broker again")
        self._refuse_forked()
        outcome: T = self._door.pass_through(Entry(step, rows)).outcome
        return outcome

    def make_safe(self) -> None:
        """Come back when what was committed survives a power cut, if the queue's durability asks for that."""
        if self._queue.durability is Durability.DURABLE:
            self._sync_door.pass_through(Entry(None, 1))

    def _commit(self, entries: list[Entry]) -> None:
        with self._locked():
            queue = self._current()
            now, wall = self.time.micros(), self.clock.micros()
            transaction = Transaction(self._connection, queue, self._groups, now, wall)
            for entry in entries:
                try:
                    entry.outcome = entry.content(transaction)
                except HeadwaterError as error:
                    entry.error = error
            transaction.write_counts()
            self._commits += 1
            if self._commits % _TIDY_EVERY == 0:
                tidy(transaction)
        if transaction.rings:
            self.bell.ring()
        if transaction.roomier and self._queue.limit is not None:
            self.room.ring()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A transaction."""
        with _translated(self.path), self._alone():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._stored = b""
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process has a transaction. The next is woken at once; SQLite would look again and again."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            if self.gone:
                raise UnknownQueueError(
                    f'queue "{self.path.parent.name}" was deleted', fix="declare it again"
                )
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _sync(self, entries: list[Entry]) -> None:
        """Make safe what is committed: it is in the write-ahead log, or was synced when it was taken out of it."""
        try:
            if self._unsafe:
                # After a failed sync a later one proves nothing: write everything to the main file and sync that.
                with _translated(self.path), contextlib.closing(_connect(self.path)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._unsafe = False
            if self._wal < 0:
                self._wal = os.open(f"{self.path.resolve()}-wal", os.O_RDONLY | os.O_CLOEXEC)
                self._opened.callback(os.close, self._wal)
            os.fdatasync(self._wal)
        except OSError as error:
            self._unsafe = True
            what = "messages could not be made safe"
            raise DiskFailedError(what, detail=f"{self.path}: {error}", fix="publish them again") from error

    @property
    def gone(self) -> bool:
        """Whether somebody has deleted the queue."""
        return os.fstat(self._lock).st_nlink == 0

    def delete(self) -> None:
        """Remove the queue and all that is in it; for other processes it is gone at once. Close it afterwards."""

        def step(transaction: Transaction) -> None:
            folder, target = self.path.parent, self.path.resolve()
            # Renamed first, so that it is gone as a whole however far this comes.
            removed = folder.rename(folder.with_name(f"{folder.name}~{secrets.token_hex(4)}"))
            for path in (target, Path(f"{target}-wal"), Path(f"{target}-shm")):
                path.unlink(missing_ok=True)
            shutil.rmtree(removed)
            transaction.rings = True

        self.run(step)

    def close(self) -> None:
        """Finish what runs, then let go of the file."""
        if self._closed:
            return
        self._closed = True
        _open_here.discard(self)
        self._door.close()
        self._sync_door.close()
        with contextlib.suppress(UnknownQueueError), self._alone():
            self._connection.close()
        self._opened.close()


def _after_fork() -> None:
    _open_in_parent.update(file.path for file in _open_here)


os.register_at_fork(after_in_child=_after_fork)


def _make(folder: Path, queue: Queue) -> None:
    """The folder of a queue; one in memory is a link to a file there, which a restart of the machine removes."""
    path = folder / _NAME
    with _translated(path):
        folder.mkdir(parents=True, exist_ok=True)
        in_memory = queue.durability is Durability.MEMORY and os.access(_SHARED_MEMORY, os.W_OK)
        if in_memory and not path.is_symlink() and not path.exists():
            with contextlib.suppress(FileExistsError):  # another process was faster
                path.symlink_to(_SHARED_MEMORY / f"headwater-queue-{secrets.token_hex(8)}.db")


_SETTINGS: Final = (
    "auto_vacuum = INCREMENTAL",
    "journal_mode = WAL",
    # Commits are in order in the log; `_sync` makes those safe that were promised to be.
    "synchronous = NORMAL",
    "secure_delete = FAST",
    "temp_store = MEMORY",
    "cache_size = -16384",
    "journal_size_limit = 16777216",
    f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
    try:
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the operating system as ours."""
    try:
        with translated(path, "queue"):
            yield
    except OSError as error:
        raise NotWritableError("a queue cannot be opened", detail=f"{path}: {error}") from error
