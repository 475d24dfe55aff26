"""Reads views in PostgreSQL; reads never wait for a commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from threading import Event
from typing import Any, TypeVar

import pyarrow as pa

from headwater.errors import SchemaConflictError, UnreachableError
from headwater.log.notifier import Waiter
from headwater.sql.guard import check_select
from headwater.sql.postgres_pool import PostgresSession, literal, quote
from headwater.store.columns import from_arrays, storage_columns
from headwater.store.commit import ViewTable
from headwater.store.postgres.columns import column_type, from_csv, from_values, key_literals
from headwater.store.postgres.migrations import READER_ROLE, VIEW_SCHEMA
from headwater.store.postgres.sandbox import PostgresSandbox
from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.view_tables import full_table_name
from headwater.store.protocol import QueryLimits, SqlResult
from headwater.store.view_registry import current_table, current_tables
from headwater.store.views.view_filter import ViewFilter, collect_rows
from headwater.store.views.view_reader import ViewReader, find_view, key_table, sort_column

__all__ = ["PostgresViewReader"]

_READ_LIMITS = QueryLimits(time=timedelta(seconds=30), memory=1 << 30, cell=64 << 20, columns=2_000)
_ATTEMPTS = 5  # a view can be swapped between the lookup of its table and the read
_T = TypeVar("_T")


class PostgresViewReader(ViewReader):
    """Reads the views in a PostgreSQL database; thread-safe.

    Rows come in the order of the view's key, unless another is asked for.

    Args:
        store: Where they are.
    """

    engine = "postgres"

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> SqlResult:
        """Returns the result of one SELECT over views and system views, in PostgreSQL's SQL; see `ViewReader.sql`."""
        query = check_select(text, len(parameters))

        def run() -> SqlResult:
            with self._sandbox(QueryLimits() if limits is None else limits, cancel) as sandbox:
                return sandbox.query(query, parameters)

        return self._read_stable(run)

    def close(self) -> None:
        """Do nothing: the connections belong to the store."""

    # -- inside ----------------------------------------------------------------------------------------------------

    def _read_stable(self, do: Callable[[], _T]) -> _T:
        """Returns the result of `do`, repeated if a view was swapped meanwhile.

        PostgreSQL looks names up in the present, whatever moment a transaction shows: a view that was swapped after it
        leads to a table whose rows are not there yet.
        """
        while True:
            before = self._versions()
            found = _retry(do)
            if self._versions() == before:
                return found

    def _versions(self) -> set[str]:
        with self._session() as session:
            return {table.query for table in current_tables(session)}

    def _read_rows(self, name: str, key: Any, limit: int | None) -> pa.Table:
        def read() -> pa.Table:
            with self._session() as session:
                table = current_table(session, name) or find_view(current_tables(session), name)
                same = "" if key is None else _key_condition(table, key_table(table, key))
                columns = storage_columns(table)
                names, source = ", ".join(quote(slot.name) for slot in columns), full_table_name(table)
                query = f"SELECT {names} FROM {source} {same} ORDER BY {_key_columns(table)} {_limit(limit)}"
                return from_arrays(table, from_csv(session.copy_out(query), [slot.kind for slot in columns]))

        return _retry(read)

    def _query_rows(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        return self._read_stable(lambda: self._query_view(name, where, order, limit, cancel))

    def _query_view(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        with self._sandbox(_READ_LIMITS, cancel) as sandbox:
            table = self.definition(name) if self._store.reader_pool else find_view(sandbox.tables(), name)
            columns = storage_columns(table)
            names = ", ".join(quote(slot.name) for slot in columns)
            condition = None if where is None else ViewFilter(where, table, self.engine)
            matching = "" if condition is None else f"WHERE {condition.sql}"
            ordering = ", ".join([*(_order_by(table, column) for column in order), _key_columns(table)])
            view = f"{VIEW_SCHEMA}.{quote(table.name)}"
            stop = _limit(limit if condition is None or condition.complete else None)
            query = f"SELECT {names} FROM {view} {matching} ORDER BY {ordering} {stop}"
            chunks = (_rows_to_table(table, rows) for rows in sandbox.query_chunks(query))
            return collect_rows(table, chunks, condition, limit)

    def _sandbox(self, limits: QueryLimits, cancel: Event | None) -> PostgresSandbox:
        if self._store.reader_pool is not None:
            return PostgresSandbox(self._store.reader_pool, limits, cancel, role=None)
        return PostgresSandbox(self._store.pool, limits, cancel, role=READER_ROLE)

    def _watch(self) -> Waiter:
        return self._store.watch()

    @contextlib.contextmanager
    def _session(self) -> Iterator[PostgresSession]:
        with self._store.pool.session() as session, session.connection.transaction(force_rollback=True):
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield session


def _retry(do: Callable[[], _T]) -> _T:
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(SchemaConflictError, UnreachableError):
            return do()
    return do()


def _rows_to_table(table: ViewTable, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = zip(zip(*rows, strict=True), storage_columns(table), strict=True)
    return from_arrays(table, [from_values(values, slot.kind) for values, slot in columns])


def _key_condition(table: ViewTable, row: pa.Table) -> str:
    keys = [slot for slot in storage_columns(table) if slot.view_column in table.key]
    parts = [
        f"{quote(slot.name)} IS NULL"
        if text is None
        else f"{quote(slot.name)} = {literal(text)}::{column_type(slot.kind)}"
        for slot, text in zip(keys, key_literals(table, row), strict=True)
    ]
    return f"WHERE {' AND '.join(parts)}"


def _key_columns(table: ViewTable) -> str:
    return ", ".join(quote(slot.name) for slot in storage_columns(table) if slot.view_column in table.key)


def _order_by(table: ViewTable, column: str) -> str:
    """Returns an ORDER BY item that sorts nulls first, as SQLite does."""
    name, descending = sort_column(table, column)
    return f"{quote(name)} DESC NULLS LAST" if descending else f"{quote(name)} NULLS FIRST"


def _limit(limit: int | None) -> str:
    return "" if limit is None else f"LIMIT {int(limit)}"
