"""A store in one SQLite file, shared by several processes: one writes at a time, readers never wait.

A commit is one transaction, synced before the call returns.
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
from headwater.log.wakeup import Wakeup
from headwater.store.bookkeeping.asides import read_asides, write_asides
from headwater.store.bookkeeping.ledger_rows import find_entry, last_entry
from headwater.store.bookkeeping.outbox import note_published, read_outbox
from headwater.store.bookkeeping.registry import current_table
from headwater.store.bookkeeping.reports import write_report
from headwater.store.bookkeeping.taking import next_epoch, require_epoch, take_batch
from headwater.store.definition import Aside, Commit, Outgoing, PipelineReport, ViewTable
from headwater.store.ledger import LedgerEntry
from headwater.store.sqlite.connection import connect, transaction, translated
from headwater.store.sqlite.migrations import migrate, up_to_date
from headwater.store.sqlite.states import SqliteStates, write_states
from headwater.store.sqlite.system_views import create_system_views, system_views_there
from headwater.store.sqlite.upsert import ViewWrite
from headwater.store.sqlite.view_tables import create_table, swap_table

__all__ = ["SqliteStore"]

_COUNT = struct.Struct("<Q")


class SqliteStore:
    """What pipelines keep, in the file `store.db` of a folder; implements `headwater.store.Store`.

    It may be used from several threads, and the folder from several processes.

    Args:
        folder: Where `store.db` is or will be.
        clock: What time it is.
        about_to_commit: Called when the work of a batch is written and not yet committed; what it raises undoes it all.

    Example:
        >>> import tempfile
        >>> store = SqliteStore(Path(tempfile.mkdtemp()) / "store")
        >>> store.take("revenue@1"), store.take("revenue@1"), store.last("revenue@1")
        (1, 2, None)
        >>> store.close()

    Raises:
        NewerFormatError: A newer version of Headwater has written the store.
        NotWritableError: The folder cannot be written.
    """

    def __init__(
        self, folder: Path, clock: Clock | None = None, about_to_commit: Callable[[], None] | None = None
    ) -> None:
        self._about_to_commit = about_to_commit or (lambda: None)
        self.folder = Path(folder)
        self.path = self.folder / "store.db"
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = threading.RLock()
        self._wake_path = self.folder / "commits"
        self._wake_file = _opened(self.folder, self._wake_path)
        self._connection = connect(self.path)
        self._prepare()

    def take(self, query: str) -> int:
        """A new epoch of this query, larger than all before; runners with an older one are fenced from now on."""
        with self._writing():
            return next_epoch(self._connection, query)

    def require(self, query: str, epoch: int) -> None:
        """Go on only if this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has taken the query.
        """
        with self._reading():
            require_epoch(self._connection, query, epoch)

    def last(self, query: str) -> LedgerEntry | None:
        """The newest entry of the ledger."""
        with self._reading():
            return last_entry(self._connection, query)

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """The entry of one batch, if it was committed and is not folded away."""
        with self._reading():
            return find_entry(self._connection, query, batch)

    def create(self, table: ViewTable) -> None:
        """Make the table of a version; may be called again. The first version of a view is current at once.

        Raises:
            SchemaConflictError: The version is there with other columns or another key.
            BadNameError: The name is reserved.
        """
        with self._writing():
            create_table(self._connection, table)

    def current(self, name: str) -> ViewTable | None:
        """The version readers see."""
        with self._reading():
            return current_table(self._connection, name)

    def swap(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, all at once.

        Raises:
            UnknownViewError: There is no such version.
        """
        with self._writing():
            swap_table(self._connection, name, version)

    def stager(self) -> None:
        """Nothing: workers do not reach a file of this machine."""

    def commit(self, work: Commit) -> bool:
        """Take the work of one batch; False when exactly this batch was taken before.

        The `rows` of the entry are counted here. When it returns, the batch is on disk; when it raises, nothing of it
        is there.

        Raises:
            FencedError: A newer runner has taken the query.
            LedgerMismatchError: The batch was taken with other offsets.
            KeyNotUniqueError: Two rows have one key.
        """
        view = None if work.table is None else ViewWrite(work.table, work)
        apply = None if view is None else partial(view.apply, self._connection)
        remember = partial(write_states, self._connection, work.entry.query)
        with self._lock:
            with transaction(self._connection, self.path):
                written = take_batch(self._connection, work, apply, remember)
                self._about_to_commit()
            if written:
                self._wake()
        return written

    def states(self, query: str) -> SqliteStates:
        """What the operators of a query remember; a commit changes it."""
        return SqliteStates(self._reading, query)

    def pending(self, query: str) -> list[Outgoing]:
        """What is still to be published, oldest first."""
        with self._reading():
            return read_outbox(self._connection, query)

    def published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """What a batch had to publish is in its topic, below these offsets; may be called again."""
        with self._writing():
            note_published(self._connection, query, batch, ends)

    def skip(self, query: str, asides: Sequence[Aside]) -> None:
        """Remember events to be left out when their batch is run again; may be called again."""
        with self._writing():
            write_asides(self._connection, "skips", query, -1, asides)

    def skipped(self, query: str) -> list[Aside]:
        """The events to be left out."""
        with self._reading():
            return read_asides(self._connection, "skips", query)

    def tell(self, report: PipelineReport) -> None:
        """Keep how a pipeline is doing, for the system views."""
        with self._writing():
            write_report(self._connection, report, self._clock.micros())

    def watch(self) -> Wakeup:
        """A wake-up for everything that is written to the store, by any process."""
        return Wakeup([self._wake_path])

    def close(self) -> None:
        """Let go of files and connections."""
        with self._lock:
            self._connection.close()
            if self._wake_file >= 0:
                os.close(self._wake_file)
                self._wake_file = -1

    def _prepare(self) -> None:
        """Bring the file to the present form; one that is there already is not waited for."""
        with self._reading() as connection:
            ready = up_to_date(connection) and system_views_there(connection)
        if not ready:
            with self._writing(wake=False):
                migrate(self._connection, self.path)
                create_system_views(self._connection)

    @contextlib.contextmanager
    def _writing(self, *, wake: bool = True) -> Iterator[None]:
        with self._lock:
            with transaction(self._connection, self.path):
                yield
            if wake:
                self._wake()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self.path):
            yield self._connection

    def _wake(self) -> None:
        """Tell waiting processes. What is written does not matter, that something is written does.

        A commit is done before this; a full disk cannot undo it.
        """
        with contextlib.suppress(OSError):
            os.pwrite(self._wake_file, _COUNT.pack(self._clock.micros() & (1 << 63) - 1), 0)


def _opened(folder: Path, wake: Path) -> int:
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(folder.parent)  # SQLite syncs the folder of its files, not the one above
        return os.open(wake, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        what = f"the store's folder cannot be written: {error.strerror}"
        raise NotWritableError(what, detail=str(folder)) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
