"""The ledger: the offset range of every batch, and the outcome of every event in it.

`LedgerEntry` is plain data. The functions below it read and write entries as rows. They also keep the totals of each
query, in which old entries live on after they are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from headwater.store.dialect import Session

__all__ = [
    "KEPT_BATCHES",
    "EventCounts",
    "InputRange",
    "LedgerEntry",
    "find_entry",
    "find_first_entry",
    "last_entry",
    "last_published",
    "write_ends",
    "write_entry",
]


_COUNTS = ("in_", "used", "late", "quarantined", "dropped")


@dataclass(frozen=True)
class EventCounts:
    """The outcome of the events of a range. Each event is in exactly one of the last four counts.

    The names are public: they are columns of the system views and members of the node's documents.

    Example:
        >>> total = EventCounts(in_=3, used=2, late=1) + EventCounts(in_=1)
        >>> total.in_, total.unaccounted
        (4, 1)
    """

    in_: int = 0
    used: int = 0
    late: int = 0
    quarantined: int = 0
    dropped: int = 0

    def __add__(self, other: EventCounts) -> EventCounts:
        return EventCounts(*(getattr(self, name) + getattr(other, name) for name in _COUNTS))

    @property
    def unaccounted(self) -> int:
        """The number of events without a known outcome; anything but 0 is a bug."""
        return self.in_ - self.used - self.late - self.quarantined - self.dropped


@dataclass(frozen=True)
class InputRange:
    """One input of one batch: offsets from `start` up to, not including, `end` by partition.

    `retry` is the number of the last request to retry quarantined events that this or an earlier batch has taken. A
    retried event was counted as quarantined by an earlier batch. The batch that uses it counts one event less as
    quarantined and one more as used. `watermark` is that of the input alone at `end`, in microseconds since 1970.

    Example:
        >>> InputRange("orders", {0: 0, 1: 4}, {0: 7, 1: 4}, EventCounts(in_=7, used=7)).end[0]
        7
    """

    topic: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    counts: EventCounts = EventCounts()
    retry: int = 0
    watermark: int | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """One batch of one query, committed together with the rows it made.

    Attributes:
        query: The pipeline and its version, such as "revenue@1".
        batch: The number of the micro-batch.
        epoch: The epoch of the runner.
        inputs: The offset ranges it read.
        watermark: The event time up to which the output is complete, in microseconds since 1970.
        committed_at: The time of the commit, in microseconds since 1970.
        rows: The number of rows that changed.
        wall: The seconds it took.
        cpu: The CPU seconds it took.

    Example:
        >>> read = InputRange("orders", {0: 0}, {0: 5}, EventCounts(in_=5, used=5))
        >>> first = LedgerEntry("revenue@1", 0, 1, (read,), None, committed_at=0)
        >>> again = LedgerEntry("revenue@1", 0, 2, (read,), None, committed_at=9)
        >>> first.same_range(again), first.counts.used
        (True, 5)
    """

    query: str
    batch: int
    epoch: int
    inputs: tuple[InputRange, ...]
    watermark: int | None
    committed_at: int
    rows: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def counts(self) -> EventCounts:
        """The sum over all inputs."""
        return sum((read.counts for read in self.inputs), EventCounts())

    def same_range(self, other: LedgerEntry) -> bool:
        """Returns whether both read the same offsets of the same topics, and took the same retries."""
        retries, others = ([read.retry for read in one.sorted_inputs()] for one in (self, other))
        return self.ranges() == other.ranges() and retries == others

    def ranges(self) -> list[tuple[str, dict[int, int], dict[int, int]]]:
        """Returns topic, start and end offsets of every input, in a fixed order."""
        return [(read.topic, dict(read.start), dict(read.end)) for read in self.sorted_inputs()]

    def sorted_inputs(self) -> list[InputRange]:
        """Returns the inputs in a fixed order: two runs of a batch may name them in different orders."""
        return sorted(self.inputs, key=lambda r: (r.topic, sorted(r.start.items()), sorted(r.end.items())))


KEPT_BATCHES = 10_000
"""Entries kept per query. Older ones are only in the totals: a runner repeats at most its last batch."""

_COLUMNS = "query, batch, epoch, ranges, counts, watermark, committed_at, rows, wall, cpu"


def find_entry(session: Session, query: str, batch: int) -> LedgerEntry | None:
    """Returns the entry of one batch."""
    found = f"SELECT {_COLUMNS} FROM hw$ledger WHERE query = ? AND batch = ?"
    return _entry_from_row(session.execute(found, (query, batch)).fetchone())


def last_entry(session: Session, query: str) -> LedgerEntry | None:
    """Returns the newest entry."""
    found = f"SELECT {_COLUMNS} FROM hw$ledger WHERE query = ? ORDER BY batch DESC LIMIT 1"
    return _entry_from_row(session.execute(found, (query,)).fetchone())


def find_first_entry(
    session: Session, query: str, predicate: Callable[[LedgerEntry], bool]
) -> tuple[LedgerEntry, str | None] | None:
    """Returns the first entry that meets a condition, with the JSON text of its topic's end offsets.

    All entries after the first that meets the condition must meet it too, because this is a binary search.
    """
    found = f"SELECT ends, {_COLUMNS} FROM hw$ledger WHERE query = ? AND batch >= ? ORDER BY batch LIMIT 1"
    bounds = "SELECT min(batch), max(batch) FROM hw$ledger WHERE query = ?"
    low, high = session.execute(bounds, (query,)).fetchone()
    best: tuple[LedgerEntry, str | None] | None = None
    while low is not None and low <= high:
        middle = (low + high) // 2
        ends, *row = session.execute(found, (query, middle)).fetchone()
        entry = _entry_from_row(tuple(row))
        if entry is not None and predicate(entry):
            best, high = (entry, ends), middle - 1
        else:
            low = row[1] + 1
    return best


def write_entry(session: Session, entry: LedgerEntry) -> None:
    """Add an entry, update the totals and delete entries that are too old; runs in the caller's transaction."""
    # Both texts are lists in the same order, not objects by topic, because one topic may be read twice.
    ranges = [
        {"topic": read.topic, "start": dict(read.start), "end": dict(read.end)}
        | ({"retry": read.retry} if read.retry else {})
        | ({"watermark": read.watermark} if read.watermark is not None else {})
        for read in entry.sorted_inputs()
    ]
    counts = [{"topic": read.topic, **asdict(read.counts)} for read in entry.sorted_inputs()]
    texts = (json.dumps(ranges, sort_keys=True), json.dumps(counts, sort_keys=True))
    summed = astuple(entry.counts)
    effort = (entry.rows, entry.wall, entry.cpu)
    session.execute(
        "INSERT INTO hw$ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (
            *(entry.query, entry.batch, entry.epoch, *texts, *summed),
            *(entry.watermark, entry.committed_at, *effort),
        ),
    )
    pipeline, _, version = entry.query.rpartition("@")
    session.execute(
        """
        INSERT INTO hw$totals AS t VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (query) DO UPDATE SET
            batches = t.batches + 1, last_batch = excluded.last_batch,
            in_ = t.in_ + excluded.in_, used = t.used + excluded.used, late = t.late + excluded.late,
            quarantined = t.quarantined + excluded.quarantined, dropped = t.dropped + excluded.dropped,
            watermark = coalesce(excluded.watermark, t.watermark), committed_at = excluded.committed_at,
            rows = t.rows + excluded.rows, wall = t.wall + excluded.wall, cpu = t.cpu + excluded.cpu
        """,
        (*(entry.query, pipeline, int(version), entry.batch), *summed, *(entry.watermark, entry.committed_at), *effort),
    )
    oldest = entry.batch - KEPT_BATCHES
    session.execute("DELETE FROM hw$ledger WHERE query = ? AND batch <= ?", (entry.query, oldest))


