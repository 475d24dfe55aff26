"""Runs SQL of users on a separate connection that is closed after the query.

Four parts protect the store. `Permissions` lets a statement read only known tables and call only known functions. It
checks the tables themselves and not the views through which they are read, because a query can give any name to a part
of itself. `apply_limits` sets SQLite's limits. `QueryWatchdog` ends a query that exceeds its time or memory.
`add_functions` replaces functions of SQLite that cannot be interrupted.

Decimals and times are stored as text. As text, 99.00 sorts after 100.00 and 12:00:00Z after 12:00:00.5Z, so their
columns have collations of their own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa

from headwater.errors import BadQueryError, HeadwaterError
from headwater.events.values import preview, trim_zeros
from headwater.sql.guard import ALLOWED_FUNCTIONS, DECIMAL_COLLATION
from headwater.sql.identifiers import quote
from headwater.sql.sqlite_file import open_reader, translate_sqlite_errors
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import ViewTable
from headwater.store.protocol import QueryLimits, SqlResult, StopReason, TableRows, limit_error
from headwater.store.sqlite.columns import column_type, encode_columns
from headwater.store.sqlite.migrations import SYSTEM_TABLES
from headwater.store.system_views import SYSTEM_VIEWS, system_view
from headwater.store.view_registry import current_tables, table_name

__all__ = ["TIMESTAMP_COLLATION", "SqliteSandbox", "add_functions"]

TIMESTAMP_COLLATION = "hw_moment"
_TIMESTAMP_LENGTH = len("2026-01-01T00:00:00.000000Z")
_SHORT_TIMESTAMP_LENGTH = len("2026-01-01T00:00:00Z")
_SHORTEN_DECIMAL = "hw$shorten_decimal"
_SHORTEN_TIMESTAMP = "hw$shorten_timestamp"


def add_functions(connection: sqlite3.Connection, max_length: int) -> None:
    """Register Headwater's functions and collations; no text they return is longer than `max_length`."""

    def replace(text: Any, old: Any, new: Any) -> Any:
        if text is None or old is None:
            return None
        text, old = _to_text(text), _to_text(old)
        if not old:
            return text
        if new is None:
            return None
        new = _to_text(new)
        if len(text) + text.count(old) * (len(new) - len(old)) > max_length:
            raise OverflowError  # SQLite reports "string or blob too big"
        return text.replace(old, new)

    connection.create_function(_SHORTEN_DECIMAL, 1, _shorten_decimal, deterministic=True)
    connection.create_function(_SHORTEN_TIMESTAMP, 1, _shorten_timestamp, deterministic=True)
    connection.create_collation(DECIMAL_COLLATION, _compare_decimals)
    connection.create_collation(TIMESTAMP_COLLATION, _compare_timestamps)
    connection.create_function("replace", 3, replace, deterministic=True)
    connection.create_function("instr", 2, _instr, deterministic=True)
    for name, sides in (("trim", "lr"), ("ltrim", "l"), ("rtrim", "r")):
        trimming = _trim_function(sides)
        connection.create_function(name, 1, trimming, deterministic=True)
        connection.create_function(name, 2, trimming, deterministic=True)


def _shorten_decimal(text: Any) -> Any:
    return trim_zeros(text) if isinstance(text, str) else text


def _shorten_timestamp(text: Any) -> Any:
    return text.replace(".000000Z", "Z") if isinstance(text, str) else text


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else str(value)


def _instr(text: Any, part: Any) -> int | None:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _to_text(text).find(_to_text(part)) + 1


def _trim_function(sides: str) -> Any:
    def trim(text: Any, signs: Any = " ") -> str | None:
        if text is None or signs is None:
            return None
        found, gone = _to_text(text), frozenset(_to_text(signs))
        start, end = 0, len(found)
        while "l" in sides and start < end and found[start] in gone:
            start += 1
        while "r" in sides and start < end and found[end - 1] in gone:
            end -= 1
        return found[start:end]

    return trim


def _compare_decimals(one: str, other: str) -> int:
    """Returns -1, 0 or 1. Text that is not a number sorts after all numbers, in its own order."""
    first, second = _parse_decimal(one), _parse_decimal(other)
    if first is None or second is None:
        if first is None and second is None:
            return (one > other) - (one < other)
        return 1 if first is None else -1
    return (first > second) - (first < second)


@lru_cache(maxsize=4096)
def _parse_decimal(text: str) -> Decimal | None:
    try:
        number = Decimal(text[:100])
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _compare_timestamps(one: str, other: str) -> int:
    first, second = _expand_timestamp(one), _expand_timestamp(other)
    return (first > second) - (first < second)


def _expand_timestamp(text: str) -> str:
    if text[-1:] == "Z":
        if len(text) == _TIMESTAMP_LENGTH:
            return text
        if len(text) == _SHORT_TIMESTAMP_LENGTH:
            return f"{text[:-1]}.000000Z"
    return _normalize_timestamp(text)


@lru_cache(maxsize=4096)
def _normalize_timestamp(text: str) -> str:
    """Returns a time in its stored form, if it is one: any zone, a space for the T, no seconds, or a date alone."""
    try:
        read = datetime.fromisoformat(text[:40])
    except ValueError:
        return text
    zoned = read if read.tzinfo else read.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(_TIMESTAMP_LENGTH, "0")


