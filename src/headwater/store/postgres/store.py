"""A store in a PostgreSQL database, shared by machines: one runner writes a query at a time, readers never wait.

A commit is one transaction, on disk before the call returns. When a connection is lost, what was asked is asked once
more on a new one: the ledger tells whether the first time was taken.
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
from headwater.store.bookkeeping.asides import read_asides, write_asides
from headwater.store.bookkeeping.ledger_rows import find_entry, last_entry
from headwater.store.bookkeeping.outbox import note_published, read_outbox
from headwater.store.bookkeeping.registry import current_table
from headwater.store.bookkeeping.reports import write_report
from headwater.store.bookkeeping.taking import next_epoch, require_epoch, take_batch
from headwater.store.changes import Changes
from headwater.store.definition import Aside, Commit, Outgoing, PipelineReport, StagedPart, ViewTable
from headwater.store.ledger import LedgerEntry
from headwater.store.postgres.connection import OWN, Connections, PostgresSession, literal
from headwater.store.postgres.listening import CHANNEL, Listener
from headwater.store.postgres.migrations import migrate, up_to_date
from headwater.store.postgres.staging import drop_parts, stage_part
from headwater.store.postgres.states import PostgresStates, write_states
from headwater.store.postgres.upsert import ViewWrite
from headwater.store.postgres.view_tables import create_table, swap_table

__all__ = ["PostgresStager", "PostgresStore"]

_T = TypeVar("_T")
_COMMITS = 0x48573032  # advisory locks of transactions that take a batch; the second number is of the query
_TURN = f"""
    SELECT pg_advisory_xact_lock({{lock}}, hashtext({{query}}));
    SELECT 1 FROM {OWN}.epochs WHERE query = {{query}} FOR UPDATE
"""
_HOLDERS = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid() AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = ? AND objid::bigint = (hashtext(?)::bigint & 4294967295)
"""


