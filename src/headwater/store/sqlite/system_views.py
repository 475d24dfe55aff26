"""The system views in SQLite; they are made anew when their text has changed."""

from __future__ import annotations

import sqlite3

from headwater.store.bookkeeping.state_view import KeyBytes
from headwater.store.bookkeeping.system_views import system_views

__all__ = ["SYSTEM_TABLES", "create_system_views", "system_views_there"]

_BEHIND = ("ledger", "totals", "late", "quarantine", "reports", "views", "spaces", "state", "kept")
SYSTEM_TABLES = tuple(f"hw${name}" for name in _BEHIND)
"""The tables behind them."""


def _moment(micros: str) -> str:
    """SQL for the text of a count of microseconds, rounded down also before 1970."""
    rest = f"((({micros}) % 1000000 + 1000000) % 1000000)"
    seconds = f"((({micros}) - {rest}) / 1000000)"
    return f"(strftime('%Y-%m-%dT%H:%M:%S', {seconds}, 'unixepoch') || printf('.%06dZ', {rest}))"


def _number(eight: str) -> str:
    """SQL for the whole number that eight bytes are, with the sign turned over, from its digits."""
    digit = f"(instr('0123456789ABCDEF', substr(hex({eight}), {{}}, 1)) - 1)"
    first = f"({digit.format(1)} - 8) * {1 << 60}"
    return f"({first} + {' + '.join(f'{digit.format(place)} * {1 << 64 - 4 * place}' for place in range(2, 17))})"


_KEYS = KeyBytes(
    digits=lambda bytes_: f"lower(hex({bytes_}))",
    text=lambda bytes_: f"CAST({bytes_} AS text)",
    number=_number,
    place=lambda bytes_, digits: f"instr({bytes_}, x'{digits}')",
    moment=_moment,
    date=lambda days: f"date({days} * 86400, 'unixepoch')",
)
_TEXTS = system_views(_moment, _KEYS, few_first="CROSS JOIN")


def system_views_there(connection: sqlite3.Connection) -> bool:
    """Whether all system views have their present text."""
    return not _missing(connection)


def create_system_views(connection: sqlite3.Connection) -> None:
    """Bring the system views to their present text; inside the caller's transaction."""
    for name in _missing(connection):
        connection.execute(f"DROP VIEW IF EXISTS {name}")
        connection.execute(_statement(name))


def _missing(connection: sqlite3.Connection) -> list[str]:
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall())
    return [name for name in _TEXTS if found.get(name) != _statement(name)]


def _statement(name: str) -> str:
    return f"CREATE VIEW {name} AS {_TEXTS[name].strip()}"
