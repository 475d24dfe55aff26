"""Views: which there are, and their rows in the form that is asked for."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from headwater.client.views.asked import Asked, key_from_text, receipts_from_text
from headwater.client.views.found import Found, ViewInfo
from headwater.errors import (
    BadKeyError,
    BadQueryError,
    BadTimeError,
    UnknownTopicError,
    UnknownViewError,
    UsageError,
    ViewBehindError,
)
from headwater.events import to_ddl
from headwater.server.forms.documents import RowsDocument, ViewDocument
from headwater.server.forms.formats import ARROW, NDJSON
from headwater.server.forms.tables import CSV, FORMS, PARQUET, time_text, written
from headwater.server.gateway import Gateway, json_answer
from headwater.server.routes.direct import query
from headwater.server.routes.openapi import Address, body, listed, router_of

__all__ = ["routes", "until_reached"]

_LOOK_EVERY: Final = 0.2  # seconds between two looks for a store that is not there yet
_END: Final = object()
_OPEN: Final = {"true": True, "false": False, "all": None}
_PARAMETERS: Final = {
    "where": "Only rows that meet this condition in SQL",
    "key": "Only the row with this key: once for each column of the key, in its order, or one JSON object",
    "order": "Columns to sort by, with - before one that falls; the key's, if left out",
    "limit": "So many rows at most",
    "as_of": "As the view was then: RFC 3339, or relative such as -10m",
    "after": "Wait until the view has taken in the event at topic/partition/offset; several with commas",
    "timeout": "How many seconds to wait for that, 10 if left out",
    "open": "Only rows of open windows (true), of closed ones (false), or all",
}

_ADDRESSES: Final = (
    Address("GET", "/api/views", "all", "All views, the system's own last", listed("views", ViewDocument)),
    Address(
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
    return router_of(_Views(gateway), "views", _ADDRESSES)


async def until_reached(gateway: Gateway, asked: Asked) -> None:
    """Wait, without a thread, until a view has taken in what a read is to come after.

    Raises:
        ViewBehindError: It had not when the time was over.
    """
    views, deadline = gateway.views, time.monotonic() + asked.timeout
    while not await gateway.threads.query(views.reached, asked):
        left = deadline - time.monotonic()
        if left <= 0 or gateway.wakes.stopping:
            raise await gateway.threads.query(views.behind, asked)
        store = views.store
        if store is None:
            await gateway.wakes.wait(timeout=min(left, _LOOK_EVERY))
            continue
        with await gateway.wakes.store(store.watch) as watch:
            change = watch.next
            if not await gateway.threads.query(views.reached, asked):
                await gateway.wakes.wait(change, timeout=left)


class _Views:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._views = gateway.views
        self._threads = gateway.threads

    async def all(self) -> Response:
        """Name, key, columns, number of rows, and the event time up to which each is complete."""
        found = await self._threads.query(self._views.views)
        return json_answer({"views": [_document(info) for info in found]})

    async def read(self, request: Request) -> Response:
        """The name may end in .json (which is the default), .ndjson, .csv, .arrow or .parquet.

        The same for the system views hw_pipelines, hw_batches, hw_late, hw_quarantine and hw_state. Arrow and
        Parquet carry the view's key, window and watermark in the metadata of their schema.
        """
        name, form = _named(request.path_params["name"])
        asked = await self._threads.query(self._asked, request, name)
        await until_reached(self._gateway, asked)
        found = await self._threads.query(self._views.read_now, asked)
        return await self._streamed(found, form)

    def _asked(self, request: Request, name: str) -> Asked:
        given = query(request, _PARAMETERS, several=("key",))
        keys = request.query_params.getlist("key")
        wanted = given.get("open", "all")
        if wanted not in _OPEN:
            raise UsageError(f"open is true, false or all, not {wanted[:40]!r}", fix="open=true")
        return Asked(
            name,
            where=given.get("where"),
            key=key_from_text(self._views.definition(name), keys) if keys else None,
            order=tuple(given["order"].split(",")) if "order" in given else None,
            limit=None if "limit" not in given else _whole("limit", given["limit"]),
            as_of=given.get("as_of"),
            after=receipts_from_text(given["after"]) if given.get("after") else (),
            timeout=self._gateway.waiting(_seconds(given.get("timeout", "10"))),
            open=_OPEN[wanted],
        )

    async def _streamed(self, found: Found, form: str) -> Response:
        pieces = written(found, form)
        first: Any = await self._threads.query(next, pieces, b"")

        async def all_pieces() -> AsyncIterator[bytes]:
            piece = first
            while piece is not _END:
                yield piece
                piece = await self._threads.query(next, pieces, _END)

        headers = {"headwater-position": found.position} if found.position else {}
        if found.watermark is not None:
            headers["headwater-watermark"] = time_text(found.watermark) or ""
        if form in ("csv", "arrow", "parquet"):
            headers["content-disposition"] = f'attachment; filename="{found.definition.name}.{form}"'
        if form in ("csv", "ndjson"):
            return StreamingResponse(all_pieces(), headers=headers, media_type=FORMS[form])
        return Response(first, headers=headers, media_type=FORMS[form])


def _named(text: str) -> tuple[str, str]:
    name, dot, ending = text.rpartition(".")
    return (name, ending) if dot and name and ending in FORMS else (text, "json")


def _document(info: ViewInfo) -> ViewDocument:
    return ViewDocument(
        info.name,
        info.kind,
        info.version,
        list(info.key),
        to_ddl(info.schema),
        info.window,
        info.rows,
        time_text(info.watermark),
        info.changes_topic,
        b64encode(info.schema.serialize().to_pybytes()).decode(),
    )


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{name} is a number, not {text[:40]!r}", fix=f"{name}=100", parameter=name)
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"timeout is a number of seconds, not {text[:40]!r}", fix="timeout=10")
    return number
