"""The web server: uvicorn with our signal handling, and the gateway's routes as one application.

A connection is refused if its headers arrive too slowly, are too long, or are not HTTP. Live streams end when the
server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from headwater import __version__
from headwater.errors import HeadwaterError, OverloadedError, UsageError
from headwater.server import problems
from headwater.server.gateway import Gateway
from headwater.server.limits import Limits
from headwater.server.middleware import RequestGuard
from headwater.server.problems import PROBLEM, headers_too_long, problem_bytes
from headwater.server.routes import openapi
from headwater.server.routes.dashboard import DashboardRoutes
from headwater.server.routes.events import EventRoutes
from headwater.server.routes.frames import FrameRoutes
from headwater.server.routes.groups import GroupRoutes
from headwater.server.routes.node import NodeRoutes
from headwater.server.routes.topics import TopicRoutes
from headwater.server.routes.views import ViewRoutes

__all__ = ["GuardedConnection", "WebServer", "make_routes"]

ROUTES: Final = [TopicRoutes, EventRoutes, FrameRoutes, GroupRoutes, ViewRoutes, DashboardRoutes, NodeRoutes]
_DRAIN_TIMEOUT: Final = 8  # seconds that running requests have when the node stops
_INTERRUPT_DRAIN_TIMEOUT: Final = 1  # the same after Ctrl-C
_PROBLEM_HEADERS: Final = [
    (b"content-type", PROBLEM.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"connection", b"close"),
]


def make_routes(gateway: Gateway) -> FastAPI:
    """Returns an app with all routes, without the middleware."""
    app = FastAPI(
        title="Headwater",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    for routes in ROUTES:
        app.include_router(routes(gateway).router())
    problems.install(app)
    openapi.install(app)
    return app


class GuardedConnection(H11Protocol):
    """Uvicorn's connection with a header timeout. The application finds it in `scope["state"]` and can abort it."""

    def __init__(self, limits: Limits, app_state: dict[str, Any], **options: Any) -> None:
        super().__init__(app_state=app_state | {"connection": self}, **options)
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless there are too many."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > self._limits.connections:
            self._refuse(503, OverloadedError("too many connections", limit=self._limits.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the header timeout."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; the timeout runs from the first byte of a request to the end of its headers."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            self._start_timer()

    def on_response_complete(self) -> None:
        """Start the header timeout if the next request has begun already."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not a valid request."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(431, headers_too_long(self._limits.headers))
        else:
            self._refuse(400, UsageError("this is not an HTTP request", detail=str(error or msg)))

    def abort(self) -> None:
        """Close the connection at once; unread bytes are discarded, in the kernel too."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(self._limits.header_timeout.total_seconds(), self._on_timeout)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_timeout(self) -> None:
        self._header_timer = None
        seconds = self._limits.header_timeout.total_seconds()
        self._refuse(408, UsageError(f"no complete request arrived within {seconds:g} seconds"))

    def _refuse(self, status: int, error: HeadwaterError) -> None:
        """Respond without the application and close the connection; abort if a response has begun."""
        if self.transport.is_closing():
            return
        body = problem_bytes(error, status)
        headers = [*_PROBLEM_HEADERS, (b"content-length", str(len(body)).encode())]
        try:
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.abort()
        self.transport.close()


class WebServer(uvicorn.Server):
    """Serves a gateway on a socket.

    Args:
        gateway: The gateway.
        hosts: The values of the Host header that are accepted, as `host:port`.
        on_ready: Called when the server accepts requests.
        on_stop: Called when it begins to stop; says whether after Ctrl-C.
    """

    def __init__(
        self,
        gateway: Gateway,
        hosts: Iterable[str],
        on_ready: Callable[[], None],
        on_stop: Callable[[bool], None] = lambda _: None,
    ) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        limits = gateway.limits
        super().__init__(
            uvicorn.Config(
                RequestGuard(make_routes(gateway), hosts, limits),
                http=partial(GuardedConnection, limits),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=int(limits.keep_alive_timeout.total_seconds()),
                timeout_graceful_shutdown=_DRAIN_TIMEOUT,
                h11_max_incomplete_event_size=limits.headers,
            )
        )
        self._gateway = gateway
        self._on_ready = on_ready
        self._on_stop = on_stop
        self.interrupted = False
        """Whether Ctrl-C has stopped it."""

    async def serve_until_stopped(self, listening: socket.socket) -> None:
        """Serve until `request_stop`, SIGTERM or Ctrl-C."""
        await self.serve(sockets=[listening])
        await self._gateway.close()

    def request_stop(self) -> None:
        """Stop gracefully; a second call stops at once."""
        self.force_exit = self.should_exit  # uvicorn then stops waiting for requests
        if not self.should_exit:
            self.should_exit = True
            self._on_stop(self.interrupted)

    def interrupt(self) -> None:
        """Stop quickly, after Ctrl-C."""
        if not self.should_exit:
            self.interrupted = True
            self.config.timeout_graceful_shutdown = _INTERRUPT_DRAIN_TIMEOUT
        self.request_stop()

    # -- called by uvicorn -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM. Uvicorn's own method would raise them again when the server has stopped."""
        # Only the main thread can handle signals.
        loop = asyncio.get_running_loop()
        mine = {signal.SIGINT: self.interrupt, signal.SIGTERM: self.request_stop}
        if threading.current_thread() is not threading.main_thread():
            mine = {}
        for number, react in mine.items():
            loop.add_signal_handler(number, react)
        try:
            yield
        finally:
            for number in mine:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept requests."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End live streams first, because uvicorn waits for every open request."""
        self._gateway.notifier.stop()
        await super().shutdown(sockets)
        # Connections that outlast the drain timeout would keep the process alive.
        for connection in list(self.server_state.connections):
            if isinstance(connection, GuardedConnection):
                connection.abort()
        await asyncio.sleep(0)  # let the aborts take effect
