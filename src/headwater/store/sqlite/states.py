"""What operators remember, in SQLite: one table of entries, in order of space, key and name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from headwater.store.bookkeeping.spaces import find_space, make_space
from headwater.store.definition import StateWrite

__all__ = ["SqliteStates", "write_states"]

_SIZES: Final = (2048, 128, 8, 1)
"""How many entries one statement asks for: few different statements, so that each is prepared once."""


class SqliteStates:
    """The state of one query; implements `headwater.store.States`.

    Args:
        reading: Gives the connection for a while.
        query: Whose state.
    """

    def __init__(self, reading: Callable[[], AbstractContextManager[sqlite3.Connection]], query: str) -> None:
        self._reading = reading
        self._query = query

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """The values of many entries, in the order asked for; None where there is none."""
        found: dict[tuple[bytes, bytes], bytes] = {}
        with self._reading() as connection:
            number = find_space(connection, self._query, space)
            if number is None:
                return [None] * len(keys)
            for start, size in _chunks(len(keys)):
                sought = [part for pair in zip(keys[start : start + size], names[start : start + size], strict=True)
                          for part in pair]  # fmt: skip
                for key, name, value in connection.execute(_sought(size), (*sought, number)):
                    found[key, name] = value
        return [found.get(pair) for pair in zip(keys, names, strict=True)]

    def below(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """All entries of these keys, by key, then by name in order."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        with self._reading() as connection:
            number = find_space(connection, self._query, space)
            for start, size in _chunks(len(keys) if number is not None else 0):
                marks = ", ".join("?" * size)
                query = f"SELECT key, name, value FROM hw$state WHERE space = ? AND key IN ({marks}) ORDER BY key, name"
                for key, name, value in connection.execute(query, (number, *keys[start : start + size])):
                    found.setdefault(key, {})[name] = value
        return found

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, most: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Entries of one key with names from `low` up to, not including, `high`, at most so many."""
        with self._reading() as connection:
            number = find_space(connection, self._query, space)
            if number is None:
                return []
            upper = "" if high is None else "AND name < ?"
            order = "DESC" if backwards else "ASC"
            query = f"""
                SELECT name, value FROM hw$state WHERE space = ? AND key = ? AND name >= ? {upper}
                ORDER BY name {order} LIMIT ?
            """
            bounds = () if high is None else (high,)
            return connection.execute(
                query, (number, key, low, *bounds, -1 if most is None else most)
            ).fetchall()


def write_states(connection: sqlite3.Connection, query: str, writes: Sequence[StateWrite]) -> None:
    """Change what operators remember; inside the caller's transaction."""
    for write in writes:
        number = make_space(connection, query, write.space, write.kinds)
        entries = sorted(write)  # neighbours share a page
        put = [entry for entry in entries if entry[2] is not None]
        connection.executemany(f"INSERT OR REPLACE INTO hw$state VALUES ({number}, ?, ?, ?, ?)", put)
        if len(put) < len(entries):
            gone = (entry[:2] for entry in entries if entry[2] is None)
            connection.executemany(
                f"DELETE FROM hw$state WHERE space = {number} AND key = ? AND name = ?", gone
            )


def _sought(size: int) -> str:
    pairs = ", ".join(["(?, ?)"] * size)
    return f"""
        WITH sought(key, name) AS (VALUES {pairs})
        SELECT s.key, s.name, s.value FROM sought CROSS JOIN hw$state s
        ON s.space = ? AND s.key = sought.key AND s.name = sought.name
    """


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Where each statement begins, and how many entries it asks for.

    Example:
        >>> list(_chunks(138))
        [(0, 128), (128, 8), (136, 1), (137, 1)]
    """
    start = 0
    for size in _SIZES:
        while count - start >= size:
            yield start, size
            start += size
