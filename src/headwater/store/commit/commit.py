"""Data that the engine passes to a store and reads from it: view tables, commits, state writes, outbox entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from headwater.store.commit.ledger import LedgerEntry

__all__ = [
    "Commit",
    "OffsetRange",
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

OffsetRange: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, and offsets from a start up to, not including, an end."""


@dataclass(frozen=True)
class ViewTable:
    """One version of a view: its columns and its key.

    `window` names the column with the windows of the rows, a struct of two timestamps `start` and `end`.

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
        """The name of the query that maintains it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class SideOutput:
    """A late or quarantined event, stored beside the result.

    `value` is the event as JSON text, as a reader sees it. `reason` is why the result does not include it. `data` is
    the row of a quarantined event as an Arrow IPC stream.

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
    """Rows of a batch that a worker has sent to the store before the commit; readers do not see them yet.

    Attributes:
        table: The table that holds them.
        rows: The number of rows.
        null_keys: For each stored column of the key, whether any row has a null there.
        size: The bytes of the rows in memory.

    Example:
        >>> StagedPart("staged_1", 2, (False,)).rows
        2
    """

    table: str
    rows: int
    null_keys: tuple[bool, ...]
    size: int = 0


@dataclass(frozen=True)
class StateWrite:
    """The changes of a batch to one space of operator state. No two entries have the same key and name.

    A value of None deletes the entry, whether it exists or not.

    Attributes:
        space: The name of the space. An operator may have several.
        keys: The key of each entry.
        names: The name of each entry below its key.
        values: The value of each entry.
        key_counts: The number of keys whose values an entry holds; 1 for each entry if left out.
        kinds: The types of the key's columns, one letter each, so that `hw_state` can show a key: s for text, i for an
            integer, t for a timestamp, d for a date, b for a boolean. Empty if a column has another type.

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
    """The size of operator state that Spark keeps, for one space in one key group.

    Attributes:
        space: The name of the space.
        bucket: The number of the key group.
        keys: The number of keys that have entries.
        entries: The number of entries.
        size: The size of the entries in bytes.
        largest: The number of entries of the key that has most.
        key: That key.
        kinds: The types of the key's columns, as in `StateWrite`.

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
        entry: The entry of the ledger.
        table: The view; None for a stream, whose rows only go to the outbox.
        rows: For a view, whole rows; each replaces the row with its key. For a stream, the rows to append.
        late: Events that came too late for this batch.
        quarantined: Events that cannot be used.
        retried: Topic, partition and offset of events that leave the quarantine, because this batch uses them.
        finals: Whether the changes also tell which rows became final: the watermark has passed the end of their window
            with this batch.
        deletes: The keys of rows to delete, as columns with the names of the key.
        inserts: For a view of Z-set rows, the keys that get a row in this batch and lose none. The commit fails if the
            view has another row of such a key, because the two rows could not be told apart.
        merge_equal: Whether such a row may equal the new one: an event that was sent twice gives two equal rows.
        staged: Rows of a view that workers have staged, in place of `rows`; for stores with a stager.
        distinct: Whether equal rows among the staged ones count as one.
        states: The changes of operator state at the sink.
        state_sizes: The state sizes in Spark of the key groups that the batch touched.
        changes: For a view, what goes to the outbox, in the form of `OutboxEntry`. Without it, the difference between
            the rows before and after the batch.

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
    inserts: pa.Table | None = None
    merge_equal: bool = True
    staged: tuple[StagedPart, ...] = ()
    distinct: bool = False
    states: tuple[StateWrite, ...] = ()
    state_sizes: tuple[StateSize, ...] = ()
    changes: pa.Table | None = None
    retried: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class OutboxEntry:
    """The output of a batch for its topic: the changes of a view, or the rows of a stream.

    Changes have the columns `op` ("insert", "update", "delete", "final"), `before` and `after` (structs of all columns
    of the view, or null) and `at`. `at` is one microsecond before the end of the row's window; for a row without a
    window, the time of the commit, unless the batch gives another time. `entry` is the ledger entry of the batch; None
    once it is folded into the totals.

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
        pipeline: The name of the pipeline.
        version: Its version.
        kind: "view" or "stream".
        state: Its current state.
        detail: A description of the state.
        error: The problem document of the error that stopped it.
        inputs: The names of its inputs.
        location: The file and line of its declaration.
        doc: The user's description.
        since: When this state began, in microseconds since 1970.
        latency: "realtime" for a pipeline in real-time mode, which has no ledger; empty otherwise.
        delivery: The delivery class of its output.
        retries: For each topic it reads, when a quarantined event can be retried: "always", "watermark" (while its
            event time is above the watermark), "after 1970" (the same, and after 1970) or "rebuild" (never). Empty if
            it is not known yet.

    Example:
        >>> PipelineReport("revenue", 1, "view", "running", inputs=("orders",)).inputs
        ('orders',)
    """

    pipeline: str
    version: int
    kind: str
    state: PipelineState
    detail: str = ""
    error: dict[str, Any] | None = None
    inputs: tuple[str, ...] = ()
    location: str = ""
    doc: str = ""
    since: int = 0
    latency: str = ""
    delivery: str = ""
    retries: Mapping[str, str] = field(default_factory=dict)
