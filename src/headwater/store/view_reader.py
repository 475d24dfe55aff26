"""Views as readers see them, in whatever store: rows, how far they have come, waiting for an event."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadQueryError, UnknownViewError
from headwater.events import Position, values_of
from headwater.log.wakeup import Waiter
from headwater.store.as_of import rows_as_of
from headwater.store.bookkeeping.ledger_rows import last_entry
from headwater.store.bookkeeping.registry import current_table, current_tables
from headwater.store.bookkeeping.session import Session
from headwater.store.bookkeeping.waiting import Chain
from headwater.store.definition import ViewTable
from headwater.store.query import Answer, QueryLimits
from headwater.store.slots import slots

__all__ = ["ViewReader", "key_row", "one_of", "sorting"]


class ViewReader(ABC):
    """The views in a store, for reading; may be used from several threads. Each store says how rows are found."""

    def names(self) -> list[str]:
        """Names of all views."""
        with self._session() as session:
            return [table.name for table in current_tables(session)]

    def definition(self, name: str) -> ViewTable:
        """Columns and key of a view, in the version readers see.

        Raises:
            UnknownViewError: There is no such view.
        """
        with self._session() as session:
            return _found(session, name)

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
        return self._plain(name, key, limit)

    @abstractmethod
    def _plain(self, name: str, key: Any, limit: int | None) -> pa.Table:
        """All rows, or the one with this key."""

    @abstractmethod
    def _sought(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        """Rows by a condition of the user's, in an order."""

    @abstractmethod
    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> Answer:
        """The answer to one SELECT over views and system views; `?` stands for a parameter.

        Raises:
            BadQueryError: The text is wrong, does what it may not, or takes too much.
        """

    def watermark(self, name: str) -> int | None:
        """Event time up to which a view is complete, in microseconds since 1970."""
        with self._session() as session:
            query = _found(session, name).query
            found = session.execute("SELECT watermark FROM hw$totals WHERE query = ?", (query,)).fetchone()
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
        with self._session() as session:
            entry = last_entry(session, _found(session, name).query)
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
            with self._session() as session:
                return chain.reached(session, _found(session, name))

        return chain.wait(reached, self._watch, timeout)

    def as_of(self, name: str, moment: datetime | int, changes: Iterable[pa.Table]) -> pa.Table:
        """The rows a view had at a moment of its past, out of its changes; see `rows_as_of`."""
        return rows_as_of(self.definition(name), moment, changes)

    @abstractmethod
    def close(self) -> None:
        """Let go of the connections."""

    @abstractmethod
    def _session(self) -> AbstractContextManager[Session]:
        """A session that sees one state of the store until it is given back."""

    @abstractmethod
    def _watch(self) -> Waiter:
        """A wake-up for everything that is written to the store."""


def _found(session: Session, name: str) -> ViewTable:
    table = current_table(session, name)
    return one_of(current_tables(session), name) if table is None else table


def one_of(tables: list[ViewTable], name: str) -> ViewTable:
    """The view of this name.

    Raises:
        UnknownViewError: There is none; a near name is told.
    """
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


def key_row(table: ViewTable, key: Any) -> pa.Table:
    """The key of one row as columns: one value, several in the order of the view's key, or a dict.

    Raises:
        BadQueryError: It does not fit the view.
    """
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
        return pa.Table.from_pylist([given], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        what = f'the key does not fit view "{table.name}": {error}'
        raise BadQueryError(what, view=table.name) from None


def sorting(table: ViewTable, column: str) -> tuple[str, bool]:
    """Which slot a column to sort by stands for, and whether it descends.

    Raises:
        BadQueryError: There is no such column.
    """
    name = column.removeprefix("-")
    wanted = f"{name}.start" if name == table.window else name
    if wanted not in [slot.name for slot in slots(table)]:
        what = f'view "{table.name}" has no column "{name}"'
        raise BadQueryError(what, detail=f"columns: {', '.join(table.schema.names)}", view=table.name)
    return wanted, column.startswith("-")


def _behind(one: Position, other: Position) -> Position:
    """A topic read twice is read as far as the slower of both."""
    lanes = dict(other.lanes)
    return Position.of(one.source, {lane: min(place, lanes.get(lane, place)) for lane, place in one.lanes})
