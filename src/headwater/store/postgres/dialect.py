"""`PostgresDialect`: a store in a PostgreSQL database, shared by several machines.

If the connection is lost, a call runs once more on a new connection. The ledger shows whether the first attempt of a
commit was committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Event
from typing import Any, Final, TypeVar

import psycopg
import pyarrow as pa

from headwater.errors import BadNameError, BadTypeError, LockedError, SchemaConflictError, UnreachableError
from headwater.sql.guard import StoreEngine, check_select
from headwater.sql.identifiers import literal, quote
from headwater.sql.postgres_pool import TABLE_SCHEMA, PostgresPool, PostgresSession
from headwater.store.columns import from_arrays, storage_columns
from headwater.store.commit.commit import Commit, StagedPart, ViewTable
from headwater.store.commit.transaction import open_epoch
from headwater.store.dialect import RowsReader, StateEntry, StateSql, TableSql
from headwater.store.postgres.columns import column_type, decode_rows, from_csv, key_literals, stored_type
from headwater.store.postgres.migrations import READER_ROLE, VIEW_SCHEMA, check_columns, is_up_to_date, migrate_store
from headwater.store.postgres.sandbox import PostgresSandbox
from headwater.store.postgres.upsert import PostgresViewWriter, stage_part
from headwater.store.protocol import QueryLimits, SqlResult, TableRows
from headwater.store.view_registry import current_tables, find_view, require_view

__all__ = ["PostgresDialect", "PostgresNotifier", "PostgresStager"]

_T = TypeVar("_T")
_CHANNEL: Final = "headwater"
_RECONNECT_DELAY: Final = 0.5  # seconds between attempts of a notifier to reconnect
_READ_ATTEMPTS: Final = 5  # a view can be replaced between the lookup of its table and the read
_MAX_NAME_BYTES: Final = 63  # PostgreSQL cuts off the rest of a longer name without an error
_COMMIT_LOCK: Final = 0x48573032  # class of the advisory lock of a commit; the second number is the query's hash
# The advisory lock comes first: it also excludes runners of a query that has no epoch yet.
_LOCK_QUERY: Final = f"""
    SELECT pg_advisory_xact_lock({_COMMIT_LOCK}, hashtext({{query}}));
    SELECT 1 FROM {TABLE_SCHEMA}.epochs WHERE query = {{query}} FOR UPDATE
"""
_TERMINATE_HOLDERS: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid() AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = ? AND objid::bigint = (hashtext(?)::bigint & 4294967295)
"""


