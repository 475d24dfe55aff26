"""Local servers: start one, wait until it answers, record its process id, and stop it later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headwater.engine.spark.java import find_java
from headwater.errors import DataError, ServiceFailedError

__all__ = [
    "LaunchedServer",
    "ProgressCallback",
    "ServerState",
    "Service",
    "exchange",
    "free_ports",
    "java_command",
    "launch",
    "password_file",
    "process_start_time",
    "write_password",
]

ProgressCallback = Callable[[str], None]
_FIRST_REPORT: Final = 1.0  # seconds until the first progress message
_REPORT_INTERVAL: Final = 10.0  # seconds between progress messages
_FILE: Final = "services.json"
_LOGGING: Final = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c)%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""


@dataclass(frozen=True)
class LaunchedServer:
    """A process that was started and may not answer yet.

    Args:
        name: The name of the server.
        url: Its URL, without secrets.
        ports: Its ports.
        process: Its process.
        output: The file of its output.
        ready: Returns whether it answers.
        stop_signal: The signal that stops it.
    """

    name: str
    url: str
    ports: tuple[int, ...]
    process: subprocess.Popen[bytes]
    output: Path
    ready: Callable[[], bool]
    stop_signal: int = signal.SIGTERM

    def wait(self, on_progress: ProgressCallback | None = None, timeout: float = 90.0) -> None:
        """Wait until the server answers; stop it if it does not, or if the wait is interrupted.

        Args:
            on_progress: Receives a message after a second and then every ten seconds.
            timeout: Seconds to wait at most.

        Raises:
            ServiceFailedError: The server exited, or did not answer in time; the detail is its last output.
        """
        begun = time.monotonic()
        next_report = _FIRST_REPORT
        try:
            while not self.ready():
                waited = time.monotonic() - begun
                if (code := self.process.poll()) is not None or waited > timeout:
                    how = f"did not answer within {waited:.0f} s" if code is None else f"exited with code {code}"
                    what, fix = f"{self.name} {how}", f"read {self.output}"
                    raise ServiceFailedError(what, detail=self.tail(8), fix=fix, service=self.name, returncode=code)
                if on_progress is not None and waited > next_report:
                    on_progress(f"{self.name} is starting, {waited:.0f} s")
                    next_report = waited + _REPORT_INTERVAL
                time.sleep(0.05)
        except BaseException:
            self.stop()
            raise

    def tail(self, lines: int = 30) -> str:
        """Returns the last lines of its output."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout: float = 10.0) -> None:
        """Stop the process: by signal first, by kill after some seconds."""
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def launch(
    command: Iterable[str | Path],
    output: Path,
    *,
    environment: Mapping[str, str] | None = None,
    die_with_parent: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in the background, in the folder of its output file.

    Args:
        command: The program and its arguments.
        output: The file to which its output is appended.
        environment: Variables added to its environment.
        die_with_parent: Whether the kernel kills it when this process dies; otherwise it keeps running.
    """
    setpriv = shutil.which("setpriv")  # replaces itself by the program, so the process id stays
    prefix = [setpriv, "--pdeathsig", "KILL"] if die_with_parent and setpriv else []
    with output.open("ab") as sink:
        # A new session: Ctrl-C in the terminal does not reach the process.
        return subprocess.Popen(
            [*prefix, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=output.parent,
            start_new_session=True,
        )


def java_command(folder: Path, classpath: str, *options: str) -> list[str]:
    """Returns a command that starts Java with logging to the console; the caller adds the class and its arguments.

    Raises:
        NoJavaError: There is no Java.
    """
    settings = folder / "log4j2.properties"
    settings.write_text(_LOGGING)
    return [str(find_java()), *options, f"-Dlog4j2.configurationFile={settings}", "-cp", classpath]


def free_ports(count: int, preferred: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns free ports of 127.0.0.1; keeps each preferred port that is free.

    Ports are checked one by one: clients know the first, while a helper process of a killed server may hold the last
    for some moments.

    Example:
        >>> first, second = free_ports(2)
        >>> first != second
        True
    """
    known = preferred if len(preferred) == count else (0,) * count
    kept = [port if port and _is_free(port) else 0 for port in known]
    # All chosen sockets stay open until the end: the kernel would offer a closed one again.
    with contextlib.ExitStack() as held:
        return tuple(port or _reserve_port(held, kept) for port in kept)


def _reserve_port(held: contextlib.ExitStack, kept: list[int]) -> int:
    """Returns a free port that is not in `kept`; its socket stays open in `held`."""
    while True:
        tried = held.enter_context(socket.socket())
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        if port not in kept:
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def exchange(port: int, request: bytes, size: int) -> bytes:
    """Send a request to a port of 127.0.0.1; returns up to `size` bytes of the response, none if nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(request)
            return connection.recv(size)
    except OSError:
        return b""


def password_file(folder: Path) -> Path:
    """Returns the file with the password of a server."""
    return folder / "password"


def write_password(folder: Path) -> Path:
    """Write a new random password that only this user can read; returns its file."""
    file = password_file(folder)
    file.touch(mode=0o600)  # before the text: the password is never readable by others
    file.write_text(f"{secrets.token_urlsafe(24)}\n")
    return file


class Service(msgspec.Struct, frozen=True):
    """A server that was started.

    Attributes:
        name: The name of the server.
        url: Its URL, without secrets.
        ports: Its ports; it gets them again next time if they are free.
        output: The file of its output.
        ending: The signal that stops it.
        pid: Its process id; 0 after it was stopped.
        born: The start time of that process (see `process_start_time`): process ids are reused.
    """

    name: str
    url: str
    ports: tuple[int, ...]
    output: str
    ending: int
    pid: int
    born: str

    @property
    def state(self) -> str:
        """The state: running, ended or died."""
        if not self.pid:
            return "ended"
        return "running" if process_start_time(self.pid) == self.born else "died"

    def stop(self, timeout: float = 20.0) -> None:
        """Stop the process if it is still the one that was started: by signal first, then by kill."""
        for kind, seconds in ((self.ending, timeout), (signal.SIGKILL, timeout)):
            deadline = time.monotonic() + seconds
            with contextlib.suppress(ProcessLookupError):
                if self.state == "running":
                    os.kill(self.pid, kind)
            while self.state == "running" and time.monotonic() < deadline:
                time.sleep(0.02)


class ServerState:
    """The servers of a folder, by name.

    Args:
        folder: The folder of their data; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder's lock: no other process starts or stops its servers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def services(self) -> dict[str, Service]:
        """Returns all servers that were ever started in this folder.

        Raises:
            DataError: The state file is damaged.
        """
        file = self.folder / _FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, Service])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise DataError(f"{file} cannot be read: {error}", fix=f"remove {file}", file=str(file)) from None

    def record(self, launched: LaunchedServer) -> None:
        """Record a server as soon as it starts, so that it can be stopped whatever happens next."""
        pid, output, ending = launched.process.pid, str(launched.output), launched.stop_signal
        born = process_start_time(pid) or "gone"
        self._write(Service(launched.name, launched.url, launched.ports, output, ending, pid, born))

    def stop(self, service: Service) -> None:
        """Stop a server and keep its ports for the next start."""
        service.stop()
        self._write(msgspec.structs.replace(service, pid=0, born=""))

    def _write(self, service: Service) -> None:
        services = self.services() | {service.name: service}
        partial = self.folder / f"{_FILE}.partial"  # renamed when complete: readers take no lock
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(services)) + b"\n")
        partial.rename(self.folder / _FILE)


def process_start_time(pid: int) -> str | None:
    """Returns the start time of a process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
