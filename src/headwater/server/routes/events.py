"""Routes of events as JSON: append one or many, read a range, delete a key, follow live.

The live stream uses server-sent events and resumes after the position the client names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from headwater.errors import (
    BadEventError,
    BadJsonError,
    BadKeyError,
    BadOffsetError,
    DataGoneError,
    DiskFullError,
    HeadwaterError,
    OverloadedError,
    TooLargeError,
    UnknownTopicError,
)
from headwater.events import Receipt
from headwater.log import LogBatch
from headwater.log.reader import TopicReader
from headwater.server.gateway import Gateway, json_response
from headwater.server.middleware import media_type
from headwater.server.problems import http_problem, problem_bytes
from headwater.server.routes.openapi import Route, body, one_of, parse_query, router_of
from headwater.server.serializers.documents import AppendDocument
from headwater.server.serializers.requests import EventAttributes, parse_ce_headers, parse_cloud_event
from headwater.server.serializers.responses import (
    ARROW,
    CLOUD_EVENTS,
    EVENT_STREAM,
    JSON,
    NDJSON,
    ReadRange,
    arrow_stream,
    encode_events,
    parse_positions,
)

__all__ = ["follow_routes", "routes"]

CLOUD_EVENT: Final = "application/cloudevents+json"
_NDJSON_TYPES: Final = (NDJSON, "application/ndjson", "application/jsonl")
_PAGE_SIZE: Final = 100
_MAX_PAGE_SIZE: Final = 10_000
_END: Final = object()
_ATTRIBUTES: Final = {
    "key": "The key, as text; several columns as a JSON array",
    "id": "The same on every delivery",
    "occurred_at": "When it happened, RFC 3339",
    "sent_at": "When it was sent, RFC 3339",
    "traceparent": "The W3C trace it belongs to",
    "source": "Who produced it, a URI reference",
    "headers": "A JSON object of texts",
    "producer": "With sequence: a repeated send is told apart and not written again",
    "sequence": "The producer's number of this event, rising",
}


_PATH: Final = "/api/topics/{name}/events"
_ROUTES: Final = (
    Route(
        "POST",
        _PATH,
        "append",
        "Append an event, or many as NDJSON",
        one_of(Receipt, AppendDocument),
        (UnknownTopicError, BadJsonError, BadEventError, BadKeyError, TooLargeError, OverloadedError, DiskFullError),
        request_body=body(None, JSON) | body(None, CLOUD_EVENT) | body(None, NDJSON),
        query=_ATTRIBUTES,
        status=201,
    ),
    Route(
        "GET",
        _PATH,
        "read",
        "Read a range of events",
        body(None, NDJSON) | body(None, JSON) | body(None, ARROW) | body(None, CLOUD_EVENTS),
        (UnknownTopicError, BadOffsetError, DataGoneError),
    ),
    Route(
        "DELETE",
        _PATH,
        "delete",
        "Delete a key from a compacted topic",
        body(Receipt),
        (UnknownTopicError, BadKeyError),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of events."""
    return router_of(_EventRoutes(gateway), "events", _ROUTES)


class _EventRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._threads = gateway.threads

    async def append(self, request: Request) -> Response:
        """One event as JSON or as a CloudEvent, or many as NDJSON, of which all of a partition are written or none.

        The attributes of a JSON event stand in `ce-` headers (CloudEvents, binary mode) or in the query. 201 when it
        was written, 200 when it was a repeat or the overload policy dropped it.
        """
        name, kind = request.path_params["name"], media_type(request)
        parameters = parse_query(request, _ATTRIBUTES)
        async with self._gateway.bodies.read(request) as data:
            if kind == JSON:
                attributes = parse_ce_headers(request.headers, name)
            elif kind == CLOUD_EVENT:
                attributes, value = parse_cloud_event(data, name)
                attributes.update_from_query(parameters)
                return await self._append_one(name, value, attributes)
            elif kind in _NDJSON_TYPES:
                return await self._append_lines(name, data)
            else:
                raise _media_type_error(kind)
            attributes.update_from_query(parameters)
            return await self._append_one(name, data, attributes)

    async def _append_one(self, name: str, data: bytes, attributes: EventAttributes) -> Response:
        receipt = await self._threads.append(self._gateway.ingest.append_one, name, data, attributes)
        return json_response(receipt, 200 if receipt.duplicate or receipt.dropped else 201)

    async def _append_lines(self, name: str, data: bytes) -> Response:
        receipts = await self._threads.append(self._gateway.ingest.append_lines, name, data)
        document = AppendDocument(
            name,
            len(receipts),
            receipts.duplicates,
            receipts.dropped,
            receipts.partitions.tolist(),
            receipts.offsets.tolist(),
        )
        return json_response(document, 200 if receipts.dropped else 201)

    async def delete(self, name: str, key: str) -> Response:
        """Appends a tombstone; a key of several columns is a JSON array."""
        return json_response(await self._threads.append(self._gateway.ingest.delete, name, key))

    async def read(
        self,
        request: Request,
        name: str,
        start: str = "earliest",
        stop: str = "end",
        partitions: str | None = None,
        limit: Annotated[int | None, Query(ge=1)] = None,
    ) -> Response:
        """By the Accept header: NDJSON (the default), a page as JSON, CloudEvents, or typed columns as an Arrow stream.

        `start` and `stop` are "earliest", "latest", "end", an offset or a time; `partitions` such as 0,2.
        """
        accept = request.headers.get("accept", "")
        range_ = await self._threads.read(ReadRange.parse, self._log, name, start, stop, partitions)
        reader = range_.reader(self._log, name)
        if ARROW in accept:
            schema = (await self._threads.read(self._log.topic, name)).schema
            return await self._stream(arrow_stream(schema, iter(reader)), ARROW)
        if JSON in accept or CLOUD_EVENTS in accept:
            most = min(limit or _PAGE_SIZE, _MAX_PAGE_SIZE)
            page = await self._threads.read(_read_page, reader, most, clouds=CLOUD_EVENTS in accept)
            return Response(page, media_type=CLOUD_EVENTS if CLOUD_EVENTS in accept else JSON)
        return await self._stream(_encode_lines(iter(reader), limit), NDJSON)

    async def _stream(self, chunks: Iterator[bytes], media: str) -> Response:
        """The first chunk is made before the answer begins: until then an error has its own status."""
        first = await self._threads.read(next, chunks, _END)

        async def rest() -> AsyncIterator[bytes]:
            chunk: Any = first
            while chunk is not _END:
                yield chunk
                chunk = await self._threads.read(next, chunks, _END)

        return StreamingResponse(rest(), media_type=media)


