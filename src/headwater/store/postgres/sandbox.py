"""Runs SQL of users: one SELECT under a role that can only read views, in a read-only transaction with limits.

`headwater.sql.guard` checks the text first. The role has no other rights, but a query could leave it by calling a
function such as `set_config`.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg import RawServerCursor
from psycopg import errors as pg
from psycopg.types.string import TextLoader

from headwater.errors import BadCredentialsError, BadQueryError, HeadwaterError
from headwater.events.values import preview, trim_zeros
from headwater.sql.identifiers import quote
from headwater.sql.postgres_pool import PostgresPool, PostgresSession
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import ViewTable
from headwater.store.postgres.columns import stored_type, to_csv, to_csv_columns
from headwater.store.postgres.migrations import READER_ROLE, VIEW_SCHEMA
from headwater.store.protocol import QueryLimits, SqlResult, TableRows, limit_error
from headwater.store.system_views import SYSTEM_VIEWS
from headwater.store.view_registry import current_tables

__all__ = ["PostgresSandbox"]

_POLL_INTERVAL = 0.02  # seconds between checks for cancellation
_FETCH_SIZE = 500  # rows fetched in one go
_NUMERIC_OID = 1700
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d+)?\+00")
Rows = list[tuple[Any, ...]]


class PostgresSandbox:
    """A separate transaction for one query; a context manager.

    Args:
        pool: The connections of the store.
        limits: The limits of the query.
        cancel: An event that ends the query when set, from any thread.
        role: The role to read under; None if the login of the connections has no other rights.
        tables: Tables outside of the store; temporary tables during the query.
    """

    def __init__(
        self,
        pool: PostgresPool,
        limits: QueryLimits,
        cancel: Event | None = None,
        role: str | None = READER_ROLE,
        tables: Sequence[TableRows] = (),
    ) -> None:
        self._limits = limits
        self._cancel = cancel
        self._role = role
        self._tables = tables
        self._stack = contextlib.ExitStack()
        self._session: PostgresSession = self._stack.enter_context(pool.session())
        self._deadline = time.monotonic() + limits.time.total_seconds()

    def __enter__(self) -> PostgresSandbox:
        try:
            connection = self._session.connection
            self._stack.enter_context(connection.transaction(force_rollback=True))
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            for table in self._tables:
                self._add_table(table)
            connection.execute("SET TRANSACTION READ ONLY")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def _add_table(self, table: TableRows) -> None:
        """Copy a table to a temporary one, which the end of the transaction drops."""
        described = ", ".join(
            f"{quote(slot.name)} {stored_type(slot.kind)}" for slot in storage_columns(table.definition)
        )
        name = f"pg_temp.{quote(table.definition.name)}"
        try:
            self._session.execute_raw(f"CREATE TEMP TABLE {quote(table.definition.name)} ({described})")
        except pg.InsufficientPrivilege:
            raise BadCredentialsError(
                f'a query over the table "{table.definition.name}" needs a temporary table; this user can create none',
                fix="as an administrator: GRANT TEMPORARY ON DATABASE … TO the user of the store",
            ) from None
        self._session.copy_in(name, to_csv(to_csv_columns(table.definition, table.rows)))
        if self._role is not None:
            self._session.execute_raw(f"GRANT SELECT ON {name} TO {self._role}")

    def tables(self) -> list[ViewTable]:
        """Returns the existing views; call it before the query."""
        return current_tables(self._session)

    def query(self, text: str, parameters: Sequence[Any] = ()) -> SqlResult:
        """Returns the result of one SELECT, cut off at the limits of rows and bytes.

        Raises:
            BadQueryError: The text is invalid, uses something forbidden, or exceeds a limit.
        """
        with self._run(text, parameters) as cursor:
            columns = tuple(column.name for column in cursor.description or ())
            if len(columns) > self._limits.columns:
                what = f"the result has {len(columns)} columns; at most {self._limits.columns} are allowed"
                raise BadQueryError(what, text=preview(text), limit="columns")
            chunks = self._chunks(cursor, min(_FETCH_SIZE, self._limits.rows + 1))
            return SqlResult.collect(columns, chain.from_iterable(chunks), self._limits)

    def query_chunks(self, text: str) -> Iterator[Rows]:
        """Yields all rows of a SELECT that Headwater wrote around a user's condition, in lists of some thousands."""
        with self._run(text, ()) as cursor:
            yield from self._chunks(cursor, 5_000)

    def _chunks(self, cursor: RawServerCursor[tuple[Any, ...]], count: int) -> Iterator[Rows]:
        numeric = {
            number: column.scale is None
            for number, column in enumerate(cursor.description or ())
            if column.type_code == _NUMERIC_OID
        }
        while rows := cursor.fetchmany(count):
            yield [_shorten_numbers(row, numeric) for row in rows] if numeric else rows
            if time.monotonic() > self._deadline:
                raise limit_error(self._limits, "time")

    @contextlib.contextmanager
    def _run(self, text: str, parameters: Sequence[Any]) -> Iterator[RawServerCursor[tuple[Any, ...]]]:
        if self._cancel is not None and self._cancel.is_set():
            raise limit_error(self._limits, "cancelled")
        connection = self._session.connection
        self._restrict(connection)
        cursor = RawServerCursor(connection, "answer")
        cursor.adapters.register_loader("timestamptz", _TimestampLoader)
        for kind in ("numeric", "date", "timestamp", "time", "interval", "uuid"):
            cursor.adapters.register_loader(kind, TextLoader)
        done = Event()
        # The query blocks this thread, so another one waits for the cancellation.
        watcher = Thread(target=self._watch, args=(connection, done), daemon=True)
        if self._cancel is not None:
            watcher.start()
        try:
            with cursor:
                cursor.execute(text, list(parameters) or None)
                yield cursor
        except psycopg.Error as error:
            raise self._translate_error(text, error) from None
        finally:
            done.set()
            if self._cancel is not None:
                watcher.join()

    def _restrict(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Restrict the transaction to reading views, with a statement timeout."""
        left = int(self._limits.time.total_seconds() * 1000)
        # In KiB. Every sort and hash of a query may use as much, so it is a fraction of the limit.
        memory = max(64, min(self._limits.memory // 8 >> 10, 1 << 20))
        settings = f"""
            SET LOCAL search_path = {VIEW_SCHEMA}, pg_catalog, pg_temp; SET LOCAL statement_timeout = {left};
            SET LOCAL work_mem = {memory}; SET LOCAL max_parallel_workers_per_gather = 0;
            SET LOCAL standard_conforming_strings = on
        """  # standard_conforming_strings: the guard writes string literals without escapes
        connection.execute(settings)
        if self._role is not None:
            try:
                connection.execute(f"SET LOCAL ROLE {self._role}")
            except (pg.InvalidParameterValue, pg.InsufficientPrivilege):
                raise BadCredentialsError(
                    f"SQL of users runs under the role {self._role}, which this user does not have",
                    fix=f"as an administrator: CREATE ROLE {self._role}; GRANT {self._role} TO CURRENT_USER",
                ) from None

    def _watch(self, connection: psycopg.Connection[tuple[Any, ...]], done: Event) -> None:
        while not done.wait(_POLL_INTERVAL):
            if self._cancel is not None and self._cancel.is_set():
                with contextlib.suppress(psycopg.Error):
                    connection.cancel_safe(timeout=5)

    def _translate_error(self, text: str, error: psycopg.Error) -> HeadwaterError | psycopg.Error:
        if isinstance(error, pg.QueryCanceled):
            return limit_error(self._limits, "cancelled" if self._cancel and self._cancel.is_set() else "time")
        if isinstance(error, psycopg.OperationalError) and not isinstance(error, pg.InsufficientResources):
            return error  # a fault of the connection, which the pool translates
        reason = str(error).partition("\n")[0]
        data: dict[str, Any] = {"relation": reason[:300]} if isinstance(error, pg.UndefinedTable) else {}
        what = f"the query cannot be answered: {reason[:300]}"
        views = f"views are in the schema {VIEW_SCHEMA}; the system's own are {', '.join(SYSTEM_VIEWS)}"
        return BadQueryError(what, detail=views, text=preview(text), **data)


class _TimestampLoader(TextLoader):
    """Loads times as RFC 3339 text in UTC, with a fraction of six digits unless it is zero."""

    def load(self, data: Any) -> str:
        text = bytes(data).decode()
        read = _TIMESTAMP.fullmatch(text)
        if read is None:
            return text
        fraction = f"{read[3]:0<7}" if read[3] else ""
        return f"{read[1]}T{read[2]}{fraction}Z"


def _shorten_numbers(row: tuple[Any, ...], numeric: Mapping[int, bool]) -> tuple[Any, ...]:
    """Convert sums of integers back to integers, and leave trailing zeros of other numbers out.

    Args:
        row: One row of a result.
        numeric: The columns of the type numeric, each with whether its scale is unknown: PostgreSQL returns sums of
            integers so.
    """
    found = list(row)
    for number, free in numeric.items():
        text = found[number]
        if text is not None:
            found[number] = int(text) if free and text.lstrip("-").isdigit() else _trim_number(text)
    return tuple(found)


def _trim_number(text: str) -> str:
    return trim_zeros(text) if text.lstrip("-")[:1].isdigit() else text  # NaN and Infinity
