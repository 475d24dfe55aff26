"""The tables of views in SQLite: how they are made, and what readers see of them."""

from __future__ import annotations

import sqlite3

from headwater.errors import BadTypeError
from headwater.store.bookkeeping.registry import (
    check_table,
    find_table,
    make_current,
    register,
    require_same,
    retire_older,
    table_name,
)
from headwater.store.definition import ViewTable
from headwater.store.slots import slots
from headwater.store.sqlite.columns import declared
from headwater.store.sqlite.connection import quoted

__all__ = ["ROW", "create_table", "swap_table"]

ROW = "hw$row"
"""The number of a row in its table; other than `rowid`, no column of a view is called so."""


def create_table(connection: sqlite3.Connection, table: ViewTable) -> None:
    """Make the table of a version, unless it is there; inside the caller's transaction."""
    check_table(table)
    if ROW in map(str.lower, table.schema.names):
        raise BadTypeError(f'no column of a view can be called "{ROW}"', field=ROW)
    known = find_table(connection, table.name, table.version)
    if known is not None:
        require_same(known, table)
        return
    columns = slots(table)
    name = quoted(table_name(table))
    described = ", ".join(f"{quoted(slot.name)} {declared(slot)}" for slot in columns)
    connection.execute(f"CREATE TABLE {name} ({ROW} INTEGER PRIMARY KEY, {described})")
    keys = ", ".join(quoted(slot.name) for slot in columns if slot.column in table.key)
    # Unique as far as SQLite can say: it takes two nulls for different, so the writer looks for itself.
    connection.execute(f"CREATE UNIQUE INDEX {quoted(f'{table_name(table)}$key')} ON {name} ({keys})")
    if table.window is not None:
        end = quoted(f"{table.window}.end")
        connection.execute(f"CREATE INDEX {quoted(f'{table_name(table)}$end')} ON {name} ({end})")
    if register(connection, table):
        _show(connection, table)


def swap_table(connection: sqlite3.Connection, name: str, version: int) -> None:
    """Make a version current, drop older tables, fence their runners; inside the caller's transaction.

    Raises:
        UnknownViewError: There is no such version.
    """
    table, older = retire_older(connection, name, version)
    _show(connection, table)
    for past in older:
        connection.execute(f"DROP TABLE {quoted(table_name(past))}")


def _show(connection: sqlite3.Connection, table: ViewTable) -> None:
    make_current(connection, table)
    connection.execute(f"DROP VIEW IF EXISTS {quoted(table.name)}")
    names = ", ".join(quoted(slot.name) for slot in slots(table))
    connection.execute(f"CREATE VIEW {quoted(table.name)} AS SELECT {names} FROM {quoted(table_name(table))}")