def _encode_lines(batches: Iterator[LogBatch], limit: int | None) -> Iterator[bytes]:
    left = limit
    for batch in batches:
        lines = [line for _, line in encode_events(batch)][:left]
        if lines:
            yield b"\n".join(lines) + b"\n"
        if left is not None:
            left -= len(lines)
            if left <= 0:
                return


def _read_page(reader: TopicReader, most: int, *, clouds: bool) -> bytes:
    """The first events, and from where to read on."""
    after = dict(reader.positions)
    begun = dict(reader.positions)
    found: list[Any] = []
    for event, line in chain.from_iterable(encode_events(batch) for batch in reader):
        if len(found) == most:
            break
        found.append(event.cloud_event() if clouds else msgspec.Raw(line))
        after[event.partition] = event.offset + 1
    else:
        after = begun | reader.positions
    document = found if clouds else {"events": found, "next": after}
    return msgspec.json.encode(document)


def _media_type_error(kind: str) -> Exception:
    return http_problem(
        415,
        f"a body of {kind or 'no type'} cannot be appended",
        detail=f"it can be {JSON}, {CLOUD_EVENT} or {NDJSON}",
        fix=f"-H 'Content-Type: {JSON}'",
    )


# What one client may have on its way; a slow one stays at its offset in the log and costs no more than this.
_MAX_BYTES: Final = 256 << 10
_CHUNK_BYTES: Final = 64 << 10


_FOLLOW_ROUTES: Final = (
    Route(
        "GET",
        "/api/topics/{name}/follow",
        "follow",
        "Follow a topic as server-sent events",
        body(None, EVENT_STREAM),
        (UnknownTopicError, BadOffsetError, DataGoneError),
    ),
)


def follow_routes(gateway: Gateway) -> APIRouter:
    """The route of live events."""
    return router_of(_FollowRoutes(gateway), "events", _FOLLOW_ROUTES)


class _FollowRoutes:
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

        A client that sends it as Last-Event-ID or `resume` resumes there: nothing is left out or comes
        twice. A stream without events sends a comment every 15 seconds.
        """
        wanted = await self._threads.read(ReadRange.parse, self._log, name, start, None, partitions)
        positions = wanted.positions
        known = last_event_id or resume
        if known:
            resumed = parse_positions(known)
            positions = {partition: resumed.get(partition, offset) for partition, offset in positions.items()}
        first = await self._threads.read(self._fetch, name, positions)
        return StreamingResponse(self._stream(name, positions, first), media_type=EVENT_STREAM)

    def _fetch(self, name: str, positions: dict[int, int]) -> list[LogBatch]:
        return self._log.fetch(name, positions, max_bytes=_MAX_BYTES, timeout=0, waiter=None)

    async def _stream(self, name: str, positions: dict[int, int], batches: list[LogBatch]) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n: following\n\n"
        notifier = self._gateway.notifier
        try:
            with await notifier.watch_topic(name) as subscription:
                while not notifier.stopping:
                    for batch in batches:
                        for chunk in await self._threads.read(_encode_batch, batch, positions):
                            yield chunk
                        positions[batch.partition] = batch.next_offset
                    change = subscription.next_change
                    batches = await self._threads.read(self._fetch, name, positions)
                    if not batches and not await notifier.wait(change, timeout=self._heartbeat):
                        yield b": heartbeat\n\n"
        except HeadwaterError as error:
            yield b"event: problem\ndata: " + problem_bytes(error) + b"\n\n"

    @property
    def _heartbeat(self) -> float:
        return self._gateway.limits.heartbeat.total_seconds()


def _encode_batch(batch: LogBatch, positions: dict[int, int]) -> list[bytes]:
    """The batch's events as text, in pieces of a bounded size."""
    others = [(p, offset) for p, offset in sorted(positions.items()) if p != batch.partition]
    before = _format_positions((p, offset) for p, offset in others if p < batch.partition)
    after = _format_positions((p, offset) for p, offset in others if p > batch.partition)
    head = b"id: " + before + (b"," if before else b"") + f"{batch.partition}:".encode()
    tail = (b"," if after else b"") + after + b"\ndata: "
    chunks: list[bytes] = []
    lines: list[bytes] = []
    size = 0
    for event, document in encode_events(batch):
        lines += (head, str(event.offset + 1).encode(), tail, document, b"\n\n")
        size += len(document)
        if size >= _CHUNK_BYTES:
            chunks.append(b"".join(lines))
            lines, size = [], 0
    return [*chunks, b"".join(lines)] if lines else chunks


def _format_positions(positions: Iterable[tuple[int, int]]) -> bytes:
    return ",".join(f"{partition}:{offset}" for partition, offset in positions).encode()
