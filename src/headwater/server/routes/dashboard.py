"""The live stream of the dashboard: pipelines, engine, and rows of views as they change.

A dashboard snapshot holds what one page shows. Each message has what changed since the previous snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from headwater.errors import DataGoneError, HeadwaterError, UnknownTopicError, UnknownViewError, UsageError
from headwater.events import Change
from headwater.events.values import to_json_value
from headwater.log import EventLog
from headwater.server.gateway import Gateway
from headwater.server.problems import problem_bytes
from headwater.server.routes.openapi import Route, body, router_of
from headwater.server.serializers.responses import EVENT_STREAM, escape_newlines
from headwater.store import ViewTable
from headwater.store.changelog import changelog_topic
from headwater.store.views.changes import TransactionAssembler, start_offset
from headwater.store.views.lag import PipelineLag, pipeline_lags
from headwater.store.views.store_views import StoreViews
from headwater.store.views.view_query import ViewQuery
from headwater.units import micros

__all__ = ["PipelineSnapshot", "RowSnapshot", "routes", "summarize_engine"]

Document: TypeAlias = dict[str, Any]

_MAX_ROWS: Final = 500  # of a view in its first picture
_MAX_BYTES: Final = 1 << 20  # of changes read at once
_RATE_WINDOW: Final = 5.0  # seconds
_PIPELINES_QUERY: Final = ViewQuery("hw_pipelines")


class PipelineSnapshot:
    """The pipelines with their rates and lags, as one page has last seen them.

    Args:
        log: Where their topics are.
        views: Where their state is.
    """

    def __init__(self, log: EventLog, views: StoreViews) -> None:
        self._log = log
        self._views = views
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._latest: list[Document] | None = None

    @property
    def latest(self) -> list[Document]:
        """All of them at the last look."""
        return self._latest or []

    def poll(self) -> list[Document] | None:
        """All of them; None when nothing is other than it was."""
        found = self._read()
        if found == self._latest:
            return None
        self._latest = found
        return found

    def _read(self) -> list[Document]:
        if self._views.store is None:
            return []
        rows = [to_json_value(row) for row in self._views.read_now(_PIPELINES_QUERY).rows()]
        rates = self._rates({row["name"]: row["in_"] for row in rows if row["in_"] is not None})
        lags = pipeline_lags(self._log, self._log.clock, self._views)
        return [row | {"rate": rates.get(row["name"], 0.0)} | _lag_fields(row["name"], lags) for row in rows]

    def _rates(self, counts: dict[str, int]) -> dict[str, float]:
        """Events per second that each has read, over the last seconds."""
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


def summarize_engine(pipelines: Sequence[Document]) -> Document:
    """What the engine does, as far as its pipelines tell.

    Example:
        >>> summarize_engine([{"name": "revenue", "state": "starting", "detail": "", "since": None}])
        {'state': 'starting', 'detail': '', 'since': None}
        >>> summarize_engine([])["state"]
        'none'
    """
    states = {row["state"] for row in pipelines}
    if not states:
        return {"state": "none", "detail": "there are no pipelines", "since": None}
    state = states.pop() if len(states) == 1 else "running"
    told = {"idle": "running", "waiting": "running", "rebuilding": "running", None: "stopped"}
    of_it = [row for row in pipelines if row["state"] == state]
    since = min((row["since"] for row in of_it if row["since"]), default=None)
    detail = next((row["detail"] for row in of_it if row["detail"]), "")
    return {"state": told.get(state, state), "detail": detail, "since": since}


class RowSnapshot:
    """The rows of one view, as one page has last seen them.

    Args:
        log: Where its changes are.
        views: Where its rows are.
        name: The view.
    """

    def __init__(self, log: EventLog, views: StoreViews, name: str) -> None:
        self._log = log
        self._views = views
        self._name = name
        self._table: ViewTable | None = None
        self._assembler: TransactionAssembler | None = None
        self._offset = 0
        self._open: dict[str, tuple[int, Document]] = {}

    def poll(self) -> Document | None:
        """A message for the page: all rows at first and when the view was built anew, then those that changed."""
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
        except DataGoneError:  # the page was away for longer than changes are kept
            return self._full_message(table)
        except UnknownTopicError:
            return None
        return self._delta_message(changes)

    def _full_message(self, table: ViewTable) -> Document:
        self._table, self._assembler, self._open = table, TransactionAssembler(table), {}
        # The place first: what is committed in between comes once more as a change, and is then the same.
        self._offset = start_offset(self._log, table, "latest")
        newest = (f"-{table.window}",) if table.window else None
        found = self._views.read_now(ViewQuery(self._name, order=newest, limit=_MAX_ROWS))
        upserts: list[Document] = []
        opened: dict[str, bool] = {}
        for row, open_ in zip(found.rows(), found.open, strict=True):
            document = self._document(row)
            upserts.append(document)
            opened |= self._track_open(row, document, open_)
        message = {"view": self._name, "whole": True, "upserts": upserts, "deletes": [], "open": opened}
        return message | {"truncated": len(upserts) == _MAX_ROWS}

    def _read_changes(self, table: ViewTable) -> list[Change]:
        topic, assembler = changelog_topic(table.name, table.version), self._assembler
        assert assembler is not None
        positions = {0: self._offset}
        found: list[Change] = []
        for batch in self._log.fetch(topic, positions, max_bytes=_MAX_BYTES, timeout=0, waiter=None):
            found += assembler.add(batch)
            self._offset = batch.next_offset
        return found

    def _delta_message(self, changes: Sequence[Change]) -> Document | None:
        """The last state of each row that changed, and rows whose windows have closed meanwhile."""
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
                opened |= self._track_open(change.after, document, self._is_open(change.after, watermark))
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

    def _is_open(self, row: Document, watermark: int | None) -> bool | None:
        end = self._window_end(row)
        return None if end is None else watermark is None or end > watermark

    def _window_end(self, row: Document) -> int | None:
        window = row.get(self._table.window or "") if self._table else None
        end = window["end"] if window else None
        return micros(end if end.tzinfo else end.replace(tzinfo=UTC)) if isinstance(end, datetime) else None

    def _track_open(self, row: Document, document: Document, open_: bool | None) -> dict[str, bool]:
        key, end = document["_key"], self._window_end(row)
        if open_ and end is not None:
            self._open[key] = (end, document)
        else:
            self._open.pop(key, None)
        return {} if open_ is None else {key: open_}


_MIN_INTERVAL: Final = 0.25  # seconds between two rounds of messages
_MAX_INTERVAL: Final = 1.0  # seconds; lag grows without anything being written
_MAX_VIEWS: Final = 20

_ROUTES: Final = (
    Route(
        "GET",
        "/api/live",
        "live",
        "Pipelines and rows of views, live, as server-sent events",
        body(None, EVENT_STREAM),
        (UnknownViewError,),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The route of the live stream."""
    return router_of(_DashboardRoutes(gateway), "views", _ROUTES)


