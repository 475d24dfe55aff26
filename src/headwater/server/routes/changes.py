"""Changes of a view as server-sent events that resume where they broke off."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from headwater.client.views.changes import (
    Assembly,
    changes_topic,
    read_rows,
    require_current,
    start_of_changes,
)
from headwater.errors import (
    BadEventError,
    BadOffsetError,
    DataGoneError,
    HeadwaterError,
    RefusedError,
    UnknownViewError,
)
from headwater.events import Change, Position
from headwater.log import LogBatch
from headwater.server.edge.problems import problem_bytes
from headwater.server.forms.formats import EVENTS, one_line
from headwater.server.gateway import Gateway
from headwater.server.routes.openapi import Address, body, router_of
from headwater.store import ViewTable

__all__ = ["routes"]

_AT_ONCE: Final = 256 << 10  # bytes of changes one client may have on their way
_PIECE: Final = 500  # changes
_ROUND: Final = 2.0  # seconds without changes until it is looked whether the view was built anew
_LOOK_EVERY: Final = 0.2  # seconds between two looks for a topic that is not there yet

_ADDRESSES: Final = (
    Address(
        "GET",
        "/api/views/{name}/changes",
        "follow",
        "Follow the changes of a view as server-sent events",
        body(None, EVENTS),
        (UnknownViewError, BadEventError, BadOffsetError, DataGoneError, RefusedError),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The route of changes."""
    return router_of(_Changes(gateway), "views", _ADDRESSES)


@dataclass
class _Place:
    """Where one client is in the changes of a view."""

    table: ViewTable
    offset: int

    @property
    def topic(self) -> str:
        return changes_topic(self.table.name, self.table.version)


class _Changes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._threads = gateway.threads

    async def follow(
        self,
        name: str,
        since: str | None = None,
        snapshot: bool = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Each event's `id` is the position of the change; `since` is one, or "earliest" (the default) or "latest".

        A client that comes back with it, as Last-Event-ID or `since`, goes on there. With `snapshot` all rows come
        first, as changes with the op "read". A view that is built anew ends the stream with an event `problem`. A
        stream without changes sends a comment every 15 seconds.
        """
        views, log = self._gateway.views, self._gateway.log
        table = await self._threads.query(views.definition, name)
        resumed = last_event_id or since
        begin = "latest" if snapshot and not last_event_id else resumed
        offset = await self._threads.read(start_of_changes, log, table, begin)
        rows = read_rows(log, table, offset) if snapshot and not last_event_id else iter(())
        stream = self._stream(_Place(table, offset), rows)
        return StreamingResponse(stream, media_type=EVENTS)

    async def _stream(self, place: _Place, rows: Iterable[Change]) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n: following\n\n"
        try:
            for piece in await self._threads.query(_pieces, rows):
                yield piece
            async for piece in self._until_there(place):
                yield piece
            async for piece in self._following(place):
                yield piece
        except HeadwaterError as error:
            yield b"event: problem\ndata: " + problem_bytes(error) + b"\n\n"

    async def _following(self, place: _Place) -> AsyncIterator[bytes]:
        wakes = self._gateway.wakes
        assembly, heard = Assembly(place.table), time.monotonic()
        with await wakes.topic(place.topic) as watch:
            while not wakes.stopping:
                change = watch.next
                found = await self._threads.read(self._look, place)
                for batch in found:
                    for piece in await self._threads.read(_pieces, assembly.take(batch)):
                        yield piece
                    place.offset, heard = batch.next_offset, time.monotonic()
                if found or await wakes.wait(change, timeout=min(_ROUND, self._pause)):
                    continue
                await self._threads.query(self._require_current, place)
                if time.monotonic() - heard >= self._pause:
                    heard = time.monotonic()
                    yield b": heartbeat\n\n"

    async def _until_there(self, place: _Place) -> AsyncIterator[bytes]:
        """Comments until the topic of the changes is there: a new pipeline makes it with its first batch."""
        wakes, rounds = self._gateway.wakes, 0
        while not wakes.stopping and place.topic not in await self._threads.read(self._gateway.log.topics):
            await wakes.wait(timeout=_LOOK_EVERY)
            rounds += 1
            if rounds * _LOOK_EVERY >= self._pause:
                rounds = 0
                yield b": heartbeat\n\n"
        if not place.table.key:  # the view has its columns only now
            place.table = await self._threads.query(self._gateway.views.definition, place.table.name)

    def _look(self, place: _Place) -> list[LogBatch]:
        log = self._gateway.log
        return log.fetch(place.topic, {0: place.offset}, max_bytes=_AT_ONCE, timeout=0, waiter=None)

    def _require_current(self, place: _Place) -> None:
        newest = self._gateway.views.definition(place.table.name)
        require_current(newest, Position.of(place.topic, {0: place.offset}))

    @property
    def _pause(self) -> float:
        return self._gateway.limits.heartbeat.total_seconds()


def _pieces(changes: Iterable[Change]) -> list[bytes]:
    """The changes as text, in pieces of a bounded number."""
    lines = [_id(change) + b"data: " + one_line(change.to_json()) + b"\n\n" for change in changes]
    return [b"".join(lines[at : at + _PIECE]) for at in range(0, len(lines), _PIECE)]


def _id(change: Change) -> bytes:
    """Where to go on behind it; nowhere inside a snapshot, of which a part is worth nothing."""
    inside = change.op == "read" and not change.transaction.last
    return b"" if inside else f"id: {change.position}\n".encode()
