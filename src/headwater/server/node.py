"""The node: one process that serves one data folder on one port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import uvicorn

from headwater import __version__
from headwater.errors import ForbiddenError, NotWritableError, PortTakenError
from headwater.events import Clock
from headwater.events.values import moment_text
from headwater.log import EventLog
from headwater.log.storage import Disk
from headwater.log.upkeep import Upkeep
from headwater.server.app import make_app
from headwater.server.edge.connection import with_limits
from headwater.server.gateway import Gateway
from headwater.server.limits import Limits
from headwater.server.presence import Presence, Running

__all__ = ["DEFAULT_PORT", "Node"]

DEFAULT_PORT: Final = 8642
_HERE: Final = ("127.0.0.1", "localhost")
_DRAIN: Final = 8  # seconds for requests that are under way when the node stops
_MOST_FILES: Final = 65_536


class Node:
    """Serves a folder's log over HTTP and keeps the log in order.

    Args:
        folder: The data folder; created when it does not exist.
        port: 0 takes a free one.
        host: 127.0.0.1; any other address is refused, until there are keys and rights.
        hosts: Further `host:port` that requests may name, for instance of a tunnel to this machine.
        limits: What clients may ask for.
        clock: What time it is, for tests.

    Raises:
        ForbiddenError: Another address than this machine's.
        LockedError: Another node serves the folder.
        PortTakenError: Another program listens on the port.

    Example:
        >>> import headwater as hw, tempfile
        >>> with Node(tempfile.mkdtemp(), port=0) as node:
        ...     client = hw.connect(node.url)
        ...     _ = client.create_topic("orders", "order_id string")
        ...     client.topics()
        ['orders']
    """

    def __init__(
        self,
        folder: str | Path,
        port: int = DEFAULT_PORT,
        *,
        host: str = "127.0.0.1",
        hosts: Collection[str] = (),
        limits: Limits | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> None:
        if host not in _HERE:
            raise ForbiddenError(
                f"the node does not listen on {host}",
                detail="it has no keys and rights yet, so it serves this machine only",
                fix="--host 127.0.0.1",
                host=host,
            )
        self.limits = limits or Limits()
        self.log = EventLog(folder, clock=clock, disk=disk)
        with contextlib.ExitStack() as undo:
            undo.callback(self.log.close)
            self._presence = Presence(self.log.disk, self.log.folder)
            undo.callback(self._presence.end)
            self._socket = _listen(port)
            undo.pop_all()
        self.port: int = self._socket.getsockname()[1]
        self._hosts = {*(f"{name}:{self.port}" for name in (*_HERE, "[::1]")), *hosts}
        self._upkeep = Upkeep(self.log)
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where clients find the node."""
        return f"http://127.0.0.1:{self.port}"

    def serve(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`; requests under way get a few seconds to finish.

        Args:
            ready: Called once the node answers.
        """
        _raise_file_limit()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        try:
            asyncio.run(self._serve(ready))
        finally:
            self._upkeep.stop()
            self.log.close()
            self._presence.end()

    async def _serve(self, ready: Callable[[], None] | None) -> None:
        gateway = Gateway(self.log, self.limits)

        def begun() -> None:
            started = moment_text(gateway.started_at)
            self._presence.tell(Running(os.getpid(), self.url, started, __version__))
            self._upkeep.start()
            if ready is not None:
                ready()

        config = uvicorn.Config(
            make_app(gateway, self._hosts),
            http=with_limits(self.limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(self.limits.idle.total_seconds()),
            timeout_graceful_shutdown=_DRAIN,
            h11_max_incomplete_event_size=self.limits.headers,
        )
        self._server = server = _Server(config, begun, gateway.stop)
        self._loop = asyncio.get_running_loop()
        with _signals(self._loop, server):
            await server.serve(sockets=[self._socket])
        await gateway.close()

    # -- in this process, beside other work ------------------------------------------------------------------------

    def start(self) -> Node:
        """Serve in a thread of this process; comes back when the node answers."""
        ready = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.serve(ready.set)
            except BaseException as error:
                failed.append(error)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="headwater-node", daemon=True)
        self._thread.start()
        ready.wait()
        if failed:
            raise failed[0]
        return self

    def stop(self) -> None:
        """End `serve`, wherever it runs."""
        server, loop = self._server, self._loop
        if server is not None and loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop ended by itself in between
                loop.call_soon_threadsafe(server.leave)
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(uvicorn.Server):
    """Uvicorn's server, with our signals and with live streams that end when the node stops."""

    def __init__(self, config: uvicorn.Config, begun: Callable[[], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        """Stop soon; asked twice, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, server: _Server) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the server; only the main thread can listen to them."""
    mine = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    for number in mine:
        loop.add_signal_handler(number, server.leave)
    try:
        yield
    finally:
        for number in mine:
            loop.remove_signal_handler(number)


def _listen(port: int) -> socket.socket:
    # With the protocol named, asyncio turns off Nagle's delay, which costs 40 ms an answer.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        raise _not_taken(error, port) from None
    return listening


def _not_taken(error: OSError | OverflowError, port: int) -> Exception:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return PortTakenError(
            f"port {port} of this machine is in use",
            fix=f"headwater run --port {port + 1 if port < 65_535 else DEFAULT_PORT}",
            port=port,
        )
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return NotWritableError(
            f"this user may not listen on port {port}", fix="headwater run --port 8642", port=port
        )
    return PortTakenError(
        f"cannot listen on port {port}: {error}", fix="headwater run --port 8642", port=port
    )


def _raise_file_limit() -> None:
    """Every open topic has files, every client a socket; the usual 1,024 is soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
