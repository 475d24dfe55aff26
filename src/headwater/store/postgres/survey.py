"""What a database has of a store, looked at and not touched."""

from __future__ import annotations

from headwater.errors import SchemaConflictError
from headwater.store.bookkeeping.registry import current_tables
from headwater.store.definition import ViewTable
from headwater.store.postgres.connection import Connections, PostgresSession
from headwater.store.postgres.migrations import FORMAT, found_format
from headwater.store.postgres.view_tables import require_columns
from headwater.store.survey import StoreStanding

__all__ = ["survey_postgres"]

_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE'), current_user, current_database()"


def survey_postgres(url: str) -> StoreStanding:
    """What the store of a database has, by transactions that can only read.

    Raises:
        UnreachableError: Nothing answers there.
        BadCredentialsError: The server does not accept the user.
        BadSettingError: The URL leads nowhere, or to a server that is too old.
    """
    connections = Connections(url)
    try:
        with connections.session() as session:
            session.execute("SET default_transaction_read_only = on")
            return _found(session)
    finally:
        connections.close()


def _found(session: PostgresSession) -> StoreStanding:
    format_, _ = found_format(session)
    if not format_:
        may, user, database = session.execute(_MAY_CREATE).fetchone() or (True, "", "")
        refusal = "" if may else f"{user} may not create schemas in {database}"
        return StoreStanding(0, FORMAT, refusal=refusal)
    if format_ > FORMAT:
        return StoreStanding(format_, FORMAT)
    views = {table.name: table for table in current_tables(session)}
    altered = {name: how for name, table in views.items() if (how := _altered(session, table))}
    return StoreStanding(format_, FORMAT, views, altered)


def _altered(session: PostgresSession, table: ViewTable) -> str:
    try:
        require_columns(session, table)
    except SchemaConflictError as error:
        return error.detail or error.what
    return ""
