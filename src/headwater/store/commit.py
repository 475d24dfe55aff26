"""Data that the engine passes to a store and reads from it: view tables, commits, state writes, outbox entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

import pyarrow as pa

from headwater.store.ledger import LedgerEntry

__all__ = [
    "Commit",
    "OutboxEntry",
    "PipelineReport",
    "PipelineState",
    "SideOutput",
    "StagedPart",
    "StateSize",
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
class SideOutput:
    """A late or quarantined event, kept beside the result.

    `value` is the event as JSON text, as a reader sees it; `reason` says why it is here; `data` has the row of a
    quarantined event as bytes of an Arrow stream.

    Example:
        >>> SideOutput("orders", 0, 17, 1_000, 2_000, '{"amount":1}', "behind 2026-01-01T00:05:00Z by 12.5 s").offset
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
    """Rows of a batch that a worker has sent to the store before its commit; readers do not see them yet.

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
    """The changes of a batch to one space of operator state: entries by key and name, each once.

    A value of None takes the entry away, whether it is there or not.

    Attributes:
        space: What the operator keeps apart.
        keys: The key of each entry.
        names: Its name below the key.
        values: Its value.
        key_counts: Of how many keys it has the values; of one, unless this is given.
        kinds: What the columns of a key are, a letter each, for telling people which key it is: s for text, i for a
            integer, t for a moment, d for a date, b for true or false. Empty where a column is none of these.

    Example:
        >>> StateWrite("seen", [b"ada", b"bob"], [b"", b""], [b"3", None]).space
        'seen'
    """

    space: str
    keys: Sequence[bytes]
    names: Sequence[bytes]
    values: Sequence[bytes | None]
    key_counts: Sequence[int] | None = None
    kinds: str = ""

    def __iter__(self) -> Iterator[tuple[bytes, bytes, bytes | None, int]]:
        """Iterate over the entries: key, name, value, and the number of keys in the value."""
        key_counts = repeat(1, len(self.keys)) if self.key_counts is None else self.key_counts
        return zip(self.keys, self.names, self.values, key_counts, strict=True)


@dataclass(frozen=True)
class StateSize:
    """The size of operator state outside the store, for one space in one key group.

    Attributes:
        space: What the operator keeps apart.
        bucket: The number of the key group.
        keys: How many keys have something there.
        entries: How many entries they have.
        size: How many bytes they take.
        largest: How many entries the key has that has most.
        key: That key.
        kinds: What the columns of a key are, as in `StateWrite`.

    Example:
        >>> StateSize("seen", 3, keys=2, entries=5, size=90, largest=4, key=b"ada").bucket
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
    """Everything that one batch writes; a store commits all of it or nothing.

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
        state_sizes: The state sizes in Spark of the key groups that the batch touched.
        changes: Of a view: what goes to the outbox, if it is more than the difference between its rows before and
            after the batch; in the form of `OutboxEntry`.

    Example:
        >>> view = ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
        >>> entry = LedgerEntry(view.query, 0, epoch=1, inputs=(), watermark=None, committed_at=0)
        >>> Commit(entry, view, pa.table({"k": ["a"], "n": [1]})).rows.num_rows
        1
    """

    entry: LedgerEntry
    table: ViewTable | None
    rows: pa.Table
    late: tuple[SideOutput, ...] = ()
    quarantined: tuple[SideOutput, ...] = ()
    finals: bool = False
    deletes: pa.Table | None = None
    staged: tuple[StagedPart, ...] = ()
    distinct: bool = False
    states: tuple[StateWrite, ...] = ()
    state_sizes: tuple[StateSize, ...] = ()
    changes: pa.Table | None = None


@dataclass(frozen=True)
class OutboxEntry:
    """The output of a batch for its topic: the changes of a view, or the rows of a stream.

    Changes have the columns `op` ("insert", "update", "delete", "final"), `before` and `after` (structs of all columns
    of the view, or null) and `at`: one microsecond before the end of the row's window, else when it was committed,
    unless the batch says since when it holds. `entry` is what the ledger says of the batch, unless it is folded away.

    Example:
        >>> OutboxEntry("big@1", 0, pa.table({"n": [1, 2]}), watermark=None, committed_at=0).changes.num_rows
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
    """The status of a pipeline, as its runner reports it.

    Attributes:
        pipeline: Its name.
        version: Which version of it.
        kind: "view" or "stream".
        state: Its current state.
        detail: A description of the state.
        error: The problem document of what stopped it.
        inputs: Names of what it reads.
        location: Where in the user's file it is written.
        doc: The user's description.
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
    location: str = ""
    doc: str = ""
    since: int = 0
    latency: str = ""
    delivery: str = ""

    @property
    def query(self) -> str:
        """The name of the query it is about."""
        return f"{self.pipeline}@{self.version}"
