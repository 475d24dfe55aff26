"""The store of pipelines: rows of views, the ledger, the outbox of changes, and late and quarantined events.

One `Commit` per batch comes in from the engine. Rows, changes and system views go out to readers. `protocol.Store` is
the interface of every store; `SqliteStore` keeps it in a file, `store.postgres.PostgresStore` in a database. Read with
`SqliteViewReader` or, from client code, through `store.views`. The modules beside `protocol` hold what all stores
share.
"""

from headwater.store.commit import (
    Commit,
    OutboxEntry,
    PipelineReport,
    PipelineState,
    SideOutput,
    StagedPart,
    StateSize,
    StateWrite,
    ViewTable,
)
from headwater.store.ledger import EventCounts, InputRange, LedgerEntry
from headwater.store.protocol import QueryLimits, SqlResult, Stager, StateStore, Store
from headwater.store.sqlite import SqliteStore, SqliteViewReader
from headwater.store.views.as_of import rows_as_of
from headwater.store.views.view_reader import ViewReader

__all__ = [
    "Commit",
    "EventCounts",
    "InputRange",
    "LedgerEntry",
    "OutboxEntry",
    "PipelineReport",
    "PipelineState",
    "QueryLimits",
    "SideOutput",
    "SqlResult",
    "SqliteStore",
    "SqliteViewReader",
    "StagedPart",
    "Stager",
    "StateSize",
    "StateStore",
    "StateWrite",
    "Store",
    "ViewReader",
    "ViewTable",
    "rows_as_of",
]
