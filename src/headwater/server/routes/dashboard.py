"""The live stream of the dashboard: pipelines, engine, and rows of views as they change.

A snapshot holds what one open page shows. A message has what changed since the previous one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec
from fastapi import Response

from headwater.errors import DataGoneError, UnknownTopicError, UnknownViewError, UsageError
from headwater.events import Change
from headwater.events.values import to_json_value
from headwater.log import EventLog
from headwater.server.gateway import Gateway
from headwater.server.routes.openapi import Route, Routes, body
from headwater.server.serializers.responses import escape_newlines, format_micros
from headwater.server.sse import EVENT_STREAM, format_event
from headwater.store import ViewTable
from headwater.store.changelog import changelog_topic
from headwater.store.status import EngineStatus, read_engine_status
from headwater.store.views.changes import TransactionAssembler, start_offset
from headwater.store.views.lag import PipelineLag, pipeline_lags
from headwater.store.views.store_views import StoreViews
from headwater.store.views.view_query import ViewQuery
from headwater.units import micros

__all__ = ["DashboardRoutes", "PipelineSnapshot", "RowSnapshot", "summarize_engine"]

Document: TypeAlias = dict[str, Any]

_MAX_VIEWS: Final = 20
_MAX_ROWS: Final = 500  # rows of a view in its first message
_MAX_BYTES: Final = 1 << 20  # bytes of changes read at once
_RATE_WINDOW: Final = 5.0  # seconds
_MIN_INTERVAL: Final = 0.25  # seconds between two rounds of messages
_MAX_INTERVAL: Final = 1.0  # seconds; lag grows even when nothing is committed
_PIPELINES_QUERY: Final = ViewQuery("hw_pipelines")
# The state of an engine whose pipelines are all in this state; states not listed are the same for both.
_ENGINE_STATES: Final = {"idle": "running", "waiting": "running", "rebuilding": "running", None: "stopped"}


class PipelineSnapshot:
    """The pipelines with their rates and lags, as one page shows them.

    Args:
        log: The log with their topics.
        views: The views; hw_pipelines has their states and counts.
    """

    def __init__(self, log: EventLog, views: StoreViews) -> None:
        self._log = log
        self._views = views
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def read(self) -> list[Document]:
        """Returns all pipelines."""
        if self._views.store is None:
            return []
        rows = [to_json_value(row) for row in self._views.read_now(_PIPELINES_QUERY).rows()]
        rates = self._rates({row["name"]: row["in_"] for row in rows if row["in_"] is not None})
        lags = pipeline_lags(self._log, self._log.clock, self._views)
        return [row | {"rate": rates.get(row["name"], 0.0)} | _lag_fields(row["name"], lags) for row in rows]

    def _rates(self, counts: dict[str, int]) -> dict[str, float]:
        """Returns the events per second that each pipeline has read, over the rate window."""
        now = time.monotonic()
        self._samples.append((now, counts))
        while len(self._samples) > 1 and now - self._samples[0][0] > _RATE_WINDOW:
            self._samples.popleft()
        begun, before = self._samples[0]
        passed = now - begun
        rates = {name: max(0, count - before.get(name, count)) for name, count in counts.items()}
        return {name: round(more / passed, 1) if passed > 0 else 0.0 for name, more in rates.items()}


def _lag_fields(pipeline: str, lags: Sequence[PipelineLag]) -> Document:
    own = [lag for lag in lags if lag.pipeline == pipeline]
    behind = max((lag.behind.total_seconds() for lag in own), default=0.0)
    return {"lag_seconds": round(behind, 1), "lag_events": sum(lag.events for lag in own)}


def summarize_engine(pipelines: Sequence[Document], reported: EngineStatus | None = None) -> Document:
    """Returns the engine's state: as it reports it in its data folder, otherwise as its pipelines show it.

    Example:
        >>> summarize_engine([{"name": "revenue", "state": "starting", "detail": "", "since": None}])
        {'state': 'starting', 'detail': '', 'since': None}
        >>> summarize_engine([])["state"]
        'none'
    """
    if reported is not None:
        return {"state": reported.state, "detail": reported.detail, "since": format_micros(reported.since)}
    states = {row["state"] for row in pipelines}
    if not states:
        return {"state": "none", "detail": "there are no pipelines", "since": None}
    state = states.pop() if len(states) == 1 else "running"
    matching = [row for row in pipelines if row["state"] == state]
    since = min((row["since"] for row in matching if row["since"]), default=None)
    detail = next((row["detail"] for row in matching if row["detail"]), "")
    return {"state": _ENGINE_STATES.get(state, state), "detail": detail, "since": since}


class RowSnapshot:
    """The rows of one view, as one page shows them.

    Args:
        log: The log with the view's changelog.
        views: The views.
        name: The view's name.
    """

    def __init__(self, log: EventLog, views: StoreViews, name: str) -> None:
        self._log = log
        self._views = views
        self._name = name
        self._table: ViewTable | None = None
        self._assembler: TransactionAssembler | None = None
        self._offset = 0
        self._open: dict[str, tuple[int, Document]] = {}  # by key: end of the open window, and the row

    def poll(self) -> Document | None:
        """Returns all rows at first and after a rebuild, then the rows that changed; None if there are none."""
        try:
            table = self._views.definition(self._name)
        except UnknownViewError:
            return None
        if not table.key:
            return None
        if self._table is None or self._table.version != table.version:
            return self._full_message(table)
        try:
            changes = self._read_changes(table)
        except DataGoneError:  # the page read nothing for longer than changes are kept
            return self._full_message(table)
        except UnknownTopicError:
            return None
        return self._delta_message(changes)

    def _full_message(self, table: ViewTable) -> Document:
        self._table, self._assembler, self._open = table, TransactionAssembler(table), {}
        # The offset is read before the rows: a commit in between is sent again as a change, which does no harm.
        self._offset = start_offset(self._log, table, "latest")
        newest = (f"-{table.window}",) if table.window else None
        found = self._views.read_now(ViewQuery(self._name, order=newest, limit=_MAX_ROWS))
        upserts: list[Document] = []
        opened: dict[str, bool] = {}
        for row in found.rows():
            upserts.append(self._document(row))
            opened |= self._track_window(row, upserts[-1], found.watermark)
        message = {"view": self._name, "whole": True, "upserts": upserts, "deletes": [], "open": opened}
        return message | {"truncated": len(upserts) == _MAX_ROWS}

    def _read_changes(self, table: ViewTable) -> list[Change]:
        topic = changelog_topic(table.name, table.version)
        found: list[Change] = []
        assert self._assembler is not None
        for batch in self._log.fetch(topic, {0: self._offset}, max_bytes=_MAX_BYTES, timeout=0, waiter=None):
            found += self._assembler.add(batch)
            self._offset = batch.next_offset
        return found

    def _delta_message(self, changes: Sequence[Change]) -> Document | None:
        """Returns the last state of each changed row, and the rows whose windows have closed."""
        watermark = self._views.watermark(self._name)
        upserts: dict[str, Document] = {}
        deletes: dict[str, None] = {}
        opened: dict[str, bool] = {}
        for change in changes:
            row = change.before if change.after is None else change.after
            document = self._document(row or {})
            key = document["_key"]
            if change.after is None:
                upserts.pop(key, None)
                self._open.pop(key, None)
                deletes[key] = None
            else:
                deletes.pop(key, None)
                upserts[key] = document
                opened |= self._track_window(change.after, document, watermark)
        for key, (end, document) in list(self._open.items()):
            if watermark is not None and end <= watermark:
                del self._open[key]
                upserts[key], opened[key] = document, False
        if not upserts and not deletes:
            return None
        rows = list(upserts.values())
        return {"view": self._name, "upserts": rows, "deletes": list(deletes), "open": opened}

    def _document(self, row: Document) -> Document:
        assert self._table is not None
        shown: Document = to_json_value(row)
        key = [shown[name] for name in self._table.key]
        return shown | {"_key": msgspec.json.encode(key).decode()}

    def _track_window(self, row: Document, document: Document, watermark: int | None) -> dict[str, bool]:
        """Returns by key whether the row's window may still change; an open one is remembered until it closes."""
        assert self._table is not None
        key, window = document["_key"], row.get(self._table.window or "")
        self._open.pop(key, None)
        if not window or not isinstance(window["end"], datetime):
            return {}
        end = micros(window["end"] if window["end"].tzinfo else window["end"].replace(tzinfo=UTC))
        is_open = watermark is None or end > watermark
        if is_open:
            self._open[key] = (end, document)
        return {key: is_open}


