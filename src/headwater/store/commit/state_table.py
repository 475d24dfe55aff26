"""Operator state: entries by space, key and name, in one table.

Each space of a query has a number, under which its entries are stored. The sizes of state that is kept in Spark are
stored in another table, one row per key group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headwater.store.commit.commit import StateSize, StateWrite
from headwater.store.dialect import Dialect, Session

__all__ = ["SqlStateStore", "delete_state", "write_state_sizes", "write_states"]

_T = TypeVar("_T")
_NO_LIMIT = 2**63 - 1  # for LIMIT; both databases accept it, and one statement serves all limits


class SqlStateStore:
    """The committed operator state of one query; implements `headwater.store.StateStore`.

    Args:
        dialect: The database.
        query: The query whose state it is.
    """

    def __init__(self, dialect: Dialect[Any], query: str) -> None:
        self._dialect = dialect
        self._query = query

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry."""
        found = self._read(space, lambda session, number: self._dialect.state.values(session, number, keys, names))
        return [None] * len(keys) if found is None else found

    def entries(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Returns all entries of these keys, by key, then in order of name; keys without entries are missing."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        rows = self._read(space, lambda session, number: list(self._dialect.state.entries(session, number, keys)))
        for key, name, value in rows or ():
            found.setdefault(key, {})[name] = value
        return found

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, limit: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Returns entries of one key with names in `[low, high)`, at most `limit` of them."""
        bounds = () if high is None else (high,)
        upper = "AND name < ?" if bounds else ""
        query = f"""
            SELECT name, value FROM hw$state WHERE space = ? AND key = ? AND name >= ? {upper}
            ORDER BY name {"DESC" if backwards else "ASC"} LIMIT ?
        """
        values = (key, low, *bounds, _NO_LIMIT if limit is None else limit)
        return self._read(space, lambda session, number: session.execute(query, (number, *values)).fetchall()) or []

    def _read(self, space: str, work: Callable[[Any, int], _T]) -> _T | None:
        """Returns the result of `work` with the number of a space; None if nothing was ever written there."""

        def read(session: Session) -> _T | None:
            found = session.execute("SELECT id FROM hw$spaces WHERE query = ? AND space = ?", (self._query, space))
            row = found.fetchone()
            return None if row is None else work(session, int(row[0]))

        return self._dialect.read(read)


def write_states(session: Session, dialect: Dialect[Any], query: str, writes: Sequence[StateWrite]) -> None:
    """Write changes of operator state; runs in the caller's transaction."""
    for write in writes:
        number = _ensure_space(session, query, write.space, write.kinds)
        entries = list(write)
        puts = [entry for entry in entries if entry[2] is not None]
        deletes = [entry[:2] for entry in entries if entry[2] is None] if len(puts) < len(entries) else []
        dialect.state.write(session, number, puts, deletes)


def write_state_sizes(session: Session, query: str, sizes: Sequence[StateSize]) -> None:
    """Replace the recorded sizes of some key groups of state that is kept in Spark."""
    if not sizes:
        return
    kinds = {one.space: one.kinds for one in sizes}
    numbers = {space: _ensure_space(session, query, space, its) for space, its in kinds.items()}
    session.executemany(
        """
        INSERT INTO hw$kept (space, bucket, keys, entries, bytes, largest, key) VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (space, bucket) DO UPDATE SET keys = excluded.keys, entries = excluded.entries,
            bytes = excluded.bytes, largest = excluded.largest, key = excluded.key
        """,
        # A batch may report a key group twice; the last report counts.
        [(numbers[o.space], o.bucket, o.keys, o.entries, o.size, o.largest, o.key) for o in sizes],
    )


def delete_state(session: Session, query: str) -> None:
    """Delete the operator state of a query."""
    mine = "SELECT id FROM hw$spaces WHERE query = ?"
    for table in ("hw$state", "hw$kept"):
        session.execute(f"DELETE FROM {table} WHERE space IN ({mine})", (query,))
    session.execute("DELETE FROM hw$spaces WHERE query = ?", (query,))


def _ensure_space(session: Session, query: str, space: str, kinds: str) -> int:
    """Returns the number of a space, and assigns one if it has none. Records the types of its keys once known."""
    found = session.execute("SELECT id, kinds FROM hw$spaces WHERE query = ? AND space = ?", (query, space)).fetchone()
    if found is not None:
        number, known_kinds = found
        if kinds and not known_kinds:
            session.execute("UPDATE hw$spaces SET kinds = ? WHERE id = ?", (kinds, number))
        return int(number)
    statement = "INSERT INTO hw$spaces (query, space, kinds) VALUES (?, ?, ?) RETURNING id"
    ((made,),) = session.execute(statement, (query, space, kinds)).fetchall()
    return int(made)
