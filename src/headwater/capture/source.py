"""What a source of changes delivers: records of changes, as columns, with the point from which it can resume.

A `Source` is one captured database. `CaptureRunner` appends its records to the journal, syncs it, and only then
confirms the resume point to the source. Implementations: `capture/postgres`, `capture/mariadb`, `capture/sqlite`.
One contract test suite runs over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import pyarrow as pa

from headwater.events.change import OPS

__all__ = [
    "BEFORE_KINDS",
    "CHANGE_COLUMNS",
    "ChangeBatch",
    "Inspection",
    "Progress",
    "Record",
    "RecordKind",
    "Remedy",
    "Resume",
    "Source",
    "SourceTable",
    "TableShape",
    "change_columns",
]

Resume = dict[str, Any]
"""Where a source continues, as JSON; only the source reads it."""

BEFORE_KINDS: Final = ("nothing", "key", "row")
"""What `before` of a change holds; the column `before_holds` has the index."""

CHANGE_COLUMNS: Final[tuple[pa.Field, ...]] = (
    pa.field("op", pa.int8(), nullable=False),  # the index in `OPS`
    pa.field("commit", pa.uint64(), nullable=False),  # where the transaction was committed: LSN, binlog position
    pa.field("index", pa.uint32(), nullable=False),  # of the change in its transaction, over all tables, from 0
    pa.field("transaction", pa.uint64(), nullable=False),  # the id of the transaction in the source
    pa.field("at", pa.timestamp("us", "UTC"), nullable=False),  # commit time
    pa.field("last", pa.bool_(), nullable=False),  # the last captured change of its transaction
    pa.field("before_holds", pa.int8(), nullable=False),  # the index in `BEFORE_KINDS`
    pa.field("unchanged", pa.list_(pa.string())),  # columns that the source did not send; null: none
)
assert OPS.index("read") == 0


def change_columns(row: pa.Schema) -> pa.Schema:
    """Returns the columns of a batch of changes to rows of this schema.

    Example:
        >>> change_columns(pa.schema([("id", pa.int32())])).names[-3:]
        ['unchanged', 'before', 'after']
    """
    members = pa.struct([pa.field(one.name, one.type) for one in row])
    return pa.schema([*CHANGE_COLUMNS, pa.field("before", members), pa.field("after", members)])


@dataclass(frozen=True)
class SourceTable:
    """A table that is captured from a source.

    Attributes:
        table: Its name in the source, with the schema: "public.products", "shop.products", "products".
        topic: The topic of the table.
        key: The key columns; empty: the primary key of the table.
        columns: The columns to capture; empty: all that the source publishes.
        outbox: Whether its rows are events of other topics (`hw.outbox`).
    """

    table: str
    topic: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    outbox: bool = False


@dataclass(frozen=True)
class TableShape:
    """The columns of a source table at one time.

    Attributes:
        table: The name of the table.
        version: Counts from 1 with every change of its columns.
        schema: Its columns in Arrow types; a type that we have no equivalent of is text.
        key: Its key columns.
        types: The type of each column in the words of the source, for messages and the journal.
    """

    table: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...]
    types: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChangeBatch:
    """Changes of one table under one shape, in commit order.

    `changes` has the columns of `change_columns(shape.schema)`. `after` is null for a delete and a truncate, `before`
    is null where `before_holds` is "nothing". In `before` of kind "key" only the key columns have a value. Rows of a
    snapshot have the op "read", and commit, index and transaction 0.
    """

    shape: TableShape
    changes: pa.RecordBatch


class RecordKind(StrEnum):
    """What a record of the journal says."""

    EPOCH = "epoch"
    """A new, complete load begins: rows that it does not bring again are gone when the snapshot is done."""
    SHAPE = "shape"
    """A table has the columns of `shape` from here on; before the first row of that shape."""
    SNAPSHOT = "snapshot"
    """Rows of a snapshot."""
    SNAPSHOT_DONE = "snapshot done"
    """All rows of the snapshot of a table are in the journal."""
    CHANGES = "changes"
    """Changes of committed transactions."""
    POSITION = "position"
    """Nothing changed up to the resume point, which had the time `at`."""
    BACKFILL = "backfill needed"
    """Rows of a table changed without events, as by DDL with a default; `detail` says how. A snapshot brings them."""
    QUARANTINE = "quarantine"
    """A change that cannot be decoded, or whose table can no longer be delivered; raw in `detail`."""


@dataclass(frozen=True)
class Record:
    """One entry of the journal.

    Attributes:
        kind: What it says.
        resume: Where the source continues once this record is on disk. Complete: only the last one counts.
        table: The table, where the kind is about one.
        shape: The shape, of SHAPE.
        batch: The changes, of CHANGES and SNAPSHOT. A transaction over several tables gives several records.
        at: The time up to which the source is known, in microseconds since 1970; of CHANGES and POSITION.
        detail: Text for people, or raw data of QUARANTINE.
        open: Whether the transaction continues in a later record, so that no reader of whole transactions stops here.
    """

    kind: RecordKind
    resume: Resume
    table: str = ""
    shape: TableShape | None = None
    batch: ChangeBatch | None = None
    at: int = 0
    detail: str = ""
    open: bool = False


@dataclass(frozen=True)
class Remedy:
    """One finding of a check: what is wrong or worth knowing, and the statement or command that changes it.

    Attributes:
        code: The error code it would stop with (`errors.py`), or "" for a remark.
        what: The finding in one sentence, with values.
        fix: A statement for the database, or a command; "" if nothing has to be done.
        blocking: Whether capture cannot begin before it is mended.
        table: The table it concerns; "" for the whole database.
    """

    code: str
    what: str
    fix: str = ""
    blocking: bool = False
    table: str = ""


@dataclass(frozen=True)
class Inspection:
    """What a check of a source found.

    Attributes:
        server: Product and version, such as "PostgreSQL 15.18".
        mode: The design that would be used: "log" or "trigger".
        tables: The tables that can be captured, with their shapes.
        remedies: What stands in the way, and remarks.
        facts: Settings and figures worth showing, by name, in the order to print.
    """

    server: str
    mode: str
    tables: tuple[TableShape, ...]
    remedies: tuple[Remedy, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far a source is, for `headwater capture status`.

    Attributes:
        phase: "snapshot", "streaming" or "waiting".
        table: The table of a running snapshot.
        rows_done: Rows of that snapshot in records so far.
        rows_total: Estimated rows of that table; 0 if unknown.
        behind_bytes: Bytes of the source's log (or outbox rows) that are not read yet; -1 if unknown.
        held_bytes: Bytes that the source keeps because of us; -1 if unknown.
        detail: What it waits for.
    """

    phase: str
    table: str = ""
    rows_done: int = 0
    rows_total: int = 0
    behind_bytes: int = -1
    held_bytes: int = -1
    detail: str = ""


