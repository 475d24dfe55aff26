"""The versions of views: which exist, and which one readers see."""

from __future__ import annotations

import json
import re

import pyarrow as pa

from headwater.errors import BadNameError, BadTypeError, SchemaConflictError, UnknownViewError
from headwater.log.topic import check_name
from headwater.store.commit import ViewTable
from headwater.store.dialect import Session
from headwater.store.state_table import delete_state

__all__ = [
    "check_same_definition",
    "check_table",
    "current_table",
    "current_tables",
    "find_table",
    "make_current",
    "register",
    "retire_older",
    "table_name",
]

_RESERVED = re.compile(r"hw_|sqlite_|pg_|v\d+_", re.IGNORECASE)
_SELECT = 'SELECT name, version, schema, key, "window" FROM hw$views WHERE '


def table_name(table: ViewTable) -> str:
    """Returns the name of the table of a version.

    Example:
        >>> table_name(ViewTable("revenue", 2, pa.schema([]), ()))
        'v2_revenue'
    """
    return f"v{table.version}_{table.name}"


def find_table(session: Session, name: str, version: int) -> ViewTable | None:
    """One version of a view."""
    return _table_from_row(session.execute(f"{_SELECT} name = ? AND version = ?", (name, version)).fetchone())


def current_table(session: Session, name: str) -> ViewTable | None:
    """Returns the version readers see."""
    return _table_from_row(session.execute(f"{_SELECT} name = ? AND current", (name,)).fetchone())


def current_tables(session: Session) -> list[ViewTable]:
    """Returns the current versions of all views, by name."""
    rows = session.execute(f"{_SELECT} current ORDER BY name").fetchall()
    return [table for row in rows if (table := _table_from_row(row)) is not None]


def _table_from_row(row: tuple[str, int, bytes, str, str | None] | None) -> ViewTable | None:
    if row is None:
        return None
    name, version, schema, key, window = row
    return ViewTable(name, version, pa.ipc.read_schema(pa.py_buffer(schema)), tuple(json.loads(key)), window)


def register(session: Session, table: ViewTable) -> bool:
    """Register a new version; returns True for the first of its view, which the caller makes current."""
    schema = table.schema.serialize().to_pybytes()
    session.execute(
        "INSERT INTO hw$views VALUES (?, ?, ?, ?, ?, ?)",
        (table.name, table.version, schema, json.dumps(table.key), table.window, False),
    )
    return current_table(session, table.name) is None


def make_current(session: Session, table: ViewTable) -> None:
    """Make this version visible to readers."""
    session.execute("UPDATE hw$views SET current = (version = ?) WHERE name = ?", (table.version, table.name))


def retire_older(session: Session, name: str, version: int) -> tuple[ViewTable, list[ViewTable]]:
    """Fence and unregister the versions older than this one; returns them, and the caller drops their tables.

    Raises:
        UnknownViewError: There is no such version.
    """
    table = find_table(session, name, version)
    if table is None:
        what = f'there is no version {version} of view "{name}"'
        raise UnknownViewError(what, view=name, version=version)
    rows = session.execute(f"{_SELECT} name = ? AND version < ?", (name, version)).fetchall()
    older = [past for row in rows if (past := _table_from_row(row)) is not None]
    for past in older:
        session.execute("UPDATE hw$epochs SET epoch = epoch + 1 WHERE query = ?", (past.query,))
        delete_state(session, past.query)
    session.execute("DELETE FROM hw$views WHERE name = ? AND version < ?", (name, version))
    return table, older


def check_table(table: ViewTable) -> None:
    """Refuse a table that no store can hold.

    Raises:
        BadNameError: The name is reserved.
        BadTypeError: Key or window are not among the columns.
    """
    check_name(table.name, what="view")
    if _RESERVED.match(table.name):
        what = f'"{table.name}" cannot be the name of a view'
        raise BadNameError(what, detail="names that begin with hw_, sqlite_, pg_ or v1_ are the store's own")
    if not table.key:
        raise BadTypeError(f'view "{table.name}" has no key', fix='say which: key="user_id"')
    for column in (*table.key, *((table.window,) if table.window else ())):
        if column not in table.schema.names:
            what = f'view "{table.name}" has no column "{column}"'
            raise BadTypeError(what, detail=f"columns: {', '.join(table.schema.names)}", field=column)


def check_same_definition(known: ViewTable, table: ViewTable) -> None:
    """Refuse another table under an existing version.

    Raises:
        SchemaConflictError: It has other columns or another key.
    """
    if known.schema.equals(table.schema) and (known.key, known.window) == (table.key, table.window):
        return
    raise SchemaConflictError(
        f'version {table.version} of view "{table.name}" is there with other columns',
        detail=f"there: {_describe(known)}\nasked: {_describe(table)}",
        fix="build it as the next version",
        view=table.name,
        version=table.version,
    )


def _describe(table: ViewTable) -> str:
    columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    return f"{columns}; key {', '.join(table.key)}"