class PostgresDialect:
    """A PostgreSQL database; implements `headwater.store.dialect.Dialect`.

    The schema `headwater` has our own tables and the tables of the views. The schema `headwater_views` has each view
    under its name.

    Args:
        url: `postgresql://user:password@host:port/database`.
        reader: A URL of the same database with a login that may only read the views, for SQL of users. Without it,
            such SQL runs under the role `headwater_reader`.

    Raises:
        UnreachableError: The server is unreachable.
        BadCredentialsError: The server rejects the user, or the user may not create our schemas.
        BadSettingError: The URL is invalid, or the server is too old.
        NewerFormatError: A newer version of Headwater has written the store.
    """

    engine: StoreEngine = "postgres"
    table_sql = TableSql(
        table_schema=f"{TABLE_SCHEMA}.",
        view_schema=f"{VIEW_SCHEMA}.",
        # Free space in every page keeps updated rows on their page (HOT), so that the index need not change.
        table_options=" WITH (fillfactor = 85)",
        unique_options=" NULLS NOT DISTINCT",
        sort_by_key=True,
    )

    def __init__(self, url: str, *, reader: str | None = None) -> None:
        self._url = url
        self.pool = PostgresPool(url)
        self.state: StateSql[PostgresSession] = _PostgresState()
        self._reader_pool = None if reader is None else PostgresPool(reader)
        try:
            # A store that is up to date opens without the lock of migrations.
            if not self.read(is_up_to_date):
                self._run_transaction(partial(migrate_store, url=self.pool.display_url))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresDialect({self.pool.display_url!r})"

    # -- connections -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections."""
        self.pool.close()
        if self._reader_pool is not None:
            self._reader_pool.close()

    def read(self, work: Callable[[PostgresSession], _T]) -> _T:
        """Run statements that need no common snapshot, without a transaction around them."""

        def run() -> _T:
            with self.pool.session() as session:
                return work(session)

        return _retry(run, 2, UnreachableError)

    def read_snapshot(self, work: Callable[[PostgresSession], _T]) -> _T:
        """Run statements that all see one snapshot of the store. They never wait for a commit."""

        def run() -> _T:
            with self.pool.session() as session, session.connection.transaction(force_rollback=True):
                session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return work(session)

        return _retry(run, _READ_ATTEMPTS, SchemaConflictError, UnreachableError)

    def write(
        self, work: Callable[[PostgresSession], _T], before: Callable[[PostgresSession], None] | None = None
    ) -> _T:
        """Run one transaction, then wake all notifiers of `watch`."""

        def write_and_notify(session: PostgresSession) -> _T:
            found = work(session)
            session.execute(f"NOTIFY {_CHANNEL}")
            return found

        return self._run_transaction(write_and_notify, before)

    def _run_transaction(
        self, work: Callable[[PostgresSession], _T], before: Callable[[PostgresSession], None] | None = None
    ) -> _T:
        def run() -> _T:
            with self.pool.session() as session:
                if before is not None:
                    before(session)
                with session.connection.transaction():
                    return work(session)

        return _retry(run, 2, UnreachableError)

    def watch(self) -> PostgresNotifier:
        """Returns a notifier for every write to the store, by any process on any machine."""
        return PostgresNotifier(self.pool)

    def table_sizes(self) -> dict[str, int] | None:
        """Returns the bytes of each table with its indexes."""
        found = """
            SELECT c.relname, pg_total_relation_size(c.oid)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind = 'r' AND n.nspname = ?
        """
        return dict(self.read_snapshot(lambda session: session.execute(found, (TABLE_SCHEMA,)).fetchall()))

    # -- commits ---------------------------------------------------------------------------------------------------

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query. Ends the transaction of a runner that sleeps in the middle of a commit."""

        def open_within_timeout(session: PostgresSession) -> int:
            session.execute("SET LOCAL lock_timeout = '2s'")
            return open_epoch(session, query)

        try:
            return self.write(open_within_timeout)
        except LockedError:
            self.read(lambda session: session.execute(_TERMINATE_HOLDERS, (_COMMIT_LOCK, query)).fetchall())
            return self.write(open_within_timeout)

    def lock_query(self, session: PostgresSession, query: str) -> None:
        """Exclude other writers of this query until the transaction ends."""
        session.execute_raw(_LOCK_QUERY.format(query=literal(query)))

    def view_writer(self, table: ViewTable, commit: Commit) -> PostgresViewWriter:
        """Returns a writer for the rows of a commit."""
        return PostgresViewWriter(table, commit)

    def stager(self) -> PostgresStager:
        """Returns a stager, with which workers send the rows of a large batch themselves."""
        return PostgresStager(self._url)

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Stage some rows of a batch before its commit, from any process; readers do not see them yet.

        The commit names the parts it publishes: `Commit(entry, table, no_rows, staged=(part, ...))`. The next commit
        of the query that publishes parts drops all others.

        Raises:
            BadTypeError: The rows do not have the view's columns.
        """
        return self._run_transaction(lambda session: stage_part(session, table, batch, rows))

    # -- tables and rows -------------------------------------------------------------------------------------------

    def column_type(self, kind: pa.DataType) -> str:
        """Returns the type of a column for CREATE TABLE.

        Text compares by bytes: as SQLite does, faster, and independent of the system's locales.
        """
        return stored_type(kind)

    def check_table(self, session: PostgresSession, table: ViewTable, *, exists: bool) -> None:
        """Refuse names that are too long or differ only by case, and tables that others have altered."""
        longest = _MAX_NAME_BYTES - len(f"v{table.version}_$gone")
        if len(table.name.encode()) > longest:
            what = f'"{table.name}" is too long for the name of a view in PostgreSQL'
            raise BadNameError(what, detail=f"at most {longest} bytes", view=table.name)
        for column in storage_columns(table):
            if len(column.name.encode()) > _MAX_NAME_BYTES:
                what = f'"{column.name}" is too long for the name of a column in PostgreSQL'
                raise BadTypeError(what, detail=f"at most {_MAX_NAME_BYTES} bytes", field=column.name)
        if exists:
            check_columns(session, table)
            return
        twin = "SELECT name FROM hw$views WHERE lower(name) = lower(?) AND name <> ?"
        found = session.execute(twin, (table.name, table.name)).fetchone()
        if found is not None:
            what = f'"{table.name}" differs from the view "{found[0]}" only by upper and lower case'
            raise BadNameError(what, view=table.name)

    def key_condition(self, table: ViewTable, key: pa.Table) -> tuple[str, list[Any]]:
        """Returns the condition that finds the row with this key; COPY has no parameters."""
        keys = [column for column in storage_columns(table) if column.view_column in table.key]
        parts = [
            f"{quote(column.name)} IS NULL"
            if text is None
            else f"{quote(column.name)} = {literal(text)}::{column_type(column.kind)}"
            for column, text in zip(keys, key_literals(table, key), strict=True)
        ]
        return " AND ".join(parts), []

    def fetch_rows(self, session: PostgresSession, table: ViewTable, select: str, values: Sequence[Any]) -> pa.Table:
        """Returns the rows of a SELECT over all stored columns of a view."""
        kinds = [column.kind for column in storage_columns(table)]
        return from_arrays(table, from_csv(session.copy_out(select), kinds))

    # -- SQL of users ----------------------------------------------------------------------------------------------

    def query_rows(self, name: str, read: RowsReader, limits: QueryLimits, cancel: Event | None) -> pa.Table:
        """Read a view in the sandbox, for a user's condition or order."""

        def run() -> pa.Table:
            with self._sandbox(limits, cancel) as sandbox:
                if self._reader_pool is None:
                    table = find_view(sandbox.tables(), name)
                else:  # the login of the reader may not read the list of views
                    table = self.read_snapshot(lambda session: require_view(session, name))
                return read(table, lambda select: (decode_rows(table, rows) for rows in sandbox.query_chunks(select)))

        return self._read_unreplaced(run)

    def query(
        self,
        text: str,
        parameters: Sequence[Any],
        limits: QueryLimits,
        cancel: Event | None,
        tables: Sequence[TableRows] = (),
    ) -> SqlResult:
        """Returns the result of one SELECT of a user, in PostgreSQL's SQL."""
        query = check_select(text, len(parameters))

        def run() -> SqlResult:
            with self._sandbox(limits, cancel, tables) as sandbox:
                return sandbox.query(query, parameters)

        return self._read_unreplaced(run)

    def _sandbox(self, limits: QueryLimits, cancel: Event | None, tables: Sequence[TableRows] = ()) -> PostgresSandbox:
        if self._reader_pool is not None:
            return PostgresSandbox(self._reader_pool, limits, cancel, role=None, tables=tables)
        return PostgresSandbox(self.pool, limits, cancel, role=READER_ROLE, tables=tables)

    def _read_unreplaced(self, run: Callable[[], _T]) -> _T:
        """Returns the result of `run`, and repeats it if a view was replaced meanwhile.

        PostgreSQL looks names up in the present, whatever snapshot a transaction has. The name of a view that was
        replaced after the snapshot leads to a table whose rows the snapshot does not show.
        """

        def versions(session: PostgresSession) -> set[str]:
            return {table.query for table in current_tables(session)}

        while True:
            before = self.read_snapshot(versions)
            found = _retry(run, _READ_ATTEMPTS, SchemaConflictError, UnreachableError)
            if self.read_snapshot(versions) == before:
                return found


