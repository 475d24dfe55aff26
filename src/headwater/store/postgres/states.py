"""What operators remember, in PostgreSQL: one table of entries, in order of space, key and name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headwater.store.bookkeeping.spaces import find_space, make_space
from headwater.store.definition import StateWrite
from headwater.store.postgres.connection import PostgresSession

__all__ = ["PostgresStates", "write_states"]

Ask = Callable[[Callable[[PostgresSession], Any]], Any]

_VALUES: Final = """
    SELECT s.value FROM unnest(?::bytea[], ?::bytea[]) WITH ORDINALITY AS sought(key, name, place)
    LEFT JOIN hw$state s ON s.space = ? AND s.key = sought.key AND s.name = sought.name ORDER BY sought.place
"""
_BELOW: Final = """
    SELECT key, name, value FROM hw$state WHERE space = ? AND key = ANY(?::bytea[]) ORDER BY key, name
"""
_PUT: Final = """
    INSERT INTO hw$state SELECT ?, * FROM unnest(?::bytea[], ?::bytea[], ?::bytea[], ?::int[])
    ON CONFLICT (space, key, name) DO UPDATE SET value = excluded.value, held = excluded.held
"""
_TAKE: Final = """
    DELETE FROM hw$state s USING unnest(?::bytea[], ?::bytea[]) AS gone(key, name)
    WHERE s.space = ? AND s.key = gone.key AND s.name = gone.name
"""


class PostgresStates:
    """The state of one query; implements `headwater.store.States`.

    Args:
        ask: Runs something on a connection.
        query: Whose state.
    """

    def __init__(self, ask: Ask, query: str) -> None:
        self._ask = ask
        self._query = query

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """The values of many entries, in the order asked for; None where there is none."""
        found = self._rows(space, lambda number: (_VALUES, (list(keys), list(names), number)))
        return [row[0] for row in found] if found else [None] * len(keys)

    def below(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """All entries of these keys, by key, then by name in order."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        for key, name, value in self._rows(space, lambda number: (_BELOW, (number, list(keys)))):
            found.setdefault(key, {})[name] = value
        return found

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, most: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Entries of one key with names from `low` up to, not including, `high`, at most so many."""
        upper = "" if high is None else "AND name < ?"
        order = "DESC" if backwards else "ASC"
        query = f"""
            SELECT name, value FROM hw$state WHERE space = ? AND key = ? AND name >= ? {upper}
            ORDER BY name {order} LIMIT ?
        """
        bounds = () if high is None else (high,)
        found = self._rows(space, lambda number: (query, (number, key, low, *bounds, most)))
        return [(name, value) for name, value in found]

    def _rows(self, space: str, query: Callable[[int], tuple[str, Sequence[Any]]]) -> list[Any]:
        def asked(session: PostgresSession) -> list[Any]:
            number = find_space(session, self._query, space)
            return [] if number is None else session.execute(*query(number)).fetchall()

        found: list[Any] = self._ask(asked)
        return found


def write_states(session: PostgresSession, query: str, writes: Sequence[StateWrite]) -> None:
    """Change what operators remember; inside the caller's transaction."""
    for write in writes:
        number = make_space(session, query, write.space, write.kinds)
        entries = list(write)
        put = [entry for entry in entries if entry[2] is not None]
        if put:
            session.execute(_PUT, (number, *map(list, zip(*put, strict=True))))
        if len(put) < len(entries):
            gone = [entry[:2] for entry in entries if entry[2] is None]
            session.execute(_TAKE, (*map(list, zip(*gone, strict=True)), number))
