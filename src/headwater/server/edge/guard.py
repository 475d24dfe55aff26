"""What stands before every route: who may ask, how large, and the headers that keep browsers in their place.

The node listens on this machine only, but a browser on this machine visits strangers: a page of theirs must not reach
the node, neither by its address (Origin) nor under a name of their own that points here (Host).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.errors import ForbiddenError, HeadwaterError, UsageError
from headwater.events.values import shown
from headwater.server.edge.problems import answer, headers_too_long, unexpected
from headwater.server.limits import Limits

__all__ = ["SECURITY_HEADERS", "Guard"]

logger = logging.getLogger("headwater.server")

SECURITY_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
_ENCODED: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
# For so many seconds and bytes a refused body is still read away, so that the client sees the refusal.
_LINGER: Final = 2.0
_LINGER_BYTES: Final = 64 << 20


class Guard:
    """The outermost layer of the app.

    Args:
        app: What is guarded.
        hosts: Each `host:port` that requests may name.
        limits: How long a client may stall.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], limits: Limits) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().encode() for host in hosts)
        self._origins = frozenset(b"http://" + host for host in self._hosts)
        self._headers = limits.headers
        self._stall = limits.stall.total_seconds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._stall)
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                response = answer(*refusal)
                await response(scope, exchange.receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.finished:
                logger.exception("%s %r broke off", scope["method"], scope["path"])
                await exchange.break_off()

    def _refusal(self, scope: Scope) -> tuple[HeadwaterError, int] | None:
        named: dict[bytes, bytes] = {}
        hosts, size = 0, len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            named[name] = value
            hosts += name == b"host"
            size += len(name) + len(value)
        if size > self._headers:  # they may have come in one piece, before the connection counted them
            return headers_too_long(self._headers), 431
        host = named.get(b"host", b"").lower()
        if hosts != 1 or host not in self._hosts:
            return _forbidden("host", host), 403
        origin = named.get(b"origin")
        if origin is not None and origin.lower() not in self._origins:
            return _forbidden("origin", origin), 403
        if _of_another_site(scope, named):
            return _forbidden("site", named[b"sec-fetch-site"]), 403
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            return UsageError("compressed bodies are not taken", fix="send it as it is"), 415
        return None


def _of_another_site(scope: Scope, named: dict[bytes, bytes]) -> bool:
    """Whether a browser says that another site asks; following a link to the page itself is allowed."""
    site = named.get(b"sec-fetch-site", b"none")
    link = scope["path"] == "/" and scope["method"] == "GET" and named.get(b"sec-fetch-mode") == b"navigate"
    return site not in (b"none", b"same-origin") and not link


def _forbidden(what: str, value: bytes) -> ForbiddenError:
    return ForbiddenError(
        f"the node does not answer to the {what} {shown(value.decode('latin-1'))}",
        detail="it serves this machine only, under 127.0.0.1, localhost or [::1] and its own port",
        fix="use the address that `headwater status` shows",
    )


class _Exchange:
    """One request and its answer on their way through the guard."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stall: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._stall = stall
        self.started = False
        self.finished = False
        self._body_left = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in scope["headers"]
        )

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_left = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            given = message.setdefault("headers", [])
            names = {name for name, _ in given}
            message["headers"] = [*given, *(pair for pair in _ENCODED if pair[0] not in names)]
            if self._body_left:
                message["headers"].append((b"connection", b"close"))
        elif not message.get("more_body", False):
            if self._body_left:
                await self._give({**message, "more_body": True})
                await self._read_away()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            self.finished = True
        await self._give(message)

    async def _give(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall):
                await self._send(message)
        except TimeoutError:
            # What streams here hears of the lost connection and ends by itself.
            logger.info("a client of %r took nothing for too long and was cut off", self._scope["path"])
            self._abort()

    async def _read_away(self) -> None:
        """A connection that is closed with unread bytes loses the answer on its way."""
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while self._body_left and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        self._body_left = False

    async def break_off(self) -> None:
        """Answer 500 if nothing was answered yet; otherwise the client must see that the answer is not whole."""
        if self.started:
            self._abort()
        else:
            await answer(unexpected())(self._scope, self.receive, self.send)

    def _abort(self) -> None:
        connection = self._scope.get("state", {}).get("connection")
        if connection is not None:
            connection.abort()
