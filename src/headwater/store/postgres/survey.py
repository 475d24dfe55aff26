"""Read-only inspection of a PostgreSQL store."""

from __future__ import annotations

from headwater.errors import SchemaConflictError
from headwater.sql.postgres_pool import PostgresPool, PostgresSession
from headwater.store.commit import ViewTable
from headwater.store.postgres.migrations import FORMAT, read_format
from headwater.store.postgres.view_tables import check_columns
from headwater.store.protocol import StoreInspection
from headwater.store.view_registry import current_tables

__all__ = ["inspect_postgres"]

_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE'), current_user, current_database()"


def inspect_postgres(url: str) -> StoreInspection:
    """What the store of a database has, by transactions that can only read.

    Raises:
        UnreachableError: The server is unreachable.
        BadCredentialsError: The server rejects the user.
        BadSettingError: The URL is invalid, or the server is too old.
    """
    pool = PostgresPool(url)
    try:
        with pool.session() as session:
            session.execute("SET default_transaction_read_only = on")
            return _inspect(session)
    finally:
        pool.close()


def _inspect(session: PostgresSession) -> StoreInspection:
    format_, _ = read_format(session)
    if not format_:
        may, user, database = session.execute(_MAY_CREATE).fetchone() or (True, "", "")
        refusal = "" if may else f"{user} may not create schemas in {database}"
        return StoreInspection(0, FORMAT, refusal=refusal)
    if format_ > FORMAT:
        return StoreInspection(format_, FORMAT)
    views = {table.name: table for table in current_tables(session)}
    altered = {name: how for name, table in views.items() if (how := _find_alteration(session, table))}
    return StoreInspection(format_, FORMAT, views, altered)


def _find_alteration(session: PostgresSession, table: ViewTable) -> str:
    try:
        check_columns(session, table)
    except SchemaConflictError as error:
        return error.detail or error.what
    return ""