def last_published(session: Session, query: str) -> int | None:
    """Returns the newest batch that was published; None if there is none among the entries kept."""
    found = "SELECT batch FROM hw$ledger WHERE query = ? AND ends IS NOT NULL ORDER BY batch DESC LIMIT 1"
    row = session.execute(found, (query,)).fetchone()
    return None if row is None else int(row[0])


def write_ends(session: Session, query: str, batch: int, ends: Mapping[int, int]) -> None:
    """Record the end offsets of a query's topic after a batch was published."""
    text = json.dumps({str(partition): end for partition, end in sorted(ends.items())})
    session.execute("UPDATE hw$ledger SET ends = ? WHERE query = ? AND batch = ?", (text, query, batch))


def _entry_from_row(row: tuple[Any, ...] | None) -> LedgerEntry | None:
    if row is None:
        return None
    query, batch, epoch, ranges, counts, watermark, committed_at, rows, wall, cpu = row
    inputs = tuple(
        InputRange(
            read["topic"],
            _parse_offsets(read["start"]),
            _parse_offsets(read["end"]),
            EventCounts(**{name: told[name] for name in _COUNTS}),
            read.get("retry", 0),
            read.get("watermark"),
        )
        for read, told in zip(json.loads(ranges), json.loads(counts), strict=True)
    )
    return LedgerEntry(query, batch, epoch, inputs, watermark, committed_at, rows, wall, cpu)


def _parse_offsets(found: dict[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in found.items()}
