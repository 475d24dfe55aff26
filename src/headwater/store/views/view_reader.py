"""`ViewReader`: reads the views of a store in any database, their positions, and whether they include an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from threading import Event
from typing import Any, Final

import pyarrow as pa

from headwater.errors import BadQueryError
from headwater.events import Position
from headwater.sql.identifiers import quote
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import ViewTable
from headwater.store.commit.ledger import last_entry
from headwater.store.dialect import Session
from headwater.store.protocol import QueryLimits, SqlResult, TableRows
from headwater.store.sql_store import SqlStore
from headwater.store.view_registry import current_tables, qualified_name, require_view
from headwater.store.views.view_filter import ViewFilter, collect_rows
from headwater.store.views.view_query import key_dict, to_rows
from headwater.store.views.wait import EventPath

__all__ = ["ViewReader", "order_by"]

_READ_LIMITS: Final = QueryLimits(time=timedelta(seconds=30), memory=1 << 30, cell=64 << 20, columns=2_000)


class ViewReader:
    """Reads the views of a store; thread-safe. Reads never wait for a commit.

    Args:
        store: The store.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.store.sqlite import SqliteDialect
        >>> store = SqlStore(SqliteDialect(Path(tempfile.mkdtemp())))
        >>> store.create(ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",)))
        >>> views = ViewReader(store)
        >>> views.names(), views.rows("totals"), views.sql("select count(*) as n from totals").rows
        (['totals'], [], [(0,)])
        >>> store.close()
    """

    def __init__(self, store: SqlStore) -> None:
        self._dialect = store.dialect
        self.engine = store.dialect.engine

    def names(self) -> list[str]:
        """Returns the names of all views."""
        return self._dialect.read_snapshot(lambda session: [table.name for table in current_tables(session)])

    def definition(self, name: str) -> ViewTable:
        """Returns the columns and key of a view, in the version that readers see.

        Raises:
            UnknownViewError: There is no such view.
        """
        return self._dialect.read_snapshot(lambda session: require_view(session, name))

    def rows(self, name: str, **options: Any) -> list[dict[str, Any]]:
        """Returns rows as dicts of Python values; options as in `table`.

        Times are aware datetimes in UTC, decimals are Decimal, a window is {"start": ..., "end": ...}.
        """
        return to_rows(self.table(name, **options))

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
            BadKeyError: The key does not fit the view's key.
            BadFilterError: The condition is invalid, or does not fit the columns.
            BadQueryError: The read exceeds a limit, or a column to sort by is missing.
        """
        if key is not None or (where is None and not order):
            return self._dialect.read_snapshot(lambda session: self._read_rows(session, name, key, limit))

        def read(table: ViewTable, run: Callable[[str], Iterable[pa.Table]]) -> pa.Table:
            condition = None if where is None else ViewFilter(where, table, self.engine)
            # The limit is for the store only if it evaluates the whole condition: the rest would drop some of its rows.
            stop = limit if condition is None or condition.complete else None
            view = f"{self._dialect.table_sql.view_schema}{quote(table.name)}"
            select = self._select(table, view, None if condition is None else condition.sql, order, stop)
            return collect_rows(table, run(select), condition, limit)

        return self._dialect.query_rows(name, read, _READ_LIMITS, cancel)

    def _read_rows(self, session: Session, name: str, key: Any, limit: int | None) -> pa.Table:
        """Returns all rows, or the one with this key, outside of the sandbox: no SQL of a user is involved."""
        table = require_view(session, name)
        condition: str | None = None
        values: list[Any] = []
        if key is not None:
            key_schema = pa.schema([field for field in table.schema if field.name in table.key])
            row = pa.Table.from_pylist([key_dict(table, key)], schema=key_schema)
            condition, values = self._dialect.key_condition(table, row)
        select = self._select(table, qualified_name(self._dialect, table), condition, (), limit)
        return self._dialect.fetch_rows(session, table, select, values)

    def _select(
        self, table: ViewTable, source: str, condition: str | None, order: Sequence[str], limit: int | None
    ) -> str:
        """Returns a SELECT over all stored columns of a view."""
        columns = storage_columns(table)
        parts = [f"SELECT {', '.join(quote(column.name) for column in columns)} FROM {source}"]
        if condition is not None:
            parts.append(f"WHERE {condition}")
        ordering = [order_by(table, column) for column in order]
        if self._dialect.table_sql.sort_by_key:
            ordering += [quote(column.name) for column in columns if column.view_column in table.key]
        if ordering:
            parts.append(f"ORDER BY {', '.join(ordering)}")
        if limit is not None:
            parts.append(f"LIMIT {limit:d}")
        return " ".join(parts)

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        limits: QueryLimits | None = None,
        cancel: Event | None = None,
        tables: Sequence[TableRows] = (),
    ) -> SqlResult:
        """Returns the result of one SELECT over views and system views, in the SQL of the database.

        Args:
            text: The statement; `?` is a parameter.
            parameters: The values of the parameters.
            limits: The limits of the query.
            cancel: An event that ends the query when set, from any thread.
            tables: Tables outside of the store, which the query can read like views.

        Raises:
            BadQueryError: The text is invalid, uses something forbidden, or exceeds a limit.
        """
        return self._dialect.query(text, parameters, QueryLimits() if limits is None else limits, cancel, tables)

    def watermark(self, name: str) -> int | None:
        """Returns the event time up to which a view is complete, in microseconds since 1970."""

        def read(session: Session) -> int | None:
            query = require_view(session, name).query
            found = session.execute("SELECT watermark FROM hw$totals WHERE query = ?", (query,)).fetchone()
            return None if found is None else found[0]

        return self._dialect.read_snapshot(read)

    def position(self, name: str) -> dict[str, Position]:
        """Returns the position of the view in each topic: the next offset of every partition.

        If the view reads a topic twice, the lower offsets count.
        """
        entry = self._dialect.read_snapshot(lambda session: last_entry(session, require_view(session, name).query))
        found: dict[str, dict[int, int]] = {}
        for read in entry.inputs if entry else ():
            known = found.setdefault(read.topic, dict(read.end))
            for partition, end in read.end.items():
                known[partition] = min(end, known.get(partition, end))
        return {topic: Position.of(topic, ends) for topic, ends in found.items()}

    def has_event(self, name: str, topic: str, partition: int, offset: int, producers: Mapping[str, str]) -> bool:
        """Returns whether a view includes an event.

        Args:
            name: The view.
            topic: The event's topic, read by the view itself or by pipelines before it.
            partition: The event's partition.
            offset: The event's offset.
            producers: The pipeline that writes each topic.

        Raises:
            UnknownViewError: There is no such view.
            UnknownTopicError: Neither the view nor anything before it reads that topic.
        """
        path = EventPath(topic, partition, offset, producers)
        return self._dialect.read_snapshot(lambda session: path.has_event(session, require_view(session, name)))


def order_by(table: ViewTable, column: str) -> str:
    """Returns an ORDER BY item. A window sorts by its start; a "-" before the name means descending.

    Nulls sort before all values in every database.

    Raises:
        BadQueryError: There is no such column.
    """
    name = column.removeprefix("-")
    stored = f"{name}.start" if name == table.window else name
    if stored not in [slot.name for slot in storage_columns(table)]:
        what = f'view "{table.name}" has no column "{name}"'
        raise BadQueryError(what, detail=f"columns: {', '.join(table.schema.names)}", view=table.name)
    return f"{quote(stored)} {'DESC NULLS LAST' if column.startswith('-') else 'NULLS FIRST'}"
