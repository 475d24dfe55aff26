"""The node: one process that serves one data folder on one port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater import __version__
from headwater.errors import ForbiddenError, NotWritableError, PortTakenError
from headwater.events import Clock
from headwater.events.values import format_moment
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import Disk
from headwater.server.limits import Limits
from headwater.server.pid_file import NodeInfo, PidFile

if TYPE_CHECKING:
    from headwater.server.web_server import WebServer

__all__ = ["DEFAULT_PORT", "Node"]

DEFAULT_PORT: Final = 8642
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost")
_MAX_FILES: Final = 65_536


class Node:
    """Serves a folder's log over HTTP and runs its maintenance.

    Args:
        folder: The data folder; created if it does not exist.
        port: The port; 0 chooses a free one.
        host: 127.0.0.1 or localhost. Other addresses are refused, because the node has no authentication.
        hosts: Further values of the Host header to accept, as `host:port`, such as that of a tunnel.
        limits: The limits of requests and clients.
        store: The URL of the database with the views; None if they are in the folder.
        clock: The clock, for tests.
        disk: The access to the file system, for tests.

    Raises:
        ForbiddenError: `host` is not an address of this machine.
        LockedError: Another node serves the folder.
        PortTakenError: Another program listens on the port.

    Example:
        >>> import headwater as hw, tempfile
        >>> with Node(tempfile.mkdtemp(), port=0) as node, hw.connect(node.url) as client:
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
        store: str | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> None:
        if host not in _LOCAL_HOSTS:
            raise ForbiddenError(
                f"the node does not listen on {host}",
                detail="it has no authentication yet, so it serves this machine only",
                fix="--host 127.0.0.1",
                host=host,
            )
        self.limits = limits or Limits()
        self._store = store
        self.log = EventLog(folder, clock=clock, disk=disk)
        # Lock before listening: a second node on the folder fails before it takes a port from anyone.
        with contextlib.ExitStack() as undo:
            undo.callback(self.log.close)
            self._pid_file = PidFile(self.log.disk, self.log.folder)
            undo.callback(self._pid_file.release)
            self._socket = _listen(port)
            undo.pop_all()
        self.port: int = self._socket.getsockname()[1]
        self._hosts = {*(f"{name}:{self.port}" for name in (*_LOCAL_HOSTS, "[::1]")), *hosts}
        self._maintenance = Maintenance(self.log)
        self._server: WebServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop_requested = False

    @property
    def url(self) -> str:
        """The URL of the node."""
        return f"http://127.0.0.1:{self.port}"

    def serve(self, ready: Callable[[], None] | None = None, stopping: Callable[[bool], None] = lambda _: None) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`; requests under way get 8 seconds to finish, after Ctrl-C one.

        Args:
            ready: Called when the node accepts requests.
            stopping: Called when it begins to stop; says whether after Ctrl-C. It must not block.

        Raises:
            KeyboardInterrupt: Ctrl-C has stopped it; everything is closed.
        """
        _raise_file_limit()
        try:
            asyncio.run(self._serve(ready, stopping))
        finally:
            self._maintenance.stop()
            self.log.close()
            self._pid_file.release()
        if self._server is not None and self._server.interrupted:
            raise KeyboardInterrupt

    async def _serve(self, ready: Callable[[], None] | None, stopping: Callable[[bool], None]) -> None:
        # The web server takes longest to import. The port is open already: early clients wait instead of failing.
        from headwater.server.gateway import Gateway
        from headwater.server.web_server import WebServer

        gateway = Gateway(self.log, self.limits, self._store)

        def announce() -> None:
            started = format_moment(gateway.started_at)
            self._pid_file.publish(NodeInfo(os.getpid(), self.url, started, __version__))
            self._maintenance.start()
            if ready is not None:
                ready()

        self._loop = asyncio.get_running_loop()
        self._server = WebServer(gateway, self._hosts, announce, stopping)
        if self._stop_requested:  # `stop` was called before there was a server
            self._server.request_stop()
        await self._server.serve_until_stopped(self._socket)

    # -- within another process ------------------------------------------------------------------------------------

    def start(self) -> Node:
        """Serve in a thread of this process; returns when the node accepts requests."""
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
        """End `serve`, from any thread; waits for the thread of `start`."""
        self._stop_requested = True
        server, loop = self._server, self._loop
        if server is not None and loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop has ended in between
                loop.call_soon_threadsafe(server.request_stop)
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _listen(port: int) -> socket.socket:
    # asyncio disables Nagle's algorithm only if the protocol is named; it delays responses by 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:  # an OverflowError has no errno: the number is not that of a port
        listening.close()
        number = getattr(error, "errno", None)
        taken = number == errno.EADDRINUSE
        fix = f"headwater run --port {port + 1 if taken and port < 65_535 else DEFAULT_PORT}"
        if number == errno.EACCES:
            raise NotWritableError(f"this user may not listen on port {port}", fix=fix, port=port) from None
        what = f"port {port} of this machine is in use" if taken else f"cannot listen on port {port}: {error}"
        raise PortTakenError(what, fix=fix, port=port) from None
    return listening


def _raise_file_limit() -> None:
    """Raise the limit of open files: topics and clients need more than the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
