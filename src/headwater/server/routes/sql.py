"""SQL over views: one SELECT, which cannot write and is ended when it takes too much."""

from __future__ import annotations

from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response

from headwater.errors import BadJsonError, BadQueryError, UsageError
from headwater.server.edge.bodies import as_json, media_type
from headwater.server.forms.documents import SqlAnswer, SqlWanted
from headwater.server.forms.formats import JSON
from headwater.server.gateway import Gateway, json_answer
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["routes"]

_PACKED: Final = "application/msgpack"
_MOST_ROWS: Final = 10_000
_LONGEST: Final = 1 << 20  # bytes of a request

_ADDRESSES: Final = (
    Address(
        "POST",
        "/api/sql",
        "ask",
        "Ask one SELECT over views and system views",
        body(SqlAnswer) | body(None, _PACKED),
        (BadQueryError, BadJsonError),
        takes=body(SqlWanted) | body(None, _PACKED),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The route of SQL."""
    return router_of(_Sql(gateway), "views", _ADDRESSES)


class _Sql:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def ask(self, request: Request) -> Response:
        """As SQLite has it: times are text in RFC 3339, decimals are text, a window `w` is "w.start" and "w.end".

        A query that takes too long, too much memory or returns too much is ended or cut off. A body of
        application/msgpack is answered in kind, with every value as it is.
        """
        gateway, packed = self._gateway, media_type(request) == _PACKED
        async with gateway.bodies.of(request, _LONGEST) as data:
            wanted = _from_packed(data) if packed else as_json(data, SqlWanted)
            if not all(isinstance(value, str | int | float | bytes | None) for value in wanted.parameters):
                raise UsageError("the parameters of a query are texts, numbers, bytes and nulls")
            if not 0 <= wanted.limit <= _MOST_ROWS:
                raise UsageError(
                    f"a query gives up to {_MOST_ROWS:,} rows", fix="limit=1000", limit=_MOST_ROWS
                )
            found = await gateway.threads.query(
                gateway.views.sql, wanted.sql, wanted.parameters, wanted.limit
            )
        rows = [list(row) for row in found.rows]
        answer = SqlAnswer(list(found.columns), rows, not found.complete)
        if packed:
            return Response(msgspec.msgpack.encode(answer), media_type=_PACKED)
        return json_answer(answer)


def _from_packed(data: bytes) -> SqlWanted:
    try:
        return msgspec.msgpack.decode(data, type=SqlWanted)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        raise UsageError(f"the request does not fit: {error}", fix=f"send {JSON}") from None
