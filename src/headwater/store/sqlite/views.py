"""Reads views in SQLite; reads never wait for a commit."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import timedelta
from threading import Event, Lock
from typing import Any

import pyarrow as pa

from headwater.log.notifier import Waiter
from headwater.store.columns import storage_columns
from headwater.store.commit import ViewTable
from headwater.store.protocol import QueryLimits, SqlResult
from headwater.store.sqlite.columns import encode_columns
from headwater.store.sqlite.connection import open_reader, quote, translate_store_errors
from headwater.store.sqlite.sandbox import SqliteSandbox
from headwater.store.sqlite.store import SqliteStore
from headwater.store.sqlite.upsert import rows_to_table
from headwater.store.view_registry import current_table, current_tables, table_name
from headwater.store.views.view_filter import ViewFilter, collect_rows
from headwater.store.views.view_reader import ViewReader, find_view, key_table, sort_column

__all__ = ["SqliteViewReader"]

_READ_LIMITS = QueryLimits(time=timedelta(seconds=30), memory=1 << 30, cell=64 << 20, columns=2_000)
_MAX_IDLE = 4  # connections kept for the next reader


class SqliteViewReader(ViewReader):
    """Reads the views in a SQLite file; thread-safe.

    Args:
        store: Where they are.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> store = SqliteStore(Path(tempfile.mkdtemp()))
        >>> store.create(ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",)))
        >>> views = SqliteViewReader(store)
        >>> views.names(), views.rows("totals"), views.sql("select count(*) as n from totals").rows
        (['totals'], [], [(0,)])
        >>> views.close(); store.close()
    """

    engine = "sqlite"

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._path = store.path
        self._idle: list[sqlite3.Connection] = []
        self._lock = Lock()  # guards only the list of idle connections, never a query

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> SqlResult:
        """Returns the result of one SELECT over views and system views, in SQLite's SQL; see `ViewReader.sql`."""
        with SqliteSandbox(self._path, QueryLimits() if limits is None else limits, cancel) as sandbox:
            return sandbox.query(text, parameters)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _read_rows(self, name: str, key: Any, limit: int | None) -> pa.Table:
        with self._session() as connection:
            table = current_table(connection, name) or find_view(current_tables(connection), name)
            columns = ", ".join(quote(slot.name) for slot in storage_columns(table))
            same, values = ("", []) if key is None else _key_condition(table, key_table(table, key))
            query = f"SELECT {columns} FROM {quote(table_name(table))} {same} LIMIT ?"
            found = connection.execute(query, (*values, -1 if limit is None else limit)).fetchall()
            return rows_to_table(table, found)

    def _query_rows(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        with SqliteSandbox(self._path, _READ_LIMITS, cancel) as sandbox:
            table = find_view(sandbox.tables, name)
            columns = storage_columns(table)
            parts = ["SELECT", ", ".join(quote(slot.name) for slot in columns), "FROM", quote(table.name)]
            condition = None if where is None else ViewFilter(where, table, self.engine)
            if condition is not None:
                parts += ["WHERE", condition.sql]
            if order:
                parts += ["ORDER BY", ", ".join(_order_by(table, column) for column in order)]
            parts.append("LIMIT ?")
            stop = limit if limit is not None and (condition is None or condition.complete) else -1
            chunks = sandbox.query_chunks(" ".join(parts), (stop,))
            return collect_rows(table, (rows_to_table(table, rows) for rows in chunks), condition, limit)

    def _watch(self) -> Waiter:
        return self._store.watch()

    @contextlib.contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection that sees one snapshot of the store."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = open_reader(self._path) if connection is None else connection
        try:
            with translate_store_errors(self._path):
                connection.execute("BEGIN")
                yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            with self._lock:
                keep = len(self._idle) < _MAX_IDLE
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()


def _key_condition(table: ViewTable, row: pa.Table) -> tuple[str, list[Any]]:
    names = [slot.name for slot in storage_columns(table) if slot.view_column in table.key]
    condition = " AND ".join(f"{quote(name)} IS ?" for name in names)
    return f"WHERE {condition}", [column[0] for column in encode_columns(table, row)]


def _order_by(table: ViewTable, column: str) -> str:
    name, descending = sort_column(table, column)
    return f"{quote(name)} DESC" if descending else quote(name)
