"""Operator state in PostgreSQL: one table of entries, ordered by space, key and name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headwater.sql.postgres_pool import PostgresSession
from headwater.store.commit import StateWrite
from headwater.store.state_table import ensure_space, find_space

__all__ = ["PostgresStateStore", "write_states"]

ReadFunction = Callable[[Callable[[PostgresSession], Any]], Any]

_VALUES: Final = """
    SELECT s.value FROM unnest(?::bytea[], ?::bytea[]) WITH ORDINALITY AS sought(key, name, place)
    LEFT JOIN hw$state s ON s.space = ? AND s.key = sought.key AND s.name = sought.name ORDER BY sought.place
"""
_ENTRIES: Final = """
    SELECT key, name, value FROM hw$state WHERE space = ? AND key = ANY(?::bytea[]) ORDER BY key, name
"""
_UPSERT: Final = """
    INSERT INTO hw$state SELECT ?, * FROM unnest(?::bytea[], ?::bytea[], ?::bytea[], ?::int[])
    ON CONFLICT (space, key, name) DO UPDATE SET value = excluded.value, held = excluded.held
"""
_DELETE: Final = """
    DELETE FROM hw$state s USING unnest(?::bytea[], ?::bytea[]) AS gone(key, name)
    WHERE s.space = ? AND s.key = gone.key AND s.name = gone.name
"""


class PostgresStateStore:
    """The operator state of one query; implements `headwater.store.StateStore`.

    Args:
        read: Runs something on a connection.
        query: Whose state.
    """

    def __init__(self, read: ReadFunction, query: str) -> None:
        self._read = read
        self._query = query

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry."""
        found = self._fetch(space, lambda number: (_VALUES, (list(keys), list(names), number)))
        return [row[0] for row in found] if found else [None] * len(keys)

    def entries(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Returns all entries of these keys, by key, then in order of name."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        for key, name, value in self._fetch(space, lambda number: (_ENTRIES, (number, list(keys)))):
            found.setdefault(key, {})[name] = value
        return found

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, limit: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Returns entries of one key with names in `[low, high)`, at most `limit` of them."""
        upper = "" if high is None else "AND name < ?"
        order = "DESC" if backwards else "ASC"
        query = f"""
            SELECT name, value FROM hw$state WHERE space = ? AND key = ? AND name >= ? {upper}
            ORDER BY name {order} LIMIT ?
        """
        bounds = () if high is None else (high,)
        found = self._fetch(space, lambda number: (query, (number, key, low, *bounds, limit)))
        return [(name, value) for name, value in found]

    def _fetch(self, space: str, query: Callable[[int], tuple[str, Sequence[Any]]]) -> list[Any]:
        def fetch(session: PostgresSession) -> list[Any]:
            number = find_space(session, self._query, space)
            return [] if number is None else session.execute(*query(number)).fetchall()

        found: list[Any] = self._read(fetch)
        return found


def write_states(session: PostgresSession, query: str, writes: Sequence[StateWrite]) -> None:
    """Write changes of operator state; runs in the caller's transaction."""
    for write in writes:
        number = ensure_space(session, query, write.space, write.kinds)
        entries = list(write)
        put = [entry for entry in entries if entry[2] is not None]
        if put:
            session.execute(_UPSERT, (number, *map(list, zip(*put, strict=True))))
        if len(put) < len(entries):
            gone = [entry[:2] for entry in entries if entry[2] is None]
            session.execute(_DELETE, (*map(list, zip(*gone, strict=True)), number))
