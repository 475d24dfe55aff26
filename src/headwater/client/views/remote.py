"""Views of a node, over HTTP: rows come as Arrow, so that every value has its type."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa

from headwater.client.views.asked import Asked, key_text, receipts_text
from headwater.client.views.found import Found, ViewInfo
from headwater.errors import ViewBehindError
from headwater.events.values import moment_text
from headwater.log.http.transport import Transport
from headwater.store import Answer, ViewTable
from headwater.units import micros, moment

__all__ = ["HttpViews"]

_PACKED: Final = "application/msgpack"
_LONGEST_WAIT: Final = 20.0  # seconds one request waits


class HttpViews:
    """Behaves like `FolderViews`, at a node's address.

    Args:
        transport: What carries requests to the node.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def views(self) -> list[ViewInfo]:
        """All views, the system's own last."""
        return [_info(document) for document in self._transport.json("GET", "/api/views")["views"]]

    def read(self, asked: Asked) -> Found:
        """Rows of a view; the node waits for what they are to be after."""
        deadline = time.monotonic() + asked.timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._once(replace(asked, timeout=min(left, _LONGEST_WAIT)))
            except ViewBehindError as error:
                if time.monotonic() < deadline:
                    continue  # the node waits only so long for one request
                error.what = error.what.rpartition(" after ")[0] + f" after {asked.timeout:g} s"
                raise

    def _once(self, asked: Asked) -> Found:
        path = f"/api/views/{quote(asked.name, safe='')}.arrow"
        wait = asked.timeout if asked.after else 0
        answer = self._transport.call("GET", path, params=self._params(asked), wait=wait)
        with pa.ipc.open_stream(pa.py_buffer(answer.content)) as reader:
            return Found.from_noted(reader.read_all())

    def _params(self, asked: Asked) -> dict[str, str | int | float]:
        given: dict[str, str | int | float | None] = {
            "where": asked.where,
            "key": None if asked.key is None else key_text(self._definition(asked.name), asked.key),
            "order": None if asked.order is None else ",".join(asked.order),
            "limit": asked.limit,
            "as_of": _time_text(asked.as_of),
            "after": receipts_text(asked.after) or None,
            "timeout": asked.timeout if asked.after else None,
            "open": None if asked.open is None else str(asked.open).lower(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _definition(self, name: str) -> ViewTable:
        return self._once(Asked(name, limit=0)).definition

    def sql(self, text: str, parameters: Sequence[Any] = (), limit: int = 1000) -> Answer:
        """The answer to one SELECT over views and system views."""
        wanted = {"sql": text, "parameters": list(parameters), "limit": limit}
        answer = self._transport.call(
            "POST", "/api/sql", content=msgspec.msgpack.encode(wanted), media=_PACKED, wait=10
        )
        found = msgspec.msgpack.decode(answer.content)
        return Answer(tuple(found["columns"]), [tuple(row) for row in found["rows"]], not found["truncated"])

    def close(self) -> None:
        """Nothing: the log of the node has the connections."""


def _info(document: dict[str, Any]) -> ViewInfo:
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


def _time_text(as_of: Any) -> str | None:
    return as_of if as_of is None or isinstance(as_of, str) else moment_text(moment(as_of))
