"""The store of pipelines: rows of views, the ledger, the outbox of changes, and late and quarantined events.

The engine writes one `Commit` per batch. Readers get rows, changes and system views. `protocol.Store` is the interface;
`SqlStore` implements it over a `Dialect`: `SqliteDialect` for a file, `store.postgres.PostgresDialect` for a database.
Read views with `ViewReader` or, from client code, through `store.views`.
"""

from headwater.store.commit.commit import (
    Commit,
    OffsetRange,
    OutboxEntry,
    PipelineReport,
    PipelineState,
    SideOutput,
    StagedPart,
    StateSize,
    StateWrite,
    ViewTable,
)
from headwater.store.commit.ledger import EventCounts, InputRange, LedgerEntry
from headwater.store.commit.retries import RetriedEvent
from headwater.store.protocol import QueryLimits, SqlResult, Stager, StateStore, Store
from headwater.store.sql_store import SqlStore
from headwater.store.sqlite import SqliteDialect
from headwater.store.views.view_reader import ViewReader

__all__ = [
    "Commit",
    "EventCounts",
    "InputRange",
    "LedgerEntry",
    "OffsetRange",
    "OutboxEntry",
    "PipelineReport",
    "PipelineState",
    "QueryLimits",
    "RetriedEvent",
    "SideOutput",
    "SqlResult",
    "SqlStore",
    "SqliteDialect",
    "StagedPart",
    "Stager",
    "StateSize",
    "StateStore",
    "StateWrite",
    "Store",
    "ViewReader",
    "ViewTable",
]