class Source(Protocol):
    """One captured database.

    Calls come from one thread, in this order: `inspect` at any time; `open` once, then `poll` and `confirm` in turns,
    then `close`. A source that loses its connection raises `UnreachableError` (retryable): it is closed, and opened
    again with the last resume point of the journal. What could mean a gap raises an error that is not retryable
    (`SLOT_LOST`, `SOURCE_REPLACED`, `DATA_GONE`): the capture stops, and only a new epoch, asked for by the user, goes
    on: `open` without a resume point.
    """

    def inspect(self, tables: Sequence[SourceTable] = ()) -> Inspection:
        """Check server, rights, log settings and tables; changes nothing. Without tables: all of the database."""

    def open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        """Connect and continue at a resume point; None begins the first epoch.

        Tables that the resume point does not know are added: their rows come as a snapshot beside the changes. Tables
        that it knows and that are not given are left out from now on.
        """

    def poll(self, timeout: float) -> list[Record]:
        """Returns the next records, at most about 20,000 changes or 4 MB; waits up to `timeout` seconds for the first.

        They are appended to the journal in one batch, with one sync. A large transaction comes in several calls, with
        `open` records, and its resume point names the part that is delivered. Memory is bounded for every transaction.
        """

    def confirm(self, resume: Resume) -> None:
        """Release everything before a resume point: it is on disk. May be called seldom; must be cheap."""

    def request_snapshot(self, table: str) -> None:
        """Load a captured table again, beside its changes."""

    def progress(self) -> Progress:
        """Returns how far it is."""

    def reached_end(self) -> bool:
        """Whether all snapshots are done and everything that was committed when it was last asked is delivered.

        The first call notes the present end of the source; it returns True once that end is delivered, and begins anew.
        """

    def drop(self) -> None:
        """Remove from the source what capture has created there: slot, publication, triggers, outbox."""

    def close(self) -> None:
        """Close connections. What the source holds for us stays."""
