"""What pipelines keep: rows of views, the ledger, changes to publish, events kept beside.

Commits come in from the engine, one per batch; rows, changes and the state of the system go out to readers. `Store` in
protocol.py says what every store promises; enter at `SqliteStore` for the one in a file, at `Views` to read it.
"""

from headwater.store.as_of import rows_as_of
from headwater.store.definition import Aside, Commit, Outgoing, PipelineReport, PipelineState, ViewTable
from headwater.store.ledger import Counts, InputRange, LedgerEntry
from headwater.store.protocol import Store
from headwater.store.sqlite import Answer, QueryLimits, SqliteStore, Views

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
    "Store",
    "ViewTable",
    "Views",
    "rows_as_of",
]
