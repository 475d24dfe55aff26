"""The tables of views in PostgreSQL: how they are made, and what readers see of them."""

from __future__ import annotations

from headwater.errors import BadNameError, BadTypeError, SchemaConflictError
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
from headwater.store.postgres.columns import declared
from headwater.store.postgres.connection import OWN, PostgresSession, quoted
from headwater.store.postgres.migrations import SHOWN
from headwater.store.slots import slots

__all__ = ["create_table", "require_columns", "swap_table", "table_of_version"]

_LONGEST = 63  # bytes of a name in PostgreSQL; it would cut off the rest without a word


def table_of_version(table: ViewTable) -> str:
    """The table of a version, for SQL text.

    Example:
        >>> import pyarrow as pa
        >>> table_of_version(ViewTable("revenue", 2, pa.schema([]), ()))
        'headwater."v2_revenue"'
    """
    return f"{OWN}.{quoted(table_name(table))}"


def create_table(session: PostgresSession, table: ViewTable) -> None:
    """Make the table of a version, unless it is there; inside the caller's transaction.

    Raises:
        SchemaConflictError: The version, or a table of its name, is there with other columns.
    """
    check_table(table)
    _check_lengths(table)
    known = find_table(session, table.name, table.version)
    if known is not None:
        require_same(known, table)
        require_columns(session, table)
        return
    _require_no_twin(session, table)
    columns = slots(table)
    described = ", ".join(f"{quoted(slot.name)} {_column_type(declared(slot.kind))}" for slot in columns)
    keys = ", ".join(quoted(slot.name) for slot in columns if slot.column in table.key)
    name, stem = table_of_version(table), table_name(table)
    # Room in every page, so that a row that changes stays where the index says it is.
    session.run(f"CREATE TABLE {name} ({described}) WITH (fillfactor = 85)")
    session.run(f"CREATE UNIQUE INDEX {quoted(f'{stem}$key')} ON {name} ({keys}) NULLS NOT DISTINCT")
    if table.window is not None:
        session.run(f"CREATE INDEX {quoted(f'{stem}$end')} ON {name} ({quoted(f'{table.window}.end')})")
    if register(session, table):
        _show(session, table)


def swap_table(session: PostgresSession, name: str, version: int) -> None:
    """Make a version current, fence the runners of older ones, drop their tables; inside the caller's transaction.

    Raises:
        UnknownViewError: There is no such version.
    """
    table, older = retire_older(
        session, name, version
    )  # runners hold their epoch before their table, and so do we
    _show(session, table)
    for past in older:
        session.run(f"DROP TABLE {table_of_version(past)}")


def _show(session: PostgresSession, table: ViewTable) -> None:
    make_current(session, table)
    view = f"{SHOWN}.{quoted(table.name)}"
    names = ", ".join(quoted(slot.name) for slot in slots(table))
    session.run(f"DROP VIEW IF EXISTS {view}")
    session.run(f"CREATE VIEW {view} AS SELECT {names} FROM {table_of_version(table)}")


def _column_type(kind: str) -> str:
    """Text is compared by its bytes: as in SQLite, faster, and the same after an upgrade of the system's locales."""
    return 'text COLLATE "C"' if kind == "text" else kind


def _check_lengths(table: ViewTable) -> None:
    longest = _LONGEST - len(f"v{table.version}_$gone")
    if len(table.name.encode()) > longest:
        what = f'"{table.name}" is too long for the name of a view in PostgreSQL'
        raise BadNameError(what, detail=f"at most {longest} bytes", view=table.name)
    for slot in slots(table):
        if len(slot.name.encode()) > _LONGEST:
            what = f'"{slot.name}" is too long for the name of a column in PostgreSQL'
            raise BadTypeError(what, detail=f"at most {_LONGEST} bytes", field=slot.name)


def _require_no_twin(session: PostgresSession, table: ViewTable) -> None:
    twin = "SELECT name FROM hw$views WHERE lower(name) = lower(?) AND name <> ?"
    found = session.execute(twin, (table.name, table.name)).fetchone()
    if found is not None:
        what = f'"{table.name}" differs from the view "{found[0]}" only by upper and lower case'
        raise BadNameError(what, view=table.name)


def require_columns(session: PostgresSession, table: ViewTable) -> None:
    """The table as the server has it: nobody has changed it behind our back.

    Raises:
        SchemaConflictError: Somebody has.
    """
    columns = """
        SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
    """
    there = session.execute(columns, (table_of_version(table),)).fetchall()
    asked = [(slot.name, declared(slot.kind)) for slot in slots(table)]
    if there != asked:
        raise SchemaConflictError(
            f"the table {table_of_version(table)} has other columns than view {table.name!r}",
            detail=f"there: {_described(there)}\nasked: {_described(asked)}",
            fix="put the table back as it was, or build the view as the next version",
            view=table.name,
            version=table.version,
        )


def _described(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns) or "no such table"
