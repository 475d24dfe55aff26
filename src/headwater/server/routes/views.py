"""Routes of views: list, rows, changes as server-sent events, and SQL."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from fastapi import Header, Request, Response

from headwater.errors import (
    BadEventError,
    BadFilterError,
    BadJsonError,
    BadKeyError,
    BadOffsetError,
    BadQueryError,
    BadTimeError,
    DataGoneError,
    RefusedError,
    UnknownTopicError,
    UnknownViewError,
    UsageError,
    ViewBehindError,
)
from headwater.events import Change, Position, to_ddl
from headwater.server.gateway import Gateway, json_response, stream_response
from headwater.server.middleware import media_type, parse_json
from headwater.server.routes.openapi import Route, Routes, body, list_of, parse_query
from headwater.server.serializers.documents import RowsDocument, SqlRequest, SqlResponse, ViewDocument
from headwater.server.serializers.responses import (
    ARROW,
    CSV,
    JSON,
    MEDIA_TYPES,
    NDJSON,
    PARQUET,
    encode_rows,
    escape_newlines,
    format_micros,
)
from headwater.server.sse import EVENT_STREAM, format_event
from headwater.store import ViewTable
from headwater.store.changelog import changelog_topic
from headwater.store.views.changes import (
    TransactionAssembler,
    read_snapshot,
    resolve_position,
    start_offset,
)
from headwater.store.views.view_query import ViewInfo, ViewQuery, ViewResult, parse_key, parse_receipts
from headwater.store.views.wait import STORE_POLL, EventWait

__all__ = ["ViewRoutes"]

_MSGPACK: Final = "application/msgpack"
_MAX_ROWS: Final = 10_000
_MAX_SQL_BODY: Final = 1 << 20  # bytes
_MAX_BYTES: Final = 256 << 10  # bytes of changes that one follower may have in memory
_CHUNK_CHANGES: Final = 500  # changes sent at once
_REBUILD_CHECK: Final = 2.0  # seconds without changes until a stream checks whether the view was rebuilt
_TOPIC_POLL: Final = 0.2  # seconds between checks for a changelog topic that does not exist yet
_OPEN: Final = {"true": True, "false": False, "all": None}
_PARAMETERS: Final = {
    "where": "A condition that the rows match, such as amount > 100",
    "key": "The key of one row: repeated for each column of the key, in its order, or one JSON object",
    "order": "Columns to sort by, with - before a descending one; the key's columns if left out",
    "limit": "The maximum number of rows",
    "as_of": "A moment in the past, RFC 3339 or relative such as -10m; the rows are those of that moment",
    "after": "Wait until the view includes the event at topic/partition/offset; several are separated by commas",
    "timeout": "How many seconds to wait for `after`; 10 if left out",
    "open": "Rows of open windows (true), of closed windows (false), or of both (all)",
}


class ViewRoutes(Routes):
    """Lists, reads and follows views, and runs SQL over them."""

    tag = "views"

    @Route("GET", "/api/views", "List views, system views last", list_of("views", ViewDocument))
    async def all(self) -> Response:
        """Name, key, columns, number of rows, and the event time up to which each view is complete."""
        found = await self._threads.query(self._views.views)
        return json_response({"views": [_view_document(info) for info in found]})

    @Route(
        "GET",
        "/api/views/{name}",
        "Read rows of a view or table, as JSON or in the format that the name ends with",
        body(RowsDocument) | body(None, NDJSON) | body(None, CSV) | body(None, ARROW) | body(None, PARQUET),
        (
            UnknownViewError,
            BadFilterError,
            BadQueryError,
            BadKeyError,
            BadTimeError,
            UnknownTopicError,
            ViewBehindError,
        ),
        query=_PARAMETERS,
    )
    async def read(self, request: Request) -> Response:
        """The name may end in .json (the default), .ndjson, .csv, .arrow or .parquet.

        The system views hw_pipelines, hw_batches, hw_late, hw_quarantine and hw_state are read the same way. Arrow and
        Parquet carry the view's key, window and watermark in the metadata of their schema. A table is a
        compacted topic; its rows are read from the topic.
        """
        name, dot, form = request.path_params["name"].rpartition(".")
        if not (dot and name and form in MEDIA_TYPES):
            name, form = request.path_params["name"], "json"
        query = await self._threads.query(self._view_query, request, name)
        await self._wait_for_events(query)
        result = await self._threads.query(self._views.read_now, query)
        chunks, headers, media = encode_rows(result, form), _row_headers(result, form), MEDIA_TYPES[form]
        if form in ("csv", "ndjson"):
            return await stream_response(self._threads.query, chunks, media, headers)
        return Response(await self._threads.query(next, chunks), headers=headers, media_type=media)

    def _view_query(self, request: Request, name: str) -> ViewQuery:
        given = parse_query(request, _PARAMETERS, repeatable=("key",))
        keys = request.query_params.getlist("key")
        wanted = given.get("open", "all")
        if wanted not in _OPEN:
            raise UsageError(f"open must be true, false or all, not {wanted[:40]!r}", fix="open=true")
        return ViewQuery(
            name,
            where=given.get("where"),
            key=parse_key(self._views.describe(name), keys) if keys else None,
            order=tuple(given["order"].split(",")) if "order" in given else None,
            limit=_parse_limit(given["limit"]) if "limit" in given else None,
            as_of=given.get("as_of"),
            after=parse_receipts(given["after"]) if given.get("after") else (),
            timeout=self._gateway.cap_wait(_parse_seconds(given.get("timeout", "10"))),
            open=_OPEN[wanted],
        )

    async def _wait_for_events(self, query: ViewQuery) -> None:
        """Wait until the view includes the events of `after`; occupies no thread between two checks."""
        wait = EventWait(self._views, query)
        while left := await self._threads.query(wait.poll):
            if self._notifier.stopping:
                raise await self._threads.query(self._views.behind_error, query)
            store = self._views.store
            if store is None:
                await self._notifier.wait(timeout=min(left, STORE_POLL))
                continue
            with await self._notifier.watch_store(store.watch) as subscription:
                change = subscription.next_change
                if left := await self._threads.query(wait.poll):
                    await self._notifier.wait(change, timeout=left)

    @Route(
        "GET",
        "/api/views/{name}/changes",
        "Follow the changes of a view as server-sent events",
        body(None, EVENT_STREAM),
        (UnknownViewError, BadEventError, BadOffsetError, DataGoneError, RefusedError),
    )
    async def follow(
        self,
        name: str,
        since: str | None = None,
        snapshot: bool = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """The `id` of each event is the position of the change.

        A client that sends it back as Last-Event-ID or `since` continues there; `since` may also be "earliest" (the
        default) or "latest". With `snapshot`, all rows come first, as changes with the op "read". When the view is
        rebuilt, the stream ends with an event `problem`. A stream without changes sends a comment every 15 seconds.
        """
        table = await self._threads.query(self._views.definition, name)
        snapshot = snapshot and not last_event_id  # a client that reconnects has the snapshot already
        begin = "latest" if snapshot else last_event_id or since
        offset = await self._threads.read(start_offset, self._log, table, begin)
        rows = read_snapshot(self._log, table, offset) if snapshot else ()
        return self._gateway.streams.response(_ChangeSource(self._gateway, table, offset, rows))

    @Route(
        "POST",
        "/api/sql",
        "Run one SELECT over views, tables and system views",
        body(SqlResponse) | body(None, _MSGPACK),
        (BadQueryError, BadJsonError),
        request_body=body(SqlRequest) | body(None, _MSGPACK),
    )
    async def ask(self, request: Request) -> Response:
        """The SQL is SQLite's: times are text in RFC 3339, decimals are text, a window `w` is "w.start" and "w.end".

        A query that exceeds its time or memory limit is ended; a result that is too large is truncated. A request of
        application/msgpack gets a response of the same type, in which bytes stay bytes.
        """
        packed = media_type(request) == _MSGPACK
        async with self._gateway.bodies.read(request, _MAX_SQL_BODY) as data:
            wanted = _decode_msgpack(data) if packed else parse_json(data, SqlRequest)
            if not all(isinstance(value, str | int | float | bytes | None) for value in wanted.parameters):
                raise UsageError("parameters of a query must be texts, numbers, bytes or nulls")
            if not 0 <= wanted.limit <= _MAX_ROWS:
                what = f"limit {wanted.limit} is out of range (0 to {_MAX_ROWS:,} rows)"
                raise UsageError(what, fix="limit=1000", limit=_MAX_ROWS)
            found = await self._threads.query(self._views.sql, wanted.sql, wanted.parameters, wanted.limit)
        answer = SqlResponse(list(found.columns), [list(row) for row in found.rows], not found.complete)
        if packed:
            return Response(msgspec.msgpack.encode(answer), media_type=_MSGPACK)
        return json_response(answer)


class _ChangeSource:
    """The changes of a view for one follower: first the snapshot, then the changelog topic."""

    def __init__(self, gateway: Gateway, table: ViewTable, offset: int, rows: Iterable[Change]) -> None:
        self._log = gateway.log
        self._views = gateway.views
        self._threads = gateway.threads
        self._notifier = gateway.notifier
        self._table = table
        self._topic = changelog_topic(table.name, table.version)
        self._offset = offset
        self._snapshot: Iterable[Change] | None = rows
        self._assembler: TransactionAssembler | None = None

    async def next(self, timeout: float) -> list[bytes]:
        """Returns the next changes; without any for a while, checks that the view was not rebuilt."""
        if self._snapshot is not None:
            rows, self._snapshot = self._snapshot, None
            return await self._threads.query(_encode_changes, rows)
        if self._assembler is None and not await self._threads.query(self._find_topic):
            await self._notifier.wait(timeout=min(timeout, _TOPIC_POLL))
            return []
        with await self._notifier.watch_topic(self._topic) as subscription:
            change = subscription.next_change
            offset = self._offset
            chunks = await self._threads.read(self._read)
            # Batches without changes, such as markers of closed windows, advance the offset only.
            if self._offset == offset and not await self._notifier.wait(change, timeout=min(timeout, _REBUILD_CHECK)):
                await self._threads.query(self._check_current)
        return chunks

    def _find_topic(self) -> bool:
        """Returns whether the changelog exists; a new pipeline creates it with its first batch."""
        if self._topic not in self._log.topics():
            return False
        if not self._table.key:  # the view had no columns before its first batch
            self._table = self._views.definition(self._table.name)
        self._assembler = TransactionAssembler(self._table)
        return True

    def _read(self) -> list[bytes]:
        chunks: list[bytes] = []
        assert self._assembler is not None
        for batch in self._log.fetch(self._topic, {0: self._offset}, max_bytes=_MAX_BYTES, timeout=0, waiter=None):
            chunks += _encode_changes(self._assembler.add(batch))
            self._offset = batch.next_offset
        return chunks

    def _check_current(self) -> None:
        newest = self._views.definition(self._table.name)
        resolve_position(newest, Position.of(self._topic, {0: self._offset}))


def _encode_changes(changes: Iterable[Change]) -> list[bytes]:
    """Returns changes in chunks of a bounded number.

    Rows of a snapshot have no id, except for the last: a client that has only part of a snapshot starts again.
    """
    events = []
    for change in changes:
        resumable = change.op != "read" or change.transaction.last
        events.append(format_event(escape_newlines(change.to_json()), id=str(change.position) if resumable else ""))
    return [b"".join(events[at : at + _CHUNK_CHANGES]) for at in range(0, len(events), _CHUNK_CHANGES)]


def _decode_msgpack(data: bytes) -> SqlRequest:
    try:
        return msgspec.msgpack.decode(data, type=SqlRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        raise UsageError(f"the body does not match the schema: {error}", fix=f"send {JSON}") from None


def _row_headers(result: ViewResult, form: str) -> dict[str, str]:
    headers = {"headwater-position": result.position} if result.position else {}
    if result.watermark is not None:
        headers["headwater-watermark"] = format_micros(result.watermark) or ""
    if form in ("csv", "arrow", "parquet"):
        headers["content-disposition"] = f'attachment; filename="{result.definition.name}.{form}"'
    return headers


def _view_document(info: ViewInfo) -> ViewDocument:
    arrow = b64encode(info.schema.serialize().to_pybytes()).decode()
    texts = {"schema": to_ddl(info.schema), "arrow": arrow, "watermark": format_micros(info.watermark)}
    return ViewDocument(**vars(info) | {"key": list(info.key)} | texts)


def _parse_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"limit must be a number of rows, not {text[:40]!r}", fix="limit=100", parameter="limit")
    return int(text)


def _parse_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"timeout must be a number of seconds, not {text[:40]!r}", fix="timeout=10")
    return number
