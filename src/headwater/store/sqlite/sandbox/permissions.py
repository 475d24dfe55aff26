"""What a user's SQL may do: read columns of known tables and call known functions. All else is refused by SQLite.

The tables are known by what they are, not by the view they are read through: a query can give any name to a part of
itself, so the name of the reading view proves nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

__all__ = ["FUNCTIONS", "Permissions"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
    """
    abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce cos cosh count cume_dist
    current_date current_time current_timestamp date datetime degrees dense_rank exp first_value floor format glob
    group_concat hex ifnull iif instr json json_array json_array_length json_each json_extract json_group_array
    json_group_object json_object json_quote json_tree json_type json_valid julianday lag last_value lead length like
    likely ln log log10 log2 lower ltrim max min mod nth_value ntile nullif percent_rank pi pow power printf quote
    radians random rank replace round row_number rtrim sign sin sinh sqrt strftime substr substring sum tan tanh time
    total trim trunc typeof unicode unixepoch unlikely upper -> ->>
    """
)
_TABLES = frozenset({"json_each", "json_tree"})
_REFUSED_PREFIXES = ("sqlite_", "pragma_", "hw$", "dbstat", "fts", "rtree", "bytecode", "tables_used")


class Permissions:
    """Says yes or no to each thing a statement would do, while SQLite prepares it.

    Args:
        tables: Tables and views that may be read, in lower case.
    """

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = frozenset(tables) | _TABLES
        self.refused = ""

    def watch(self, connection: sqlite3.Connection) -> None:
        """Ask for every statement that is prepared from now on."""
        connection.set_authorizer(self._decide)

    def _decide(
        self, action: int, first: str | None, second: str | None, database: str | None, source: str | None
    ) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            return self._read((first or "").lower(), second, database)
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS:
            return sqlite3.SQLITE_OK
        self.refused = _described(action, first, second)
        return sqlite3.SQLITE_DENY

    def _read(self, table: str, column: str | None, database: str | None) -> int:
        if table in self._tables and database in ("main", "temp", None):
            return sqlite3.SQLITE_OK
        # Counting a part of the query itself, `with big as (...) select count(*) from big`, reads no column.
        if not column and not table.startswith(_REFUSED_PREFIXES):
            return sqlite3.SQLITE_OK
        self.refused = f"{table} cannot be read"
        return sqlite3.SQLITE_DENY


def _described(action: int, first: str | None, second: str | None) -> str:
    match action:
        case sqlite3.SQLITE_FUNCTION:
            return f"the function {second} cannot be used"
        case sqlite3.SQLITE_PRAGMA:
            return f"PRAGMA {first} cannot be used"
        case sqlite3.SQLITE_ATTACH | sqlite3.SQLITE_DETACH:
            return "other databases cannot be used"
        case sqlite3.SQLITE_TRANSACTION | sqlite3.SQLITE_SAVEPOINT:
            return "a query has no transactions"
    return "a query can only read"
