"""Routes of views: list, rows, changes as server-sent events, and SQL.

A change stream resumes after the position the client names. SQL is one read-only SELECT with limits on time
and size.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse

from headwater.errors import (
    BadEventError,
    BadJsonError,
    BadKeyError,
    BadOffsetError,
    BadQueryError,
    BadTimeError,
    DataGoneError,
    HeadwaterError,
    RefusedError,
    UnknownTopicError,
    UnknownViewError,
    UsageError,
    ViewBehindError,
)
from headwater.events import Change, Position, to_ddl
from headwater.log import LogBatch
from headwater.server.gateway import Gateway, json_response
from headwater.server.middleware import media_type, parse_json
from headwater.server.problems import problem_bytes
from headwater.server.routes.openapi import Route, body, list_of, parse_query, router_of
from headwater.server.serializers.documents import RowsDocument, SqlRequest, SqlResponse, ViewDocument
from headwater.server.serializers.responses import (
    ARROW,
    CSV,
    EVENT_STREAM,
    JSON,
    MEDIA_TYPES,
    NDJSON,
    PARQUET,
    encode_rows,
    escape_newlines,
    format_micros,
)
from headwater.store import ViewTable
from headwater.store.views.changes import (
    TransactionAssembler,
    changelog_topic,
    read_snapshot,
    resolve_position,
    start_offset,
)
from headwater.store.views.view_query import ViewInfo, ViewQuery, ViewResult, parse_key, parse_receipts

__all__ = ["change_routes", "routes", "sql_routes", "wait_until_reached"]

_MAX_BYTES: Final = 256 << 10  # bytes of changes one client may have on their way
_CHUNK_CHANGES: Final = 500  # changes
_REBUILD_CHECK: Final = 2.0  # seconds without changes until it is looked whether the view was built anew
_TOPIC_POLL: Final = 0.2  # seconds between two looks for a topic that is not there yet

_CHANGE_ROUTES: Final = (
    Route(
        "GET",
        "/api/views/{name}/changes",
        "follow",
        "Follow the changes of a view as server-sent events",
        body(None, EVENT_STREAM),
        (UnknownViewError, BadEventError, BadOffsetError, DataGoneError, RefusedError),
    ),
)


def change_routes(gateway: Gateway) -> APIRouter:
    """The route of changes."""
    return router_of(_ChangeRoutes(gateway), "views", _CHANGE_ROUTES)


@dataclass
class _ChangePosition:
    """Where one client is in the changes of a view."""

    table: ViewTable
    offset: int

    @property
    def topic(self) -> str:
        return changelog_topic(self.table.name, self.table.version)


class _ChangeRoutes:
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

        A client that sends it as Last-Event-ID or `since` resumes there. With `snapshot` all rows come
        first, as changes with the op "read". A view that is built anew ends the stream with an event `problem`. A
        stream without changes sends a comment every 15 seconds.
        """
        views, log = self._gateway.views, self._gateway.log
        table = await self._threads.query(views.definition, name)
        resumed = last_event_id or since
        begin = "latest" if snapshot and not last_event_id else resumed
        offset = await self._threads.read(start_offset, log, table, begin)
        rows = read_snapshot(log, table, offset) if snapshot and not last_event_id else iter(())
        stream = self._stream(_ChangePosition(table, offset), rows)
        return StreamingResponse(stream, media_type=EVENT_STREAM)

    async def _stream(self, position: _ChangePosition, rows: Iterable[Change]) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n: following\n\n"
        try:
            for chunk in await self._threads.query(_encode_changes, rows):
                yield chunk
            async for chunk in self._wait_for_topic(position):
                yield chunk
            async for chunk in self._follow_changes(position):
                yield chunk
        except HeadwaterError as error:
            yield b"event: problem\ndata: " + problem_bytes(error) + b"\n\n"

    async def _follow_changes(self, position: _ChangePosition) -> AsyncIterator[bytes]:
        notifier = self._gateway.notifier
        assembler, last_sent = TransactionAssembler(position.table), time.monotonic()
        with await notifier.watch_topic(position.topic) as subscription:
            while not notifier.stopping:
                change = subscription.next_change
                batches = await self._threads.read(self._fetch, position)
                for batch in batches:
                    for chunk in await self._threads.read(_encode_changes, assembler.add(batch)):
                        yield chunk
                    position.offset, last_sent = batch.next_offset, time.monotonic()
                if batches or await notifier.wait(change, timeout=min(_REBUILD_CHECK, self._heartbeat)):
                    continue
                await self._threads.query(self._check_current, position)
                if time.monotonic() - last_sent >= self._heartbeat:
                    last_sent = time.monotonic()
                    yield b": heartbeat\n\n"

    async def _wait_for_topic(self, position: _ChangePosition) -> AsyncIterator[bytes]:
        """Comments until the topic of the changes is there: a new pipeline makes it with its first batch."""
        notifier, rounds = self._gateway.notifier, 0
        while not notifier.stopping and position.topic not in await self._threads.read(self._gateway.log.topics):
            await notifier.wait(timeout=_TOPIC_POLL)
            rounds += 1
            if rounds * _TOPIC_POLL >= self._heartbeat:
                rounds = 0
                yield b": heartbeat\n\n"
        if not position.table.key:  # the view has its columns only now
            position.table = await self._threads.query(self._gateway.views.definition, position.table.name)

    def _fetch(self, position: _ChangePosition) -> list[LogBatch]:
        log = self._gateway.log
        return log.fetch(position.topic, {0: position.offset}, max_bytes=_MAX_BYTES, timeout=0, waiter=None)

    def _check_current(self, position: _ChangePosition) -> None:
        newest = self._gateway.views.definition(position.table.name)
        resolve_position(newest, Position.of(position.topic, {0: position.offset}))

    @property
    def _heartbeat(self) -> float:
        return self._gateway.limits.heartbeat.total_seconds()


