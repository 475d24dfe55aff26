"""Tables of views in PostgreSQL: creation, promotion, and the SQL views that readers use."""

from __future__ import annotations

from headwater.errors import BadNameError, BadTypeError, SchemaConflictError
from headwater.sql.postgres_pool import TABLE_SCHEMA, PostgresSession, quote
from headwater.store.columns import storage_columns
from headwater.store.commit import ViewTable
from headwater.store.postgres.columns import column_type
from headwater.store.postgres.migrations import VIEW_SCHEMA
from headwater.store.view_registry import (
    check_same_definition,
    check_table,
    find_table,
    make_current,
    register,
    retire_older,
    table_name,
)

__all__ = ["check_columns", "create_table", "full_table_name", "promote_table"]

_MAX_NAME_BYTES = 63  # bytes of a name in PostgreSQL; it would cut off the rest without a word


def full_table_name(table: ViewTable) -> str:
    """Returns the qualified name of a version's table, for SQL text.

    Example:
        >>> import pyarrow as pa
        >>> full_table_name(ViewTable("revenue", 2, pa.schema([]), ()))
        'headwater."v2_revenue"'
    """
    return f"{TABLE_SCHEMA}.{quote(table_name(table))}"


def create_table(session: PostgresSession, table: ViewTable) -> None:
    """Create the table of a version if it is missing; runs in the caller's transaction.

    Raises:
        SchemaConflictError: The version, or a table of its name, is there with other columns.
    """
    check_table(table)
    _check_lengths(table)
    known = find_table(session, table.name, table.version)
    if known is not None:
        check_same_definition(known, table)
        check_columns(session, table)
        return
    _check_no_case_variant(session, table)
    columns = storage_columns(table)
    described = ", ".join(f"{quote(slot.name)} {_with_collation(column_type(slot.kind))}" for slot in columns)
    keys = ", ".join(quote(slot.name) for slot in columns if slot.view_column in table.key)
    name, stem = full_table_name(table), table_name(table)
    # Free space in every page, so that updates stay on the page (HOT) and the index need not change.
    session.execute_raw(f"CREATE TABLE {name} ({described}) WITH (fillfactor = 85)")
    session.execute_raw(f"CREATE UNIQUE INDEX {quote(f'{stem}$key')} ON {name} ({keys}) NULLS NOT DISTINCT")
    if table.window is not None:
        session.execute_raw(f"CREATE INDEX {quote(f'{stem}$end')} ON {name} ({quote(f'{table.window}.end')})")
    if register(session, table):
        _replace_view(session, table)


def promote_table(session: PostgresSession, name: str, version: int) -> None:
    """Make a version current, fence older runners and drop their tables; runs in the caller's transaction.

    Raises:
        UnknownViewError: There is no such version.
    """
    # Runners lock their epoch before their table; the same order here prevents deadlocks.
    table, older = retire_older(session, name, version)
    _replace_view(session, table)
    for old in older:
        session.execute_raw(f"DROP TABLE {full_table_name(old)}")


def _replace_view(session: PostgresSession, table: ViewTable) -> None:
    make_current(session, table)
    view = f"{VIEW_SCHEMA}.{quote(table.name)}"
    names = ", ".join(quote(slot.name) for slot in storage_columns(table))
    session.execute_raw(f"DROP VIEW IF EXISTS {view}")
    session.execute_raw(f"CREATE VIEW {view} AS SELECT {names} FROM {full_table_name(table)}")


def _with_collation(kind: str) -> str:
    """Compare text by bytes: as SQLite does, faster, and independent of the system's locales."""
    return 'text COLLATE "C"' if kind == "text" else kind


def _check_lengths(table: ViewTable) -> None:
    longest = _MAX_NAME_BYTES - len(f"v{table.version}_$gone")
    if len(table.name.encode()) > longest:
        what = f'"{table.name}" is too long for the name of a view in PostgreSQL'
        raise BadNameError(what, detail=f"at most {longest} bytes", view=table.name)
    for slot in storage_columns(table):
        if len(slot.name.encode()) > _MAX_NAME_BYTES:
            what = f'"{slot.name}" is too long for the name of a column in PostgreSQL'
            raise BadTypeError(what, detail=f"at most {_MAX_NAME_BYTES} bytes", field=slot.name)


def _check_no_case_variant(session: PostgresSession, table: ViewTable) -> None:
    twin = "SELECT name FROM hw$views WHERE lower(name) = lower(?) AND name <> ?"
    found = session.execute(twin, (table.name, table.name)).fetchone()
    if found is not None:
        what = f'"{table.name}" differs from the view "{found[0]}" only by upper and lower case'
        raise BadNameError(what, view=table.name)


def check_columns(session: PostgresSession, table: ViewTable) -> None:
    """Check that nobody has altered the table on the server.

    Raises:
        SchemaConflictError: Somebody has.
    """
    columns = """
        SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
    """
    there = session.execute(columns, (full_table_name(table),)).fetchall()
    asked = [(slot.name, column_type(slot.kind)) for slot in storage_columns(table)]
    if there != asked:
        raise SchemaConflictError(
            f"the table {full_table_name(table)} has other columns than view {table.name!r}",
            detail=f"there: {_describe(there)}\nasked: {_describe(asked)}",
            fix="put the table back as it was, or build the view as the next version",
            view=table.name,
            version=table.version,
        )


def _describe(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns) or "no such table"
