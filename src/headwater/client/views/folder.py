"""Views in a store: in the data folder beside the log, or in a database."""

from __future__ import annotations

import difflib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.views.asked import Asked, key_row
from headwater.client.views.changes import changes_topic
from headwater.client.views.found import Found, ViewInfo, open_rows
from headwater.client.views.past import chosen, rows_then, version_then
from headwater.client.views.system import SYSTEM_KEYS, system_table, system_view
from headwater.errors import BadQueryError, UnknownTopicError, UnknownViewError, ViewBehindError
from headwater.events import Receipt
from headwater.log.protocol import TimedLog
from headwater.log.wakeup import Waiter
from headwater.store import Answer, QueryLimits, Store, ViewReader, ViewTable, open_store, views_of
from headwater.store.query import checked_condition
from headwater.units import micros, moment

__all__ = ["FolderViews"]

_MOST_SYSTEM_ROWS: Final = 100_000
_LOOK_EVERY: Final = 0.2  # seconds between two looks for a store that is not there yet


class FolderViews:
    """Reads the views of a data folder or a database; opens the store when there is one. For several threads.

    Args:
        log: The log whose events the views are made of.
        folder: The data folder; that of the log, if left out.
        url: The database, if the views are in one.

    Example:
        >>> import tempfile
        >>> from headwater.log import EventLog
        >>> with EventLog(tempfile.mkdtemp()) as log:
        ...     FolderViews(log).views()
        []
    """

    def __init__(self, log: TimedLog, folder: Path | None = None, url: str | None = None) -> None:
        self._log = log
        self._folder = folder or Path(log.where)
        self._url = url
        self._lock = threading.Lock()
        self._opened: tuple[Store, ViewReader] | None = None

    @property
    def store(self) -> Store | None:
        """The store; None while nothing has been kept in the folder."""
        found = self._open()
        return None if found is None else found[0]

    def _open(self) -> tuple[Store, ViewReader] | None:
        with self._lock:
            if self._opened is None and (self._url or (self._folder / "store" / "store.db").exists()):
                store = open_store(self._url, self._folder, self._log.clock)
                self._opened = (store, views_of(store))
            return self._opened

    def _views(self) -> ViewReader:
        found = self._open()
        if found is None:
            raise BadQueryError(
                "there are no views yet", fix="headwater run app.py", detail=str(self._folder)
            )
        return found[1]

    # -- what there is -------------------------------------------------------------------------------------------

    def views(self) -> list[ViewInfo]:
        """All views, the system's own last."""
        found = self._open()
        if found is None:
            return []
        views = found[1]
        own = [self._info(views, views.definition(name)) for name in sorted(views.names())]
        return own + [_system_info(self._system(name)) for name in SYSTEM_KEYS]

    def _info(self, views: ViewReader, table: ViewTable) -> ViewInfo:
        quoted = '"' + table.name.replace('"', '""') + '"'
        ((rows,),) = views.sql(f"select count(*) from {quoted}").rows
        return ViewInfo(
            table.name, "view", table.version, table.key, table.schema, table.window, rows,
            views.watermark(table.name), changes_topic(table.name, table.version),
        )  # fmt: skip

    def definition(self, name: str) -> ViewTable:
        """A view's columns and key.

        A view that a pipeline will keep but has not begun with has no columns yet.

        Raises:
            UnknownViewError: There is no such view; near names are listed.
        """
        found = self._open()
        if found is not None and name in SYSTEM_KEYS:
            return self._system(name)
        names = [] if found is None else sorted(found[1].names())
        if found is not None and name in names:
            return found[1].definition(name)
        told = {} if found is None else self._told()
        if told.get(name, {}).get("kind") == "view":
            return ViewTable(name, told[name]["version"], pa.schema([]), ())
        known = [*names, *SYSTEM_KEYS] if found is not None else []
        near = difflib.get_close_matches(name, known, 3)
        if name in told:
            what = f'"{name}" is a {told[name]["kind"]}, not a view'
            raise UnknownViewError(what, detail=_known(names), fix=f"headwater tail {name}", view=name)
        raise UnknownViewError(
            f'no view "{name}"',
            detail=f"did you mean {', '.join(near)}?" if near else _known(names),
            fix=f"headwater view {near[0]}"
            if near
            else "headwater run app.py"
            if not names
            else "headwater view",
            view=name,
            near=near,
        )

    def _told(self) -> dict[str, dict[str, Any]]:
        """What the pipelines say of themselves, by name."""
        answer = self._views().sql("select name, version, kind, state, detail from hw_pipelines")
        return {row[0]: dict(zip(answer.columns, row, strict=True)) for row in answer.rows}

    def _system(self, name: str) -> ViewTable:
        return system_view(name, self._views().sql(f"select * from {name} limit 0").columns)

    def watermark(self, name: str) -> int | None:
        """Event time up to which a view is complete, in microseconds since 1970."""
        return self._views().watermark(name)

    # -- rows ----------------------------------------------------------------------------------------------------

    def read(self, asked: Asked) -> Found:
        """Rows of a view, once it has taken in what it is to wait for."""
        if not self.reached(asked):
            self._wait_until_reached(asked)
        return self.read_now(asked)

    def _wait_until_reached(self, asked: Asked) -> None:
        deadline = time.monotonic() + asked.timeout
        watch: Waiter | None = None
        try:
            while True:
                if watch is None and self.store is not None:
                    watch = self.store.watch()
                if self.reached(asked):
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.behind(asked)
                if watch is None:
                    time.sleep(min(left, _LOOK_EVERY))
                else:
                    watch.wait(left)
        finally:
            if watch is not None:
                watch.close()

    def reached(self, asked: Asked) -> bool:
        """Whether the view has taken in all events to wait for.

        Raises:
            UnknownViewError: There is no such view.
            UnknownTopicError: Neither the view nor anything before it reads the topic of one of them.
        """
        if not asked.after:
            return True
        if not len(self.definition(asked.name).schema):
            return False
        views, producers = self._views(), self._producers()
        return all(self._has(views, asked.name, receipt, producers) for receipt in asked.after)

    def _has(self, views: ViewReader, name: str, receipt: Receipt, producers: dict[str, str]) -> bool:
        place = (receipt.topic, receipt.partition, receipt.offset)
        try:
            return views.wait_for(name, *place, timeout=0, producers=producers)
        except UnknownTopicError:
            if views.position(name) or receipt.topic not in self._log.topics():
                raise
            return False  # it has not read anything yet, so nobody can say what it reads

    def _producers(self) -> dict[str, str]:
        """Which pipeline writes which topic."""
        found = {}
        for name, told in self._told().items():
            found[name] = name
            if told["kind"] == "view":
                found[changes_topic(name, told["version"])] = name
        return found

    def behind(self, asked: Asked) -> ViewBehindError:
        """What to say when the view has not taken the events in."""
        missing = [receipt for receipt in asked.after if not self.reached(replace(asked, after=(receipt,)))]
        receipt = (missing or asked.after)[0]
        place = f"{receipt.topic}/{receipt.partition}/{receipt.offset}"
        told = self._told().get(asked.name, {})
        position = self._position(asked.name)
        lines = [f"it has read: {position or 'nothing yet'}"]
        if told.get("state") not in (None, "running", "idle"):
            lines.append(
                f"its pipeline is {told['state']}" + (f": {told['detail']}" if told["detail"] else "")
            )
        return ViewBehindError(
            f'view "{asked.name}" had not taken in {place} after {asked.timeout:g} s',
            detail="\n".join(lines),
            fix="wait longer: timeout=60, or see headwater lag",
            view=asked.name, after=place, position=position, state=told.get("state"),
        )  # fmt: skip

    def read_now(self, asked: Asked) -> Found:
        """Rows of a view, without waiting."""
        table = self.definition(asked.name)
        if asked.name in SYSTEM_KEYS:
            return self._read_system(table, asked)
        if not len(table.schema):
            return Found(table, table.schema.empty_table(), None, "")
        if asked.open is not None and table.window is None:
            what = f'view "{table.name}" has no windows, so none of its rows is open or closed'
            raise BadQueryError(what, fix="leave open= out", view=table.name)
        if asked.as_of is not None:
            return self._read_past(table, asked, micros(moment(asked.as_of, now=self._log.clock.now())))
        views = self._views()
        # The watermark first: rows may then be newer than it, so an open window is never called closed too early.
        watermark, position = views.watermark(table.name), self._position(table.name)
        order = table.key if asked.order is None else asked.order
        at_end = asked.order is None and (asked.limit is None or asked.open is not None)
        rows = views.table(
            table.name,
            key=None if asked.key is None else key_row(table, asked.key),
            where=asked.where,
            order=() if asked.key is not None or (at_end and _sortable(table)) else order,
            limit=asked.limit if asked.open is None else None,
        )
        rows = _by_key(table, rows) if at_end and _sortable(table) and asked.key is None else rows
        return _opened(Found(table, rows, watermark, position), asked)

    def _read_past(self, table: ViewTable, asked: Asked, when: int) -> Found:
        then = version_then(self._log, table, when)
        known, watermark = self._watermark_then(then, when)
        key = None if asked.key is None else key_row(then, asked.key)
        rows = chosen(then, rows_then(self._log, then, when), replace(asked, key=key))
        if asked.order is None and _sortable(then):
            rows = _by_key(then, rows)
        return _opened(Found(then, rows, watermark, "", known), asked)

    def _watermark_then(self, table: ViewTable, when: int) -> tuple[bool, int | None]:
        """Whether the ledger still knows, and the watermark of a version at a moment."""
        text = "select watermark from hw_batches where pipeline = ? and version = ? and committed_at <= ?"
        at = _moment_text(when)
        found = self._views().sql(f"{text} order by batch desc limit 1", (table.name, table.version, at)).rows
        return bool(found), found[0][0] if found else None

    def _read_system(self, table: ViewTable, asked: Asked) -> Found:
        if asked.as_of is not None or asked.open is not None or asked.after:
            what = f"{table.name} is read as it is now; it has no windows and no past"
            raise BadQueryError(what, fix="leave as_of, after and open out", view=table.name)
        condition, values = _system_condition(table, asked)
        order = ", ".join(_ordering(table, name) for name in asked.order or table.key)
        limit = _MOST_SYSTEM_ROWS if asked.limit is None else min(asked.limit, _MOST_SYSTEM_ROWS)
        text = f"select * from {table.name} {condition} order by {order} limit {limit}"
        limits = QueryLimits(rows=_MOST_SYSTEM_ROWS, size=256 << 20, cell=64 << 20)
        answer = self._views().sql(text, values, limits=limits)
        return Found(table, system_table(table, answer), None, "")

    def _position(self, name: str) -> str:
        """How far a view has read its topics, as text; empty before its first batch."""
        found = self._open()
        if found is None or name not in found[1].names():
            return ""
        return " ".join(str(position) for _, position in sorted(found[1].position(name).items()))

    def sql(self, text: str, parameters: Sequence[Any] = (), limit: int = 1000) -> Answer:
        """The answer to one SELECT over views and system views."""
        return self._views().sql(text, parameters, limits=QueryLimits(rows=limit))

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            if self._opened is not None:
                store, views = self._opened
                views.close()
                store.close()
                self._opened = None


