"""Tables of views in SQLite: creation, promotion, and the SQL views that readers use."""

from __future__ import annotations

import sqlite3

from headwater.errors import BadTypeError
from headwater.store.columns import storage_columns
from headwater.store.commit import ViewTable
from headwater.store.sqlite.columns import column_type
from headwater.store.sqlite.connection import quote
from headwater.store.view_registry import (
    check_same_definition,
    check_table,
    find_table,
    make_current,
    register,
    retire_older,
    table_name,
)

__all__ = ["ROW_ID", "create_table", "promote_table"]

ROW_ID = "hw$row"
"""The number of a row in its table; other than `rowid`, no column of a view is called so."""


def create_table(connection: sqlite3.Connection, table: ViewTable) -> None:
    """Create the table of a version if it is missing; runs in the caller's transaction."""
    check_table(table)
    if ROW_ID in map(str.lower, table.schema.names):
        raise BadTypeError(f'no column of a view can be called "{ROW_ID}"', field=ROW_ID)
    known = find_table(connection, table.name, table.version)
    if known is not None:
        check_same_definition(known, table)
        return
    columns = storage_columns(table)
    name = quote(table_name(table))
    described = ", ".join(f"{quote(slot.name)} {column_type(slot)}" for slot in columns)
    connection.execute(f"CREATE TABLE {name} ({ROW_ID} INTEGER PRIMARY KEY, {described})")
    keys = ", ".join(quote(slot.name) for slot in columns if slot.view_column in table.key)
    # SQLite treats two nulls as different in a unique index, so the writer checks uniqueness itself.
    connection.execute(f"CREATE UNIQUE INDEX {quote(f'{table_name(table)}$key')} ON {name} ({keys})")
    if table.window is not None:
        end = quote(f"{table.window}.end")
        connection.execute(f"CREATE INDEX {quote(f'{table_name(table)}$end')} ON {name} ({end})")
    if register(connection, table):
        _replace_view(connection, table)


def promote_table(connection: sqlite3.Connection, name: str, version: int) -> None:
    """Make a version current, drop older tables, fence their runners; runs in the caller's transaction.

    Raises:
        UnknownViewError: There is no such version.
    """
    table, older = retire_older(connection, name, version)
    _replace_view(connection, table)
    for old in older:
        connection.execute(f"DROP TABLE {quote(table_name(old))}")


def _replace_view(connection: sqlite3.Connection, table: ViewTable) -> None:
    make_current(connection, table)
    connection.execute(f"DROP VIEW IF EXISTS {quote(table.name)}")
    names = ", ".join(quote(slot.name) for slot in storage_columns(table))
    connection.execute(f"CREATE VIEW {quote(table.name)} AS SELECT {names} FROM {quote(table_name(table))}")
