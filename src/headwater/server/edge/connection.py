"""One client's connection: headers that come too slowly or are too long, and what is said to bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from headwater.errors import HeadwaterError, OverloadedError, UsageError
from headwater.server.edge.problems import PROBLEM, headers_too_long, problem_bytes
from headwater.server.limits import Limits

__all__ = ["GuardedConnection", "with_limits"]

_HEADERS: Final = [
    (b"content-type", PROBLEM.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"connection", b"close"),
]


class GuardedConnection(H11Protocol):
    """Uvicorn's connection with a clock on the headers; the application finds it in its scope's state."""

    limits = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state | {"connection": self}, _loop)
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, unless there are too many."""
        super().connection_made(transport)
        self._start_clock()
        if len(self.connections) > self.limits.connections:
            error = OverloadedError("too many connections", limit=self.limits.connections)
            self._refuse(503, error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; from the first byte of a request to the end of its headers the clock runs."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_clock()
        elif self._clock is None and not self.transport.is_closing():
            self._start_clock()

    def on_response_complete(self) -> None:
        """Wait for the next request of this client."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._start_clock()

    def send_400_response(self, msg: str) -> None:
        """Say what was wrong with bytes that are no request."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(431, headers_too_long(self.limits.headers))
        else:
            self._refuse(400, UsageError("this is not an HTTP request", detail=str(error or msg)))

    def abort(self) -> None:
        """Cut the client off now; what it has not read yet is thrown away, in the kernel, too."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(self.limits.header_time.total_seconds(), self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        self._clock = None
        seconds = self.limits.header_time.total_seconds()
        self._refuse(408, UsageError(f"no whole request came within {seconds:g} seconds"))

    def _refuse(self, status: int, error: HeadwaterError) -> None:
        """Answer outside of the application and close; where an answer is not possible any more, just close."""
        if self.transport.is_closing():
            return
        body = problem_bytes(error, status)
        headers = [*_HEADERS, (b"content-length", str(len(body)).encode())]
        try:
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.abort()
        self.transport.close()


def with_limits(limits: Limits) -> type[GuardedConnection]:
    """The connection class for these limits; uvicorn makes its instances itself."""
    return type("GuardedConnection", (GuardedConnection,), {"limits": limits})
