"""Views as readers see them: rows, tables, SQL, how far they have come. Reads never wait for a commit."""

from __future__ import annotations

import contextlib
import difflib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from threading import Event, Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadQueryError, UnknownViewError
from headwater.events import Position, values_of
from headwater.store.as_of import rows_as_of
from headwater.store.definition import ViewTable
from headwater.store.sqlite.columns import Slot, slots, to_slots
from headwater.store.sqlite.connection import quoted, reading, translated
from headwater.store.sqlite.ledger_rows import last_entry
from headwater.store.sqlite.sandbox import Answer, QueryLimits, Sandbox
from headwater.store.sqlite.sandbox.sandbox import checked_condition
from headwater.store.sqlite.store import SqliteStore
from headwater.store.sqlite.upsert import table_of
from headwater.store.sqlite.view_tables import current_table, current_tables, table_name
from headwater.store.sqlite.waiting import Chain

__all__ = ["Views"]

_READS = QueryLimits(time=timedelta(seconds=30), memory=1 << 30, cell=64 << 20, columns=2_000)
_IDLE = 4  # connections kept for the next reader


class Views:
    """The views in a store, for reading; may be used from several threads.

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

    def names(self) -> list[str]:
        """Names of all views."""
        with self._connected() as connection:
            return [table.name for table in current_tables(connection)]

    def definition(self, name: str) -> ViewTable:
        """Columns and key of a view, in the version readers see.

        Raises:
            UnknownViewError: There is no such view.
        """
        with self._connected() as connection:
            return _found(connection, name)

    def rows(
        self,
        name: str,
        *,
        key: Any = None,
        where: str | None = None,
        order: Sequence[str] = (),
        limit: int | None = None,
        cancel: Event | None = None,
    ) -> list[dict[str, Any]]:
        """Rows as dicts of Python values; takes what `table` takes.

        Times are aware datetimes in UTC, decimals are Decimal, a window is {"start": ..., "end": ...}.
        """
        found = self.table(name, key=key, where=where, order=order, limit=limit, cancel=cancel)
        columns = [values_of(column.combine_chunks()) for column in found.columns]
        return [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]

    def table(
        self,
        name: str,
        *,
        key: Any = None,
        where: str | None = None,
        order: Sequence[str] = (),
        limit: int | None = None,
        cancel: Event | None = None,
    ) -> pa.Table:
        """Rows as Arrow columns.

        Args:
            name: The view.
            key: Only the row with this key: one value, several in the order of the view's key, or a dict.
            where: Only rows that meet this condition in SQL, such as "n > 10 and category = 'books'".
            order: Columns to sort by; with a "-" before it, descending. A window stands for its start.
            limit: So many rows at most.
            cancel: Set it, from any thread, to end the reading.

        Raises:
            UnknownViewError: There is no such view.
            BadQueryError: The condition is wrong or takes too much, or a column is not there.
        """
        if key is None and (where is not None or order):
            return self._sought(name, where, order, limit, cancel)
        with self._connected() as connection:
            table = _found(connection, name)
            columns = ", ".join(quoted(slot.name) for slot in slots(table))
            same, values = ("", []) if key is None else _key_condition(table, key)
            query = f"SELECT {columns} FROM {quoted(table_name(table))} {same} LIMIT ?"
            found = connection.execute(query, (*values, -1 if limit is None else limit)).fetchall()
            return table_of(table, found)

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> Answer:
        """The answer to one SELECT over views and system views, as SQLite has it.

        Raises:
            BadQueryError: The text is wrong, does what it may not, or takes too much.
        """
        with Sandbox(self._path, QueryLimits() if limits is None else limits, cancel) as sandbox:
            return sandbox.ask(text, parameters)

    def watermark(self, name: str) -> int | None:
        """Event time up to which a view is complete, in microseconds since 1970."""
        with self._connected() as connection:
            query = _found(connection, name).query
            found = connection.execute("SELECT watermark FROM hw$totals WHERE query = ?", (query,)).fetchone()
            return None if found is None else found[0]

    def open_windows(self, name: str, rows: pa.Table) -> pa.Array:
        """For each of these rows of a view whether its window is still open: it ends after the watermark.

        A view without windows, and a row without one, has nothing that closes: null.
        """
        window, watermark = self.definition(name).window, self.watermark(name)
        if window is None:
            return pa.nulls(rows.num_rows, pa.bool_())
        ends = pc.struct_field(rows.column(window).combine_chunks(), "end")
        micros = ends.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        lowest = pa.scalar(-(2**63), pa.int64())
        return pc.greater(micros, lowest if watermark is None else pa.scalar(watermark, pa.int64()))

    def position(self, name: str) -> dict[str, Position]:
        """How far the view has read each of its topics: the next offset of every partition."""
        with self._connected() as connection:
            entry = last_entry(connection, _found(connection, name).query)
        found: dict[str, Position] = {}
        for read in entry.inputs if entry else ():
            position = Position.of(read.topic, dict(read.end))
            known = found.get(read.topic)
            found[read.topic] = position if known is None else _behind(known, position)
        return found

    def wait_for(
        self,
        name: str,
        topic: str,
        partition: int,
        offset: int,
        timeout: float,
        producers: Mapping[str, str] | None = None,
    ) -> bool:
        """Wait until a view has taken in one event; False if it had not after `timeout` seconds.

        Args:
            name: The view.
            topic: The event's topic, read by the view itself or by pipelines before it.
            partition: The event's partition.
            offset: The event's offset.
            timeout: Seconds to wait.
            producers: Which pipeline writes which topic; without it, each writes the one of its own name.

        Raises:
            UnknownViewError: There is no such view.
            UnknownTopicError: Neither the view nor anything before it reads that topic.
        """
        chain = Chain(topic, partition, offset, producers)

        def reached() -> bool:
            with self._connected() as connection:
                return chain.reached(connection, _found(connection, name))

        return chain.wait(reached, self._store, timeout)

    def as_of(self, name: str, moment: datetime | int, changes: Iterable[pa.Table]) -> pa.Table:
        """The rows a view had at a moment of its past, out of its changes; see `rows_as_of`."""
        return rows_as_of(self.definition(name), moment, changes)

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _sought(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        with Sandbox(self._path, _READS, cancel) as sandbox:
            table = _one_of(sandbox.tables, name)
            columns = slots(table)
            parts = ["SELECT", ", ".join(quoted(slot.name) for slot in columns), "FROM", quoted(table.name)]
            if where is not None:
                parts += ["WHERE (\n", checked_condition(where), "\n)"]
            if order:
                parts += ["ORDER BY", ", ".join(_ordering(columns, table, column) for column in order)]
            parts.append("LIMIT ?")
            asked = sandbox.each(" ".join(parts), (-1 if limit is None else limit,))
            return pa.concat_tables([table.schema.empty_table(), *(table_of(table, rows) for rows in asked)])

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
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


def _found(connection: sqlite3.Connection, name: str) -> ViewTable:
    table = current_table(connection, name)
    return _one_of(current_tables(connection), name) if table is None else table


def _one_of(tables: list[ViewTable], name: str) -> ViewTable:
    for table in tables:
        if table.name == name:
            return table
    known = [table.name for table in tables]
    near = difflib.get_close_matches(name, known, 1)
    raise UnknownViewError(
        f'no view "{name}"',
        detail=f"views: {', '.join(known)}" if known else "there are no views yet",
        fix=near[0] if near else None,
        view=name,
    )


def _key_condition(table: ViewTable, key: Any) -> tuple[str, list[Any]]:
    if isinstance(key, Mapping):
        given = dict(key)
    else:
        values = key if isinstance(key, (list, tuple)) and len(table.key) > 1 else (key,)
        given = dict(zip(table.key, values, strict=False)) if len(values) == len(table.key) else {}
    if set(given) != set(table.key):
        what = f'the key of view "{table.name}" has {len(table.key)} columns: {", ".join(table.key)}'
        raise BadQueryError(what, detail=f"given: {json.dumps(key, default=str)}", view=table.name)
    schema = pa.schema([field for field in table.schema if field.name in table.key])
    try:
        row = pa.Table.from_pylist([given], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        what = f'the key does not fit view "{table.name}": {error}'
        raise BadQueryError(what, view=table.name) from None
    names = [slot.name for slot in slots(table) if slot.column in table.key]
    condition = " AND ".join(f"{quoted(name)} IS ?" for name in names)
    return f"WHERE {condition}", [column[0] for column in to_slots(table, row)]


def _ordering(columns: list[Slot], table: ViewTable, column: str) -> str:
    name = column.removeprefix("-")
    wanted = f"{name}.start" if name == table.window else name
    if wanted not in [slot.name for slot in columns]:
        what = f'view "{table.name}" has no column "{name}"'
        raise BadQueryError(what, detail=f"columns: {', '.join(table.schema.names)}", view=table.name)
    return f"{quoted(wanted)} DESC" if column.startswith("-") else quoted(wanted)


def _behind(one: Position, other: Position) -> Position:
    """A topic read twice is read as far as the slower of both."""
    lanes = dict(other.lanes)
    return Position.of(one.source, {lane: min(place, lanes.get(lane, place)) for lane, place in one.lanes})
