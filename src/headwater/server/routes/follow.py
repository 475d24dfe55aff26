"""Live events to browsers and other clients: server-sent events that resume where they broke off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from headwater.errors import BadOffsetError, DataGoneError, HeadwaterError, UnknownTopicError
from headwater.log import LogBatch
from headwater.server.edge.problems import problem_bytes
from headwater.server.forms.formats import EVENTS, Range, json_events, resume_of
from headwater.server.gateway import Gateway
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["routes"]

# What one client may have on its way; a slow one stays at its offset in the log and costs no more than this.
_AT_ONCE: Final = 256 << 10
_CHUNK: Final = 64 << 10


_ADDRESSES: Final = (
    Address(
        "GET",
        "/api/topics/{name}/follow",
        "follow",
        "Follow a topic as server-sent events",
        body(None, EVENTS),
        (UnknownTopicError, BadOffsetError, DataGoneError),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The route of live events."""
    return router_of(_Follow(gateway), "events", _ADDRESSES)


class _Follow:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._threads = gateway.threads

    async def follow(
        self,
        name: str,
        start: str = "latest",
        partitions: str | None = None,
        resume: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Each event's `id` is the next offset of every partition, such as 0:13,1:7.

        A client that comes back with it, as Last-Event-ID or `resume`, goes on there: nothing is left out or comes
        twice. A stream without events sends a comment every 15 seconds.
        """
        wanted = await self._threads.read(Range.of, self._log, name, start, None, partitions)
        positions = wanted.positions
        known = last_event_id or resume
        if known:
            resumed = resume_of(known)
            positions = {partition: resumed.get(partition, offset) for partition, offset in positions.items()}
        first = await self._threads.read(self._look, name, positions)
        return StreamingResponse(self._stream(name, positions, first), media_type=EVENTS)

    def _look(self, name: str, positions: dict[int, int]) -> list[LogBatch]:
        return self._log.fetch(name, positions, max_bytes=_AT_ONCE, timeout=0, waiter=None)

    async def _stream(
        self, name: str, positions: dict[int, int], found: list[LogBatch]
    ) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n: following\n\n"
        wakes = self._gateway.wakes
        try:
            with await wakes.topic(name) as watch:
                while not wakes.stopping:
                    for batch in found:
                        for chunk in await self._threads.read(_chunks, batch, positions):
                            yield chunk
                        positions[batch.partition] = batch.next_offset
                    change = watch.next
                    found = await self._threads.read(self._look, name, positions)
                    if not found and not await wakes.wait(change, timeout=self._pause):
                        yield b": heartbeat\n\n"
        except HeadwaterError as error:
            yield b"event: problem\ndata: " + problem_bytes(error) + b"\n\n"

    @property
    def _pause(self) -> float:
        return self._gateway.limits.heartbeat.total_seconds()


def _chunks(batch: LogBatch, positions: dict[int, int]) -> list[bytes]:
    """The batch's events as text, in pieces of a bounded size."""
    others = [(p, offset) for p, offset in sorted(positions.items()) if p != batch.partition]
    before = _pairs((p, offset) for p, offset in others if p < batch.partition)
    after = _pairs((p, offset) for p, offset in others if p > batch.partition)
    head = b"id: " + before + (b"," if before else b"") + f"{batch.partition}:".encode()
    tail = (b"," if after else b"") + after + b"\ndata: "
    chunks: list[bytes] = []
    lines: list[bytes] = []
    size = 0
    for event, document in json_events(batch):
        lines += (head, str(event.offset + 1).encode(), tail, document, b"\n\n")
        size += len(document)
        if size >= _CHUNK:
            chunks.append(b"".join(lines))
            lines, size = [], 0
    return [*chunks, b"".join(lines)] if lines else chunks


def _pairs(positions: Iterable[tuple[int, int]]) -> bytes:
    return ",".join(f"{partition}:{offset}" for partition, offset in positions).encode()