def _encode_changes(changes: Iterable[Change]) -> list[bytes]:
    """The changes as text, in pieces of a bounded number."""
    lines = [_event_id(change) + b"data: " + escape_newlines(change.to_json()) + b"\n\n" for change in changes]
    return [b"".join(lines[at : at + _CHUNK_CHANGES]) for at in range(0, len(lines), _CHUNK_CHANGES)]


def _event_id(change: Change) -> bytes:
    """Where to go on behind it; nowhere inside a snapshot, of which a part is worth nothing."""
    inside = change.op == "read" and not change.transaction.last
    return b"" if inside else f"id: {change.position}\n".encode()


_MSGPACK: Final = "application/msgpack"
_MAX_ROWS: Final = 10_000
_MAX_BODY: Final = 1 << 20  # bytes of a request

_SQL_ROUTES: Final = (
    Route(
        "POST",
        "/api/sql",
        "ask",
        "Ask one SELECT over views and system views",
        body(SqlResponse) | body(None, _MSGPACK),
        (BadQueryError, BadJsonError),
        request_body=body(SqlRequest) | body(None, _MSGPACK),
    ),
)


def sql_routes(gateway: Gateway) -> APIRouter:
    """The route of SQL."""
    return router_of(_SqlRoutes(gateway), "views", _SQL_ROUTES)


class _SqlRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def ask(self, request: Request) -> Response:
        """As SQLite has it: times are text in RFC 3339, decimals are text, a window `w` is "w.start" and "w.end".

        A query that takes too long, too much memory or returns too much is ended or cut off. A body of
        application/msgpack is answered in kind, with every value as it is.
        """
        gateway, packed = self._gateway, media_type(request) == _MSGPACK
        async with gateway.bodies.read(request, _MAX_BODY) as data:
            wanted = _decode_msgpack(data) if packed else parse_json(data, SqlRequest)
            if not all(isinstance(value, str | int | float | bytes | None) for value in wanted.parameters):
                raise UsageError("the parameters of a query are texts, numbers, bytes and nulls")
            if not 0 <= wanted.limit <= _MAX_ROWS:
                raise UsageError(f"a query gives up to {_MAX_ROWS:,} rows", fix="limit=1000", limit=_MAX_ROWS)
            found = await gateway.threads.query(gateway.views.sql, wanted.sql, wanted.parameters, wanted.limit)
        rows = [list(row) for row in found.rows]
        answer = SqlResponse(list(found.columns), rows, not found.complete)
        if packed:
            return Response(msgspec.msgpack.encode(answer), media_type=_MSGPACK)
        return json_response(answer)


