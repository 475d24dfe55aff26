"""The store in a PostgreSQL database: one runner writes a query at a time, and readers never wait.

A commit is one transaction, durable before the call returns. If the connection is lost, the call is repeated once on a
new connection. The ledger shows whether the first attempt was committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeVar

import pyarrow as pa

from headwater.errors import LockedError, UnreachableError
from headwater.events import Clock, SystemClock
from headwater.sql.postgres_pool import TABLE_SCHEMA, PostgresPool, PostgresSession, literal
from headwater.store.changelog import ChangeSet
from headwater.store.commit import Commit, OutboxEntry, PipelineReport, SideOutput, StagedPart, ViewTable
from headwater.store.ledger import LedgerEntry, find_entry, last_entry
from headwater.store.postgres.listening import CHANNEL, PostgresNotifier
from headwater.store.postgres.migrations import is_up_to_date, migrate_store
from headwater.store.postgres.states import PostgresStateStore, write_states
from headwater.store.postgres.upsert import PostgresViewWriter, drop_parts, stage_part
from headwater.store.postgres.view_tables import create_table, promote_table
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

__all__ = ["PostgresStager", "PostgresStore"]

_T = TypeVar("_T")
_COMMIT_LOCK = 0x48573032  # class of the advisory lock of a commit; the second number is the query's hash
_LOCK_QUERY = f"""
    SELECT pg_advisory_xact_lock({{lock}}, hashtext({{query}}));
    SELECT 1 FROM {TABLE_SCHEMA}.epochs WHERE query = {{query}} FOR UPDATE
"""
_TERMINATE_HOLDERS = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid() AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = ? AND objid::bigint = (hashtext(?)::bigint & 4294967295)
"""


