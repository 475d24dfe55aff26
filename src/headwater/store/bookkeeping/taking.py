"""The order in which a batch is taken: epoch, ledger, rows, changes, events kept beside; one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.errors import FencedError, LedgerMismatchError, UnknownViewError
from headwater.store.bookkeeping.asides import write_asides
from headwater.store.bookkeeping.ledger_rows import find_entry, write_entry
from headwater.store.bookkeeping.outbox import write_outbox
from headwater.store.bookkeeping.registry import find_table
from headwater.store.bookkeeping.session import Session
from headwater.store.bookkeeping.spaces import write_kept
from headwater.store.changes import Changes
from headwater.store.definition import Commit, StateWrite, ViewTable
from headwater.store.ledger import LedgerEntry

__all__ = ["Apply", "Remember", "next_epoch", "require_epoch", "take_batch"]


Apply = Callable[[tuple[int | None, int] | None], Changes]
"""Writes a view's rows and says what changed; given the watermark before and now, also which rows became final."""
Remember = Callable[[Sequence[StateWrite]], None]
"""Writes what the operators of the query remember from now on."""


def take_batch(session: Session, work: Commit, apply: Apply | None, write: Remember) -> bool:
    """Take the batch; False, and nothing written, when exactly this batch is in the ledger.

    Args:
        session: In a transaction that no other writer of the query can come between.
        work: What the batch leaves behind.
        apply: Writes the rows of the view; None for a stream.
        write: Writes what operators remember.

    Raises:
        FencedError: A newer runner has taken the query.
        LedgerMismatchError: The batch is in the ledger with other offsets, or before the oldest entry kept.
        UnknownViewError: The view's table was never created.
    """
    entry = work.entry
    require_epoch(session, entry.query, entry.epoch)
    known = find_entry(session, entry.query, entry.batch)
    if known is not None and known.same_range(entry):
        return False
    before, last = _totals(session, entry.query)
    if known is not None or entry.batch <= last:
        raise _mismatch(known, entry, last)
    rows, changes = _write_rows(session, work, apply, before)
    write_entry(session, replace(entry, rows=rows))
    if changes is not None:
        write_outbox(session, entry, changes)
    write(work.states)
    write_kept(session, entry.query, work.kept)
    write_asides(session, "late", entry.query, entry.batch, work.late)
    write_asides(session, "quarantine", entry.query, entry.batch, work.quarantined)
    return True


def _write_rows(
    session: Session, work: Commit, apply: Apply | None, before: int | None
) -> tuple[int, pa.Table | None]:
    """How many rows changed, and what goes to the outbox."""
    if apply is None or work.table is None:
        return work.rows.num_rows, work.rows if work.rows.num_rows else None
    _require_table(session, work.table)
    watermark = work.entry.watermark
    final = work.finals and work.table.window is not None and watermark is not None
    changes = apply((before, watermark) if final and watermark is not None else None)
    if work.changes is not None:
        return changes.rows, work.changes if work.changes.num_rows else None
    found = changes.table(work.table, work.entry.committed_at) if changes else None
    return changes.rows, found


def next_epoch(session: Session, query: str) -> int:
    """A new epoch of a query, larger than all before."""
    statement = """
        INSERT INTO hw$epochs AS e VALUES (?, 1) ON CONFLICT (query) DO UPDATE SET epoch = e.epoch + 1 RETURNING epoch
    """
    ((epoch,),) = session.execute(statement, (query,)).fetchall()
    return int(epoch)


def require_epoch(session: Session, query: str, epoch: int) -> None:
    """Raise unless this is the newest epoch of the query.

    Raises:
        FencedError: Another runner has taken the query.
    """
    found = session.execute("SELECT epoch FROM hw$epochs WHERE query = ?", (query,)).fetchone()
    current = found[0] if found else 0
    if current != epoch:
        raise FencedError(
            f'query "{query}" is at epoch {current}: another runner has taken it',
            detail=f"this runner has epoch {epoch}; nothing of its batch was taken",
            fix="stop this runner; the other one goes on",
            query=query,
            epoch=current,
        )


def _require_table(session: Session, table: ViewTable) -> None:
    if find_table(session, table.name, table.version) is None:
        what = f'there is no version {table.version} of view "{table.name}" in the store'
        raise UnknownViewError(what, fix="create it first", view=table.name, version=table.version)


def _totals(session: Session, query: str) -> tuple[int | None, int]:
    """The watermark so far, and the newest batch."""
    totals = "SELECT watermark, last_batch FROM hw$totals WHERE query = ?"
    watermark, last = session.execute(totals, (query,)).fetchone() or (None, -1)
    return watermark, last


def _mismatch(known: LedgerEntry | None, entry: LedgerEntry, last: int) -> LedgerMismatchError:
    there = f"the ledger is at batch {last} already" if known is None else f"ledger: {known.ranges()}"
    return LedgerMismatchError(
        f'batch {entry.batch} of "{entry.query}" comes again with other offsets',
        detail=f"{there}\noffered: {entry.ranges()}",
        fix=f"headwater doctor, or rebuild {entry.query.rpartition('@')[0]} from the log",
        query=entry.query,
        batch=entry.batch,
        ledger=None if known is None else known.ranges(),
        offered=entry.ranges(),
    )
