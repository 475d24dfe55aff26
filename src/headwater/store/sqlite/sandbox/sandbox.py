"""A query of a user from its text to rows, on a connection made for it and thrown away after it."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa

from headwater.errors import BadQueryError, HeadwaterError
from headwater.events.values import shown
from headwater.store.sqlite.columns import slots
from headwater.store.sqlite.connection import quoted, reading, translated
from headwater.store.sqlite.sandbox.functions import DECIMAL, MOMENT, add_functions
from headwater.store.sqlite.sandbox.limits import Guard, QueryLimits
from headwater.store.sqlite.sandbox.permissions import Permissions
from headwater.store.sqlite.system_views import SYSTEM_TABLES, SYSTEM_VIEWS
from headwater.store.sqlite.view_tables import current_tables, table_name

__all__ = ["Answer", "Sandbox", "checked_condition"]

_PIECE = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/
    | (?P<mark> ['"`\[();] | /\* )""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Answer:
    """The rows of a query, as SQLite has them; `complete` is false when rows were left out by a limit.

    Example:
        >>> answer = Answer(("n",), [(1,), (2,)], complete=True)
        >>> answer.table().to_pylist()
        [{'n': 1}, {'n': 2}]
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    complete: bool

    def table(self) -> pa.Table:
        """The rows as Arrow columns; where values of a column differ in type, all are text."""
        columns = list(zip(*self.rows, strict=True)) or [() for _ in self.columns]
        return pa.Table.from_arrays([_column(values) for values in columns], names=list(self.columns))


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
                size += _size(row)
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
        self._limits.apply(self._connection)
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


def checked_condition(text: str) -> str:
    """A condition that can stand in parentheses: it cannot close them and go on behind.

    Example:
        >>> checked_condition("n > 1 and name <> ')'")
        "n > 1 and name <> ')'"

    Raises:
        BadQueryError: It has a parenthesis too many, a quote too few or a semicolon.
    """
    depth = 0
    for piece in _PIECE.finditer(text):
        mark = piece["mark"]
        depth += {"(": 1, ")": -1}.get(mark or "", 0)
        if depth < 0 or mark in ("'", '"', "`", "[", ";", "/*"):
            raise BadQueryError(f"{shown(text)} is not one condition", detail=f"at {mark}", text=shown(text))
    if depth or not text.strip():
        raise BadQueryError(f"{shown(text)} is not one condition", text=shown(text))
    return text


def _order(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f" COLLATE {DECIMAL}"
    return f" COLLATE {MOMENT}" if pa.types.is_timestamp(kind) else ""


def _column(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


def _size(row: tuple[Any, ...]) -> int:
    return sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
