"""Ledger entries as rows, and the totals that are kept beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from headwater.store.bookkeeping.session import Session
from headwater.store.ledger import Counts, InputRange, LedgerEntry

__all__ = ["KEPT_BATCHES", "find_entry", "first_entry_where", "last_entry", "note_ends", "write_entry"]

KEPT_BATCHES = 10_000
"""Entries kept per query. Older ones live on in the totals only: a runner repeats its last batch at most."""

_COLUMNS = "query, batch, epoch, ranges, counts, watermark, committed_at, rows, wall, cpu"
_COUNTS = ("in_", "used", "late", "quarantined", "dropped")


def find_entry(session: Session, query: str, batch: int) -> LedgerEntry | None:
    """The entry of one batch."""
    found = f"SELECT {_COLUMNS} FROM hw$ledger WHERE query = ? AND batch = ?"
    return _of(session.execute(found, (query, batch)).fetchone())


def last_entry(session: Session, query: str) -> LedgerEntry | None:
    """The newest entry."""
    found = f"SELECT {_COLUMNS} FROM hw$ledger WHERE query = ? ORDER BY batch DESC LIMIT 1"
    return _of(session.execute(found, (query,)).fetchone())


def first_entry_where(
    session: Session, query: str, holds: Callable[[LedgerEntry], bool]
) -> tuple[LedgerEntry, str | None] | None:
    """The first entry that meets a condition, with the JSON text of its topic's ends after it.

    The condition must be one that, once met, is met by all later entries: a few of them are looked at, not all.
    """
    found = f"SELECT ends, {_COLUMNS} FROM hw$ledger WHERE query = ? AND batch >= ? ORDER BY batch LIMIT 1"
    bounds = "SELECT min(batch), max(batch) FROM hw$ledger WHERE query = ?"
    low, high = session.execute(bounds, (query,)).fetchone()
    best: tuple[LedgerEntry, str | None] | None = None
    while low is not None and low <= high:
        middle = (low + high) // 2
        ends, *row = session.execute(found, (query, middle)).fetchone()
        entry = _of(tuple(row))
        if entry is not None and holds(entry):
            best, high = (entry, ends), middle - 1
        else:
            low = row[1] + 1
    return best


def write_entry(session: Session, entry: LedgerEntry) -> None:
    """Add an entry, count it in the totals, fold old ones away; inside the caller's transaction."""
    counts = entry.counts
    summed = [getattr(counts, name) for name in _COUNTS]
    effort = (entry.rows, entry.wall, entry.cpu)
    session.execute(
        "INSERT INTO hw$ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (
            *(entry.query, entry.batch, entry.epoch, _ranges_text(entry), _counts_text(entry)),
            *summed,
            *(entry.watermark, entry.committed_at),
            *effort,
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
        (
            *(entry.query, pipeline, int(version), entry.batch),
            *summed,
            *(entry.watermark, entry.committed_at),
            *effort,
        ),
    )
    oldest = entry.batch - KEPT_BATCHES
    session.execute("DELETE FROM hw$ledger WHERE query = ? AND batch <= ?", (entry.query, oldest))


def note_ends(session: Session, query: str, batch: int, ends: Mapping[int, int]) -> None:
    """Remember where the topic of a query ended after a batch was published."""
    text = json.dumps({str(partition): end for partition, end in sorted(ends.items())})
    session.execute("UPDATE hw$ledger SET ends = ? WHERE query = ? AND batch = ?", (text, query, batch))


def _ranges_text(entry: LedgerEntry) -> str:
    """The ranges as a list, since one topic may be read twice."""
    found = [{"topic": topic, "start": start, "end": end} for topic, start, end in entry.ranges()]
    return json.dumps(found, sort_keys=True)


def _counts_text(entry: LedgerEntry) -> str:
    order = sorted(entry.inputs, key=lambda r: (r.topic, sorted(r.start.items()), sorted(r.end.items())))
    return json.dumps([{"topic": read.topic, **asdict(read.counts)} for read in order], sort_keys=True)


def _of(row: tuple[Any, ...] | None) -> LedgerEntry | None:
    if row is None:
        return None
    query, batch, epoch, ranges, counts, watermark, committed_at, rows, wall, cpu = row
    inputs = tuple(
        InputRange(
            read["topic"],
            _offsets(read["start"]),
            _offsets(read["end"]),
            Counts(**{name: told[name] for name in _COUNTS}),
        )
        for read, told in zip(json.loads(ranges), json.loads(counts), strict=True)
    )
    return LedgerEntry(query, batch, epoch, inputs, watermark, committed_at, rows, wall, cpu)


def _offsets(found: dict[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in found.items()}