class DashboardRoutes(Routes):
    """Serves the live stream of the dashboard."""

    tag = "views"

    @Route("GET", "/api/live", "Follow pipelines and rows of views live", body(None, EVENT_STREAM), (UnknownViewError,))
    async def live(self, views: str = "") -> Response:
        """`views` is a list of names, separated by commas. The stream sends everything once, then only what changes.

        Events are `pipelines` (all of them, with rate and lag), `engine`, `memory` (of node and engine, in bytes), and
        `rows` with the upserts and deletes of one view. Each row has its key as text in `_key`; `open` says by key
        whether the row's window may still change.
        There are at most four rounds of events per second. A slow client gets fewer, newer events; one that reads
        nothing is disconnected.
        """
        names = [name for name in views.split(",") if name]
        if len(names) > _MAX_VIEWS:
            what = f"{len(names)} views are more than a live stream can have ({_MAX_VIEWS})"
            raise UsageError(what, limit=_MAX_VIEWS)
        for name in names:
            await self._threads.query(self._views.definition, name)
        return self._gateway.streams.response(_DashboardSource(self._gateway, names))


class _DashboardSource:
    """The snapshots of one dashboard; each call sends what changed since the previous one."""

    def __init__(self, gateway: Gateway, names: list[str]) -> None:
        self._gateway = gateway
        self._notifier = gateway.notifier
        self._pipelines = PipelineSnapshot(gateway.log, gateway.views)
        self._rows = [RowSnapshot(gateway.log, gateway.views, name) for name in names]
        self._sent: dict[str, Any] = {}  # by event: the last document, of those that are sent whole
        self._commits: tuple[asyncio.Future[None], ...] = ()  # done at the next commit; empty without a store
        self._polled_at = -_MAX_INTERVAL
        self._idle = False

    async def next(self, timeout: float) -> list[bytes]:
        """Returns what changed, at most once per minimum interval; while nothing changes, waits for a commit."""
        await self._notifier.wait(timeout=self._polled_at + _MIN_INTERVAL - time.monotonic())
        if self._idle:
            await self._notifier.wait(*self._commits, timeout=min(timeout, _MAX_INTERVAL - _MIN_INTERVAL))
        self._polled_at = time.monotonic()
        store = self._gateway.views.store
        if store is not None:  # taken before the poll: a commit in between is not lost
            with await self._notifier.watch_store(store.watch) as subscription:
                self._commits = (subscription.next_change,)
        messages = await self._gateway.threads.query(self._poll)
        self._idle = not messages
        return messages

    def _poll(self) -> list[bytes]:
        pipelines = self._pipelines.read()
        engine = summarize_engine(pipelines, read_engine_status(self._gateway.log.folder))
        found = {"pipelines": pipelines, "engine": engine, "memory": self._gateway.memory()}
        messages = [(event, document) for event, document in found.items() if document != self._sent.get(event)]
        self._sent = found
        messages += [("rows", changed) for rows in self._rows if (changed := rows.poll()) is not None]
        return [format_event(escape_newlines(msgspec.json.encode(message)), event=event) for event, message in messages]
