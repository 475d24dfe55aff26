"""Views in SQLite as readers see them. Reads never wait for a commit."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import timedelta
from threading import Event, Lock
from typing import Any

import pyarrow as pa

from headwater.log.wakeup import Waiter
from headwater.store.bookkeeping.registry import current_table, current_tables, table_name
from headwater.store.definition import ViewTable
from headwater.store.query import Answer, QueryLimits, checked_condition
from headwater.store.slots import slots
from headwater.store.sqlite.columns import to_slots
from headwater.store.sqlite.connection import quoted, reading, translated
from headwater.store.sqlite.sandbox import Sandbox
from headwater.store.sqlite.store import SqliteStore
from headwater.store.sqlite.upsert import table_of
from headwater.store.view_reader import ViewReader, key_row, one_of, sorting

__all__ = ["Views"]

_READS = QueryLimits(time=timedelta(seconds=30), memory=1 << 30, cell=64 << 20, columns=2_000)
_IDLE = 4  # connections kept for the next reader


class Views(ViewReader):
    """The views in a SQLite file, for reading; may be used from several threads.

    Args:
        store: Where they are.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> store = SqliteStore(Path(tempfile.mkdtemp()))
        >>> store.create(ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",)))
        >>> views = Views(store)
        >>> views.names(), views.rows("totals"), views.sql("select count(*) as n from totals").rows
        (['totals'], [], [(0,)])
        >>> views.close(); store.close()
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._path = store.path
        self._idle: list[sqlite3.Connection] = []
        self._lock = Lock()

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> Answer:
        """The answer to one SELECT over views and system views, as SQLite has it; see `ViewReader.sql`."""
        with Sandbox(self._path, QueryLimits() if limits is None else limits, cancel) as sandbox:
            return sandbox.ask(text, parameters)

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _plain(self, name: str, key: Any, limit: int | None) -> pa.Table:
        with self._session() as connection:
            table = current_table(connection, name) or one_of(current_tables(connection), name)
            columns = ", ".join(quoted(slot.name) for slot in slots(table))
            same, values = ("", []) if key is None else _condition(table, key_row(table, key))
            query = f"SELECT {columns} FROM {quoted(table_name(table))} {same} LIMIT ?"
            found = connection.execute(query, (*values, -1 if limit is None else limit)).fetchall()
            return table_of(table, found)

    def _sought(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        with Sandbox(self._path, _READS, cancel) as sandbox:
            table = one_of(sandbox.tables, name)
            columns = slots(table)
            parts = ["SELECT", ", ".join(quoted(slot.name) for slot in columns), "FROM", quoted(table.name)]
            if where is not None:
                parts += ["WHERE (\n", checked_condition(where), "\n)"]
            if order:
                parts += ["ORDER BY", ", ".join(_ordering(table, column) for column in order)]
            parts.append("LIMIT ?")
            asked = sandbox.each(" ".join(parts), (-1 if limit is None else limit,))
            return pa.concat_tables([table.schema.empty_table(), *(table_of(table, rows) for rows in asked)])

    def _watch(self) -> Waiter:
        return self._store.watch()

    @contextlib.contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the store until it is given back."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = reading(self._path) if connection is None else connection
        try:
            with translated(self._path):
                connection.execute("BEGIN")
                yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            with self._lock:
                keep = len(self._idle) < _IDLE
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()


def _condition(table: ViewTable, row: pa.Table) -> tuple[str, list[Any]]:
    names = [slot.name for slot in slots(table) if slot.column in table.key]
    condition = " AND ".join(f"{quoted(name)} IS ?" for name in names)
    return f"WHERE {condition}", [column[0] for column in to_slots(table, row)]


def _ordering(table: ViewTable, column: str) -> str:
    name, descending = sorting(table, column)
    return f"{quoted(name)} DESC" if descending else quoted(name)
