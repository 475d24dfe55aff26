"""Views in PostgreSQL as readers see them. Reads never wait for a commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from threading import Event
from typing import Any, TypeVar

import pyarrow as pa

from headwater.errors import SchemaConflictError, UnreachableError
from headwater.log.wakeup import Waiter
from headwater.store.bookkeeping.registry import current_table, current_tables
from headwater.store.definition import ViewTable
from headwater.store.postgres.columns import arrays_of, declared, from_values, key_texts
from headwater.store.postgres.connection import PostgresSession, literal, quoted
from headwater.store.postgres.migrations import READER, SHOWN
from headwater.store.postgres.sandbox import Sandbox
from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.view_tables import table_of_version
from headwater.store.postgres.words import checked, checked_where
from headwater.store.query import Answer, QueryLimits
from headwater.store.slots import from_arrays, slots
from headwater.store.view_reader import ViewReader, key_row, one_of, sorting

__all__ = ["PostgresViews"]

_READS = QueryLimits(time=timedelta(seconds=30), memory=1 << 30, cell=64 << 20, columns=2_000)
_TRIES = 5  # a view can be swapped between the look for its table and the look into it
_T = TypeVar("_T")


class PostgresViews(ViewReader):
    """The views in a PostgreSQL database, for reading; may be used from several threads.

    Rows come in the order of the view's key, unless another is asked for.

    Args:
        store: Where they are.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> Answer:
        """The answer to one SELECT over views and system views, in the SQL of PostgreSQL; see `ViewReader.sql`."""
        query = checked(text, len(parameters))

        def asked() -> Answer:
            with self._sandbox(QueryLimits() if limits is None else limits, cancel) as sandbox:
                return sandbox.ask(query, parameters)

        return self._steady(asked)

    def close(self) -> None:
        """Let go of the connections; they are the store's, which keeps them."""

    # -- inside ----------------------------------------------------------------------------------------------------

    def _steady(self, do: Callable[[], _T]) -> _T:
        """What `do` finds while no view was swapped.

        PostgreSQL looks names up in the present, whatever moment a transaction shows: a view that was swapped after it
        leads to a table whose rows are not there yet.
        """
        while True:
            before = self._versions()
            found = _tried(do)
            if self._versions() == before:
                return found

    def _versions(self) -> set[str]:
        with self._session() as session:
            return {table.query for table in current_tables(session)}

    def _plain(self, name: str, key: Any, limit: int | None) -> pa.Table:
        def read() -> pa.Table:
            with self._session() as session:
                table = current_table(session, name) or one_of(current_tables(session), name)
                same = "" if key is None else _condition(table, key_row(table, key))
                columns = slots(table)
                names, source = ", ".join(quoted(slot.name) for slot in columns), table_of_version(table)
                query = f"SELECT {names} FROM {source} {same} ORDER BY {_key(table)} {_upto(limit)}"
                return from_arrays(table, arrays_of(session.copy_out(query), [slot.kind for slot in columns]))

        return _tried(read)

    def _sought(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        condition = None if where is None else checked_where(where)
        return self._steady(lambda: self._asked(name, condition, order, limit, cancel))

    def _asked(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        with self._sandbox(_READS, cancel) as sandbox:
            table = self.definition(name) if self._store.readers else one_of(sandbox.tables(), name)
            columns = slots(table)
            names = ", ".join(quoted(slot.name) for slot in columns)
            condition = "" if where is None else f"WHERE (\n{where}\n)"
            ordering = ", ".join([*(_ordering(table, column) for column in order), _key(table)])
            query = f"SELECT {names} FROM {SHOWN}.{quoted(table.name)} {condition} ORDER BY {ordering} {_upto(limit)}"
            found = [
                [
                    from_values(values, slot.kind)
                    for values, slot in zip(zip(*rows, strict=True), columns, strict=True)
                ]
                for rows in sandbox.each(query)
            ]
        return pa.concat_tables([table.schema.empty_table(), *(from_arrays(table, part) for part in found)])

    def _sandbox(self, limits: QueryLimits, cancel: Event | None) -> Sandbox:
        if self._store.readers is not None:
            return Sandbox(self._store.readers, limits, cancel, role=None)
        return Sandbox(self._store.connections, limits, cancel, role=READER)

    def _watch(self) -> Waiter:
        return self._store.watch()

    @contextlib.contextmanager
    def _session(self) -> Iterator[PostgresSession]:
        with (
            self._store.connections.session() as session,
            session.connection.transaction(force_rollback=True),
        ):
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield session


def _tried(do: Callable[[], _T]) -> _T:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(SchemaConflictError, UnreachableError):
            return do()
    return do()


def _condition(table: ViewTable, row: pa.Table) -> str:
    keys = [slot for slot in slots(table) if slot.column in table.key]
    parts = [
        f"{quoted(slot.name)} IS NULL"
        if text is None
        else f"{quoted(slot.name)} = {literal(text)}::{declared(slot.kind)}"
        for slot, text in zip(keys, key_texts(table, row), strict=True)
    ]
    return f"WHERE {' AND '.join(parts)}"


def _key(table: ViewTable) -> str:
    return ", ".join(quoted(slot.name) for slot in slots(table) if slot.column in table.key)


def _ordering(table: ViewTable, column: str) -> str:
    """Nulls come before all values, as in SQLite."""
    name, descending = sorting(table, column)
    return f"{quoted(name)} DESC NULLS LAST" if descending else f"{quoted(name)} NULLS FIRST"


def _upto(limit: int | None) -> str:
    return "" if limit is None else f"LIMIT {int(limit)}"
