"""Views of a node over HTTP; rows are transferred as Arrow, so every value keeps its type."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa

from headwater.errors import ViewBehindError
from headwater.events.values import format_moment
from headwater.log.http.transport import Transport
from headwater.store import SqlResult, ViewTable
from headwater.store.views.view_query import ViewInfo, ViewQuery, ViewResult, format_key, format_receipts
from headwater.units import micros, moment

__all__ = ["HttpViews"]

_MSGPACK: Final = "application/msgpack"
_MAX_WAIT: Final = 20.0  # seconds that one request waits; below the node's limit of 30


class HttpViews:
    """Implements `ViewSource` over HTTP.

    Args:
        transport: Sends requests to the node; the node's log owns it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def views(self) -> list[ViewInfo]:
        """Returns all views, system views last."""
        return [_parse_info(document) for document in self._transport.json("GET", "/api/views")["views"]]

    def read(self, query: ViewQuery) -> ViewResult:
        """Returns rows of a view or table; the node waits until the view includes the events of `after`."""
        deadline = time.monotonic() + query.timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._read_once(replace(query, timeout=min(left, _MAX_WAIT)))
            except ViewBehindError as error:
                if time.monotonic() < deadline:
                    continue  # the node limits the wait of one request
                error.what = error.what.rpartition(" after ")[0] + f" after {query.timeout:g} s"
                raise

    def _read_once(self, query: ViewQuery) -> ViewResult:
        path = f"/api/views/{quote(query.name, safe='')}.arrow"
        wait = query.timeout if query.after else 0
        answer = self._transport.call("GET", path, params=self._params(query), wait=wait)
        with pa.ipc.open_stream(pa.py_buffer(answer.content)) as reader:
            return ViewResult.from_annotated_table(reader.read_all())

    def _params(self, query: ViewQuery) -> dict[str, str | int | float]:
        params: dict[str, str | int | float | None] = {
            "where": query.where,
            "key": None if query.key is None else format_key(self._definition(query.name), query.key),
            "order": None if query.order is None else ",".join(query.order),
            "limit": query.limit,
            "as_of": _format_time(query.as_of),
            "after": format_receipts(query.after) or None,
            "timeout": query.timeout if query.after else None,
            "open": None if query.open is None else str(query.open).lower(),
        }
        return {name: value for name, value in params.items() if value is not None}

    def _definition(self, name: str) -> ViewTable:
        return self._read_once(ViewQuery(name, limit=0)).definition

    def sql(self, text: str, parameters: Sequence[Any] = (), limit: int = 1000) -> SqlResult:
        """Returns the result of one SELECT over views, tables and system views."""
        wanted = {"sql": text, "parameters": list(parameters), "limit": limit}
        answer = self._transport.call(
            "POST", "/api/sql", content=msgspec.msgpack.encode(wanted), media=_MSGPACK, wait=10
        )
        found = msgspec.msgpack.decode(answer.content)
        return SqlResult(tuple(found["columns"]), [tuple(row) for row in found["rows"]], not found["truncated"])

    def close(self) -> None:
        """Do nothing: the log owns the connections."""


def _parse_info(document: dict[str, Any]) -> ViewInfo:
    watermark = document["watermark"]
    return ViewInfo(
        document["name"],
        document["kind"],
        document["version"],
        tuple(document["key"]),
        pa.ipc.read_schema(pa.py_buffer(b64decode(document["arrow"]))),
        document["window"],
        document["rows"],
        None if watermark is None else micros(moment(watermark)),
        document["changes_topic"],
    )


def _format_time(as_of: Any) -> str | None:
    return as_of if as_of is None or isinstance(as_of, str) else format_moment(moment(as_of))
