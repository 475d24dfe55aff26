"""Spaces of operator state: each space has a number, under which its entries are stored in one table.

The sizes of state that is kept in Spark are stored in another table, one row per key group.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.store.commit import StateSize
from headwater.store.dialect import Session

__all__ = ["delete_state", "ensure_space", "find_space", "write_state_sizes"]


def find_space(session: Session, query: str, space: str) -> int | None:
    """Returns the number of a space; None if nothing was ever written there."""
    found = session.execute("SELECT id FROM hw$spaces WHERE query = ? AND space = ?", (query, space)).fetchone()
    return None if found is None else int(found[0])


def ensure_space(session: Session, query: str, space: str, kinds: str = "") -> int:
    """Returns the number of a space, and assigns one if it has none.

    What its keys are, as `StateWrite` has it, is noted then, or later if nobody has noted it yet.
    """
    found = session.execute("SELECT id, kinds FROM hw$spaces WHERE query = ? AND space = ?", (query, space)).fetchone()
    if found is not None:
        known, noted = found
        if kinds and not noted:
            session.execute("UPDATE hw$spaces SET kinds = ? WHERE id = ?", (kinds, known))
        return int(known)
    statement = "INSERT INTO hw$spaces (query, space, kinds) VALUES (?, ?, ?) RETURNING id"
    ((made,),) = session.execute(statement, (query, space, kinds)).fetchall()
    return int(made)


def write_state_sizes(session: Session, query: str, sizes: Sequence[StateSize]) -> None:
    """Replace the recorded sizes of some key groups of state that is kept in Spark."""
    if not sizes:
        return
    kinds = {one.space: one.kinds for one in sizes}
    numbers = {space: ensure_space(session, query, space, its) for space, its in kinds.items()}
    session.executemany(
        """
        INSERT INTO hw$kept (space, bucket, keys, entries, bytes, largest, key) VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (space, bucket) DO UPDATE SET keys = excluded.keys, entries = excluded.entries,
            bytes = excluded.bytes, largest = excluded.largest, key = excluded.key
        """,
        # A key group may be reported twice in a batch; the last report counts.
        [(numbers[o.space], o.bucket, o.keys, o.entries, o.size, o.largest, o.key) for o in sizes],
    )


def delete_state(session: Session, query: str) -> None:
    """Delete the operator state of a query."""
    mine = "SELECT id FROM hw$spaces WHERE query = ?"
    for table in ("hw$state", "hw$kept"):
        session.execute(f"DELETE FROM {table} WHERE space IN ({mine})", (query,))
    session.execute("DELETE FROM hw$spaces WHERE query = ?", (query,))
