"""The protocols of a store, limits and results of user queries, and the result of an inspection.

`Store`, `StateStore` and `Stager` are what the engine requires. All stores pass one contract test suite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

import pyarrow as pa

from headwater.errors import BadQueryError
from headwater.log.notifier import PollableWaiter
from headwater.store.commit.commit import (
    Commit,
    OffsetRange,
    OutboxEntry,
    PipelineReport,
    SideOutput,
    StagedPart,
    ViewTable,
)
from headwater.store.commit.ledger import LedgerEntry
from headwater.store.commit.retries import EventPosition, QuarantinedEvent, RetriedEvent
from headwater.store.pipeline_registry import PipelineRecord
from headwater.store.retention import PartitionStarts, SideRetention

__all__ = [
    "QueryLimits",
    "SqlResult",
    "Stager",
    "StateStore",
    "Store",
    "StoreInspection",
    "TableRows",
    "limit_error",
]


class Stager(Protocol):
    """Stages rows in the store before their commit, from any process it was pickled into."""

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Stage some rows of a batch; the commit names the parts that it publishes."""


class StateStore(Protocol):
    """The committed operator state of one query: entries by space, key and name, in order of name."""

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry."""

    def entries(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Returns all entries of these keys, by key, then in order of name; keys without entries are missing."""

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, limit: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Returns entries of one key with names in `[low, high)`, at most `limit` of them."""


class Store(Protocol):
    """The store of pipelines: rows, ledger, outbox of changes, late and quarantined events.

    What a call wrote before it returned survives a crash and a power failure. A call that raised wrote nothing.
    """

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query, larger than all before; it fences runners with an older one."""

    def check_epoch(self, query: str, epoch: int) -> None:
        """Check that this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
        """

    def last_entry(self, query: str) -> LedgerEntry | None:
        """Returns the newest entry of the ledger."""

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """Returns the entry of one batch, if it was committed and is not yet folded into the totals."""

    def record_pipelines(self, app: str, names: Collection[str]) -> None:
        """Record the pipelines that an app has now; those that it no longer has are missing from now on."""

    def pipelines(self) -> list[PipelineRecord]:
        """Returns the pipelines that apps have or had, by name."""

    def expire_pipeline(self, name: str) -> bool:
        """Remove what only a continued pipeline needs, except view and counts.

        Returns False if its app has it again, or if it has changes that are not yet published.
        """

    def remove_side_data(self, retention: SideRetention, starts: PartitionStarts) -> dict[str, int]:
        """Remove side data whose retention is over, in small transactions; returns the number of rows by table."""

    def create(self, table: ViewTable) -> None:
        """Create the table of a version; idempotent. The first version of a view becomes current at once.

        Raises:
            SchemaConflictError: The version exists with other columns or another key.
            BadNameError: The name is reserved.
        """

    def current_table(self, name: str) -> ViewTable | None:
        """Returns the version that readers see."""

    def make_current(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, in one transaction."""

    def discard_version(self, name: str, version: int, owner: tuple[str, int] | None = None) -> None:
        """Delete everything of a version that never became current, and fence its runner; idempotent.

        Args:
            name: The view.
            version: The version.
            owner: Name and epoch of the driver that calls; a driver that was replaced must not delete anything.

        Raises:
            RefusedError: Readers see this version.
            FencedError: A newer driver has opened an epoch of the owner.
        """

    def stager(self) -> Stager | None:
        """Returns a stager for workers with large batches; None if workers cannot reach the store."""

    def commit(self, commit: Commit) -> bool:
        """Commit one batch; returns False if exactly this batch was committed before.

        Raises:
            FencedError: A newer runner has opened an epoch of the query.
            LedgerMismatchError: The batch was committed with other offsets.
            KeyNotUniqueError: Two rows have the same key.
        """

    def state_store(self, query: str) -> StateStore:
        """Returns the operator state of a query; a commit changes it."""

    def outbox(self, query: str) -> list[OutboxEntry]:
        """Returns the unpublished entries, oldest first."""

    def last_published(self, query: str) -> int | None:
        """Returns the newest batch whose changes are in the topic of the query; None if none is known."""

    def mark_published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """Record that the entries of a batch are in the topic, below these offsets; idempotent."""

    def skip(self, query: str, events: Sequence[SideOutput]) -> None:
        """Record events to skip when their batch runs again; idempotent. An event that was retried is withdrawn."""

    def skips(self, query: str, ranges: Sequence[OffsetRange] | None = None) -> list[SideOutput]:
        """Returns the events to skip, in these offset ranges or anywhere, by topic, partition and offset."""

    def skip_positions(self, query: str) -> list[EventPosition]:
        """Returns the positions of all events to skip, by topic, partition and offset."""

    def preview_retry(self, query: str) -> list[QuarantinedEvent]:
        """Returns the quarantined events of a query, with what a retry would do."""

    def request_retry(self, query: str, positions: Collection[EventPosition]) -> list[RetriedEvent]:
        """Request a retry of quarantined events; returns those that wait now, also from earlier requests.

        Events that are not in quarantine, or that only a rebuild can use, are ignored.
        """

    def retries(self, query: str) -> list[RetriedEvent]:
        """Returns the events of all requests of a query, except for those that failed again."""

    def newest_retries(self) -> dict[str, int]:
        """Returns the number of the newest request of each query that has one."""

    def report(self, report: PipelineReport) -> None:
        """Store the status report of a pipeline, for the system views."""

    def watch(self) -> PollableWaiter:
        """Returns a notifier for every write to the store, by any process."""

    def close(self) -> None:
        """Close files and connections."""


StopReason = Literal["time", "memory", "cancelled"]


@dataclass(frozen=True)
class TableRows:
    """The rows of a table that is not in the store, for one query.

    Attributes:
        definition: Its name, columns and key.
        rows: The rows.
    """

    definition: ViewTable
    rows: pa.Table


@dataclass(frozen=True)
class QueryLimits:
    """The resource limits of one query.

    Args:
        time: The time after which the query is ended.
        rows: The maximum number of rows in the result. Further rows are left out, and the result is not `complete`.
        size: The maximum size of the result in bytes. Further rows are left out, too.
        memory: The number of bytes by which the process may grow during the query.
        cell: The maximum length of a text, a binary or a row in bytes.
        columns: The maximum number of columns in the result.

    Example:
        >>> QueryLimits(rows=10).time.total_seconds()
        5.0
    """

    time: timedelta = timedelta(seconds=5)
    rows: int = 10_000
    size: int = 16 << 20
    memory: int = 256 << 20
    cell: int = 1 << 20
    columns: int = 200


@dataclass(frozen=True)
class SqlResult:
    """The rows of a query; `complete` is false if a limit left rows out.

    Example:
        >>> answer = SqlResult(("n",), [(1,), (2,)], complete=True)
        >>> answer.table().to_pylist()
        [{'n': 1}, {'n': 2}]
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    complete: bool

    @classmethod
    def collect(cls, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], limits: QueryLimits) -> SqlResult:
        """Returns the first rows, up to the limits of rows and bytes; reads one row more to know whether it is all."""
        kept: list[tuple[Any, ...]] = []
        size = 0  # approximate: numbers count as eight bytes
        for row in rows:
            size += sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
            if len(kept) == limits.rows or size > limits.size:
                return cls(columns, kept, complete=False)
            kept.append(row)
        return cls(columns, kept, complete=True)

    def table(self) -> pa.Table:
        """Returns the rows as Arrow columns; a column with values of different types becomes text."""
        columns = list(zip(*self.rows, strict=True)) or [() for _ in self.columns]
        return pa.Table.from_arrays([_to_array(values) for values in columns], names=list(self.columns))


def limit_error(limits: QueryLimits, reason: StopReason) -> BadQueryError:
    """Returns the error of a query that was ended at a limit."""
    messages = {
        "time": f"the query took longer than {limits.time.total_seconds():g} s and was ended",
        "memory": f"the query took more than {limits.memory >> 20} MB of memory and was ended",
        "cancelled": "the query was cancelled",
    }
    fix = None if reason == "cancelled" else "read less: add a condition or a limit"
    return BadQueryError(messages[reason], fix=fix, limit=reason)


def _to_array(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


@dataclass(frozen=True)
class StoreInspection:
    """The result of inspecting a store without changing it.

    Attributes:
        format: The number of the last migration of its tables; 0 if there are none yet.
        latest_format: The last migration that this version of Headwater knows.
        views: The current version of each view, by name.
        altered: Views whose tables were altered by others, and how.
        refusal: Why the store cannot be created; empty if it can, or exists.

    Example:
        >>> StoreInspection(format=0, latest_format=1).views
        {}
    """

    format: int
    latest_format: int
    views: Mapping[str, ViewTable] = field(default_factory=dict)
    altered: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""
