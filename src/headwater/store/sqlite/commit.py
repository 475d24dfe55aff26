"""The order in which a batch is taken: epoch, ledger, rows, changes, events kept beside; one transaction."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pyarrow as pa

from headwater.errors import FencedError, LedgerMismatchError, TooLargeError, UnknownViewError
from headwater.store.definition import Commit, ViewTable
from headwater.store.ledger import LedgerEntry
from headwater.store.sqlite.asides import write_asides
from headwater.store.sqlite.changes import packed
from headwater.store.sqlite.connection import LARGEST
from headwater.store.sqlite.ledger_rows import find_entry, write_entry
from headwater.store.sqlite.upsert import ViewWrite
from headwater.store.sqlite.view_tables import find_table

__all__ = ["PreparedCommit"]


class PreparedCommit:
    """The work of a batch, converted and checked; `write` puts it into the caller's transaction."""

    def __init__(self, work: Commit) -> None:
        self._work = work
        self._view = None if work.table is None else ViewWrite(work.table, work)

    def write(self, connection: sqlite3.Connection) -> bool:
        """Take the batch; False, and nothing written, when exactly this batch is in the ledger.

        Raises:
            FencedError: A newer runner has taken the query.
            LedgerMismatchError: The batch is in the ledger with other offsets, or before the oldest entry kept.
            UnknownViewError: The view's table was never created.
        """
        entry = self._work.entry
        _require_epoch(connection, entry)
        known = find_entry(connection, entry.query, entry.batch)
        if known is not None and known.same_range(entry):
            return False
        before, last = _totals(connection, entry.query)
        if known is not None or entry.batch <= last:
            raise _mismatch(known, entry, last)
        rows, changes = self._write_rows(connection, before)
        write_entry(connection, replace(entry, rows=rows))
        if changes is not None:
            _write_outbox(connection, entry, changes)
        write_asides(connection, "late", entry.query, entry.batch, self._work.late)
        write_asides(connection, "quarantine", entry.query, entry.batch, self._work.quarantined)
        return True

    def _write_rows(self, connection: sqlite3.Connection, before: int | None) -> tuple[int, pa.Table | None]:
        """How many rows changed, and what goes to the outbox."""
        work = self._work
        if self._view is None or work.table is None:
            return work.rows.num_rows, work.rows if work.rows.num_rows else None
        _require_table(connection, work.table)
        watermark = work.entry.watermark
        final = work.finals and work.table.window is not None and watermark is not None
        finals = (before, watermark) if final and watermark is not None else None
        changes = self._view.apply(connection, finals)
        found = changes.table(work.table, work.entry.committed_at) if changes else None
        return changes.rows, found


def _require_epoch(connection: sqlite3.Connection, entry: LedgerEntry) -> None:
    found = connection.execute("SELECT epoch FROM hw$epochs WHERE query = ?", (entry.query,)).fetchone()
    current = found[0] if found else 0
    if current != entry.epoch:
        raise FencedError(
            f'query "{entry.query}" is at epoch {current}: another runner has taken it',
            detail=f"this runner has epoch {entry.epoch}; its batch {entry.batch} was not taken",
            fix="stop this runner; the other one goes on",
            query=entry.query,
            epoch=current,
        )


def _require_table(connection: sqlite3.Connection, table: ViewTable) -> None:
    if find_table(connection, table.name, table.version) is None:
        what = f'there is no version {table.version} of view "{table.name}" in the store'
        raise UnknownViewError(what, fix="create it first", view=table.name, version=table.version)


def _totals(connection: sqlite3.Connection, query: str) -> tuple[int | None, int]:
    """The watermark so far, and the newest batch."""
    totals = "SELECT watermark, last_batch FROM hw$totals WHERE query = ?"
    watermark, last = connection.execute(totals, (query,)).fetchone() or (None, -1)
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


def _write_outbox(connection: sqlite3.Connection, entry: LedgerEntry, changes: pa.Table) -> None:
    data = packed(changes)
    if data.size > LARGEST - 1_000:
        what = f"batch {entry.batch} of {entry.query!r} makes {data.size >> 20:,} MB of changes"
        raise TooLargeError(what, fix="use smaller batches", limit=LARGEST)
    connection.execute(
        "INSERT INTO hw$outbox VALUES (?, ?, ?, ?, ?)",
        (entry.query, entry.batch, entry.watermark, entry.committed_at, memoryview(data)),
    )