def _retry(run: Callable[[], _T], attempts: int, *errors: type[Exception]) -> _T:
    for _ in range(attempts - 1):
        with contextlib.suppress(*errors):
            return run()
    return run()


class _PostgresState:
    """Operator state in PostgreSQL, with arrays as parameters; implements `headwater.store.dialect.StateSql`."""

    def values(
        self, session: PostgresSession, space: int, keys: Sequence[bytes], names: Sequence[bytes]
    ) -> list[bytes | None]:
        select = """
            SELECT s.value FROM unnest(?::bytea[], ?::bytea[]) WITH ORDINALITY AS sought(key, name, place)
            LEFT JOIN hw$state s ON s.space = ? AND s.key = sought.key AND s.name = sought.name ORDER BY sought.place
        """
        return [value for (value,) in session.execute(select, (list(keys), list(names), space)).fetchall()]

    def entries(self, session: PostgresSession, space: int, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes]]:
        select = "SELECT key, name, value FROM hw$state WHERE space = ? AND key = ANY(?::bytea[]) ORDER BY key, name"
        return session.execute(select, (space, list(keys))).fetchall()

    def write(
        self, session: PostgresSession, space: int, puts: list[StateEntry], deletes: list[tuple[bytes, bytes]]
    ) -> None:
        if puts:
            upsert = """
                INSERT INTO hw$state SELECT ?, * FROM unnest(?::bytea[], ?::bytea[], ?::bytea[], ?::int[])
                ON CONFLICT (space, key, name) DO UPDATE SET value = excluded.value, held = excluded.held
            """
            session.execute(upsert, (space, *map(list, zip(*puts, strict=True))))
        if deletes:
            delete = """
                DELETE FROM hw$state s USING unnest(?::bytea[], ?::bytea[]) AS gone(key, name)
                WHERE s.space = ? AND s.key = gone.key AND s.name = gone.name
            """
            session.execute(delete, (*map(list, zip(*deletes, strict=True)), space))