_CHECK_INSTRUCTIONS = 200  # SQLite's instructions between two checks; each can build a value of `QueryLimits.cell`
_MEMORY_CHECK_INTERVAL = 0.002  # seconds between two checks of memory, which cost more than those of the clock
_PAGE_SIZE = resource.getpagesize()


def apply_limits(limits: QueryLimits, connection: sqlite3.Connection) -> None:
    """Set the limits that SQLite itself enforces."""
    for category, limit in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.cell),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
        (sqlite3.SQLITE_LIMIT_COLUMN, limits.columns),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 100_000),
        (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 50),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
        (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 100),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(category, limit)


class QueryWatchdog:
    """Ends a query that exceeds its time or memory limit, or is cancelled.

    Args:
        limits: The limits of the query.
        cancel: An event that ends the query when set, from any thread.

    Attributes:
        reason: Why the query was ended; None if it was not.
    """

    def __init__(self, limits: QueryLimits, cancel: Event | None) -> None:
        self._cancel = cancel
        self._deadline = time.monotonic() + limits.time.total_seconds()
        self._next_memory_check = 0.0
        self._max_memory = _memory_usage() + limits.memory
        self.reason: StopReason | None = None

    def should_stop(self) -> bool:
        """Returns whether to end the query; SQLite calls it every few hundred instructions."""
        now = time.monotonic()
        if now > self._deadline:
            self.reason = "time"
        elif self._cancel is not None and self._cancel.is_set():
            self.reason = "cancelled"
        elif now > self._next_memory_check:
            self._next_memory_check = now + _MEMORY_CHECK_INTERVAL
            if _memory_usage() > self._max_memory:
                self.reason = "memory"
        return self.reason is not None