def _decode_msgpack(data: bytes) -> SqlRequest:
    try:
        return msgspec.msgpack.decode(data, type=SqlRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        raise UsageError(f"the request does not fit: {error}", fix=f"send {JSON}") from None


_STORE_POLL: Final = 0.2  # seconds between two looks for a store that is not there yet
_END: Final = object()
_OPEN: Final = {"true": True, "false": False, "all": None}
_PARAMETERS: Final = {
    "where": "Only rows that match this condition, such as amount > 100",
    "key": "Only the row with this key: once for each column of the key, in its order, or one JSON object",
    "order": "Columns to sort by, with - before one that falls; the key's, if left out",
    "limit": "So many rows at most",
    "as_of": "As the view was then: RFC 3339, or relative such as -10m",
    "after": "Wait until the view has taken in the event at topic/partition/offset; several with commas",
    "timeout": "How many seconds to wait for that, 10 if left out",
    "open": "Only rows of open windows (true), of closed ones (false), or all",
}

_ROUTES: Final = (
    Route("GET", "/api/views", "all", "All views, the system's own last", list_of("views", ViewDocument)),
    Route(
        "GET",
        "/api/views/{name}",
        "read",
        "Rows of a view, as JSON or by the ending of the name",
        body(RowsDocument) | body(None, NDJSON) | body(None, CSV) | body(None, ARROW) | body(None, PARQUET),
        (UnknownViewError, BadQueryError, BadKeyError, BadTimeError, UnknownTopicError, ViewBehindError),
        query=_PARAMETERS,
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of views."""
    return router_of(_ViewRoutes(gateway), "views", _ROUTES)


async def wait_until_reached(gateway: Gateway, query: ViewQuery) -> None:
    """Wait, without a thread, until a view has taken in what a read is to come after.

    Raises:
        ViewBehindError: It had not when the time was over.
    """
    views, deadline = gateway.views, time.monotonic() + query.timeout
    while not await gateway.threads.query(views.has_events, query):
        left = deadline - time.monotonic()
        if left <= 0 or gateway.notifier.stopping:
            raise await gateway.threads.query(views.behind_error, query)
        store = views.store
        if store is None:
            await gateway.notifier.wait(timeout=min(left, _STORE_POLL))
            continue
        with await gateway.notifier.watch_store(store.watch) as subscription:
            change = subscription.next_change
            if not await gateway.threads.query(views.has_events, query):
                await gateway.notifier.wait(change, timeout=left)


class _ViewRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._views = gateway.views
        self._threads = gateway.threads

    async def all(self) -> Response:
        """Name, key, columns, number of rows, and the event time up to which each is complete."""
        found = await self._threads.query(self._views.views)
        return json_response({"views": [_view_document(info) for info in found]})

    async def read(self, request: Request) -> Response:
        """The name may end in .json (which is the default), .ndjson, .csv, .arrow or .parquet.

        The same for the system views hw_pipelines, hw_batches, hw_late, hw_quarantine and hw_state. Arrow and
        Parquet carry the view's key, window and watermark in the metadata of their schema.
        """
        name, form = _split_name(request.path_params["name"])
        view_query = await self._threads.query(self._view_query, request, name)
        await wait_until_reached(self._gateway, view_query)
        result = await self._threads.query(self._views.read_now, view_query)
        return await self._stream_rows(result, form)

    def _view_query(self, request: Request, name: str) -> ViewQuery:
        given = parse_query(request, _PARAMETERS, repeatable=("key",))
        keys = request.query_params.getlist("key")
        wanted = given.get("open", "all")
        if wanted not in _OPEN:
            raise UsageError(f"open is true, false or all, not {wanted[:40]!r}", fix="open=true")
        return ViewQuery(
            name,
            where=given.get("where"),
            key=parse_key(self._views.definition(name), keys) if keys else None,
            order=tuple(given["order"].split(",")) if "order" in given else None,
            limit=None if "limit" not in given else _parse_int("limit", given["limit"]),
            as_of=given.get("as_of"),
            after=parse_receipts(given["after"]) if given.get("after") else (),
            timeout=self._gateway.cap_wait(_parse_seconds(given.get("timeout", "10"))),
            open=_OPEN[wanted],
        )

    async def _stream_rows(self, result: ViewResult, form: str) -> Response:
        chunks = encode_rows(result, form)
        first: Any = await self._threads.query(next, chunks, b"")

        async def all_chunks() -> AsyncIterator[bytes]:
            chunk = first
            while chunk is not _END:
                yield chunk
                chunk = await self._threads.query(next, chunks, _END)

        headers = {"headwater-position": result.position} if result.position else {}
        if result.watermark is not None:
            headers["headwater-watermark"] = format_micros(result.watermark) or ""
        if form in ("csv", "arrow", "parquet"):
            headers["content-disposition"] = f'attachment; filename="{result.definition.name}.{form}"'
        if form in ("csv", "ndjson"):
            return StreamingResponse(all_chunks(), headers=headers, media_type=MEDIA_TYPES[form])
        return Response(first, headers=headers, media_type=MEDIA_TYPES[form])


def _split_name(text: str) -> tuple[str, str]:
    name, dot, ending = text.rpartition(".")
    return (name, ending) if dot and name and ending in MEDIA_TYPES else (text, "json")


def _view_document(info: ViewInfo) -> ViewDocument:
    return ViewDocument(
        info.name,
        info.kind,
        info.version,
        list(info.key),
        to_ddl(info.schema),
        info.window,
        info.rows,
        format_micros(info.watermark),
        info.changes_topic,
        b64encode(info.schema.serialize().to_pybytes()).decode(),
    )


def _parse_int(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{name} is a number, not {text[:40]!r}", fix=f"{name}=100", parameter=name)
    return int(text)


def _parse_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"timeout is a number of seconds, not {text[:40]!r}", fix="timeout=10")
    return number
