"""What pipelines keep: rows of views, the ledger, changes to publish, events kept beside.

Commits come in from the engine, one per batch; rows, changes and the state of the system go out to readers. `Store` in
protocol.py says what every store promises; enter at `SqliteStore` for the one in a file, at
`Views` to read it. bookkeeping/ has what all stores keep in the same way.
"""

from headwater.store.as_of import rows_as_of
from headwater.store.definition import (
    Aside,
    Commit,
    Outgoing,
    PipelineReport,
    PipelineState,
    StagedPart,
    StateKept,
    StateWrite,
    ViewTable,
)
from headwater.store.ledger import Counts, InputRange, LedgerEntry
from headwater.store.places import open_store, views_of
from headwater.store.protocol import Stager, States, Store
from headwater.store.query import Answer, QueryLimits
from headwater.store.sqlite import SqliteStore, Views
from headwater.store.view_reader import ViewReader

__all__ = [
    "Answer",
    "Aside",
    "Commit",
    "Counts",
    "InputRange",
    "LedgerEntry",
    "Outgoing",
    "PipelineReport",
    "PipelineState",
    "QueryLimits",
    "SqliteStore",
    "StagedPart",
    "Stager",
    "StateKept",
    "StateWrite",
    "States",
    "Store",
    "ViewReader",
    "ViewTable",
    "Views",
    "open_store",
    "rows_as_of",
    "views_of",
]