class PostgresStore:
    """What pipelines keep, in a PostgreSQL database; implements `headwater.store.Store`.

    It may be used from several threads, and the database from several machines. Our tables are in the schema
    `headwater`; every view is a table there, and is read under its name in the schema `headwater_views`.

    Args:
        url: `postgresql://user:password@host:port/database`.
        clock: What time it is.
        about_to_commit: Called when the work of a batch is written and not yet committed; what it raises undoes it all.
        reader: A URL of the same database under a login that may only read the views, for the SQL of users.

    Raises:
        UnreachableError: Nothing answers there.
        BadCredentialsError: The server does not accept the user, or the user may not make our schemas.
        BadSettingError: The URL leads nowhere, or to a server that is too old.
        NewerFormatError: A newer version of Headwater has written the store.
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        about_to_commit: Callable[[], None] | None = None,
        *,
        reader: str | None = None,
    ) -> None:
        self._url = url
        self._about_to_commit = about_to_commit or (lambda: None)
        self._clock: Clock = SystemClock() if clock is None else clock
        self.connections = Connections(url)
        self.readers = None if reader is None else Connections(reader)
        try:
            if not self._ask(up_to_date):
                self._in_transaction(partial(migrate, place=self.connections.place))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresStore({self.connections.place!r})"

    def take(self, query: str) -> int:
        """A new epoch of this query, larger than all before; runners with an older one are fenced from now on.

        One that sleeps in the middle of a commit is cut off: its transaction is undone.
        """

        def taken(session: PostgresSession) -> int:
            session.execute("SET LOCAL lock_timeout = '2s'")
            return next_epoch(session, query)

        try:
            return self._write(taken)
        except LockedError:
            self._ask(lambda session: session.execute(_HOLDERS, (_COMMITS, query)).fetchall())
            return self._write(taken)

    def require(self, query: str, epoch: int) -> None:
        """Go on only if this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has taken the query.
        """
        self._ask(lambda session: require_epoch(session, query, epoch))

    def last(self, query: str) -> LedgerEntry | None:
        """The newest entry of the ledger."""
        return self._ask(lambda session: last_entry(session, query))

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """The entry of one batch, if it was committed and is not folded away."""
        return self._ask(lambda session: find_entry(session, query, batch))

    def create(self, table: ViewTable) -> None:
        """Make the table of a version; may be called again. The first version of a view is current at once.

        Raises:
            SchemaConflictError: The version is there with other columns or another key.
            BadNameError: The name is reserved or too long.
        """
        self._write(lambda session: create_table(session, table))

    def current(self, name: str) -> ViewTable | None:
        """The version readers see."""
        return self._ask(lambda session: current_table(session, name))

    def swap(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, all at once.

        Raises:
            UnknownViewError: There is no such version.
        """
        self._write(lambda session: swap_table(session, name, version))

    def commit(self, work: Commit) -> bool:
        """Take the work of one batch; False when exactly this batch was taken before.

        The `rows` of the entry are counted here. When it returns, the batch is on disk; when it raises, nothing of it
        is there, unless the connection was lost twice: then commit it again, the ledger knows.

        Raises:
            FencedError: A newer runner has taken the query.
            LedgerMismatchError: The batch was taken with other offsets.
            KeyNotUniqueError: Two rows have one key.
            UnreachableError: The database went away and did not come back; try again.
        """
        view = None if work.table is None else ViewWrite(work.table, work)
        query = work.entry.query
        sent = False

        def taken(session: PostgresSession) -> bool:
            nonlocal sent
            if view is not None:
                view.stage(session)
            session.run(_TURN.format(lock=_COMMITS, query=literal(query)))
            with contextlib.ExitStack() as tail:
                apply = None if view is None else partial(_applied, view, session, tail)
                remember = partial(write_states, session, query)
                written = take_batch(session, work, apply, remember)
            if work.staged:
                drop_parts(session, query, work.entry.batch)
            self._about_to_commit()
            sent = sent or written  # the same batch again, because the reply to the first time was lost
            return sent

        return self._write(taken, before=None if view is None else view.prepare)

    def states(self, query: str) -> PostgresStates:
        """What the operators of a query remember; a commit changes it."""
        return PostgresStates(self._ask, query)

    def stager(self) -> PostgresStager:
        """What lets workers send the rows of a large batch themselves."""
        return PostgresStager(self._url)

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Send some rows of a batch ahead of its commit, from any process; nobody sees them until then.

        The commit names the parts it publishes: `Commit(entry, table, no_rows, staged=(part, ...))`. A part that none
        names is dropped with the next commit of the query that publishes parts.

        Raises:
            BadTypeError: The rows do not have the view's columns.
        """
        return self._in_transaction(lambda session: stage_part(session, table, batch, rows))

    def pending(self, query: str) -> list[Outgoing]:
        """What is still to be published, oldest first."""
        return self._ask(lambda session: read_outbox(session, query))

    def published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """What a batch had to publish is in its topic, below these offsets; may be called again."""
        self._write(lambda session: note_published(session, query, batch, ends))

    def skip(self, query: str, asides: Sequence[Aside]) -> None:
        """Remember events to be left out when their batch is run again; may be called again."""
        self._write(lambda session: write_asides(session, "skips", query, -1, asides))

    def skipped(self, query: str) -> list[Aside]:
        """The events to be left out."""
        return self._ask(lambda session: read_asides(session, "skips", query))

    def tell(self, report: PipelineReport) -> None:
        """Keep how a pipeline is doing, for the system views."""
        self._write(lambda session: write_report(session, report, self._clock.micros()))

    def watch(self) -> Listener:
        """A wake-up for everything that is written to the store, by any process."""
        return Listener(self.connections)

    def close(self) -> None:
        """Let go of the connections."""
        self.connections.close()
        if self.readers is not None:
            self.readers.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ask(self, do: Callable[[PostgresSession], _T]) -> _T:
        return self._twice(lambda: self._once(do))

    def _once(self, do: Callable[[PostgresSession], _T]) -> _T:
        with self.connections.session() as session:
            return do(session)

    def _write(
        self, do: Callable[[PostgresSession], _T], before: Callable[[PostgresSession], None] | None = None
    ) -> _T:
        """One transaction; those who wait are told when it is committed."""

        def told(session: PostgresSession) -> _T:
            found = do(session)
            session.execute(f"NOTIFY {CHANNEL}")
            return found

        return self._in_transaction(told, before)

    def _in_transaction(
        self, do: Callable[[PostgresSession], _T], before: Callable[[PostgresSession], None] | None = None
    ) -> _T:
        def once() -> _T:
            with self.connections.session() as session:
                if before is not None:
                    before(session)
                with session.connection.transaction():
                    return do(session)

        return self._twice(once)

    @staticmethod
    def _twice(do: Callable[[], _T]) -> _T:
        """Once more when the connection was lost: all that a store does can be done again, a commit by its ledger."""
        try:
            return do()
        except UnreachableError:
            return do()


@dataclass(frozen=True)
class PostgresStager:
    """Opens the store in the process that it was pickled into, once, and sends rows there.

    Args:
        url: Of the database; not shown, since it may hold a password.
    """

    url: str = field(repr=False)

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Send some rows of a batch; the commit names the parts that it publishes."""
        return _opened(self.url).stage(table, batch, rows)


@lru_cache
def _opened(url: str) -> PostgresStore:
    return PostgresStore(url)


def _applied(
    view: ViewWrite,
    session: PostgresSession,
    tail: contextlib.ExitStack,
    finals: tuple[int | None, int] | None,
) -> Changes:
    """Write the rows; what follows them in the transaction is sent without waiting for its answers one by one."""
    changes = view.apply(session, finals)
    tail.enter_context(session.connection.pipeline())
    return changes