class PostgresStore:
    """The store in a PostgreSQL database; implements `headwater.store.Store`.

    It may be used from several threads, and the database from several machines. Our tables are in the schema
    `headwater`; every view is a table there, and is read under its name in the schema `headwater_views`.

    Args:
        url: `postgresql://user:password@host:port/database`.
        clock: The source of the current time.
        before_commit: Called when a batch is written and not yet committed; an exception rolls it back.
        reader: A URL of the same database under a login that may only read the views, for the SQL of users.

    Raises:
        UnreachableError: The server is unreachable.
        BadCredentialsError: The server rejects the user, or the user may not make our schemas.
        BadSettingError: The URL is invalid, or the server is too old.
        NewerFormatError: A newer version of Headwater has written the store.
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        before_commit: Callable[[], None] | None = None,
        *,
        reader: str | None = None,
    ) -> None:
        self._url = url
        self._before_commit = before_commit or (lambda: None)
        self._clock: Clock = SystemClock() if clock is None else clock
        self.pool = PostgresPool(url)
        self.reader_pool = None if reader is None else PostgresPool(reader)
        try:
            if not self._read(is_up_to_date):
                self._in_transaction(partial(migrate_store, url=self.pool.display_url))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresStore({self.pool.display_url!r})"

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query, larger than all before; it fences runners with an older one.

        One that sleeps in the middle of a commit is cut off: its transaction is undone.
        """

        def open_within_timeout(session: PostgresSession) -> int:
            session.execute("SET LOCAL lock_timeout = '2s'")
            return open_epoch(session, query)

        try:
            return self._write(open_within_timeout)
        except LockedError:
            self._read(lambda session: session.execute(_TERMINATE_HOLDERS, (_COMMIT_LOCK, query)).fetchall())
            return self._write(open_within_timeout)

    def check_epoch(self, query: str, epoch: int) -> None:
        """Check that this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
        """
        self._read(lambda session: check_epoch(session, query, epoch))

    def last_entry(self, query: str) -> LedgerEntry | None:
        """Returns the newest entry of the ledger."""
        return self._read(lambda session: last_entry(session, query))

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """Returns the entry of one batch, if it was committed and is not yet folded into the totals."""
        return self._read(lambda session: find_entry(session, query, batch))

    def create(self, table: ViewTable) -> None:
        """Create the table of a version; idempotent. The first version of a view becomes current at once.

        Raises:
            SchemaConflictError: The version is there with other columns or another key.
            BadNameError: The name is reserved or too long.
        """
        self._write(lambda session: create_table(session, table))

    def current_table(self, name: str) -> ViewTable | None:
        """Returns the version that readers see."""
        return self._read(lambda session: current_table(session, name))

    def make_current(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, in one transaction.

        Raises:
            UnknownViewError: There is no such version.
        """
        self._write(lambda session: promote_table(session, name, version))

    def commit(self, commit: Commit) -> bool:
        """Commit one batch; returns False if exactly this batch was committed before.

        The `rows` of the entry are counted here. When it returns, the batch is on disk; when it raises, nothing of it
        is there, unless the connection was lost twice: then commit it again, the ledger knows.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
            LedgerMismatchError: The batch was committed with other offsets.
            KeyNotUniqueError: Two rows have the same key.
            UnreachableError: The database went away and did not come back; try again.
        """
        writer = None if commit.table is None else PostgresViewWriter(commit.table, commit)
        query = commit.entry.query
        sent = False

        def write_batch(session: PostgresSession) -> bool:
            nonlocal sent
            if writer is not None:
                writer.stage(session)
            session.execute_raw(_LOCK_QUERY.format(lock=_COMMIT_LOCK, query=literal(query)))
            with contextlib.ExitStack() as tail:
                apply = None if writer is None else partial(_apply_rows, writer, session, tail)
                remember = partial(write_states, session, query)
                written = commit_batch(session, commit, apply, remember)
            if commit.staged:
                drop_parts(session, query, commit.entry.batch)
            self._before_commit()
            sent = sent or written  # the same batch again, because the reply to the first time was lost
            return sent

        return self._write(write_batch, before=None if writer is None else writer.prepare)

    def state_store(self, query: str) -> PostgresStateStore:
        """Returns the operator state of a query; a commit changes it."""
        return PostgresStateStore(self._read, query)

    def stager(self) -> PostgresStager:
        """Returns a stager, with which workers send the rows of a large batch themselves."""
        return PostgresStager(self._url)

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Stage some rows of a batch before its commit, from any process; readers do not see them yet.

        The commit names the parts it publishes: `Commit(entry, table, no_rows, staged=(part, ...))`. A part that none
        names is dropped with the next commit of the query that publishes parts.

        Raises:
            BadTypeError: The rows do not have the view's columns.
        """
        return self._in_transaction(lambda session: stage_part(session, table, batch, rows))

    def outbox(self, query: str) -> list[OutboxEntry]:
        """Returns the unpublished entries, oldest first."""
        return self._read(lambda session: read_outbox(session, query))

    def mark_published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """Record that the entries of a batch are in the topic, below these offsets; idempotent."""
        self._write(lambda session: mark_published(session, query, batch, ends))

    def skip(self, query: str, events: Sequence[SideOutput]) -> None:
        """Record events to skip when their batch runs again; idempotent."""
        self._write(lambda session: write_side_outputs(session, "skips", query, -1, events))

    def skips(self, query: str) -> list[SideOutput]:
        """Returns the events to skip."""
        return self._read(lambda session: read_side_outputs(session, "skips", query))

    def report(self, report: PipelineReport) -> None:
        """Store the status report of a pipeline, for the system views."""
        self._write(lambda session: write_report(session, report, self._clock.micros()))

    def watch(self) -> PostgresNotifier:
        """Returns a notifier for every write to the store, by any process."""
        return PostgresNotifier(self.pool)

    def close(self) -> None:
        """Close the connections."""
        self.pool.close()
        if self.reader_pool is not None:
            self.reader_pool.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _read(self, do: Callable[[PostgresSession], _T]) -> _T:
        return self._retry_once(lambda: self._run_once(do))

    def _run_once(self, do: Callable[[PostgresSession], _T]) -> _T:
        with self.pool.session() as session:
            return do(session)

    def _write(
        self, do: Callable[[PostgresSession], _T], before: Callable[[PostgresSession], None] | None = None
    ) -> _T:
        """Run one transaction and notify waiting processes after its commit."""

        def write_and_notify(session: PostgresSession) -> _T:
            found = do(session)
            session.execute(f"NOTIFY {CHANNEL}")
            return found

        return self._in_transaction(write_and_notify, before)

    def _in_transaction(
        self, do: Callable[[PostgresSession], _T], before: Callable[[PostgresSession], None] | None = None
    ) -> _T:
        def once() -> _T:
            with self.pool.session() as session:
                if before is not None:
                    before(session)
                with session.connection.transaction():
                    return do(session)

        return self._retry_once(once)

    @staticmethod
    def _retry_once(do: Callable[[], _T]) -> _T:
        """Repeat a call once if the connection was lost; every call is idempotent, a commit by its ledger entry."""
        try:
            return do()
        except UnreachableError:
            return do()


@dataclass(frozen=True)
class PostgresStager:
    """Opens the store once in the process it was pickled into, and stages rows there.

    Args:
        url: Of the database; not shown, since it may hold a password.
    """

    url: str = field(repr=False)

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Stage some rows of a batch; the commit names the parts that it publishes."""
        return _open_store(self.url).stage(table, batch, rows)


@lru_cache
def _open_store(url: str) -> PostgresStore:
    return PostgresStore(url)


def _apply_rows(
    writer: PostgresViewWriter,
    session: PostgresSession,
    tail: contextlib.ExitStack,
    watermarks: tuple[int | None, int] | None,
) -> ChangeSet:
    """Write the rows; the statements after them are pipelined instead of awaited one by one."""
    changes = writer.apply(session, watermarks)
    tail.enter_context(session.connection.pipeline())
    return changes
