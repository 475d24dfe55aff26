"""Operator state in SQLite: one table of entries, ordered by space, key and name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from headwater.store.commit import StateWrite
from headwater.store.state_table import ensure_space, find_space

__all__ = ["SqliteStateStore", "write_states"]

_CHUNK_SIZES: Final = (2048, 128, 8, 1)
"""How many entries one statement asks for: few different statements, so that each is prepared once."""


class SqliteStateStore:
    """The operator state of one query; implements `headwater.store.StateStore`.

    Args:
        open_session: Gives the connection for a while.
        query: Whose state.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[sqlite3.Connection]], query: str) -> None:
        self._open_session = open_session
        self._query = query

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry."""
        found: dict[tuple[bytes, bytes], bytes] = {}
        with self._open_session() as connection:
            number = find_space(connection, self._query, space)
            if number is None:
                return [None] * len(keys)
            for start, size in _chunks(len(keys)):
                parameters = [part for pair in zip(keys[start : start + size], names[start : start + size], strict=True)
                          for part in pair]  # fmt: skip
                for key, name, value in connection.execute(_values_query(size), (*parameters, number)):
                    found[key, name] = value
        return [found.get(pair) for pair in zip(keys, names, strict=True)]

    def entries(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Returns all entries of these keys, by key, then in order of name."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        with self._open_session() as connection:
            number = find_space(connection, self._query, space)
            for start, size in _chunks(len(keys) if number is not None else 0):
                marks = ", ".join("?" * size)
                query = f"SELECT key, name, value FROM hw$state WHERE space = ? AND key IN ({marks}) ORDER BY key, name"
                for key, name, value in connection.execute(query, (number, *keys[start : start + size])):
                    found.setdefault(key, {})[name] = value
        return found

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, limit: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Returns entries of one key with names in `[low, high)`, at most `limit` of them."""
        with self._open_session() as connection:
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
            return connection.execute(query, (number, key, low, *bounds, -1 if limit is None else limit)).fetchall()


def write_states(connection: sqlite3.Connection, query: str, writes: Sequence[StateWrite]) -> None:
    """Write changes of operator state; runs in the caller's transaction."""
    for write in writes:
        number = ensure_space(connection, query, write.space, write.kinds)
        entries = sorted(write)  # neighbours share a page
        put = [entry for entry in entries if entry[2] is not None]
        connection.executemany(f"INSERT OR REPLACE INTO hw$state VALUES ({number}, ?, ?, ?, ?)", put)
        if len(put) < len(entries):
            gone = (entry[:2] for entry in entries if entry[2] is None)
            connection.executemany(f"DELETE FROM hw$state WHERE space = {number} AND key = ? AND name = ?", gone)


def _values_query(size: int) -> str:
    pairs = ", ".join(["(?, ?)"] * size)
    return f"""
        WITH sought(key, name) AS (VALUES {pairs})
        SELECT s.key, s.name, s.value FROM sought CROSS JOIN hw$state s
        ON s.space = ? AND s.key = sought.key AND s.name = sought.name
    """


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Returns the start of each statement and the number of entries it reads.

    Example:
        >>> list(_chunks(138))
        [(0, 128), (128, 8), (136, 1), (137, 1)]
    """
    start = 0
    for size in _CHUNK_SIZES:
        while count - start >= size:
            yield start, size
            start += size
