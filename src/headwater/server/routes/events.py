"""Events as JSON: append one or many, read a range, delete a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from headwater.errors import (
    BadEventError,
    BadJsonError,
    BadKeyError,
    BadOffsetError,
    DataGoneError,
    DiskFullError,
    OverloadedError,
    TooLargeError,
    UnknownTopicError,
)
from headwater.events import Receipt
from headwater.log import LogBatch
from headwater.log.reader import Reader
from headwater.server.edge.bodies import media_type
from headwater.server.edge.problems import refused
from headwater.server.forms.documents import Appended
from headwater.server.forms.formats import ARROW, CLOUD_EVENTS, JSON, NDJSON, Range, arrow_stream, json_events
from headwater.server.forms.intake import About, from_document, from_headers
from headwater.server.gateway import Gateway, json_answer
from headwater.server.routes.direct import query
from headwater.server.routes.openapi import Address, body, one_of, router_of

__all__ = ["routes"]

CLOUD_EVENT: Final = "application/cloudevents+json"
_LINES: Final = (NDJSON, "application/ndjson", "application/jsonl")
_PAGE: Final = 100
_LONGEST_PAGE: Final = 10_000
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
_ADDRESSES: Final = (
    Address(
        "POST",
        _PATH,
        "append",
        "Append an event, or many as NDJSON",
        one_of(Receipt, Appended),
        (
            UnknownTopicError,
            BadJsonError,
            BadEventError,
            BadKeyError,
            TooLargeError,
            OverloadedError,
            DiskFullError,
        ),
        takes=body(None, JSON) | body(None, CLOUD_EVENT) | body(None, NDJSON),
        query=_ATTRIBUTES,
        status=201,
    ),
    Address(
        "GET",
        _PATH,
        "read",
        "Read a range of events",
        body(None, NDJSON) | body(None, JSON) | body(None, ARROW) | body(None, CLOUD_EVENTS),
        (UnknownTopicError, BadOffsetError, DataGoneError),
    ),
    Address(
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
    return router_of(_Events(gateway), "events", _ADDRESSES)


class _Events:
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
        asked = query(request, _ATTRIBUTES)
        async with self._gateway.bodies.of(request) as data:
            if kind == JSON:
                about = from_headers(request.headers, name)
            elif kind == CLOUD_EVENT:
                about, value = from_document(data, name)
                about.ask(asked)
                return await self._one(name, value, about)
            elif kind in _LINES:
                return await self._many(name, data)
            else:
                raise _unsupported(kind)
            about.ask(asked)
            return await self._one(name, data, about)

    async def _one(self, name: str, data: bytes, about: About) -> Response:
        receipt = await self._threads.append(self._gateway.intake.one, name, data, about)
        return json_answer(receipt, 200 if receipt.duplicate or receipt.dropped else 201)

    async def _many(self, name: str, data: bytes) -> Response:
        receipts = await self._threads.append(self._gateway.intake.many, name, data)
        answer = Appended(
            name,
            len(receipts),
            receipts.duplicates,
            receipts.dropped,
            receipts.partitions.tolist(),
            receipts.offsets.tolist(),
        )
        return json_answer(answer, 200 if receipts.dropped else 201)

    async def delete(self, name: str, key: str) -> Response:
        """Appends a tombstone; a key of several columns is a JSON array."""
        return json_answer(await self._threads.append(self._gateway.intake.delete, name, key))

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
        wanted = await self._threads.read(Range.of, self._log, name, start, stop, partitions)
        reader = wanted.reader(self._log, name)
        if ARROW in accept:
            schema = (await self._threads.read(self._log.topic, name)).schema
            return await self._streamed(arrow_stream(schema, iter(reader)), ARROW)
        if JSON in accept or CLOUD_EVENTS in accept:
            most = min(limit or _PAGE, _LONGEST_PAGE)
            page = await self._threads.read(_page, reader, most, clouds=CLOUD_EVENTS in accept)
            return Response(page, media_type=CLOUD_EVENTS if CLOUD_EVENTS in accept else JSON)
        return await self._streamed(_lines(iter(reader), limit), NDJSON)

    async def _streamed(self, chunks: Iterator[bytes], media: str) -> Response:
        """The first chunk is made before the answer begins: until then an error has its own status."""
        first = await self._threads.read(next, chunks, _END)

        async def rest() -> AsyncIterator[bytes]:
            chunk: Any = first
            while chunk is not _END:
                yield chunk
                chunk = await self._threads.read(next, chunks, _END)

        return StreamingResponse(rest(), media_type=media)


def _lines(batches: Iterator[LogBatch], limit: int | None) -> Iterator[bytes]:
    left = limit
    for batch in batches:
        lines = [line for _, line in json_events(batch)][:left]
        if lines:
            yield b"\n".join(lines) + b"\n"
        if left is not None:
            left -= len(lines)
            if left <= 0:
                return


def _page(reader: Reader, most: int, *, clouds: bool) -> bytes:
    """The first events, and from where to read on."""
    after = dict(reader.positions)
    begun = dict(reader.positions)
    found: list[Any] = []
    for event, line in chain.from_iterable(json_events(batch) for batch in reader):
        if len(found) == most:
            break
        found.append(event.cloud_event() if clouds else msgspec.Raw(line))
        after[event.partition] = event.offset + 1
    else:
        after = begun | reader.positions
    document = found if clouds else {"events": found, "next": after}
    return msgspec.json.encode(document)


def _unsupported(kind: str) -> Exception:
    return refused(
        415,
        f"a body of {kind or 'no type'} cannot be appended",
        detail=f"it can be {JSON}, {CLOUD_EVENT} or {NDJSON}",
        fix=f"-H 'Content-Type: {JSON}'",
    )
