"""The steps of one commit, in one transaction: epoch, ledger, rows, changes, state, late and quarantined events.

Side outputs are late and quarantined events, and events to skip when a batch runs again. The outbox holds the changes
of a batch until they are published to the topic of the view or stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from headwater.errors import FencedError, LedgerMismatchError, TooLargeError, UnknownViewError
from headwater.store.changelog import ChangeSet, pack, unpack
from headwater.store.columns import not_unique_error, to_arrays
from headwater.store.commit.commit import Commit, OffsetRange, OutboxEntry, SideOutput, ViewTable
from headwater.store.commit.ledger import LedgerEntry, find_entry, write_ends, write_entry
from headwater.store.commit.row_checks import plain_text
from headwater.store.commit.state_table import write_state_sizes, write_states
from headwater.store.dialect import Dialect, Session, ViewWriter
from headwater.store.view_registry import find_table

__all__ = [
    "MAX_OUTBOX_BYTES",
    "check_epoch",
    "commit_batch",
    "mark_published",
    "open_epoch",
    "read_outbox",
    "read_side_outputs",
    "read_skip_positions",
    "write_side_outputs",
]

SideTable = Literal["late", "quarantine", "skips"]
_COLUMNS = 'topic, partition, "offset", occurred_at, received_at, value, reason, data'


def write_side_outputs(
    session: Session, table: SideTable, query: str, batch: int, events: Sequence[SideOutput], now: int
) -> None:
    """Write late or quarantined events, replacing existing ones; runs in the caller's transaction.

    Args:
        session: A session in a transaction.
        table: The table.
        query: The query.
        batch: The batch that found them.
        events: The events.
        now: From when their retention counts, in microseconds since 1970.
    """
    rows = (
        (
            *(query, event.topic, event.partition, event.offset, event.occurred_at, event.received_at),
            *(plain_text(event.value), plain_text(event.reason), event.data, batch, now),
        )
        for event in events
    )
    statement = f"""
        INSERT INTO hw${table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (query, topic, partition, "offset") DO UPDATE SET
            occurred_at = excluded.occurred_at, received_at = excluded.received_at,
            value = excluded.value, reason = excluded.reason, data = excluded.data, batch = excluded.batch,
            kept_at = excluded.kept_at
    """
    session.executemany(statement, rows)


_RANGES_PER_STATEMENT = 100


def read_side_outputs(
    session: Session, table: SideTable, query: str, ranges: Sequence[OffsetRange] | None = None
) -> list[SideOutput]:
    """Returns the side outputs of a query, in these offset ranges or anywhere, by topic, partition and offset."""
    select, order = f"SELECT {_COLUMNS} FROM hw${table} WHERE query = ?", 'topic, partition, "offset"'
    if ranges is None:
        found = session.execute(f"{select} ORDER BY {order}", (query,)).fetchall()
        return [SideOutput(*row) for row in found]
    # One seek of the index for each range; conditions that are joined by OR would read all rows of the query.
    within = f'{select} AND topic = ? AND partition = ? AND "offset" >= ? AND "offset" < ?'
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # ranges may overlap
    for start in range(0, len(ranges), _RANGES_PER_STATEMENT):
        some = ranges[start : start + _RANGES_PER_STATEMENT]
        parameters = [value for one in some for value in (query, *one)]
        read = session.execute(" UNION ALL ".join([within] * len(some)), parameters).fetchall()
        rows |= {row[:3]: row for row in read}
    return [SideOutput(*rows[position]) for position in sorted(rows)]


def read_skip_positions(session: Session, query: str) -> list[tuple[str, int, int]]:
    """Returns topic, partition and offset of the events that a query skips, in this order."""
    found = 'SELECT topic, partition, "offset" FROM hw$skips WHERE query = ? ORDER BY 1, 2, 3'
    return [(topic, partition, offset) for topic, partition, offset in session.execute(found, (query,)).fetchall()]


MAX_OUTBOX_BYTES = 1_000_000_000
"""The maximum size of a batch's changes in bytes: SQLite and PostgreSQL store no longer value."""


def _write_outbox(session: Session, entry: LedgerEntry, changes: pa.Table) -> None:
    data = pack(changes)
    if data.size > MAX_OUTBOX_BYTES - 1_000:  # the limit is for the whole row
        what = f"batch {entry.batch} of {entry.query!r} makes {data.size >> 20:,} MB of changes"
        raise TooLargeError(what, fix="use smaller batches", limit=MAX_OUTBOX_BYTES)
    session.execute(
        "INSERT INTO hw$outbox VALUES (?, ?, ?, ?, ?)",
        (entry.query, entry.batch, entry.watermark, entry.committed_at, memoryview(data)),
    )


def read_outbox(session: Session, query: str) -> list[OutboxEntry]:
    """Returns the unpublished entries, oldest first."""
    found = "SELECT batch, changes, watermark, committed_at FROM hw$outbox WHERE query = ? ORDER BY batch"
    rows = session.execute(found, (query,)).fetchall()
    return [
        OutboxEntry(query, batch, unpack(changes), watermark, at, find_entry(session, query, batch))
        for batch, changes, watermark, at in rows
    ]


def mark_published(session: Session, query: str, batch: int, ends: Mapping[int, int]) -> None:
    """Delete the outbox entry of a batch and record the end offsets of its topic; idempotent."""
    if session.execute("DELETE FROM hw$outbox WHERE query = ? AND batch = ?", (query, batch)).rowcount:
        write_ends(session, query, batch, ends)


def commit_batch(session: Session, dialect: Dialect[Any], commit: Commit, writer: ViewWriter[Any] | None) -> bool:
    """Write the batch; returns False and writes nothing if exactly this batch is in the ledger.

    Args:
        session: A session in a transaction that excludes other writers of the query.
        dialect: The database.
        commit: The commit of the batch.
        writer: Writes the rows of the view, which are staged; None for a stream.

    Raises:
        FencedError: A newer runner has opened an epoch of the query.
        LedgerMismatchError: The batch is in the ledger with other offsets, or is missing there below the newest batch.
        UnknownViewError: The view's table was never created.
        KeyNotUniqueError: The view has another row of a key that `commit.inserts` names.
    """
    entry = commit.entry
    # The epoch comes first: a fenced runner must not even learn that its batch is known. The ledger comes before any
    # write: a batch that was committed before the crash of its runner is recognised by its offsets and skipped.
    check_epoch(session, entry.query, entry.epoch)
    known = find_entry(session, entry.query, entry.batch)
    if known is not None and known.same_range(entry):
        return False
    totals = "SELECT watermark, last_batch FROM hw$totals WHERE query = ?"
    watermark, last = session.execute(totals, (entry.query,)).fetchone() or (None, -1)
    if known is not None or entry.batch <= last:
        raise _mismatch_error(known, entry, last)
    rows, changes = _write_rows(session, commit, writer, watermark)
    with session.pipeline():
        write_entry(session, replace(entry, rows=rows))
        if changes is not None and changes.num_rows:
            _write_outbox(session, entry, changes)
        write_states(session, dialect, entry.query, commit.states)
        write_state_sizes(session, entry.query, commit.state_sizes)
        write_side_outputs(session, "late", entry.query, entry.batch, commit.late, entry.committed_at)
        # Before the write: an event that is retried and rejected again stays in quarantine.
        session.executemany(
            'DELETE FROM hw$quarantine WHERE query = ? AND topic = ? AND partition = ? AND "offset" = ?',
            [(entry.query, *position) for position in commit.retried],
        )
        rejected = commit.quarantined
        write_side_outputs(session, "quarantine", entry.query, entry.batch, rejected, entry.committed_at)
    return True


def _write_rows(
    session: Session, commit: Commit, writer: ViewWriter[Any] | None, before: int | None
) -> tuple[int, pa.Table | None]:
    """Write the rows of a view; returns the number of changed rows, and what goes to the outbox."""
    table, watermark = commit.table, commit.entry.watermark
    if writer is None or table is None:
        return commit.rows.num_rows, commit.rows
    if find_table(session, table.name, table.version) is None:
        what = f'there is no version {table.version} of view "{table.name}" in the store'
        raise UnknownViewError(what, fix="create it first", view=table.name, version=table.version)
    final = commit.finals and table.window is not None and watermark is not None
    changes = writer.apply(session, (before, watermark) if final and watermark is not None else None)
    _require_new_keys(table, commit, changes)
    if commit.changes is not None or not changes:
        return changes.rows, commit.changes
    return changes.rows, changes.to_table(table, commit.entry.committed_at)


def _require_new_keys(table: ViewTable, commit: Commit, changes: ChangeSet) -> None:
    """Refuse a second row of a key: the first to be deleted would delete the key, and with it the other row."""
    # All other rows of the commit replace a row, so the numbers are equal unless a key had a row.
    if commit.inserts is None or changes.inserted.num_rows >= commit.inserts.num_rows:
        return
    new = set(_row_keys(table, changes.inserted))
    replaced = {key: number for number, key in enumerate(_row_keys(table, changes.after))}
    for number, key in enumerate(_row_keys(table, commit.inserts)):
        if key in new or (key not in replaced and commit.merge_equal):
            continue
        at = replaced.get(key)
        same = commit.rows.take([_row_keys(table, commit.rows).index(key)] * 2)
        rows = same if at is None else pa.concat_tables([changes.before.slice(at, 1), changes.after.slice(at, 1)])
        raise not_unique_error(table, commit.inserts.slice(number, 1).to_pylist()[0], rows)


def _row_keys(table: ViewTable, rows: pa.Table) -> list[tuple[Any, ...]]:
    keys = [array.to_pylist() for column, array in to_arrays(table, rows) if column.view_column in table.key]
    return list(zip(*keys, strict=True))


def open_epoch(session: Session, query: str) -> int:
    """Open a new epoch of a query, larger than all before."""
    statement = """
        INSERT INTO hw$epochs AS e VALUES (?, 1) ON CONFLICT (query) DO UPDATE SET epoch = e.epoch + 1 RETURNING epoch
    """
    ((epoch,),) = session.execute(statement, (query,)).fetchall()
    return int(epoch)


def check_epoch(session: Session, query: str, epoch: int) -> None:
    """Check that this is the newest epoch of the query.

    Raises:
        FencedError: A newer runner has opened an epoch of the query.
    """
    found = session.execute("SELECT epoch FROM hw$epochs WHERE query = ?", (query,)).fetchone()
    current = found[0] if found else 0
    if current != epoch:
        raise FencedError(
            f'query "{query}" is at epoch {current}: another runner has taken over',
            detail=f"this runner has epoch {epoch}; nothing of its batch was committed",
            fix="stop this runner; the other one continues",
            query=query,
            epoch=current,
        )


def _mismatch_error(known: LedgerEntry | None, entry: LedgerEntry, last: int) -> LedgerMismatchError:
    there = f"the ledger is at batch {last} already" if known is None else f"ledger: {known.ranges()}"
    return LedgerMismatchError(
        f'batch {entry.batch} of "{entry.query}" was offered again with other offsets',
        detail=f"{there}\noffered: {entry.ranges()}",
        fix=f"stop the app; headwater backfill {entry.query.rpartition('@')[0]}",
        query=entry.query,
        batch=entry.batch,
        ledger=None if known is None else known.ranges(),
        offered=entry.ranges(),
    )
