"""A query of a user from its text to rows, on a connection made for it and thrown away after it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa

from headwater.errors import BadQueryError, HeadwaterError
from headwater.events.values import shown
from headwater.store.bookkeeping.registry import current_tables, table_name
from headwater.store.bookkeeping.system_views import SYSTEM_VIEWS
from headwater.store.query import Answer, QueryLimits, size_of
from headwater.store.slots import slots
from headwater.store.sqlite.connection import quoted, reading, translated
from headwater.store.sqlite.sandbox.functions import DECIMAL, MOMENT, add_functions
from headwater.store.sqlite.sandbox.limits import Guard, apply_limits
from headwater.store.sqlite.sandbox.permissions import Permissions
from headwater.store.sqlite.system_views import SYSTEM_TABLES

__all__ = ["Sandbox"]


class Sandbox:
    """One query's own connection: open it, ask once, close it. A context manager.

    Args:
        path: The store's file.
        limits: What the query may take.
        cancel: Set it, from any thread, to end the query.
    """

    def __init__(self, path: Path, limits: QueryLimits, cancel: Event | None = None) -> None:
        self._path = path
        self._limits = limits
        self._connection = reading(path)
        self._guard = Guard(limits, cancel)
        try:
            with translated(path):
                self._connection.execute("BEGIN")
                self.tables = current_tables(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> Answer:
        """The answer to one SELECT, cut off at the limits of rows and bytes.

        Raises:
            BadQueryError: The text is wrong, does what it may not, or takes too much.
        """
        self._connection.text_factory = lambda data: data.decode(errors="replace")
        rows: list[tuple[Any, ...]] = []
        size = 0
        with self._running(text) as cursor:
            cursor.execute(text, parameters)
            if cursor.description is None:
                raise BadQueryError("there is no query in the text", fix="write one SELECT", text=shown(text))
            columns = tuple(column[0] for column in cursor.description)
            for row in cursor:
                size += size_of(row)
                if len(rows) == self._limits.rows or size > self._limits.size:
                    return Answer(columns, rows, complete=False)
                rows.append(row)
        return Answer(columns, rows, complete=True)

    def each(self, text: str, parameters: Sequence[Any] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """All rows of one SELECT that we wrote around a user's condition, in lists of some thousands."""
        with self._running(text) as cursor:
            cursor.execute(text, parameters)
            while rows := cursor.fetchmany(5_000):
                yield rows

    @contextlib.contextmanager
    def _running(self, text: str) -> Iterator[sqlite3.Cursor]:
        if not isinstance(text, str) or "\0" in text:
            raise BadQueryError("a query is text without NUL", text=shown(text))
        self._show_views(text)
        permissions = Permissions(self._readable())
        apply_limits(self._limits, self._connection)
        permissions.watch(self._connection)
        self._guard.watch(self._connection)
        try:
            yield self._connection.cursor()
        except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError) as error:
            raise self._error(text, error, permissions.refused) from None

    def _show_views(self, text: str) -> None:
        """Views with decimals or times get their order; only those that the query can mean."""
        add_functions(self._connection, self._limits.cell)
        # SQLite makes these two tables when they are first read, which the permissions would take for a write.
        self._connection.execute("SELECT 1 FROM json_each('1'), json_tree('1')").fetchone()
        named = text.casefold()
        for table in self.tables:
            orders = [_order(slot.kind) for slot in slots(table)]
            if table.name.casefold() in named and any(orders):
                columns = ", ".join(
                    f"{quoted(slot.name)}{order} AS {quoted(slot.name)}"
                    for slot, order in zip(slots(table), orders, strict=True)
                )
                source = f"main.{quoted(table_name(table))}"
                self._connection.execute(
                    f"CREATE TEMP VIEW {quoted(table.name)} AS SELECT {columns} FROM {source}"
                )

    def _readable(self) -> set[str]:
        own = {name.lower() for table in self.tables for name in (table.name, table_name(table))}
        return own | set(SYSTEM_VIEWS) | set(SYSTEM_TABLES)

    def _error(self, text: str, error: Exception, refused: str) -> HeadwaterError:
        ended = self._guard.error()
        if ended is not None:
            return ended
        reason = refused or str(error)
        if "too big" in reason or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_TOOBIG:
            what = f"a value of the query is longer than {self._limits.cell:,} bytes"
            return BadQueryError(what, text=shown(text), limit="cell")
        names = ", ".join([*(table.name for table in self.tables), *SYSTEM_VIEWS][:40])
        return BadQueryError(
            f"the query cannot be answered: {reason[:300]}", detail=f"views: {names}", text=shown(text)
        )


def _order(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f" COLLATE {DECIMAL}"
    return f" COLLATE {MOMENT}" if pa.types.is_timestamp(kind) else ""
