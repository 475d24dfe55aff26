"""`StoreViews`: views in the store of a data folder, or in a database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadQueryError, UnknownTopicError, UnknownViewError, ViewBehindError, near_names
from headwater.events import Receipt
from headwater.log.protocol import TimedLog
from headwater.sql.identifiers import quote
from headwater.store.changelog import changelog_topic
from headwater.store.columns import storage_columns, timestamp_text
from headwater.store.commit.commit import ViewTable
from headwater.store.commit.ledger import KEPT_BATCHES
from headwater.store.protocol import QueryLimits, SqlResult
from headwater.store.sql_store import SqlStore
from headwater.store.system_views import SYSTEM_VIEWS, system_table, system_view
from headwater.store.views.as_of import read_rows_as_of, select_rows, temporary_store, version_as_of
from headwater.store.views.query_errors import complete_query_error
from headwater.store.views.topic_table import CurrentRows, find_table, load_named_tables, table_definition, table_names
from headwater.store.views.view_filter import ViewFilter
from headwater.store.views.view_query import ViewInfo, ViewQuery, ViewResult, key_dict, open_window_mask
from headwater.store.views.view_reader import ViewReader, order_by
from headwater.store.views.wait import EventWait
from headwater.units import micros, moment

__all__ = ["StoreViews"]

_MAX_SYSTEM_ROWS: Final = 100_000


class StoreViews:
    """The views of a data folder or database; opens the store when it exists. Thread-safe.

    Args:
        log: The log whose events the views are made of.
        open_existing: Opens the store; returns None while there is none yet.
        where: Where the store is, for messages.
    """

    def __init__(self, log: TimedLog, open_existing: Callable[[], SqlStore | None], where: str) -> None:
        self._log = log
        self._open_existing = open_existing
        self._where = where
        self._lock = threading.Lock()  # held while the store opens, so that it opens once
        self._store: SqlStore | None = None

    @property
    def store(self) -> SqlStore | None:
        """The store; None until something has been committed in the folder."""
        with self._lock:
            if self._store is None:
                self._store = self._open_existing()
            return self._store

    def _reader(self) -> ViewReader:
        store = self.store
        if store is None:
            tables = table_names(self._log)
            detail = f"tables: {', '.join(tables)}" if tables else self._where
            raise BadQueryError("there are no views yet", fix="headwater run app.py", detail=detail)
        return ViewReader(store)

    def _names(self) -> list[str]:
        """Returns the names of the views in the store."""
        return [] if self.store is None else sorted(self._reader().names())

    # -- definitions ---------------------------------------------------------------------------------------------

    def views(self) -> list[ViewInfo]:
        """Returns all views, system views last."""
        if self.store is None:
            return []
        views = self._reader()
        own = [self._view_info(views, views.definition(name)) for name in self._names()]
        system = (self._system_view(name) for name in SYSTEM_VIEWS)
        return own + [ViewInfo(t.name, "system", t.version, t.key, t.schema, None, None, None, None) for t in system]

    def _view_info(self, views: ViewReader, table: ViewTable) -> ViewInfo:
        ((rows,),) = views.sql(f"select count(*) from {quote(table.name)}").rows
        return ViewInfo(
            table.name, "view", table.version, table.key, table.schema, table.window, rows,
            views.watermark(table.name), changelog_topic(table.name, table.version),
        )  # fmt: skip

    def definition(self, name: str) -> ViewTable:
        """Returns the columns and key of a view.

        The view of a pipeline that has not started yet has no columns.

        Raises:
            UnknownViewError: There is no such view; the message lists similar names.
        """
        exists = self.store is not None
        if exists and name in SYSTEM_VIEWS:
            return self._system_view(name)
        names = self._names()
        if name in names:
            return self._reader().definition(name)
        pipelines = self._pipeline_states() if exists else {}
        if pipelines.get(name, {}).get("kind") == "view":
            return ViewTable(name, pipelines[name]["version"], pa.schema([]), ())
        tables = table_names(self._log)
        near = near_names(name, [*names, *tables, *(SYSTEM_VIEWS if exists else ())])
        if name in pipelines:
            what = f'"{name}" is a {pipelines[name]["kind"]}, not a view'
            raise UnknownViewError(what, detail=_list_names(names, tables), fix=f"headwater tail {name}", view=name)
        if name in self._log.topics():
            what = f'"{name}" is a topic, and neither a view nor a table'
            raise UnknownViewError(what, detail=_list_names(names, tables), fix=f"headwater cat {name}", view=name)
        raise UnknownViewError(
            f'no view "{name}"',
            detail=f"did you mean {', '.join(near)}?" if near else _list_names(names, tables),
            fix=f"headwater view {near[0]}" if near else "headwater run app.py" if not names else "headwater view",
            view=name,
            near=near,
        )

    def describe(self, name: str) -> ViewTable:
        """Returns the columns and key of a view or table.

        Raises:
            UnknownViewError: There is neither.
        """
        try:
            return self.definition(name)
        except UnknownViewError:
            table = find_table(self._log, name)
            if table is None:
                raise
            return table_definition(table)

    def _pipeline_states(self) -> dict[str, dict[str, Any]]:
        """Returns the reported states of the pipelines, by name."""
        answer = self._reader().sql("select name, version, kind, state, detail from hw_pipelines")
        return {row[0]: dict(zip(answer.columns, row, strict=True)) for row in answer.rows}

    def _system_view(self, name: str) -> ViewTable:
        return system_view(name, self._reader().sql(f"select * from {name} limit 0").columns)

    def watermark(self, name: str) -> int | None:
        """Returns the event time up to which a view is complete, in microseconds since 1970."""
        return self._reader().watermark(name)

    # -- rows ----------------------------------------------------------------------------------------------------

    def read(self, query: ViewQuery) -> ViewResult:
        """Returns rows of a view, after waiting until it includes the events of `after`."""
        EventWait(self, query).run()
        return self.read_now(query)

    def has_events(self, query: ViewQuery) -> bool:
        """Returns whether the view includes all events to wait for.

        Raises:
            UnknownViewError: There is no such view.
            UnknownTopicError: Neither the view nor anything before it reads the topic of one of them.
        """
        if not query.after or query.name in SYSTEM_VIEWS:  # `read_now` refuses to wait for a system view
            return True
        try:
            if not len(self.definition(query.name).schema):
                return False
        except UnknownViewError:
            if find_table(self._log, query.name) is None:
                raise
            return self._table_has_events(query)
        views, producers = self._reader(), self._producers()
        return all(self._has_event(views, query.name, receipt, producers) for receipt in query.after)

    def _table_has_events(self, query: ViewQuery) -> bool:
        ends = {end.partition: end.end for end in self._log.ends(query.name)}
        for receipt in query.after:
            if receipt.topic != query.name:
                what = f'table "{query.name}" is a topic of its own and has no events of topic "{receipt.topic}"'
                raise UnknownTopicError(what, topic=receipt.topic, view=query.name)
        return all(receipt.offset < ends.get(receipt.partition, 0) for receipt in query.after)

    def _has_event(self, views: ViewReader, name: str, receipt: Receipt, producers: dict[str, str]) -> bool:
        event = (receipt.topic, receipt.partition, receipt.offset)
        try:
            return views.has_event(name, *event, producers)
        except UnknownTopicError:
            if views.position(name) or receipt.topic not in self._log.topics():
                raise
            return False  # before its first batch, the topics that it reads may be unknown

    def _producers(self) -> dict[str, str]:
        """Returns the pipeline that writes each topic."""
        found = {}
        for name, state in self._pipeline_states().items():
            found[name] = name
            if state["kind"] == "view":
                found[changelog_topic(name, state["version"])] = name
        return found

    def behind_error(self, query: ViewQuery) -> ViewBehindError:
        """Returns the error for a view that does not include the events in time."""
        missing = [receipt for receipt in query.after if not self.has_events(replace(query, after=(receipt,)))]
        receipt = (missing or query.after)[0]
        event = f"{receipt.topic}/{receipt.partition}/{receipt.offset}"
        state = {} if self.store is None else self._pipeline_states().get(query.name, {})
        position = self._position(query.name)
        lines = [f"it has read: {position or 'nothing yet'}"]
        if state.get("state") not in (None, "running", "idle"):
            lines.append(f"its pipeline is {state['state']}" + (f": {state['detail']}" if state["detail"] else ""))
        return ViewBehindError(
            f'view "{query.name}" does not include {event} after {query.timeout:g} s',
            detail="\n".join(lines),
            fix="wait longer, such as timeout=60, or run headwater lag",
            view=query.name, after=event, position=position, state=state.get("state"),
        )  # fmt: skip

    def read_now(self, query: ViewQuery) -> ViewResult:
        """Returns rows of a view or table, without waiting."""
        try:
            table = self.definition(query.name)
        except UnknownViewError:
            topic = find_table(self._log, query.name)
            if topic is None:
                raise
            return self._read_table(table_definition(topic), query)
        if query.name in SYSTEM_VIEWS:
            return self._read_system(table, query)
        if not len(table.schema):
            return ViewResult(table, table.schema.empty_table(), None, "")
        if query.open is not None and table.window is None:
            what = f'view "{table.name}" has no windows, so none of its rows is open or closed'
            raise BadQueryError(what, fix="leave open= out", view=table.name)
        if query.as_of is not None:
            return self._read_as_of(table, query, micros(moment(query.as_of, now=self._log.clock.now())))
        views = self._reader()
        # The watermark is read before the rows, which may be newer: a window is never reported as closed too early.
        watermark, position = views.watermark(table.name), self._position(table.name)
        order = table.key if query.order is None else query.order
        limit = query.limit if query.open is None else None
        # Without an order, a read needs no sandbox (`ViewReader.table`). So all rows are sorted by their key here.
        sort_here = query.order is None and query.key is None and limit is None and _is_sortable(table)
        rows = views.table(
            table.name,
            key=query.key,
            where=query.where,
            order=() if query.key is not None or sort_here else order,
            limit=limit,
        )
        rows = _sort_by_key(table, rows) if sort_here else rows
        return _filter_open(ViewResult(table, rows, watermark, position), query)

    def _read_table(self, table: ViewTable, query: ViewQuery) -> ViewResult:
        if query.as_of is not None or query.open is not None:
            what = f"{table.name} is a table, which has no windows and keeps no past"
            raise BadQueryError(what, fix="leave as_of and open out", view=table.name)
        if query.limit == 0:
            return ViewResult(table, table.schema.empty_table(), None, "", kind="table")
        current = CurrentRows(self._log, table.name)
        rows = select_rows(table, current.table(), query)
        if query.order is None and _is_sortable(table):
            rows = _sort_by_key(table, rows)
        rows = rows if query.limit is None else rows.slice(0, query.limit)
        return ViewResult(table, rows, None, str(current.position), kind="table")

    def _read_as_of(self, table: ViewTable, query: ViewQuery, when: int) -> ViewResult:
        then = version_as_of(self._log, table, when)
        batches = "select watermark from hw_batches where pipeline = ? and version = ? and committed_at <= ?"
        parameters = (then.name, then.version, timestamp_text(when))
        last = self._reader().sql(f"{batches} order by batch desc limit 1", parameters).rows
        rows = select_rows(then, read_rows_as_of(self._log, then, when), query)
        if query.order is None and _is_sortable(then):
            rows = _sort_by_key(then, rows)
        # Without a batch before the moment, the ledger does not reach back that far.
        watermark = last[0][0] if last else None
        return _filter_open(ViewResult(then, rows, watermark, "", windows_known=bool(last)), query)

    def _read_system(self, table: ViewTable, query: ViewQuery) -> ViewResult:
        if query.as_of is not None or query.open is not None or query.after:
            what = f"{table.name} is a system view, which has no windows and no past"
            raise BadQueryError(what, fix="leave as_of, after and open out", view=table.name)
        reader = self._reader()
        condition = None if query.where is None else ViewFilter(query.where, table, reader.engine)
        key = {} if query.key is None else key_dict(table, query.key)
        parts = [f"{quote(name)} = ?" for name in key] + ([] if condition is None else [condition.sql])
        matching = f"where {' and '.join(parts)}" if parts else ""
        order = ", ".join(order_by(table, name) for name in query.order or table.key)
        exact = condition is None or condition.complete
        limit = min(query.limit, _MAX_SYSTEM_ROWS) if query.limit is not None and exact else _MAX_SYSTEM_ROWS + 1
        text = f"select * from {table.name} {matching} order by {order} limit {limit}"
        limits = QueryLimits(rows=_MAX_SYSTEM_ROWS, size=256 << 20, cell=64 << 20)
        answer = reader.sql(text, list(key.values()), limits=limits)
        if not (exact or answer.complete):
            what = f"the condition needs more than {_MAX_SYSTEM_ROWS:,} rows of {table.name}"
            fix = "add a comparison of a column with a constant: pipeline = 'totals' and ..."
            raise BadQueryError(what, fix=fix, view=table.name, limit="rows")
        rows = system_table(table, answer)
        rows = rows if condition is None else condition.select(rows)
        return ViewResult(table, rows if query.limit is None else rows.slice(0, query.limit), None, "")

    def _position(self, name: str) -> str:
        """Returns the position of a view in its topics as text; empty before its first batch."""
        if name not in self._names():
            return ""
        return " ".join(str(position) for _, position in sorted(self._reader().position(name).items()))

    def sql(self, text: str, parameters: Sequence[Any] = (), limit: int = 1000) -> SqlResult:
        """Returns the result of one SELECT over views, tables and system views.

        Tables are read from the log once the store reports a name that it does not know.
        """
        try:
            return self._sql(text, parameters, QueryLimits(rows=limit))
        except BadQueryError as error:
            complete_query_error(error, text, self._all_columns())
            raise

    def _all_columns(self) -> dict[str, list[str]]:
        """Returns the columns of every view, table and system view, as queries name them."""
        views = [self.definition(name) for name in self._names()]
        system = [self._system_view(name) for name in SYSTEM_VIEWS] if self.store is not None else []
        tables = [self.describe(name) for name in table_names(self._log)]
        return {table.name: [slot.name for slot in storage_columns(table)] for table in [*views, *tables, *system]}

    def _sql(self, text: str, parameters: Sequence[Any], limits: QueryLimits) -> SqlResult:
        if self.store is None and table_names(self._log):
            tables = load_named_tables(self._log, text)
            with temporary_store() as store:
                return ViewReader(store).sql(text, parameters, limits=limits, tables=tables)
        try:
            return self._reader().sql(text, parameters, limits=limits)
        except BadQueryError as error:
            tables = load_named_tables(self._log, text) if "relation" in error.data else []
            if not tables:
                raise
        return self._reader().sql(text, parameters, limits=limits, tables=tables)

    def table_sizes(self) -> dict[str, int] | None:
        """Returns the bytes of each table of the store; None if there is no store, or it would take long."""
        return None if self.store is None else self.store.dialect.table_sizes()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None


def _list_names(names: Sequence[str], tables: Sequence[str]) -> str:
    views = f"views: {', '.join(names)}" if names else "there are no views yet"
    return f"{views}; tables: {', '.join(tables)}" if tables else views


def _is_sortable(table: ViewTable) -> bool:
    kinds = [table.schema.field(name).type for name in table.key if name != table.window]
    return not any(pa.types.is_nested(kind) for kind in kinds)


def _sort_by_key(table: ViewTable, rows: pa.Table) -> pa.Table:
    columns = []
    for name in table.key:
        column = rows.column(name)
        columns.append(pc.struct_field(column, "start") if name == table.window else column)
    keys = pa.Table.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    order = [(name, "ascending", "at_start") for name in keys.column_names]
    return rows.take(pc.sort_indices(keys, sort_keys=order))


def _filter_open(found: ViewResult, query: ViewQuery) -> ViewResult:
    """Keep only rows of open or closed windows, if requested, up to the limit."""
    rows = found.table
    if query.open is not None:
        if not found.windows_known:
            what = "the watermark of that moment is no longer known"
            detail = f"the ledger keeps the last {KEPT_BATCHES:,} batches"
            raise BadQueryError(what, detail=detail, fix="leave open= out")
        mask = open_window_mask(found.definition, rows, found.watermark)
        rows = rows.filter(mask if query.open else pc.invert(mask))
    return replace(found, table=rows if query.limit is None else rows.slice(0, query.limit))
