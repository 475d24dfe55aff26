"""Forks Spark's Python processes from one that has imported their modules.

Spark starts a Python process for each input of each query, and one for each kind of worker. Each of them imports
pyspark, pyarrow, pandas and Headwater: 0.2 to 0.4 seconds of CPU, and memory of its own. The fork server imports them
once, while Java starts, and a fork of it takes some milliseconds and shares its memory.

Spark knows only the path of a Python program. `ForkServer.python` is a script at such a path: it runs `fork_client`,
which sends the command, the environment and the standard streams to the server. The server keeps a connection to each
client: if Java ends a client, the server ends the process that it has forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

__all__ = ["ForkServer", "main"]

_PRELOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "pyspark.daemon",
    "pyspark.pandas.typedef",
    "headwater.engine.source.log_source",
    "headwater.engine.state.spark_host",
)
_PROGRAMS: Final = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
)
"""Modules that Spark runs as programs: they are imported for what they import, and run anew."""
_SETTINGS: Final = {
    "MALLOC_ARENA_MAX": "1",  # as for Java, whose children these processes would be
    # A process may be forked only while it has one thread: another one could hold a lock, which nobody releases in the
    # fork. These are the thread of Arrow's allocator and those of NumPy's linear algebra.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Beside the seed of hashes, which must be that of Spark's workers: all of them compute the same hash of a text."""
_CLIENT: Final = Path(__file__).with_name("fork_client.py")
_STDIN: Final = 0
_MAX_PATH: Final = 100  # the longest path of a socket on every system
_CLIENT_TIMEOUT: Final = 10.0  # seconds
_STOP_TIMEOUT: Final = 5.0  # seconds


class ForkServer:
    """A running fork server; it ends with this process, which closes its standard input.

    Args:
        folder: The folder of its socket and script. Nobody else may write to it.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python"
        """The program to give to Spark in place of Python."""
        address = folder / "fork"
        words = [sys.executable, "-I", "-S", str(_CLIENT), str(address), sys.executable]
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        self.python.chmod(0o700)
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            if len(os.fsencode(address)) <= _MAX_PATH:  # otherwise clients start Python as usual
                listener.bind(str(address))
                listener.listen(socket.SOMAXCONN)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headwater.engine.spark.fork_server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                env={"PYTHONHASHSEED": "0", **os.environ, **_SETTINGS},
            )

    def stop(self) -> None:
        """End the server; processes that it has forked end with Java."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(listener: socket.socket) -> None:
    """Serve clients until the standard input closes; in a forked process, run what the client wants."""
    _preload()
    command = _serve(listener)
    if command is not None:
        _run(*command)


def _preload() -> None:
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in _PROGRAMS:
        sys.modules.pop(name, None)
    # Also in workers that a forked daemon forks: without it all of them would draw the same random numbers.
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()  # collections in forked processes would copy the memory that they share


Command = tuple[list[str], dict[str, str], str]
"""The arguments of a process, its environment and its folder."""


def _serve(listener: socket.socket) -> Command | None:
    """Fork a process for each client; returns its command in that process, and None when the server ends."""
    ended, on_end = socket.socketpair()
    on_end.setblocking(False)
    signal.set_wakeup_fd(on_end.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[int, tuple[socket.socket, int]] = {}  # by file number: the connection and the process
    poller = select.poll()
    for number in (_STDIN, listener.fileno(), ended.fileno()):
        poller.register(number, select.POLLIN)
    while True:
        for number, _ in poller.poll():
            if number == _STDIN:
                return None
            if number == ended.fileno():
                ended.recv(4096)
                _report_ended(clients, poller)
            elif number == listener.fileno():
                command = _fork(listener, clients, poller)
                if command is not None:
                    return command
            else:
                _end_process(number, clients, poller)


def _fork(
    listener: socket.socket, clients: dict[int, tuple[socket.socket, int]], poller: select.poll
) -> Command | None:
    """Fork a process for a new client; returns its command in that process only."""
    client, _ = listener.accept()
    received = _receive(client)
    if received is None:
        return None
    command, streams = received
    process = os.fork()
    if process:
        _close(streams)
        clients[client.fileno()] = client, process
        poller.register(client, select.POLLIN)
        return None
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for other in (listener, client, *(each for each, _ in clients.values())):
        other.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    _close(streams)
    return command


def _end_process(number: int, clients: dict[int, tuple[socket.socket, int]], poller: select.poll) -> None:
    """End the process of a client that Java has ended."""
    if number in clients:
        client, process = clients.pop(number)
        poller.unregister(number)
        client.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def _report_ended(clients: dict[int, tuple[socket.socket, int]], poller: select.poll) -> None:
    """Tell the clients of processes that have ended."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        for number, (client, forked) in list(clients.items()):
            if forked == process:
                del clients[number]
                poller.unregister(number)
                code = os.waitstatus_to_exitcode(status)
                with client, contextlib.suppress(OSError):
                    client.send(bytes([code if code >= 0 else 128 - code]))


def _receive(client: socket.socket) -> tuple[Command, list[int]] | None:
    """Returns the command of a client, and its standard streams; None if it has ended."""
    client.settimeout(_CLIENT_TIMEOUT)
    streams: list[int] = []
    try:
        head, streams, _, _ = socket.recv_fds(client, 8, 3)
        size, data = int.from_bytes(head, "big"), b""
        while len(data) < size and (part := client.recv(min(size - len(data), 1 << 16))):
            data += part
        arguments, environment, folder = json.loads(data)
    except (OSError, ValueError):
        _close(streams)
        client.close()
        return None
    return (arguments, environment, folder), streams


def _close(streams: list[int]) -> None:
    for stream in streams:
        os.close(stream)


def _run(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Run `-m MODULE ARGUMENT…` as Python does in a new process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[1:1] = added
    module = arguments[arguments.index("-m") + 1]
    sys.argv = [module, *arguments[arguments.index("-m") + 2 :]]
    sys.excepthook = _hide_closed_connection
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _hide_closed_connection(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception, unless Java has closed the connection, which it does when it stops a query."""
    if not issubclass(kind, (BrokenPipeError, ConnectionResetError)):
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
