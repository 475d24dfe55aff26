"""One live stream for a page: how pipelines are doing, and rows of views as they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from headwater.errors import HeadwaterError, UnknownViewError, UsageError
from headwater.server.edge.problems import problem_bytes
from headwater.server.forms.formats import EVENTS, one_line
from headwater.server.gateway import Gateway
from headwater.server.picture import LivePipelines, LiveRows, engine_of
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["routes"]

_BETWEEN: Final = 0.25  # seconds between two rounds of messages
_LOOK_EVERY: Final = 1.0  # seconds; lag grows without anything being written
_MOST_VIEWS: Final = 20

_ADDRESSES: Final = (
    Address(
        "GET",
        "/api/live",
        "live",
        "Pipelines and rows of views, live, as server-sent events",
        body(None, EVENTS),
        (UnknownViewError,),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The route of the live stream."""
    return router_of(_Live(gateway), "views", _ADDRESSES)


class _Live:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def live(self, views: str = "") -> Response:
        """For views, named with commas between. Everything comes once, then what changes, at most four times a second.

        Events are `pipelines` (all of them, with rate and lag), `engine`, and `rows` with the upserts and deletes of
        one view; each row has its key as text in `_key`, and `open` says by key whether its window may still change. A
        slow page gets fewer and newer messages; one that takes nothing at all is cut off.
        """
        names = [name for name in views.split(",") if name]
        if len(names) > _MOST_VIEWS:
            raise UsageError(f"a live stream has up to {_MOST_VIEWS} views", limit=_MOST_VIEWS)
        for name in names:
            await self._gateway.threads.query(self._gateway.views.definition, name)
        return StreamingResponse(self._stream(names), media_type=EVENTS)

    async def _stream(self, names: list[str]) -> AsyncIterator[bytes]:
        gateway, wakes = self._gateway, self._gateway.wakes
        look = _Look(gateway, names)
        heard = time.monotonic()
        yield b"retry: 1000\n: live\n\n"
        try:
            while not wakes.stopping:
                begun = time.monotonic()
                messages = await gateway.threads.query(look.messages)
                for message in messages:
                    yield message
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard >= gateway.limits.heartbeat.total_seconds():
                    heard = time.monotonic()
                    yield b": heartbeat\n\n"
                await self._pause(begun, busy=bool(messages))
        except HeadwaterError as error:
            yield b"event: problem\ndata: " + problem_bytes(error) + b"\n\n"

    async def _pause(self, begun: float, *, busy: bool) -> None:
        """Until something was committed, but never less than a quarter of a second and hardly more than a second."""
        gateway, wakes = self._gateway, self._gateway.wakes
        store = gateway.views.store
        if store is None:
            await wakes.wait(timeout=_LOOK_EVERY)
            return
        with await wakes.store(store.watch) as watch:
            change = watch.next
            await wakes.wait(timeout=_BETWEEN - (time.monotonic() - begun))
            if not change.done() and not busy:
                await wakes.wait(change, timeout=_LOOK_EVERY - _BETWEEN)
        await asyncio.sleep(0)


class _Look:
    """What one page has been told, and what it has to be told now."""

    def __init__(self, gateway: Gateway, names: list[str]) -> None:
        self._pipelines = LivePipelines(gateway.log, gateway.views)
        self._rows = [LiveRows(gateway.log, gateway.views, name) for name in names]
        self._engine_now: Callable[[], dict[str, Any] | None] = gateway.engine
        self._engine: dict[str, Any] | None = None

    def messages(self) -> list[bytes]:
        """All messages that are due."""
        found = []
        pipelines = self._pipelines.changed()
        if pipelines is not None:
            found.append(_message("pipelines", pipelines))
        engine = self._engine_now() or engine_of(self._pipelines.seen)
        if engine != self._engine:
            self._engine = engine
            found.append(_message("engine", engine))
        changed = (rows.changed() for rows in self._rows)
        return found + [_message("rows", message) for message in changed if message is not None]


def _message(event: str, document: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + one_line(msgspec.json.encode(document)) + b"\n\n"
