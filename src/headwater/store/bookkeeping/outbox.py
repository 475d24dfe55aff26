"""Changes on their way into the topics of views and streams, kept with their batch until they are there."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headwater.errors import TooLargeError
from headwater.store.bookkeeping.ledger_rows import find_entry, note_ends
from headwater.store.bookkeeping.session import Session
from headwater.store.changes import packed, unpacked
from headwater.store.definition import Outgoing
from headwater.store.ledger import LedgerEntry

__all__ = ["LARGEST", "note_published", "read_outbox", "write_outbox"]

LARGEST = 1_000_000_000
"""Bytes of changes that one batch can make: SQLite and PostgreSQL hold no longer value."""


def write_outbox(session: Session, entry: LedgerEntry, changes: pa.Table) -> None:
    """Keep the changes of a batch; inside the caller's transaction."""
    data = packed(changes)
    if data.size > LARGEST - 1_000:
        what = f"batch {entry.batch} of {entry.query!r} makes {data.size >> 20:,} MB of changes"
        raise TooLargeError(what, fix="use smaller batches", limit=LARGEST)
    session.execute(
        "INSERT INTO hw$outbox VALUES (?, ?, ?, ?, ?)",
        (entry.query, entry.batch, entry.watermark, entry.committed_at, memoryview(data)),
    )


def read_outbox(session: Session, query: str) -> list[Outgoing]:
    """What is still to be published, oldest first."""
    found = "SELECT batch, changes, watermark, committed_at FROM hw$outbox WHERE query = ? ORDER BY batch"
    rows = session.execute(found, (query,)).fetchall()
    return [
        Outgoing(query, batch, unpacked(changes), watermark, at, find_entry(session, query, batch))
        for batch, changes, watermark, at in rows
    ]


def note_published(session: Session, query: str, batch: int, ends: Mapping[int, int]) -> None:
    """Let go of what a batch had to publish, and remember where its topic ended; may be called again."""
    if session.execute("DELETE FROM hw$outbox WHERE query = ? AND batch = ?", (query, batch)).rowcount:
        note_ends(session, query, batch, ends)