def _memory_usage() -> int:
    """Returns the memory of this process in bytes, or its peak where the current value is not available."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            handle = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(handle, 128).split()[1]) * _PAGE_SIZE
            finally:
                os.close(handle)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


_TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
_REFUSED_PREFIXES = ("sqlite_", "pragma_", "hw$", "dbstat", "fts", "rtree", "bytecode", "tables_used")


class Permissions:
    """Authorizes every action of a statement while SQLite prepares it.

    Args:
        tables: Tables and views that may be read, in lower case.

    Attributes:
        denial: What was refused last; empty if nothing was.
    """

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = frozenset(tables) | _TABLE_FUNCTIONS
        self.denial = ""

    def authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, source: str | None
    ) -> int:
        """Returns whether SQLite may take this action."""
        if self._allows(action, (first or "").lower(), (second or "").lower(), database):
            return sqlite3.SQLITE_OK
        self.denial = _describe_action(action, first, second)
        return sqlite3.SQLITE_DENY

    def _allows(self, action: int, first: str, second: str, database: str | None) -> bool:
        if action == sqlite3.SQLITE_READ:
            # Counting a part of the query itself, `with big as (...) select count(*) from big`, reads no column.
            counted = not second and not first.startswith(_REFUSED_PREFIXES)
            return counted or (first in self._tables and database in ("main", "temp", None))
        if action == sqlite3.SQLITE_FUNCTION:
            return "sqlite" in ALLOWED_FUNCTIONS.get(second, ()) or second in (_SHORTEN_DECIMAL, _SHORTEN_TIMESTAMP)
        return action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)


def _describe_action(action: int, first: str | None, second: str | None) -> str:
    match action:
        case sqlite3.SQLITE_READ:
            return f"{first} cannot be read"
        case sqlite3.SQLITE_FUNCTION:
            return f"the function {second} cannot be used"
        case sqlite3.SQLITE_PRAGMA:
            return f"PRAGMA {first} cannot be used"
        case sqlite3.SQLITE_ATTACH | sqlite3.SQLITE_DETACH:
            return "other databases cannot be used"
        case sqlite3.SQLITE_TRANSACTION | sqlite3.SQLITE_SAVEPOINT:
            return "a query has no transactions"
    return "a query can only read"


class SqliteSandbox:
    """A separate connection for one query; a context manager.

    Args:
        path: The store's file.
        limits: The limits of the query.
        cancel: An event that ends the query when set, from any thread.
    """

    def __init__(self, path: Path, limits: QueryLimits, cancel: Event | None) -> None:
        self._limits = limits
        self._path = path
        self._added: list[ViewTable] = []
        self._connection = open_reader(path, "store")
        self._watchdog = QueryWatchdog(limits, cancel)
        try:
            with translate_sqlite_errors(path, "store"):
                self._connection.execute("BEGIN")
                self.tables = current_tables(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> SqliteSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_table(self, table: TableRows) -> None:
        """Add a table that is not in the store, as a temporary one of this connection."""
        definition, name = table.definition, f"{table.definition.name}$rows"
        slots = storage_columns(definition)
        described = ", ".join(f"{quote(slot.name)} {column_type(slot.kind)}" for slot in slots)
        with translate_sqlite_errors(self._path, "store"):
            self._connection.execute(f"CREATE TEMP TABLE {quote(name)} ({described})")
            insert = f"INSERT INTO {quote(name)} VALUES ({', '.join('?' * len(slots))})"
            self._connection.executemany(insert, zip(*encode_columns(definition, table.rows), strict=True))
        self._added.append(definition)

    def query(self, text: str, parameters: Sequence[Any]) -> SqlResult:
        """Returns the result of one SELECT, cut off at the limits of rows and bytes.

        Decimals are text without trailing zeros, times RFC 3339 text without a fraction that is zero.

        Raises:
            BadQueryError: The text is invalid, uses something forbidden, or exceeds a limit.
        """
        self._connection.text_factory = lambda data: data.decode(errors="replace")
        with self._run(text, shorten=True) as cursor:
            cursor.execute(text, parameters)
            if cursor.description is None:
                raise BadQueryError("there is no query in the text", fix="write one SELECT", text=preview(text))
            columns = tuple(column[0] for column in cursor.description)
            return SqlResult.collect(columns, cursor, self._limits)

    def query_chunks(self, text: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yields all rows of a SELECT that Headwater wrote around a user's condition, in lists of some thousands."""
        with self._run(text) as cursor:
            cursor.execute(text)
            while rows := cursor.fetchmany(5_000):
                yield rows

    @contextlib.contextmanager
    def _run(self, text: str, *, shorten: bool = False) -> Iterator[sqlite3.Cursor]:
        if not isinstance(text, str) or "\0" in text:
            raise BadQueryError("a query is text without NUL", text=preview(text))
        self._create_temp_views(text, shorten=shorten)
        own = {name.lower() for table in self.tables for name in (table.name, table_name(table))}
        added = {name.lower() for table in self._added for name in (table.name, f"{table.name}$rows")}
        permissions = Permissions({*own, *added, *SYSTEM_VIEWS, *SYSTEM_TABLES})
        apply_limits(self._limits, self._connection)
        self._connection.set_authorizer(permissions.authorize)
        self._connection.set_progress_handler(self._watchdog.should_stop, _CHECK_INSTRUCTIONS)
        try:
            yield self._connection.cursor()
        except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError) as error:
            raise self._translate_error(text, error, permissions.denial) from None

    def _create_temp_views(self, text: str, *, shorten: bool) -> None:
        """Create temporary views with collations for decimals and times, only for views the query may name."""
        add_functions(self._connection, self._limits.cell)
        # SQLite creates these two tables when they are first read, and `Permissions` would refuse that as a write.
        self._connection.execute("SELECT 1 FROM json_each('1'), json_tree('1')").fetchone()
        named = text.casefold()
        for table in self.tables:
            if table.name.casefold() in named:
                columns = {slot.name: slot.kind for slot in storage_columns(table)}
                self._create_temp_view(table.name, f"main.{quote(table_name(table))}", columns, shorten=shorten)
        for table in self._added:
            columns = {slot.name: slot.kind for slot in storage_columns(table)}
            self._create_temp_view(table.name, f"temp.{quote(f'{table.name}$rows')}", columns, shorten=shorten)
        for name in SYSTEM_VIEWS if shorten else ():
            if name in named:
                names = [column[0] for column in self._connection.execute(f"SELECT * FROM {name} LIMIT 0").description]
                columns = {field.name: field.type for field in system_view(name, names).schema}
                self._create_temp_view(name, f"main.{name}", columns, shorten=shorten)

    def _create_temp_view(self, name: str, source: str, columns: Mapping[str, pa.DataType], *, shorten: bool) -> None:
        described = ", ".join(_describe_column(column, kind, shorten=shorten) for column, kind in columns.items())
        self._connection.execute(f"CREATE TEMP VIEW {quote(name)} AS SELECT {described} FROM {source}")

    def _translate_error(self, text: str, error: Exception, denial: str) -> HeadwaterError:
        if self._watchdog.reason is not None:
            return limit_error(self._limits, self._watchdog.reason)
        reason = denial or str(error)
        if "too big" in reason or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_TOOBIG:
            what = f"a value of the query is longer than {self._limits.cell:,} bytes"
            return BadQueryError(what, text=preview(text), limit="cell")
        names = ", ".join([*(table.name for table in self.tables), *SYSTEM_VIEWS][:40])
        data: dict[str, Any] = {"relation": reason[:300]} if reason.startswith("no such table: ") else {}
        what = f"the query cannot be answered: {reason[:300]}"
        return BadQueryError(what, detail=f"views: {names}", text=preview(text), **data)


def _describe_column(name: str, kind: pa.DataType, *, shorten: bool) -> str:
    """Returns a column of a temporary view, in which decimals and times have their collation and their short form."""
    if pa.types.is_decimal(kind):
        function, collation = _SHORTEN_DECIMAL, DECIMAL_COLLATION
    elif pa.types.is_timestamp(kind):
        function, collation = _SHORTEN_TIMESTAMP, TIMESTAMP_COLLATION
    else:
        return quote(name)
    value = f"{function}({quote(name)})" if shorten else quote(name)
    return f"{value} COLLATE {collation} AS {quote(name)}"
