"""The web server around the gateway: uvicorn, with our signals, our connections and streams that end when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import uvicorn

from headwater.server.app import make_app
from headwater.server.edge.connection import GuardedConnection, with_limits
from headwater.server.gateway import Gateway

__all__ = ["Server"]

_DRAIN: Final = 8  # seconds for requests that are under way when the node stops


class Server(uvicorn.Server):
    """Serves a gateway on a socket.

    Args:
        gateway: What is served.
        hosts: Each `host:port` that requests may name.
        begun: Called once it answers.
    """

    def __init__(self, gateway: Gateway, hosts: Iterable[str], begun: Callable[[], None]) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        limits = gateway.limits
        super().__init__(
            uvicorn.Config(
                make_app(gateway, hosts),
                http=with_limits(limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=int(limits.idle.total_seconds()),
                timeout_graceful_shutdown=_DRAIN,
                h11_max_incomplete_event_size=limits.headers,
            )
        )
        self._gateway = gateway
        self._begun = begun

    async def serve_until_told(self, listening: socket.socket) -> None:
        """Serve until `leave`, SIGTERM or Ctrl-C."""
        with self._signals():
            await self.serve(sockets=[listening])
        await self._gateway.close()

    def leave(self) -> None:
        """Stop soon; asked twice, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Only the main thread can listen to signals."""
        loop = asyncio.get_running_loop()
        mine = (
            (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        )
        for number in mine:
            loop.add_signal_handler(number, self.leave)
        try:
            yield
        finally:
            for number in mine:
                loop.remove_signal_handler(number)

    # -- what uvicorn calls ----------------------------------------------------------------------------------------

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End live streams first: uvicorn waits until every connection is done, for a while; the rest is cut off."""
        self._gateway.stop()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if isinstance(connection, GuardedConnection):
                connection.abort()
        await asyncio.sleep(0)  # only now they are closed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would raise them again when it is done."""
        yield
