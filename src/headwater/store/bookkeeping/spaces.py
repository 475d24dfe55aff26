"""The spaces of operators' state: each has a number, under which its entries stand in one table."""

from __future__ import annotations

from headwater.store.bookkeeping.session import Session

__all__ = ["find_space", "forget_state", "make_space"]


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


def forget_state(session: Session, query: str) -> None:
    """Take away all that the operators of a query remember."""
    mine = "SELECT id FROM hw$spaces WHERE query = ?"
    session.execute(f"DELETE FROM hw$state WHERE space IN ({mine})", (query,))
    session.execute("DELETE FROM hw$spaces WHERE query = ?", (query,))
