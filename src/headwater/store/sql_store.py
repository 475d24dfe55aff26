"""`SqlStore`: the store of pipelines in a SQL database, the same for every dialect.

A commit is one transaction, durable before the call returns. One runner writes a query at a time, and readers never
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from headwater.events import Clock, SystemClock
from headwater.log.notifier import PollableWaiter
from headwater.store.commit.commit import Commit, OffsetRange, OutboxEntry, PipelineReport, SideOutput, ViewTable
from headwater.store.commit.ledger import LedgerEntry, find_entry, last_entry, last_published
from headwater.store.commit.retries import (
    EventPosition,
    QuarantinedEvent,
    RetriedEvent,
    newest_retries,
    preview_retry,
    read_retries,
    request_retry,
    withdraw_retries,
)
from headwater.store.commit.state_table import SqlStateStore
from headwater.store.commit.transaction import (
    check_epoch,
    commit_batch,
    mark_published,
    read_outbox,
    read_side_outputs,
    read_skip_positions,
    write_side_outputs,
)
from headwater.store.dialect import Dialect, Session
from headwater.store.pipeline_registry import PipelineRecord, expire_pipeline, read_pipelines, record_pipelines
from headwater.store.protocol import Stager
from headwater.store.retention import PartitionStarts, SideRetention, remove_side_data
from headwater.store.status import write_report
from headwater.store.view_registry import create_table, current_table, discard_version, make_current

__all__ = ["SqlStore"]


class SqlStore:
    """The store of pipelines; implements `headwater.store.Store`.

    Several threads may share it, and several processes the database.

    Args:
        dialect: The database, `SqliteDialect(folder)` or `PostgresDialect(url)`. The store closes it.
        clock: The source of the current time.
        before_commit: Called when a batch is written and not yet committed; an exception rolls it back.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.store.sqlite import SqliteDialect
        >>> store = SqlStore(SqliteDialect(Path(tempfile.mkdtemp())))
        >>> store.open_epoch("revenue@1"), store.open_epoch("revenue@1"), store.last_entry("revenue@1")
        (1, 2, None)
        >>> store.close()
    """

    def __init__(
        self, dialect: Dialect[Any], clock: Clock | None = None, before_commit: Callable[[], None] | None = None
    ) -> None:
        self.dialect = dialect
        self._clock: Clock = SystemClock() if clock is None else clock
        self._before_commit = before_commit or (lambda: None)

    def __repr__(self) -> str:
        return f"SqlStore({self.dialect!r})"

    # -- runners ---------------------------------------------------------------------------------------------------

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query, larger than all before; it fences runners with an older one."""
        return self.dialect.open_epoch(query)

    def check_epoch(self, query: str, epoch: int) -> None:
        """Check that this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
        """
        self.dialect.read(lambda session: check_epoch(session, query, epoch))

    def last_entry(self, query: str) -> LedgerEntry | None:
        """Returns the newest entry of the ledger."""
        return self.dialect.read(lambda session: last_entry(session, query))

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """Returns the entry of one batch, if it was committed and is not yet folded into the totals."""
        return self.dialect.read(lambda session: find_entry(session, query, batch))

    def report(self, report: PipelineReport) -> None:
        """Store the status report of a pipeline, for the system views."""
        self.dialect.write(lambda session: write_report(session, report, self._clock.micros()))

    def record_pipelines(self, app: str, names: Collection[str]) -> None:
        """Record the pipelines that an app has now; those that it no longer has are missing from now on."""
        self.dialect.write(lambda session: record_pipelines(session, app, names, self._clock.micros()))

    def pipelines(self) -> list[PipelineRecord]:
        """Returns the pipelines that apps have or had, by name."""
        return self.dialect.read(read_pipelines)

    def expire_pipeline(self, name: str) -> bool:
        """Remove what only a continued pipeline needs, except view and counts.

        Returns False if its app has it again, or if it has changes that are not yet published.
        """
        return self.dialect.write(lambda session: expire_pipeline(session, name, self._clock.micros()))

    def remove_side_data(self, retention: SideRetention, starts: PartitionStarts) -> dict[str, int]:
        """Remove side data whose retention is over, in small transactions; returns the number of rows by table."""
        return remove_side_data(self.dialect, retention, starts, self._clock.micros())

    # -- views -----------------------------------------------------------------------------------------------------

    def create(self, table: ViewTable) -> None:
        """Create the table of a version; idempotent. The first version of a view becomes current at once.

        Raises:
            SchemaConflictError: The version exists with other columns or another key.
            BadNameError: The name is reserved, or the database cannot hold it.
        """
        self.dialect.write(lambda session: create_table(session, self.dialect, table))

    def current_table(self, name: str) -> ViewTable | None:
        """Returns the version that readers see."""
        return self.dialect.read(lambda session: current_table(session, name))

    def make_current(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, in one transaction.

        Raises:
            UnknownViewError: There is no such version.
        """
        self.dialect.write(lambda session: make_current(session, self.dialect, name, version))

    def discard_version(self, name: str, version: int, owner: tuple[str, int] | None = None) -> None:
        """Delete everything of a version that never became current, and fence its runner; idempotent.

        Raises:
            RefusedError: Readers see this version.
            FencedError: A newer driver has opened an epoch of the owner.
        """

        def discard(session: Session) -> None:
            if owner is not None:
                self.dialect.lock_query(session, owner[0])
                check_epoch(session, *owner)
            discard_version(session, self.dialect, name, version)

        self.dialect.write(discard)

    # -- batches ---------------------------------------------------------------------------------------------------

    def stager(self) -> Stager | None:
        """Returns a stager for workers with large batches; None if workers cannot reach the store."""
        return self.dialect.stager()

    def commit(self, commit: Commit) -> bool:
        """Commit one batch; returns False if exactly this batch was committed before.

        The store counts the `rows` of the entry. After a return, the batch is on disk. After an error, nothing of the
        batch is stored, except perhaps after an `UnreachableError`: commit it again, and the ledger recognises it.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
            LedgerMismatchError: The batch was committed with other offsets.
            KeyNotUniqueError: Two rows have the same key.
            UnreachableError: The connection was lost twice, so the outcome is unknown; try again.
        """
        # Rows are converted and checked before the transaction, so that other writers do not wait for it.
        writer = None if commit.table is None else self.dialect.view_writer(commit.table, commit)
        written = False

        def write_batch(session: Session) -> bool:
            nonlocal written
            if writer is not None:
                writer.stage(session)  # before the lock: to send the rows takes longest
            self.dialect.lock_query(session, commit.entry.query)
            first_time = commit_batch(session, self.dialect, commit, writer)
            if writer is not None:
                writer.finish(session)
            self._before_commit()
            # A second run of this function finds the batch in the ledger if only the reply to the first was lost. It
            # is still this call that wrote the batch.
            written = written or first_time
            return written

        return self.dialect.write(write_batch, before=None if writer is None else writer.prepare)

    def state_store(self, query: str) -> SqlStateStore:
        """Returns the operator state of a query; a commit changes it."""
        return SqlStateStore(self.dialect, query)

    def outbox(self, query: str) -> list[OutboxEntry]:
        """Returns the unpublished entries, oldest first."""
        return self.dialect.read(lambda session: read_outbox(session, query))

    def last_published(self, query: str) -> int | None:
        """Returns the newest batch whose changes are in the topic of the query; None if none is known."""
        return self.dialect.read(lambda session: last_published(session, query))

    def mark_published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """Record that the entries of a batch are in the topic, below these offsets; idempotent."""
        self.dialect.write(lambda session: mark_published(session, query, batch, ends))

    def skip(self, query: str, events: Sequence[SideOutput]) -> None:
        """Record events to skip when their batch runs again; idempotent. An event that was retried is withdrawn."""

        def skip_events(session: Session) -> None:
            kept = withdraw_retries(session, query, events)
            write_side_outputs(session, "skips", query, -1, kept, self._clock.micros())

        self.dialect.write(skip_events)

    def skips(self, query: str, ranges: Sequence[OffsetRange] | None = None) -> list[SideOutput]:
        """Returns the events to skip, in these offset ranges or anywhere, by topic, partition and offset."""
        return self.dialect.read(lambda session: read_side_outputs(session, "skips", query, ranges))

    def skip_positions(self, query: str) -> list[EventPosition]:
        """Returns the positions of all events to skip, by topic, partition and offset."""
        return self.dialect.read(lambda session: read_skip_positions(session, query))

    def preview_retry(self, query: str) -> list[QuarantinedEvent]:
        """Returns the quarantined events of a query, with what a retry would do."""
        return self.dialect.read(lambda session: preview_retry(session, query))

    def request_retry(self, query: str, positions: Collection[EventPosition]) -> list[RetriedEvent]:
        """Request a retry of quarantined events; returns those that wait now, also from earlier requests."""

        def request(session: Session) -> list[RetriedEvent]:
            self.dialect.lock_query(session, query)
            return request_retry(session, query, positions)

        return self.dialect.write(request)

    def retries(self, query: str) -> list[RetriedEvent]:
        """Returns the events of all requests of a query, except for those that failed again."""
        return self.dialect.read(lambda session: read_retries(session, query))

    def newest_retries(self) -> dict[str, int]:
        """Returns the number of the newest request of each query that has one."""
        return self.dialect.read(newest_retries)

    # -- connections -----------------------------------------------------------------------------------------------

    def watch(self) -> PollableWaiter:
        """Returns a notifier for every write to the store, by any process."""
        return self.dialect.watch()

    def close(self) -> None:
        """Close files and connections."""
        self.dialect.close()
