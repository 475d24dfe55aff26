"""Rows of large batches, sent by several workers at once and published by one commit.

Each part is an unlogged table of its own, which a crash of the server empties: the commit counts before it publishes.
A part that no commit names, of a worker that was started twice or of a batch that failed, goes with the next commit.
"""

from __future__ import annotations

import uuid

import pyarrow as pa

from headwater.errors import UnreachableError
from headwater.store.definition import StagedPart, ViewTable
from headwater.store.postgres.columns import csv_of, declared, written
from headwater.store.postgres.connection import OWN, PostgresSession, quoted
from headwater.store.slots import fitted, slots

__all__ = ["drop_parts", "require_whole", "source_of", "stage_part"]


def stage_part(session: PostgresSession, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
    """Send rows of a view; inside the caller's transaction."""
    columns = written(table, fitted(table, rows, table.schema))
    keys = [column for slot, column in zip(slots(table), columns, strict=True) if slot.column in table.key]
    part = StagedPart(
        f"staged_{uuid.uuid4().hex}", rows.num_rows, tuple(bool(key.null_count) for key in keys)
    )
    described = ", ".join(f"c{number} {declared(slot.kind)}" for number, slot in enumerate(slots(table)))
    session.run(f"CREATE UNLOGGED TABLE {_target(part)} (n bigint, {described})")
    session.execute("INSERT INTO hw$staged VALUES (?, ?, ?)", (part.table, table.query, batch))
    session.copy_in(_target(part), csv_of([pa.array(range(rows.num_rows), pa.int64()), *columns]))
    return part


def source_of(parts: tuple[StagedPart, ...], once: int = 0) -> str:
    """All rows of these parts, for SQL text.

    Args:
        parts: The parts.
        once: If given, of equal rows only one is meant; it is the number of columns.
    """
    rows = f"({' UNION ALL '.join(f'SELECT * FROM {_target(part)}' for part in parts)})"
    if not once:
        return rows
    columns = ", ".join(f"c{number}" for number in range(once))
    return f"(SELECT min(n) AS n, {columns} FROM {rows} r GROUP BY {columns})"


def require_whole(session: PostgresSession, parts: tuple[StagedPart, ...]) -> None:
    """Refuse parts that have lost their rows.

    Raises:
        UnreachableError: The server was restarted since they were staged; run the batch again.
    """
    for part in parts:
        (known,) = session.connection.execute("SELECT to_regclass(%s)", (_target(part),)).fetchone() or (
            None,
        )
        rows = 0
        if known is not None:
            (rows,) = session.connection.execute(
                f"SELECT count(*) FROM {_target(part)}".encode()
            ).fetchone() or (0,)
        if rows != part.rows:
            what = f"{part.rows:,} rows were staged, and the database has {rows:,} of them"
            raise UnreachableError(what, detail="it was restarted meanwhile", fix="run the batch again")


def drop_parts(session: PostgresSession, query: str, batch: int) -> None:
    """Let go of all that was staged for this batch or one before it; inside the caller's transaction."""
    removed = "DELETE FROM hw$staged WHERE query = ? AND batch <= ? RETURNING name"
    for (name,) in session.execute(removed, (query, batch)).fetchall():
        session.run(f"DROP TABLE IF EXISTS {OWN}.{quoted(name)}")


def _target(part: StagedPart) -> str:
    return f"{OWN}.{quoted(part.table)}"