class _DashboardRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def live(self, views: str = "") -> Response:
        """For views, named with commas between. Everything comes once, then what changes, at most four times a second.

        Events are `pipelines` (all of them, with rate and lag), `engine`, and `rows` with the upserts and deletes of
        one view; each row has its key as text in `_key`, and `open` says by key whether its window may still change. A
        slow page gets fewer and newer messages; one that takes nothing at all is cut off.
        """
        names = [name for name in views.split(",") if name]
        if len(names) > _MAX_VIEWS:
            raise UsageError(f"a live stream has up to {_MAX_VIEWS} views", limit=_MAX_VIEWS)
        for name in names:
            await self._gateway.threads.query(self._gateway.views.definition, name)
        return StreamingResponse(self._stream(names), media_type=EVENT_STREAM)

    async def _stream(self, names: list[str]) -> AsyncIterator[bytes]:
        gateway, notifier = self._gateway, self._gateway.notifier
        dashboard = _Dashboard(gateway, names)
        last_sent = time.monotonic()
        yield b"retry: 1000\n: live\n\n"
        try:
            while not notifier.stopping:
                begun = time.monotonic()
                messages = await gateway.threads.query(dashboard.messages)
                for message in messages:
                    yield message
                if messages:
                    last_sent = time.monotonic()
                elif time.monotonic() - last_sent >= gateway.limits.heartbeat.total_seconds():
                    last_sent = time.monotonic()
                    yield b": heartbeat\n\n"
                await self._wait(begun, busy=bool(messages))
        except HeadwaterError as error:
            yield b"event: problem\ndata: " + problem_bytes(error) + b"\n\n"

    async def _wait(self, begun: float, *, busy: bool) -> None:
        """Until something was committed, but never less than a quarter of a second and hardly more than a second."""
        gateway, notifier = self._gateway, self._gateway.notifier
        store = gateway.views.store
        if store is None:
            await notifier.wait(timeout=_MAX_INTERVAL)
            return
        with await notifier.watch_store(store.watch) as subscription:
            change = subscription.next_change
            await notifier.wait(timeout=_MIN_INTERVAL - (time.monotonic() - begun))
            if not change.done() and not busy:
                await notifier.wait(change, timeout=_MAX_INTERVAL - _MIN_INTERVAL)
        await asyncio.sleep(0)


class _Dashboard:
    """What one page has been told, and what it has to be told now."""

    def __init__(self, gateway: Gateway, names: list[str]) -> None:
        self._pipelines = PipelineSnapshot(gateway.log, gateway.views)
        self._rows = [RowSnapshot(gateway.log, gateway.views, name) for name in names]
        self._read_engine: Callable[[], dict[str, Any] | None] = gateway.engine
        self._engine: dict[str, Any] | None = None

    def messages(self) -> list[bytes]:
        """All messages that are due."""
        found = []
        pipelines = self._pipelines.poll()
        if pipelines is not None:
            found.append(_encode_message("pipelines", pipelines))
        engine = self._read_engine() or summarize_engine(self._pipelines.latest)
        if engine != self._engine:
            self._engine = engine
            found.append(_encode_message("engine", engine))
        changed = (rows.poll() for rows in self._rows)
        return found + [_encode_message("rows", message) for message in changed if message is not None]


def _encode_message(event: str, document: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + escape_newlines(msgspec.json.encode(document)) + b"\n\n"