@dataclass(frozen=True)
class PostgresStager:
    """Opens the database once in each process it was pickled into, and stages rows there.

    Args:
        url: The URL of the database. It is not shown, since it may contain a password.
    """

    url: str = field(repr=False)

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Stage some rows of a batch; the commit names the parts that it publishes."""
        return _open_once(self.url).stage(table, batch, rows)


@lru_cache
def _open_once(url: str) -> PostgresDialect:
    return PostgresDialect(url)


class PostgresNotifier:
    """A notifier with LISTEN on a connection of its own.

    `wait` returns when something was written since the last `wait`. While the server is away the notifier tries to
    reconnect, and wakes once the server is back: something may have been written meanwhile.
    """

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._session: PostgresSession | None = self._listen()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as something was written, or False after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                if self._session is None:
                    self._session = self._listen()
                    return True
                notifies = self._session.connection.notifies
                received = any(True for _ in notifies(timeout=left, stop_after=1))
                if received:  # drop the other notifications that arrived with it: one wait answers all
                    any(False for _ in notifies(timeout=0))
                return received
            except (psycopg.Error, UnreachableError):
                self.close()
                if left is not None and left <= 0:
                    return False
                time.sleep(_RECONNECT_DELAY if left is None else min(_RECONNECT_DELAY, left))

    def fileno(self) -> int | None:
        """Returns the descriptor that becomes readable on a change, for event loops; None while disconnected."""
        return None if self._session is None else self._session.connection.fileno()

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _listen(self) -> PostgresSession:
        session = self._pool.open()
        session.execute(f"LISTEN {_CHANNEL}")
        return session
