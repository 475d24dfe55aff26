"""Runs SQL of users: one SELECT under a role that can only read views, in a read-only transaction with limits.

`headwater.sql.guard` checks the text first. The role has no other rights, but a query could leave it by calling a
function such as `set_config`.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg import RawServerCursor
from psycopg import errors as pg
from psycopg.types.string import TextLoader

from headwater.errors import BadCredentialsError, BadQueryError, HeadwaterError
from headwater.events.values import preview
from headwater.sql.postgres_pool import PostgresPool, PostgresSession
from headwater.store.commit import ViewTable
from headwater.store.postgres.migrations import READER_ROLE, VIEW_SCHEMA
from headwater.store.protocol import QueryLimits, SqlResult, limit_error
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
    """

    def __init__(
        self, pool: PostgresPool, limits: QueryLimits, cancel: Event | None = None, role: str | None = READER_ROLE
    ) -> None:
        self._limits = limits
        self._cancel = cancel
        self._role = role
        self._stack = contextlib.ExitStack()
        self._session: PostgresSession = self._stack.enter_context(pool.session())
        self._deadline = time.monotonic() + limits.time.total_seconds()

    def __enter__(self) -> PostgresSandbox:
        try:
            connection = self._session.connection
            self._stack.enter_context(connection.transaction(force_rollback=True))
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

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
        whole = [
            number
            for number, column in enumerate(cursor.description or ())
            if column.type_code == _NUMERIC_OID and column.scale is None
        ]
        while rows := cursor.fetchmany(count):
            yield [_restore_integers(row, whole) for row in rows] if whole else rows
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
        return BadQueryError(
            f"the query cannot be answered: {reason[:300]}",
            detail=f"views are in the schema {VIEW_SCHEMA}; the system's own are {', '.join(SYSTEM_VIEWS)}",
            text=preview(text),
        )


class _TimestampLoader(TextLoader):
    """Loads times in the text form of all stores: `2026-01-01T00:00:00.000000Z`."""

    def load(self, data: Any) -> str:
        text = bytes(data).decode()
        read = _TIMESTAMP.fullmatch(text)
        return text if read is None else f"{read[1]}T{read[2]}{(read[3] or '.'):0<7}Z"


def _restore_integers(row: tuple[Any, ...], whole: list[int]) -> tuple[Any, ...]:
    """Convert sums of integers back to integers; PostgreSQL returns them as numeric."""
    found = list(row)
    for number in whole:
        value = found[number]
        found[number] = int(value) if value is not None and value.lstrip("-").isdigit() else value
    return tuple(found)