def _known(names: Sequence[str]) -> str:
    return f"views: {', '.join(names)}" if names else "there are no views yet"


def _system_info(table: ViewTable) -> ViewInfo:
    return ViewInfo(table.name, "system", table.version, table.key, table.schema, None, None, None, None)


def _sortable(table: ViewTable) -> bool:
    kinds = [table.schema.field(name).type for name in table.key if name != table.window]
    return not any(pa.types.is_nested(kind) for kind in kinds)


def _by_key(table: ViewTable, rows: pa.Table) -> pa.Table:
    columns = []
    for name in table.key:
        column = rows.column(name)
        columns.append(pc.struct_field(column, "start") if name == table.window else column)
    keys = pa.Table.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    order = [(name, "ascending", "at_start") for name in keys.column_names]
    return rows.take(pc.sort_indices(keys, sort_keys=order))


def _opened(found: Found, asked: Asked) -> Found:
    """Only rows of open or closed windows, if that is asked for, and not more than asked for."""
    rows = found.table
    if asked.open is not None:
        if not found.windows_known:
            what = "which windows were open then is not known any more"
            raise BadQueryError(
                what, detail="the ledger keeps the last 10,000 batches", fix="leave open= out"
            )
        marks = open_rows(found.definition, rows, found.watermark)
        rows = rows.filter(marks if asked.open else pc.invert(marks))
    return replace(found, table=rows if asked.limit is None else rows.slice(0, asked.limit))


def _system_condition(table: ViewTable, asked: Asked) -> tuple[str, list[Any]]:
    if asked.key is not None:
        given = key_row(table, asked.key)
        same = " and ".join(f'"{name}" is ?' for name in given)
        return f"where {same}", [json.dumps(v) if isinstance(v, dict | list) else v for v in given.values()]
    return ("", []) if asked.where is None else (f"where (\n{checked_condition(asked.where)}\n)", [])


def _ordering(table: ViewTable, column: str) -> str:
    name = column.removeprefix("-")
    if name not in table.schema.names:
        what = f"{table.name} has no column {name!r}"
        raise BadQueryError(what, detail=f"columns: {', '.join(table.schema.names)}", view=table.name)
    return f'"{name}" desc' if column.startswith("-") else f'"{name}"'


def _moment_text(when: int) -> str:
    found: str = pa.array([when], pa.timestamp("us")).cast(pa.string())[0].as_py()
    return f"{found.replace(' ', 'T')}Z"
