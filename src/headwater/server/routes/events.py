"""Routes of events as JSON: append one or many, read a range, delete a key, follow live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, Final

import msgspec
from fastapi import Header, Query, Request, Response

from headwater.client.consumer import find_offsets, open_reader
from headwater.errors import (
    BadEventError,
    BadJsonError,
    BadKeyError,
    BadOffsetError,
    DataGoneError,
    DiskFullError,
    OverloadedError,
    SequenceGapError,
    TooLargeError,
    UnknownTopicError,
    UsageError,
)
from headwater.events import Receipt
from headwater.log import LogBatch
from headwater.log.reader import TopicReader
from headwater.log.tombstones import check_tombstones
from headwater.server.gateway import Gateway, json_response, stream_response
from headwater.server.middleware import media_type
from headwater.server.problems import http_problem
from headwater.server.routes.openapi import Route, Routes, body, one_of, parse_query
from headwater.server.serializers.documents import AppendDocument
from headwater.server.serializers.requests import parse_ce_headers, parse_cloud_event
from headwater.server.serializers.responses import (
    ARROW,
    CLOUD_EVENTS,
    JSON,
    NDJSON,
    arrow_stream,
    encode_events,
    parse_marks,
    parse_partitions,
    parse_positions,
    parse_start,
)
from headwater.server.sse import EVENT_STREAM

__all__ = ["EventRoutes"]

CLOUD_EVENT: Final = "application/cloudevents+json"
_NDJSON_TYPES: Final = (NDJSON, "application/ndjson", "application/jsonl")
_PAGE_SIZE: Final = 100
_MAX_PAGE_SIZE: Final = 10_000
# Bytes that one follower may have in memory. A slow one stays at its offset in the log and costs no more than this.
_MAX_BYTES: Final = 256 << 10
_CHUNK_BYTES: Final = 64 << 10
_ATTRIBUTES: Final = {
    "key": "The key as text; a JSON array if the key has several columns",
    "id": "The event's id, the same on every delivery",
    "occurred_at": "When the event happened, RFC 3339",
    "sent_at": "When the event was sent, RFC 3339",
    "traceparent": "The W3C trace that the event belongs to",
    "source": "The producer of the event, a URI reference",
    "headers": "Headers as a JSON object of strings",
    "producer": "The producer's id; with a sequence, a repeated send is recognised and not appended again",
    "sequence": "The producer's number of this event, increasing",
    "previous": "The sequence that the producer sent to the partition before; -1 if none; not checked if left out",
}
_SKIP: Final = {"skip_invalid": "Leave invalid lines of an NDJSON body out: true or false"}
_PATH: Final = "/api/topics/{name}/events"


class EventRoutes(Routes):
    """Appends, reads and follows the events of a topic."""

    tag = "events"

    @Route(
        "POST",
        _PATH,
        "Append an event, or many as NDJSON",
        one_of(Receipt, AppendDocument),
        (
            UnknownTopicError,
            BadJsonError,
            BadEventError,
            BadKeyError,
            TooLargeError,
            SequenceGapError,
            OverloadedError,
            DiskFullError,
        ),
        request_body=body(None, JSON) | body(None, CLOUD_EVENT) | body(None, NDJSON),
        query=_ATTRIBUTES | _SKIP,
        status=201,
    )
    async def append(self, request: Request) -> Response:
        """The body is one event as JSON or as a CloudEvent, or many events as NDJSON.

        The events of one partition are appended completely or not at all. Attributes of a JSON event are given as
        `ce-` headers (CloudEvents, binary mode) or in the query. The status is 201 if the event was appended and 200
        if it was a repeat, the overload policy dropped it, or it is invalid and went to the topic of invalid events.
        """
        name, kind = request.path_params["name"], media_type(request)
        parameters = parse_query(request, _ATTRIBUTES | _SKIP)
        skip_invalid = _parse_flag("skip_invalid", parameters.pop("skip_invalid", "false"))
        async with self._gateway.bodies.read(request) as data:
            if kind in _NDJSON_TYPES:
                return await self._append_lines(name, data, skip_invalid)
            if kind == CLOUD_EVENT:
                attributes, value = parse_cloud_event(data, name)
            elif kind == JSON:
                attributes, value = parse_ce_headers(request.headers, name), data
            else:
                raise http_problem(
                    415,
                    f"cannot append a body of {kind or 'no media type'}",
                    detail=f"the media type must be {JSON}, {CLOUD_EVENT} or {NDJSON}",
                    fix=f"-H 'Content-Type: {JSON}'",
                )
            for attribute, given in parameters.items():  # the query takes precedence over headers and document
                attributes.set(attribute, given)
            receipt = await self._threads.append(self._gateway.ingest.append_one, name, value, attributes)
            appended = not (receipt.duplicate or receipt.dropped or receipt.diverted)
            return json_response(receipt, 201 if appended else 200)

    async def _append_lines(self, name: str, data: bytes, skip_invalid: bool) -> Response:
        receipts = await self._threads.append(self._gateway.ingest.append_lines, name, data, skip_invalid=skip_invalid)
        document = AppendDocument(
            name,
            len(receipts),
            receipts.duplicates,
            receipts.dropped,
            receipts.partitions.tolist(),
            receipts.offsets.tolist(),
            receipts.diverted,
            receipts.refused,
            dict(receipts.invalid),
        )
        return json_response(document, 200 if receipts.dropped or len(receipts.invalid) == len(receipts) else 201)

    @Route(
        "GET",
        _PATH,
        "Read a range of events",
        body(None, NDJSON) | body(None, JSON) | body(None, ARROW) | body(None, CLOUD_EVENTS),
        (UnknownTopicError, BadOffsetError, DataGoneError),
    )
    async def read(
        self,
        request: Request,
        name: str,
        start: str = "earliest",
        stop: str = "end",
        partitions: str | None = None,
        limit: Annotated[int | None, Query(ge=1)] = None,
        marks: str | None = None,
    ) -> Response:
        """The Accept header chooses NDJSON (the default), a page as JSON, CloudEvents, or typed columns as Arrow.

        `start` and `stop` are "earliest", "latest", "end", an offset or a time; `partitions` is a list such as 0,2. A
        page of a compacted topic may have `marks`; send them with the request of the next page, such as 0:13,1:7.
        """
        accept = request.headers.get("accept", "")
        known = parse_positions(marks) if marks else None
        bounds = parse_start(start), parse_start(stop), parse_partitions(partitions), known
        reader = await self._threads.read(open_reader, self._log, name, *bounds)
        if ARROW in accept:
            schema = (await self._threads.read(self._log.topic, name)).schema
            return await stream_response(self._threads.read, arrow_stream(schema, iter(reader)), ARROW)
        if JSON in accept or CLOUD_EVENTS in accept:
            most = min(limit or _PAGE_SIZE, _MAX_PAGE_SIZE)
            page = await self._threads.read(_read_page, reader, most, clouds=CLOUD_EVENTS in accept)
            return Response(page, media_type=CLOUD_EVENTS if CLOUD_EVENTS in accept else JSON)
        return await stream_response(self._threads.read, _encode_lines(iter(reader), limit), NDJSON)

    @Route("DELETE", _PATH, "Delete a key from a compacted topic", body(Receipt), (UnknownTopicError, BadKeyError))
    async def delete(self, name: str, key: str) -> Response:
        """Appends a tombstone. A key of several columns is a JSON array."""
        return json_response(await self._threads.append(self._gateway.ingest.delete, name, key))

    @Route(
        "GET",
        "/api/topics/{name}/follow",
        "Follow a topic as server-sent events",
        body(None, EVENT_STREAM),
        (UnknownTopicError, BadOffsetError, DataGoneError),
    )
    async def follow(
        self,
        name: str,
        start: str = "latest",
        partitions: str | None = None,
        resume: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """The `id` of each event holds the next offset of every partition, such as 0:13,1:7.

        A client that sends it back as Last-Event-ID or `resume` continues there, without gap or repeat. In a compacted
        topic a partition may have a third number, its mark. A stream without events sends a comment every 15 seconds.
        """
        horizons = await self._threads.read(self._log.tombstone_horizons, name)
        positions = await self._threads.read(
            find_offsets, self._log, name, parse_start(start), parse_partitions(partitions)
        )
        known = last_event_id or resume
        if known:
            resumed = parse_positions(known)
            positions = {partition: resumed.get(partition, offset) for partition, offset in positions.items()}
        fresh = {h.partition: h.fresh for h in horizons if start == "earliest" or not positions.get(h.partition)}
        marks = parse_marks(known) if known else fresh
        source = _TopicSource(self._gateway, name, positions, marks)
        await self._threads.read(source.fetch)  # until the response begins, an error has its own status
        return self._gateway.streams.response(source)


class _TopicSource:
    """The events of a topic for one follower."""

    def __init__(self, gateway: Gateway, name: str, positions: dict[int, int], marks: Mapping[int, int]) -> None:
        self._log = gateway.log
        self._threads = gateway.threads
        self._notifier = gateway.notifier
        self._name = name
        self._positions = positions
        self._marks = marks
        self._batches: list[LogBatch] = []

    def fetch(self) -> None:
        """Read the next batches, if there are any."""
        found = self._log.fetch(self._name, self._positions, max_bytes=_MAX_BYTES, timeout=0, waiter=None)
        check_tombstones(self._name, self._log.tombstone_horizons(self._name), self._positions, self._marks)
        self._batches = found

    async def next(self, timeout: float) -> list[bytes]:
        """Returns the events of the next batch; one batch at a time bounds the text in memory."""
        if not self._batches:
            with await self._notifier.watch_topic(self._name) as subscription:
                change = subscription.next_change
                await self._threads.read(self.fetch)
                if not self._batches:
                    await self._notifier.wait(change, timeout=timeout)
        return await self._threads.read(self._encode_batch, self._batches.pop(0)) if self._batches else []

    def _encode_batch(self, batch: LogBatch) -> list[bytes]:
        """Returns the events of a batch in chunks of a bounded size; only one offset of the id differs between them."""
        others = [(number, offset) for number, offset in sorted(self._positions.items()) if number != batch.partition]
        before = self._format_positions((number, offset) for number, offset in others if number < batch.partition)
        after = self._format_positions((number, offset) for number, offset in others if number > batch.partition)
        head = b"id: " + before + (b"," if before else b"") + f"{batch.partition}:".encode()
        tail = self._format_mark(batch.partition).encode() + (b"," if after else b"") + after + b"\ndata: "
        chunks: list[bytes] = []
        lines: list[bytes] = []
        size = 0
        for event, document in encode_events(batch):
            lines += (head, str(event.offset + 1).encode(), tail, document, b"\n\n")
            size += len(document)
            if size >= _CHUNK_BYTES:
                chunks.append(b"".join(lines))
                lines, size = [], 0
        self._positions[batch.partition] = batch.next_offset
        return [*chunks, b"".join(lines)] if lines else chunks

    def _format_positions(self, positions: Iterable[tuple[int, int]]) -> bytes:
        return ",".join(f"{number}:{offset}{self._format_mark(number)}" for number, offset in positions).encode()

    def _format_mark(self, partition: int) -> str:
        return f":{self._marks[partition]}" if partition in self._marks else ""


def _parse_flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"{name}={text[:80]} is neither true nor false", fix=f"?{name}=true", parameter=name)
    return text == "true"


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
    """Returns the first events, and the offsets at which to read on."""
    begun = dict(reader.positions)
    after = dict(begun)
    found: list[Any] = []
    for event, line in chain.from_iterable(encode_events(batch) for batch in reader):
        if len(found) == most:
            break
        found.append(event.cloud_event() if clouds else msgspec.Raw(line))
        after[event.partition] = event.offset + 1
    else:  # everything was read: the next page begins at the reader's position, behind idle markers too
        after = begun | reader.positions
    marks = {"marks": reader.marks} if reader.marks else {}
    return msgspec.json.encode(found if clouds else {"events": found, "next": after} | marks)
