"""The versions of views: which exist, which one readers see, and their tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import BadNameError, BadTypeError, RefusedError, SchemaConflictError, UnknownViewError, near_names
from headwater.log.topic import check_name
from headwater.sql.identifiers import quote
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import ViewTable
from headwater.store.commit.state_table import delete_state
from headwater.store.dialect import Dialect, Session
from headwater.store.pipeline_registry import renew_pipeline

__all__ = [
    "create_table",
    "current_table",
    "current_tables",
    "discard_version",
    "find_table",
    "find_view",
    "make_current",
    "qualified_name",
    "require_view",
    "table_name",
]

_QUERY_TABLES = ("ledger", "totals", "outbox", "late", "quarantine", "skips", "retries")
"""The tables, apart from those of operator state, that have rows of each query."""
_RESERVED = re.compile(r"hw_|sqlite_|pg_|v\d+_", re.IGNORECASE)


def table_name(table: ViewTable) -> str:
    """Returns the name of the table of a version.

    Example:
        >>> table_name(ViewTable("revenue", 2, pa.schema([]), ()))
        'v2_revenue'
    """
    return f"v{table.version}_{table.name}"


def qualified_name(dialect: Dialect[Any], table: ViewTable) -> str:
    """Returns the name of the table of a version for SQL text, with its schema and quoted."""
    return f"{dialect.table_sql.table_schema}{quote(table_name(table))}"


def find_table(session: Session, name: str, version: int) -> ViewTable | None:
    """Returns one version of a view."""
    return next(iter(_tables(session, "name = ? AND version = ?", (name, version))), None)


def current_table(session: Session, name: str) -> ViewTable | None:
    """Returns the version of a view that readers see."""
    return next(iter(_tables(session, "name = ? AND current", (name,))), None)


def current_tables(session: Session) -> list[ViewTable]:
    """Returns the versions of all views that readers see, by name."""
    return _tables(session, "current ORDER BY name")


def require_view(session: Session, name: str) -> ViewTable:
    """Returns the version of a view that readers see.

    Raises:
        UnknownViewError: There is no such view.
    """
    return current_table(session, name) or find_view(current_tables(session), name)


def find_view(tables: Sequence[ViewTable], name: str) -> ViewTable:
    """Returns the view of this name.

    Raises:
        UnknownViewError: There is none; the error names a similar one.
    """
    for table in tables:
        if table.name == name:
            return table
    known = [table.name for table in tables]
    near = near_names(name, known)
    raise UnknownViewError(
        f'no view "{name}"',
        detail=f"views: {', '.join(known)}" if known else "there are no views yet",
        fix=near[0] if near else None,
        view=name,
    )


def _tables(session: Session, condition: str, values: Sequence[Any] = ()) -> list[ViewTable]:
    select = f'SELECT name, version, schema, key, "window" FROM hw$views WHERE {condition}'
    return [
        ViewTable(name, version, pa.ipc.read_schema(pa.py_buffer(schema)), tuple(json.loads(key)), window)
        for name, version, schema, key, window in session.execute(select, values).fetchall()
    ]


def create_table(session: Session, dialect: Dialect[Any], table: ViewTable) -> None:
    """Create the table of a version if it is missing; runs in the caller's transaction.

    The first version of a view becomes current at once.

    Raises:
        SchemaConflictError: The version, or a table of its name, exists with other columns or another key.
        BadNameError: The name of the view is reserved.
        BadTypeError: A column cannot be stored.
    """
    _check_table(table)
    known = find_table(session, table.name, table.version)
    if known is not None and (known.schema, known.key, known.window) != (table.schema, table.key, table.window):
        raise SchemaConflictError(
            f'version {table.version} of view "{table.name}" exists with other columns or another key',
            detail=f"exists: {_describe(known)}\nexpected: {_describe(table)}",
            fix="build it as the next version",
            view=table.name,
            version=table.version,
        )
    dialect.check_table(session, table, exists=known is not None)
    if known is not None:
        return
    sql, stem, name = dialect.table_sql, table_name(table), qualified_name(dialect, table)
    columns = storage_columns(table)
    described = ", ".join(f"{quote(column.name)} {dialect.column_type(column.kind)}" for column in columns)
    keys = ", ".join(quote(column.name) for column in columns if column.view_column in table.key)
    session.execute_raw(f"CREATE TABLE {name} ({sql.first_column}{described}){sql.table_options}")
    session.execute_raw(f"CREATE UNIQUE INDEX {quote(f'{stem}$key')} ON {name} ({keys}){sql.unique_options}")
    if table.window is not None:
        session.execute_raw(f"CREATE INDEX {quote(f'{stem}$end')} ON {name} ({quote(f'{table.window}.end')})")
    session.execute(
        "INSERT INTO hw$views VALUES (?, ?, ?, ?, ?, ?)",
        (
            *(table.name, table.version, table.schema.serialize().to_pybytes()),
            *(json.dumps(table.key), table.window, False),
        ),
    )
    if current_table(session, table.name) is None:
        _replace_view(session, dialect, table)


def make_current(session: Session, dialect: Dialect[Any], name: str, version: int) -> None:
    """Make a version current, fence the runners of older ones and drop their tables, in the caller's transaction.

    Raises:
        UnknownViewError: There is no such version.
    """
    table = find_table(session, name, version)
    if table is None:
        raise UnknownViewError(f'there is no version {version} of view "{name}"', view=name, version=version)
    older = _tables(session, "name = ? AND version < ?", (name, version))
    # A runner locks its epoch before it touches its table. The same order here prevents deadlocks.
    for past in older:
        session.execute("UPDATE hw$epochs SET epoch = epoch + 1 WHERE query = ?", (past.query,))
        delete_state(session, past.query)
    session.execute("DELETE FROM hw$views WHERE name = ? AND version < ?", (name, version))
    _replace_view(session, dialect, table)
    for past in older:
        session.execute_raw(f"DROP TABLE {qualified_name(dialect, past)}")
    renew_pipeline(session, name)


def discard_version(session: Session, dialect: Dialect[Any], name: str, version: int) -> None:
    """Delete everything of a version that never became current, and fence its runner; idempotent.

    Its epoch stays, so that a runner of this version can never commit again.

    Raises:
        RefusedError: Readers see this version.
    """
    current = current_table(session, name)
    if current is not None and current.version == version:
        raise RefusedError(f'version {version} of view "{name}" is the current one', view=name, version=version)
    query, table = f"{name}@{version}", find_table(session, name, version)
    session.execute("UPDATE hw$epochs SET epoch = epoch + 1 WHERE query = ?", (query,))
    delete_state(session, query)
    for stem in _QUERY_TABLES:
        session.execute(f"DELETE FROM hw${stem} WHERE query = ?", (query,))
    session.execute("DELETE FROM hw$reports WHERE pipeline = ? AND version = ?", (name, version))
    session.execute("DELETE FROM hw$views WHERE name = ? AND version = ?", (name, version))
    if table is not None:
        session.execute_raw(f"DROP TABLE {qualified_name(dialect, table)}")


def _replace_view(session: Session, dialect: Dialect[Any], table: ViewTable) -> None:
    """Make a version current, and recreate the SQL view of its name over its table."""
    session.execute("UPDATE hw$views SET current = (version = ?) WHERE name = ?", (table.version, table.name))
    view = f"{dialect.table_sql.view_schema}{quote(table.name)}"
    names = ", ".join(quote(column.name) for column in storage_columns(table))
    session.execute_raw(f"DROP VIEW IF EXISTS {view}")
    session.execute_raw(f"CREATE VIEW {view} AS SELECT {names} FROM {qualified_name(dialect, table)}")


def _check_table(table: ViewTable) -> None:
    """Refuse a table that no store can hold.

    Raises:
        BadNameError: The name is reserved.
        BadTypeError: Key or window are not among the columns.
    """
    check_name(table.name, what="view")
    if _RESERVED.match(table.name):
        what = f'"{table.name}" cannot be the name of a view'
        raise BadNameError(what, detail="names that begin with hw_, sqlite_, pg_ or v1_ are reserved for the store")
    if not table.key:
        raise BadTypeError(f'view "{table.name}" has no key', fix='name its columns: key="user_id"')
    for column in (*table.key, *((table.window,) if table.window else ())):
        if column not in table.schema.names:
            what = f'view "{table.name}" has no column "{column}"'
            raise BadTypeError(what, detail=f"columns: {', '.join(table.schema.names)}", field=column)


def _describe(table: ViewTable) -> str:
    columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    return f"{columns}; key {', '.join(table.key)}"
