"""The versions of views: which there are, which readers see."""

from __future__ import annotations

import json
import re

import pyarrow as pa

from headwater.errors import BadNameError, BadTypeError, SchemaConflictError, UnknownViewError
from headwater.log.definition import check_name
from headwater.store.bookkeeping.session import Session
from headwater.store.bookkeeping.spaces import forget_state
from headwater.store.definition import ViewTable

__all__ = [
    "check_table",
    "current_table",
    "current_tables",
    "find_table",
    "make_current",
    "register",
    "require_same",
    "retire_older",
    "table_name",
]

_RESERVED = re.compile(r"hw_|sqlite_|pg_|v\d+_", re.IGNORECASE)
_FOUND = 'SELECT name, version, schema, key, "window" FROM hw$views WHERE '


def table_name(table: ViewTable) -> str:
    """What the table of a version is called.

    Example:
        >>> table_name(ViewTable("revenue", 2, pa.schema([]), ()))
        'v2_revenue'
    """
    return f"v{table.version}_{table.name}"


def find_table(session: Session, name: str, version: int) -> ViewTable | None:
    """One version of a view."""
    return _of(session.execute(f"{_FOUND} name = ? AND version = ?", (name, version)).fetchone())


def current_table(session: Session, name: str) -> ViewTable | None:
    """The version readers see."""
    return _of(session.execute(f"{_FOUND} name = ? AND current", (name,)).fetchone())


def current_tables(session: Session) -> list[ViewTable]:
    """The current versions of all views, by name."""
    rows = session.execute(f"{_FOUND} current ORDER BY name").fetchall()
    return [table for row in rows if (table := _of(row)) is not None]


def _of(row: tuple[str, int, bytes, str, str | None] | None) -> ViewTable | None:
    if row is None:
        return None
    name, version, schema, key, window = row
    return ViewTable(name, version, pa.ipc.read_schema(pa.py_buffer(schema)), tuple(json.loads(key)), window)


def register(session: Session, table: ViewTable) -> bool:
    """Remember a new version; True when it is the first of its view, which the caller makes current."""
    schema = table.schema.serialize().to_pybytes()
    session.execute(
        "INSERT INTO hw$views VALUES (?, ?, ?, ?, ?, ?)",
        (table.name, table.version, schema, json.dumps(table.key), table.window, False),
    )
    return current_table(session, table.name) is None


def make_current(session: Session, table: ViewTable) -> None:
    """Let readers see this version."""
    session.execute("UPDATE hw$views SET current = (version = ?) WHERE name = ?", (table.version, table.name))


def retire_older(session: Session, name: str, version: int) -> tuple[ViewTable, list[ViewTable]]:
    """This version, and the older ones: their runners are fenced and they are forgotten; the caller drops their tables.

    Raises:
        UnknownViewError: There is no such version.
    """
    table = find_table(session, name, version)
    if table is None:
        what = f'there is no version {version} of view "{name}"'
        raise UnknownViewError(what, view=name, version=version)
    rows = session.execute(f"{_FOUND} name = ? AND version < ?", (name, version)).fetchall()
    older = [past for row in rows if (past := _of(row)) is not None]
    for past in older:
        session.execute("UPDATE hw$epochs SET epoch = epoch + 1 WHERE query = ?", (past.query,))
        forget_state(session, past.query)
    session.execute("DELETE FROM hw$views WHERE name = ? AND version < ?", (name, version))
    return table, older


def check_table(table: ViewTable) -> None:
    """Refuse a table that cannot be in any store.

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


def require_same(known: ViewTable, table: ViewTable) -> None:
    """Refuse another table under a version that is there.

    Raises:
        SchemaConflictError: It has other columns or another key.
    """
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
