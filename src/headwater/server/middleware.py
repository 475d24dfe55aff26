"""Middleware in front of every route: access checks, body limits, and security headers.

The node listens on this machine only, but a browser on this machine also opens foreign pages, which must not reach the
node. The Origin check stops cross-site requests, the Host check stops DNS rebinding. Request bodies are counted while
they arrive and refused before memory grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.errors import BadJsonError, ForbiddenError, HeadwaterError, OverloadedError, TooLargeError, UsageError
from headwater.events.values import preview
from headwater.server.limits import Limits
from headwater.server.problems import headers_too_long, http_problem, internal_error, problem_response

__all__ = ["SECURITY_HEADERS", "RequestBodies", "RequestGuard", "media_type", "parse_json"]

T = TypeVar("T")
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
_ENCODED_HEADERS: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
# Bounds for reading the rest of a refused body, so that the client sees the response.
_LINGER: Final = 2.0  # seconds
_LINGER_BYTES: Final = 64 << 20


class RequestBodies:
    """Reads request bodies and limits their total size in memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.buffered = 0  # bytes; changed on the event loop only, so it needs no lock

    @contextlib.asynccontextmanager
    async def read(self, request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yields the body of a request; its bytes count as buffered until the block ends.

        Raises:
            TooLargeError: The body is longer than `limit`, by its Content-Length or by count.
            OverloadedError: The bodies of all requests exceed the limit for buffered bytes.
        """
        most = self._limits.body if limit is None else limit
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise _body_too_large(most)
        taken = 0
        parts: list[bytes] = []
        try:
            async for part in self._read_parts(request):
                taken += len(part)
                self.buffered += len(part)
                if taken > most:
                    raise _body_too_large(most)
                if self.buffered > self._limits.buffered:
                    raise OverloadedError(
                        "the node buffers too many request bodies",
                        detail="the request was not processed",
                        fix="send it again later",
                        limit=self._limits.buffered,
                    )
                parts.append(part)
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self.buffered -= taken

    async def read_json(self, request: Request, type_: type[T]) -> T:
        """Returns the document in the body of a request; raises what `read` and `parse_json` raise."""
        async with self.read(request) as data:
            return parse_json(data, type_)

    async def _read_parts(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the parts as they arrive; raises when the client stops sending or is too slow."""
        timeout = self._limits.body_timeout.total_seconds()
        began, taken = time.monotonic(), 0
        parts = request.stream()
        while True:
            try:
                async with asyncio.timeout(timeout):
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise http_problem(408, f"no bytes of the body arrived for {timeout:g} seconds") from None
            except ClientDisconnect:
                raise http_problem(400, "the client disconnected before the body was complete") from None
            if part:
                yield part
            taken += len(part)
            spent = time.monotonic() - began
            if spent > timeout and taken < self._limits.body_rate * (spent - timeout):
                raise http_problem(408, f"the body arrives at less than {self._limits.body_rate} bytes per second")


def _body_too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body is longer than {limit:,} bytes", detail="nothing was processed", fix="send it in parts", limit=limit
    )


def media_type(request: Request) -> str:
    """Returns the media type of the body, in lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_json(data: bytes, type_: type[T]) -> T:
    """Returns the document in a body.

    Raises:
        BadJsonError: The body is not JSON.
        UsageError: The document has another schema.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        what = f"the body does not match the schema: {error}"
        raise UsageError(what, fix="see /api/openapi.json") from None
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError) as error:
        reason: Any = "it is nested too deeply" if isinstance(error, RecursionError) else error
        what = f"the body is not JSON: {reason}"
        raise BadJsonError(what, row=0) from None


class RequestGuard:
    """The outermost middleware: refuses foreign requests, adds security headers, disconnects clients that stall.

    Args:
        app: The application.
        hosts: The values of the Host header that are accepted, as `host:port`.
        limits: The limits of headers and of the time to send.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], limits: Limits) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().encode() for host in hosts)
        self._origins = frozenset(b"http://" + host for host in self._hosts)
        self._headers = limits.headers
        self._send_timeout = limits.send_timeout.total_seconds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._send_timeout)
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                response = problem_response(*refusal)
                await response(scope, exchange.receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.finished:
                logger.exception("%s %r failed", scope["method"], scope["path"])
                await exchange.fail()

    def _refusal(self, scope: Scope) -> tuple[HeadwaterError, int] | None:
        named: dict[bytes, bytes] = {}
        hosts, size = 0, len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            named[name] = value
            hosts += name == b"host"
            size += len(name) + len(value)
        if size > self._headers:  # headers in a single packet are not counted by the connection
            return headers_too_long(self._headers), 431
        host = named.get(b"host", b"").lower()
        if hosts != 1 or host not in self._hosts:
            return _forbidden_error("host", host), 403
        origin = named.get(b"origin")
        if origin is not None and origin.lower() not in self._origins:
            return _forbidden_error("origin", origin), 403
        if _is_cross_site(scope, named):
            return _forbidden_error("site", named[b"sec-fetch-site"]), 403
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            return UsageError("compressed bodies are not supported", fix="send the body without Content-Encoding"), 415
        return None


def _is_cross_site(scope: Scope, named: dict[bytes, bytes]) -> bool:
    """Returns whether the browser reports a cross-site request; a link to the console is allowed."""
    site = named.get(b"sec-fetch-site", b"none")
    navigation = scope["path"] == "/" and scope["method"] == "GET" and named.get(b"sec-fetch-mode") == b"navigate"
    return site not in (b"none", b"same-origin") and not navigation


def _forbidden_error(what: str, value: bytes) -> ForbiddenError:
    return ForbiddenError(
        f"requests with the {what} {preview(value.decode('latin-1'))} are forbidden",
        detail="the node serves this machine only, as 127.0.0.1, localhost or [::1] with its own port",
        fix="use the address that `headwater status` shows",
    )


class _Exchange:
    """One request and its response; knows whether a part of the request body is still unread."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, send_timeout: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._send_timeout = send_timeout
        self.started = False
        self.finished = False
        # A body that the application never reads must be read before the response ends; see `_drain_body`.
        self._body_pending = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in scope["headers"]
        )

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_pending = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            given = message.setdefault("headers", [])
            names = {name for name, _ in given}
            message["headers"] = [*given, *(pair for pair in _ENCODED_HEADERS if pair[0] not in names)]
            if self._body_pending:  # a request on this connection would begin inside the unread body
                message["headers"].append((b"connection", b"close"))
        elif not message.get("more_body", False):
            if self._body_pending:
                await self._send_or_abort({**message, "more_body": True})
                await self._drain_body()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            self.finished = True
        await self._send_or_abort(message)

    async def _send_or_abort(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._send(message)
        except TimeoutError:
            # The application learns of the lost connection and ends its stream.
            logger.info("a client of %r read nothing for too long and was disconnected", self._scope["path"])
            self._abort()

    async def _drain_body(self) -> None:
        """Read the rest of the body: closing a connection with unread bytes resets it, and the response is lost."""
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while self._body_pending and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        self._body_pending = False

    async def fail(self) -> None:
        """Respond 500 if nothing was sent yet; otherwise abort, so that the client sees an incomplete response."""
        if self.started:
            self._abort()
        else:
            await problem_response(internal_error())(self._scope, self.receive, self.send)

    def _abort(self) -> None:
        connection = self._scope.get("state", {}).get("connection")
        if connection is not None:
            connection.abort()
