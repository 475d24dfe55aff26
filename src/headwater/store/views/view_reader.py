"""`ViewReader`: reads views in any store, reports their position, and waits for an event."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Event
from typing import Any

import pyarrow as pa

from headwater.errors import BadQueryError, UnknownViewError
from headwater.events import Position, values_of
from headwater.log.notifier import Waiter
from headwater.sql.guard import StoreEngine
from headwater.store.columns import storage_columns
from headwater.store.commit import ViewTable
from headwater.store.dialect import Session
from headwater.store.ledger import last_entry
from headwater.store.protocol import QueryLimits, SqlResult
from headwater.store.view_registry import current_table, current_tables
from headwater.store.views.wait import EventPath

__all__ = ["ViewReader", "find_view", "key_table", "sort_column"]


class ViewReader(ABC):
    """Reads the views in a store; thread-safe. Each store implements how rows are found."""

    engine: StoreEngine

    def names(self) -> list[str]:
        """Returns the names of all views."""
        with self._session() as session:
            return [table.name for table in current_tables(session)]

    def definition(self, name: str) -> ViewTable:
        """Returns the columns and key of a view, in the version that readers see.

        Raises:
            UnknownViewError: There is no such view.
        """
        with self._session() as session:
            return _require_view(session, name)

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
        """Returns rows as dicts of Python values; parameters as in `table`.

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
        """Returns rows as Arrow columns.

        Args:
            name: The view.
            key: Only the row with this key: one value, several in the order of the view's key, or a dict.
            where: Only rows that match this condition, such as "n > 10 and category = 'books'"; see `ViewFilter`.
            order: Columns to sort by; with a "-" before it, descending. A window stands for its start.
            limit: The maximum number of rows.
            cancel: An event that ends the read when set, from any thread.

        Raises:
            UnknownViewError: There is no such view.
            BadFilterError: The condition is invalid, or does not fit the columns.
            BadQueryError: The read exceeds a limit, or a column to sort by is missing.
        """
        if key is None and (where is not None or order):
            return self._query_rows(name, where, order, limit, cancel)
        return self._read_rows(name, key, limit)

    @abstractmethod
    def _read_rows(self, name: str, key: Any, limit: int | None) -> pa.Table:
        """Returns all rows, or the one with this key."""

    @abstractmethod
    def _query_rows(
        self, name: str, where: str | None, order: Sequence[str], limit: int | None, cancel: Event | None
    ) -> pa.Table:
        """Returns the rows that match a user's condition, in order."""

    @abstractmethod
    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
    ) -> SqlResult:
        """Returns the result of one SELECT over views and system views; `?` is a parameter.

        Raises:
            BadQueryError: The text is invalid, uses something forbidden, or exceeds a limit.
        """

    def watermark(self, name: str) -> int | None:
        """Returns the event time up to which a view is complete, in microseconds since 1970."""
        with self._session() as session:
            query = _require_view(session, name).query
            found = session.execute("SELECT watermark FROM hw$totals WHERE query = ?", (query,)).fetchone()
            return None if found is None else found[0]

    def position(self, name: str) -> dict[str, Position]:
        """Returns the position of the view in each topic: the next offset of every partition."""
        with self._session() as session:
            entry = last_entry(session, _require_view(session, name).query)
        found: dict[str, Position] = {}
        for read in entry.inputs if entry else ():
            position = Position.of(read.topic, dict(read.end))
            known = found.get(read.topic)
            found[read.topic] = position if known is None else _slower_position(known, position)
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
        """Wait until a view includes an event; returns False after `timeout` seconds.

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
        path = EventPath(topic, partition, offset, producers)

        def has_event() -> bool:
            with self._session() as session:
                return path.has_event(session, _require_view(session, name))

        return path.wait(has_event, self._watch, timeout)

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def _session(self) -> AbstractContextManager[Session]:
        """Yields a session that sees one snapshot of the store."""

    @abstractmethod
    def _watch(self) -> Waiter:
        """Returns a notifier for every write to the store."""


def _require_view(session: Session, name: str) -> ViewTable:
    table = current_table(session, name)
    return find_view(current_tables(session), name) if table is None else table


def find_view(tables: list[ViewTable], name: str) -> ViewTable:
    """Returns the view of this name.

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


def key_table(table: ViewTable, key: Any) -> pa.Table:
    """Returns the key of one row as columns: from one value, several in key order, or a dict.

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


def sort_column(table: ViewTable, column: str) -> tuple[str, bool]:
    """Returns the stored column that a sort column stands for, and whether it descends.

    Raises:
        BadQueryError: There is no such column.
    """
    name = column.removeprefix("-")
    wanted = f"{name}.start" if name == table.window else name
    if wanted not in [slot.name for slot in storage_columns(table)]:
        what = f'view "{table.name}" has no column "{name}"'
        raise BadQueryError(what, detail=f"columns: {', '.join(table.schema.names)}", view=table.name)
    return wanted, column.startswith("-")


def _slower_position(one: Position, other: Position) -> Position:
    """Returns the lower offsets for a topic that is read twice."""
    lanes = dict(other.lanes)
    return Position.of(one.source, {lane: min(offsets, lanes.get(lane, offsets)) for lane, offsets in one.lanes})
