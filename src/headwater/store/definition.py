"""What is handed to a store and taken from it: tables of views, the work of one batch, the changes it made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

import pyarrow as pa

from headwater.store.ledger import LedgerEntry

__all__ = [
    "Aside",
    "Commit",
    "Outgoing",
    "PipelineReport",
    "PipelineState",
    "StagedPart",
    "StateKept",
    "StateWrite",
    "ViewTable",
]

PipelineState = Literal["starting", "running", "idle", "waiting", "failed", "stopped", "rebuilding"]


@dataclass(frozen=True)
class ViewTable:
    """One version of a view: its columns, and which of them are the key.

    `window` names the column whose values are windows, a struct of two timestamps `start` and `end`.

    Example:
        >>> table = ViewTable("revenue", 2, pa.schema([("category", pa.string())]), ("category",))
        >>> table.query
        'revenue@2'
    """

    name: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...]
    window: str | None = None

    @property
    def query(self) -> str:
        """The name of the query that keeps it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Aside:
    """A late or quarantined event, kept beside.

    `value` is the event as JSON text, as a reader sees it; `reason` says why it is here; `data` has the row of a
    quarantined event as bytes of an Arrow stream.

    Example:
        >>> Aside("orders", 0, 17, 1_000, 2_000, '{"amount":1}', "behind 2026-01-01T00:05:00Z by 12.5 s").offset
        17
    """

    topic: str
    partition: int
    offset: int
    occurred_at: int
    received_at: int
    value: str
    reason: str
    data: bytes = b""


@dataclass(frozen=True)
class StagedPart:
    """Rows of a batch that a worker has sent to the store ahead of its commit; nobody sees them until then.

    Attributes:
        table: Where they are.
        rows: How many.
        null_keys: For each column of the key, whether it is null in any of them.

    Example:
        >>> StagedPart("staged_1", 2, (False,)).rows
        2
    """

    table: str
    rows: int
    null_keys: tuple[bool, ...]


@dataclass(frozen=True)
class StateWrite:
    """What a batch changed in one space of an operator's state: entries by key and name, each once.

    A value of None takes the entry away, whether it is there or not.

    Attributes:
        space: What the operator keeps apart.
        keys: The key of each entry.
        names: Its name below the key.
        values: Its value.
        held: Of how many keys it has the values; of one, unless this is given.
        kinds: What the columns of a key are, a letter each, for telling people which key it is: s for text, i for a
            whole number, t for a moment, d for a date, b for true or false. Empty where a column is none of these.

    Example:
        >>> StateWrite("seen", [b"ada", b"bob"], [b"", b""], [b"3", None]).space
        'seen'
    """

    space: str
    keys: Sequence[bytes]
    names: Sequence[bytes]
    values: Sequence[bytes | None]
    held: Sequence[int] | None = None
    kinds: str = ""

    def __iter__(self) -> Iterator[tuple[bytes, bytes, bytes | None, int]]:
        """Its entries: key, name, value, and of how many keys it is."""
        held = repeat(1, len(self.keys)) if self.held is None else self.held
        return zip(self.keys, self.names, self.values, held, strict=True)


@dataclass(frozen=True)
class StateKept:
    """How much an operator keeps outside the store, of one space in one bucket of keys.

    Attributes:
        space: What the operator keeps apart.
        bucket: Which bucket.
        keys: How many keys have something there.
        entries: How many entries they have.
        size: How many bytes they take.
        largest: How many entries the key has that has most.
        key: That key.
        kinds: What the columns of a key are, as in `StateWrite`.

    Example:
        >>> StateKept("seen", 3, keys=2, entries=5, size=90, largest=4, key=b"ada").bucket
        3
    """

    space: str
    bucket: int
    keys: int
    entries: int
    size: int
    largest: int
    key: bytes
    kinds: str = ""


@dataclass(frozen=True)
class Commit:
    """All that one batch leaves behind; a store takes the whole of it or nothing.

    Attributes:
        entry: Its line in the ledger.
        table: The view; None for a stream, whose rows only go to the outbox.
        rows: Of a view: whole rows, of which each takes the place of the one with its key. Of a stream: rows to append.
        late: Events that came too late for this batch.
        quarantined: Events that cannot be used.
        finals: Also tell which rows became final: their window's end lies behind the watermark now, and did not before.
        deletes: Keys of rows to remove, as columns with the names of the key.
        staged: Rows of a view that workers have staged, in place of `rows`; for stores that can.
        distinct: Take equal rows among those staged for one.
        states: What operators at the sink remember from now on.
        kept: How much operators in Spark keep now, of the buckets that the batch touched.
        changes: Of a view: what goes to the outbox, if it is more than the difference between its rows before and
            after the batch; in the form of `Outgoing`.

    Example:
        >>> view = ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
        >>> entry = LedgerEntry(view.query, 0, epoch=1, inputs=(), watermark=None, committed_at=0)
        >>> Commit(entry, view, pa.table({"k": ["a"], "n": [1]})).rows.num_rows
        1
    """

    entry: LedgerEntry
    table: ViewTable | None
    rows: pa.Table
    late: tuple[Aside, ...] = ()
    quarantined: tuple[Aside, ...] = ()
    finals: bool = False
    deletes: pa.Table | None = None
    staged: tuple[StagedPart, ...] = ()
    distinct: bool = False
    states: tuple[StateWrite, ...] = ()
    kept: tuple[StateKept, ...] = ()
    changes: pa.Table | None = None


@dataclass(frozen=True)
class Outgoing:
    """What a batch has for its topic: the changes of a view, or the rows of a stream.

    Changes have the columns `op` ("insert", "update", "delete", "final"), `before` and `after` (structs of all columns
    of the view, or null) and `at`: one microsecond before the end of the row's window, else when it was committed,
    unless the batch says since when it holds. `entry` is what the ledger says of the batch, unless it is folded away.

    Example:
        >>> Outgoing("big@1", 0, pa.table({"n": [1, 2]}), watermark=None, committed_at=0).changes.num_rows
        2
    """

    query: str
    batch: int
    changes: pa.Table
    watermark: int | None
    committed_at: int
    entry: LedgerEntry | None = None


@dataclass(frozen=True)
class PipelineReport:
    """How a pipeline is doing, as its runner tells it.

    Attributes:
        pipeline: Its name.
        version: Which version of it.
        kind: "view" or "stream".
        state: What it does at present.
        detail: More about it in words.
        error: The problem document of what stopped it.
        inputs: Names of what it reads.
        place: Where in the user's file it is written.
        doc: The user's own words about it.
        since: When this state began, in microseconds since 1970.
        latency: "realtime" for a pipeline of which no counts are kept; empty otherwise.
        delivery: What readers of its rows can rely on.

    Example:
        >>> PipelineReport("revenue", 1, "view", "running", inputs=("orders",)).query
        'revenue@1'
    """

    pipeline: str
    version: int
    kind: str
    state: PipelineState
    detail: str = ""
    error: dict[str, Any] | None = None
    inputs: tuple[str, ...] = field(default=())
    place: str = ""
    doc: str = ""
    since: int = 0
    latency: str = ""
    delivery: str = ""

    @property
    def query(self) -> str:
        """The name of the query it is about."""
        return f"{self.pipeline}@{self.version}"
