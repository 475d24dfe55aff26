"""The spaces of operators' state: each has a number, under which its entries stand in one table.

How much is kept in Spark stands in another, bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.store.bookkeeping.session import Session
from headwater.store.definition import StateKept

__all__ = ["find_space", "forget_state", "make_space", "write_kept"]


def find_space(session: Session, query: str, space: str) -> int | None:
    """The number of a space; None when nothing was ever written there."""
    found = session.execute(
        "SELECT id FROM hw$spaces WHERE query = ? AND space = ?", (query, space)
    ).fetchone()
    return None if found is None else int(found[0])


def make_space(session: Session, query: str, space: str, kinds: str = "") -> int:
    """The number of a space, given out now if it has none.

    What its keys are, as `StateWrite` has it, is noted then, or later if nobody has noted it yet.
    """
    found = session.execute(
        "SELECT id, kinds FROM hw$spaces WHERE query = ? AND space = ?", (query, space)
    ).fetchone()
    if found is not None:
        known, noted = found
        if kinds and not noted:
            session.execute("UPDATE hw$spaces SET kinds = ? WHERE id = ?", (kinds, known))
        return int(known)
    statement = "INSERT INTO hw$spaces (query, space, kinds) VALUES (?, ?, ?) RETURNING id"
    ((made,),) = session.execute(statement, (query, space, kinds)).fetchall()
    return int(made)


def write_kept(session: Session, query: str, kept: Sequence[StateKept]) -> None:
    """Note how much is kept elsewhere, of some buckets; it takes the place of what was noted of them before."""
    if not kept:
        return
    kinds = {one.space: one.kinds for one in kept}
    numbers = {space: make_space(session, query, space, its) for space, its in kinds.items()}
    session.executemany(
        """
        INSERT INTO hw$kept (space, bucket, keys, entries, bytes, largest, key) VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (space, bucket) DO UPDATE SET keys = excluded.keys, entries = excluded.entries,
            bytes = excluded.bytes, largest = excluded.largest, key = excluded.key
        """,
        # A bucket may be told twice in a batch, and the last word counts.
        [(numbers[o.space], o.bucket, o.keys, o.entries, o.size, o.largest, o.key) for o in kept],
    )


def forget_state(session: Session, query: str) -> None:
    """Take away all that the operators of a query remember."""
    mine = "SELECT id FROM hw$spaces WHERE query = ?"
    for table in ("hw$state", "hw$kept"):
        session.execute(f"DELETE FROM {table} WHERE space IN ({mine})", (query,))
    session.execute("DELETE FROM hw$spaces WHERE query = ?", (query,))
