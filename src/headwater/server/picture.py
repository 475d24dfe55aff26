"""What one live page shows, and what has changed of it since it last looked: pipelines, engine, rows of some views."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from headwater.client.views import Asked, FolderViews, PipelineLag, changes_topic, pipeline_lags
from headwater.client.views.changes import Assembly, start_of_changes
from headwater.errors import DataGoneError, UnknownTopicError, UnknownViewError
from headwater.events import Change
from headwater.events.values import json_form
from headwater.log import EventLog
from headwater.store import ViewTable
from headwater.units import micros

__all__ = ["LivePipelines", "LiveRows", "engine_of"]

Document: TypeAlias = dict[str, Any]

_MOST_ROWS: Final = 500  # of a view in its first picture
_MOST_BYTES: Final = 1 << 20  # of changes read at once
_RATE_OVER: Final = 5.0  # seconds
_PIPELINES: Final = Asked("hw_pipelines")


class LivePipelines:
    """The pipelines with their rates and lags, as one page has last seen them.

    Args:
        log: Where their topics are.
        views: Where their state is.
    """

    def __init__(self, log: EventLog, views: FolderViews) -> None:
        self._log = log
        self._views = views
        self._counted: deque[tuple[float, dict[str, int]]] = deque()
        self._seen: list[Document] | None = None

    @property
    def seen(self) -> list[Document]:
        """All of them at the last look."""
        return self._seen or []

    def changed(self) -> list[Document] | None:
        """All of them; None when nothing is other than it was."""
        found = self._look()
        if found == self._seen:
            return None
        self._seen = found
        return found

    def _look(self) -> list[Document]:
        if self._views.store is None:
            return []
        rows = [json_form(row) for row in self._views.read_now(_PIPELINES).rows()]
        rates = self._rates({row["name"]: row["in_"] for row in rows if row["in_"] is not None})
        lags = pipeline_lags(self._log, self._log.clock, self._views)
        return [row | {"rate": rates.get(row["name"], 0.0)} | _lag(row["name"], lags) for row in rows]

    def _rates(self, counts: dict[str, int]) -> dict[str, float]:
        """Events per second that each has read, over the last seconds."""
        now = time.monotonic()
        self._counted.append((now, counts))
        while len(self._counted) > 1 and now - self._counted[0][0] > _RATE_OVER:
            self._counted.popleft()
        begun, before = self._counted[0]
        passed = now - begun
        rates = {name: max(0, count - before.get(name, count)) for name, count in counts.items()}
        return {name: round(more / passed, 1) if passed > 0 else 0.0 for name, more in rates.items()}


def _lag(pipeline: str, lags: Sequence[PipelineLag]) -> Document:
    own = [lag for lag in lags if lag.pipeline == pipeline]
    behind = max((lag.behind.total_seconds() for lag in own), default=0.0)
    return {"lag_seconds": round(behind, 1), "lag_events": sum(lag.events for lag in own)}


def engine_of(pipelines: Sequence[Document]) -> Document:
    """What the engine does, as far as its pipelines tell.

    Example:
        >>> engine_of([{"name": "revenue", "state": "starting", "detail": "", "since": None}])
        {'state': 'starting', 'detail': '', 'since': None}
        >>> engine_of([])["state"]
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


class LiveRows:
    """The rows of one view, as one page has last seen them.

    Args:
        log: Where its changes are.
        views: Where its rows are.
        name: The view.
    """

    def __init__(self, log: EventLog, views: FolderViews, name: str) -> None:
        self._log = log
        self._views = views
        self._name = name
        self._table: ViewTable | None = None
        self._assembly: Assembly | None = None
        self._offset = 0
        self._open: dict[str, tuple[int, Document]] = {}

    def changed(self) -> Document | None:
        """A message for the page: all rows at first and when the view was built anew, then those that changed."""
        try:
            table = self._views.definition(self._name)
        except UnknownViewError:
            return None
        if not table.key:
            return None
        if self._table is None or self._table.version != table.version:
            return self._whole(table)
        try:
            changes = self._changes(table)
        except DataGoneError:  # the page was away for longer than changes are kept
            return self._whole(table)
        except UnknownTopicError:
            return None
        return self._message(changes)

    def _whole(self, table: ViewTable) -> Document:
        self._table, self._assembly, self._open = table, Assembly(table), {}
        # The place first: what is committed in between comes once more as a change, and is then the same.
        self._offset = start_of_changes(self._log, table, "latest")
        newest = (f"-{table.window}",) if table.window else None
        found = self._views.read_now(Asked(self._name, order=newest, limit=_MOST_ROWS))
        upserts: list[Document] = []
        opened: dict[str, bool] = {}
        for row, open_ in zip(found.rows(), found.open, strict=True):
            document = self._document(row)
            upserts.append(document)
            opened |= self._marked(row, document, open_)
        message = {"view": self._name, "whole": True, "upserts": upserts, "deletes": [], "open": opened}
        return message | {"truncated": len(upserts) == _MOST_ROWS}

    def _changes(self, table: ViewTable) -> list[Change]:
        topic, assembly = changes_topic(table.name, table.version), self._assembly
        assert assembly is not None
        places = {0: self._offset}
        found: list[Change] = []
        for batch in self._log.fetch(topic, places, max_bytes=_MOST_BYTES, timeout=0, waiter=None):
            found += assembly.take(batch)
            self._offset = batch.next_offset
        return found

    def _message(self, changes: Sequence[Change]) -> Document | None:
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
                opened |= self._marked(change.after, document, self._is_open(change.after, watermark))
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
        shown: Document = json_form(row)
        key = [shown[name] for name in self._table.key]
        return shown | {"_key": msgspec.json.encode(key).decode()}

    def _is_open(self, row: Document, watermark: int | None) -> bool | None:
        end = self._end(row)
        return None if end is None else watermark is None or end > watermark

    def _end(self, row: Document) -> int | None:
        window = row.get(self._table.window or "") if self._table else None
        end = window["end"] if window else None
        return micros(end if end.tzinfo else end.replace(tzinfo=UTC)) if isinstance(end, datetime) else None

    def _marked(self, row: Document, document: Document, open_: bool | None) -> dict[str, bool]:
        key, end = document["_key"], self._end(row)
        if open_ and end is not None:
            self._open[key] = (end, document)
        else:
            self._open.pop(key, None)
        return {} if open_ is None else {key: open_}
