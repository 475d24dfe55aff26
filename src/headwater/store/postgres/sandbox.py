"""SQL of users: one SELECT under a role that can only read views, in a transaction that cannot write, within limits."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg import RawServerCursor
from psycopg import errors as pg
from psycopg.types.string import TextLoader

from headwater.errors import BadCredentialsError, BadQueryError, HeadwaterError
from headwater.events.values import shown
from headwater.store.bookkeeping.registry import current_tables
from headwater.store.bookkeeping.system_views import SYSTEM_VIEWS
from headwater.store.definition import ViewTable
from headwater.store.postgres.connection import Connections, PostgresSession
from headwater.store.postgres.migrations import READER, SHOWN
from headwater.store.query import Answer, QueryLimits, ended, size_of

__all__ = ["Sandbox"]

_LOOK_EVERY = 0.02  # seconds between two looks whether the query was cancelled
_AT_ONCE = 500  # rows fetched in one go
_NUMERIC = 1700
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d+)?\+00")
Rows = list[tuple[Any, ...]]


class Sandbox:
    """One query's own transaction: open it, ask once, close it. A context manager.

    Args:
        connections: Where to.
        limits: What the query may take.
        cancel: Set it, from any thread, to end the query.
        role: The role to read under; None when the login of the connections is such a one.
    """

    def __init__(
        self,
        connections: Connections,
        limits: QueryLimits,
        cancel: Event | None = None,
        role: str | None = READER,
    ) -> None:
        self._limits = limits
        self._cancel = cancel
        self._role = role
        self._open = contextlib.ExitStack()
        self._session: PostgresSession = self._open.enter_context(connections.session())
        self._end = time.monotonic() + limits.time.total_seconds()

    def __enter__(self) -> Sandbox:
        try:
            connection = self._session.connection
            self._open.enter_context(connection.transaction(force_rollback=True))
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def tables(self) -> list[ViewTable]:
        """The views there are; before the query is asked."""
        return current_tables(self._session)

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> Answer:
        """The answer to one SELECT, cut off at the limits of rows and bytes.

        Raises:
            BadQueryError: The text is wrong, does what it may not, or takes too much.
        """
        rows: Rows = []
        size = 0
        with self._running(text, parameters) as cursor:
            columns = tuple(column.name for column in cursor.description or ())
            if len(columns) > self._limits.columns:
                raise BadQueryError(
                    f"the answer has {len(columns)} columns", text=shown(text), limit="columns"
                )
            for part in self._parts(cursor, min(_AT_ONCE, self._limits.rows + 1)):
                for row in part:
                    size += size_of(row)
                    if len(rows) == self._limits.rows or size > self._limits.size:
                        return Answer(columns, rows, complete=False)
                    rows.append(row)
        return Answer(columns, rows, complete=True)

    def each(self, text: str) -> Iterator[Rows]:
        """All rows of one SELECT that we wrote around a user's condition, in lists of some thousands."""
        with self._running(text, ()) as cursor:
            yield from self._parts(cursor, 5_000)

    def _parts(self, cursor: RawServerCursor[tuple[Any, ...]], count: int) -> Iterator[Rows]:
        whole = [
            number
            for number, column in enumerate(cursor.description or ())
            if column.type_code == _NUMERIC and column.scale is None
        ]
        while rows := cursor.fetchmany(count):
            yield [_counted(row, whole) for row in rows] if whole else rows
            if time.monotonic() > self._end:
                raise ended(self._limits, "time")

    @contextlib.contextmanager
    def _running(self, text: str, parameters: Sequence[Any]) -> Iterator[RawServerCursor[tuple[Any, ...]]]:
        connection = self._session.connection
        self._confine(connection)
        cursor = RawServerCursor(connection, "answer")
        cursor.adapters.register_loader("timestamptz", _Moment)
        for kind in ("numeric", "date", "timestamp", "time", "interval", "uuid"):
            cursor.adapters.register_loader(kind, TextLoader)
        over = Event()
        watching = Thread(target=self._watch, args=(connection, over), daemon=True)
        if self._cancel is not None:
            watching.start()
        try:
            with cursor:
                cursor.execute(text, list(parameters) or None)
                yield cursor
        except psycopg.Error as error:
            raise self._told(text, error) from None
        finally:
            over.set()
            if self._cancel is not None:
                watching.join()

    def _confine(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """From here on only views can be read, and not for long."""
        left = int(self._limits.time.total_seconds() * 1000)
        memory = max(64, min(self._limits.memory // 8 >> 10, 1 << 20))
        settings = f"""
            SET LOCAL search_path = {SHOWN}, pg_catalog, pg_temp; SET LOCAL statement_timeout = {left};
            SET LOCAL work_mem = {memory}; SET LOCAL max_parallel_workers_per_gather = 0
        """
        connection.execute(settings)
        if self._role is not None:
            try:
                connection.execute(f"SET LOCAL ROLE {self._role}")
            except (pg.InvalidParameterValue, pg.InsufficientPrivilege):
                raise BadCredentialsError(
                    f"SQL is answered under the role {self._role}, and this user does not have it",
                    fix=f"as an administrator: CREATE ROLE {self._role}; GRANT {self._role} TO CURRENT_USER",
                ) from None

    def _watch(self, connection: psycopg.Connection[tuple[Any, ...]], over: Event) -> None:
        while not over.wait(_LOOK_EVERY):
            if self._cancel is not None and self._cancel.is_set():
                with contextlib.suppress(psycopg.Error):
                    connection.cancel_safe(timeout=5)

    def _told(self, text: str, error: psycopg.Error) -> HeadwaterError | psycopg.Error:
        if isinstance(error, pg.QueryCanceled):
            return ended(self._limits, "cancelled" if self._cancel and self._cancel.is_set() else "time")
        if isinstance(error, psycopg.OperationalError) and not isinstance(error, pg.InsufficientResources):
            return error  # the connection's own trouble
        reason = str(error).partition("\n")[0]
        return BadQueryError(
            f"the query cannot be answered: {reason[:300]}",
            detail=f"views are in the schema {SHOWN}; the system's own are {', '.join(SYSTEM_VIEWS)}",
            text=shown(text),
        )


class _Moment(TextLoader):
    """Times as all stores answer them: `2026-01-01T00:00:00.000000Z`."""

    def load(self, data: Any) -> str:
        text = bytes(data).decode()
        read = _MOMENT.fullmatch(text)
        return text if read is None else f"{read[1]}T{read[2]}{(read[3] or '.'):0<7}Z"


def _counted(row: tuple[Any, ...], whole: list[int]) -> tuple[Any, ...]:
    """Sums of integers are integers; PostgreSQL makes numerics of them, which are text otherwise."""
    found = list(row)
    for number in whole:
        value = found[number]
        found[number] = int(value) if value is not None and value.lstrip("-").isdigit() else value
    return tuple(found)
