"""The tables of views in SQLite: which there are, what they are called, which version readers see."""

from __future__ import annotations

import json
import re
import sqlite3

import pyarrow as pa

from headwater.errors import BadNameError, BadTypeError, SchemaConflictError, UnknownViewError
from headwater.log.definition import check_name
from headwater.store.definition import ViewTable
from headwater.store.sqlite.columns import slots
from headwater.store.sqlite.connection import quoted

__all__ = ["ROW", "create_table", "current_table", "current_tables", "find_table", "swap_table", "table_name"]

ROW = "hw$row"
"""The number of a row in its table; other than `rowid`, no column of a view is called so."""

_RESERVED = re.compile(r"hw_|sqlite_|v\d+_", re.IGNORECASE)
_FOUND = "SELECT name, version, schema, key, window FROM hw$views WHERE name = ? AND "


def table_name(table: ViewTable) -> str:
    """What the table of a version is called.

    Example:
        >>> table_name(ViewTable("revenue", 2, pa.schema([]), ()))
        'v2_revenue'
    """
    return f"v{table.version}_{table.name}"


def find_table(connection: sqlite3.Connection, name: str, version: int) -> ViewTable | None:
    """One version of a view."""
    return _of(connection.execute(f"{_FOUND} version = ?", (name, version)).fetchone())


def current_table(connection: sqlite3.Connection, name: str) -> ViewTable | None:
    """The version readers see."""
    return _of(connection.execute(f"{_FOUND} current", (name,)).fetchone())


def current_tables(connection: sqlite3.Connection) -> list[ViewTable]:
    """The current versions of all views, by name."""
    rows = connection.execute(
        "SELECT name, version, schema, key, window FROM hw$views WHERE current"
    ).fetchall()
    return [table for row in rows if (table := _of(row)) is not None]


def _of(row: tuple[str, int, bytes, str, str | None] | None) -> ViewTable | None:
    if row is None:
        return None
    name, version, schema, key, window = row
    return ViewTable(name, version, pa.ipc.read_schema(pa.py_buffer(schema)), tuple(json.loads(key)), window)


def create_table(connection: sqlite3.Connection, table: ViewTable) -> None:
    """Make the table of a version, unless it is there; inside the caller's transaction."""
    _check(table)
    known = find_table(connection, table.name, table.version)
    if known is not None:
        _require_same(known, table)
        return
    columns = slots(table)
    name = quoted(table_name(table))
    described = ", ".join(f"{quoted(slot.name)} {slot.declared}" for slot in columns)
    connection.execute(f"CREATE TABLE {name} ({ROW} INTEGER PRIMARY KEY, {described})")
    keys = ", ".join(quoted(slot.name) for slot in columns if slot.column in table.key)
    # Unique as far as SQLite can say: it takes two nulls for different, so the writer looks for itself.
    connection.execute(f"CREATE UNIQUE INDEX {quoted(f'{table_name(table)}$key')} ON {name} ({keys})")
    if table.window is not None:
        end = quoted(f"{table.window}.end")
        connection.execute(f"CREATE INDEX {quoted(f'{table_name(table)}$end')} ON {name} ({end})")
    schema = table.schema.serialize().to_pybytes()
    connection.execute(
        "INSERT INTO hw$views VALUES (?, ?, ?, ?, ?, 0)",
        (table.name, table.version, schema, json.dumps(table.key), table.window),
    )
    if current_table(connection, table.name) is None:
        _make_current(connection, table)


def swap_table(connection: sqlite3.Connection, name: str, version: int) -> None:
    """Make a version current, drop older tables, fence their runners; inside the caller's transaction.

    Raises:
        UnknownViewError: There is no such version.
    """
    table = find_table(connection, name, version)
    if table is None:
        what = f'there is no version {version} of view "{name}"'
        raise UnknownViewError(what, view=name, version=version)
    _make_current(connection, table)
    older = "FROM hw$views WHERE name = ? AND version < ?"
    for (past,) in connection.execute(f"SELECT version {older}", (name, version)).fetchall():
        connection.execute(f"DROP TABLE {quoted(f'v{past}_{table.name}')}")
        connection.execute(
            "UPDATE hw$epochs SET epoch = epoch + 1 WHERE query = ?", (f"{table.name}@{past}",)
        )
    connection.execute(f"DELETE {older}", (name, version))


def _make_current(connection: sqlite3.Connection, table: ViewTable) -> None:
    connection.execute(
        "UPDATE hw$views SET current = (version = ?) WHERE name = ?", (table.version, table.name)
    )
    connection.execute(f"DROP VIEW IF EXISTS {quoted(table.name)}")
    names = ", ".join(quoted(slot.name) for slot in slots(table))
    connection.execute(f"CREATE VIEW {quoted(table.name)} AS SELECT {names} FROM {quoted(table_name(table))}")


def _check(table: ViewTable) -> None:
    check_name(table.name, what="view")
    if _RESERVED.match(table.name):
        what = f'"{table.name}" cannot be the name of a view'
        raise BadNameError(what, detail="names that begin with hw_, sqlite_ or v1_ are the store's own")
    if not table.key:
        raise BadTypeError(f'view "{table.name}" has no key', fix='say which: key="user_id"')
    if ROW in map(str.lower, table.schema.names):
        raise BadTypeError(f'no column of a view can be called "{ROW}"', field=ROW)
    for column in (*table.key, *((table.window,) if table.window else ())):
        if column not in table.schema.names:
            what = f'view "{table.name}" has no column "{column}"'
            raise BadTypeError(what, detail=f"columns: {', '.join(table.schema.names)}", field=column)


def _require_same(known: ViewTable, table: ViewTable) -> None:
    if known.schema.equals(table.schema) and (known.key, known.window) == (table.key, table.window):
        return
    raise SchemaConflictError(
        f'version {table.version} of view "{table.name}" is there with other columns',
        detail=f"there: {_described(known)}\nasked: {_described(table)}",
        fix="build it as the next version",
        view=table.name,
        version=table.version,
    )


def _described(table: ViewTable) -> str:
    columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    return f"{columns}; key {', '.join(table.key)}"
