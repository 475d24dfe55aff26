"""A server that was just started: what it is, whether it answers, how it is ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.engine.spark.java import find_java
from headwater.errors import ServiceFailedError

__all__ = ["Launched", "Tell", "free_ports", "java_command", "launch"]

Tell = Callable[[str], None]
_QUIET: Final = 1.0  # seconds before anything is said
_AGAIN: Final = 10.0  # seconds between two signs of life
_LOGGING: Final = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c)%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""


@dataclass(frozen=True)
class Launched:
    """A process that was started and may not answer yet.

    Args:
        name: What it is, in one word.
        url: Where it will answer; without secrets.
        ports: The ports it was given.
        process: The server itself.
        output: The file that takes what it prints.
        ready: Whether it answers now.
        ending: The signal that asks it to end.
    """

    name: str
    url: str
    ports: tuple[int, ...]
    process: subprocess.Popen[bytes]
    output: Path
    ready: Callable[[], bool]
    ending: int = signal.SIGTERM

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.ports[0]}"

    def wait(self, tell: Tell | None = None, timeout: float = 90.0) -> None:
        """Return when it answers; end it when it does not, or when the wait is interrupted.

        Args:
            tell: Told after a second, and from time to time, that it is still starting.
            timeout: Seconds to wait at most.

        Raises:
            ServiceFailedError: It ended, or did not answer in time; the detail is what it printed last.
        """
        begun = time.monotonic()
        next_word = _QUIET
        try:
            while not self.ready():
                waited = time.monotonic() - begun
                if self.process.poll() is not None or waited > timeout:
                    raise self._failed(waited)
                if tell is not None and waited > next_word:
                    tell(f"{self.name} is starting, {waited:.0f} s")
                    next_word = waited + _AGAIN
                time.sleep(0.05)
        except BaseException:
            self.stop()
            raise

    def tail(self, lines: int = 30) -> str:
        """The last lines it printed."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, patience: float = 10.0) -> None:
        """End it: asked first, killed when it has not ended after some seconds."""
        self.process.send_signal(self.ending)
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _failed(self, waited: float) -> ServiceFailedError:
        code = self.process.returncode
        how = f"did not answer within {waited:.0f} s" if code is None else f"ended with code {code}"
        fix = f"read {self.output}"
        return ServiceFailedError(f"{self.name} {how}", detail=self.tail(8), fix=fix, service=self.name)


def launch(
    command: Iterable[str | Path], output: Path, *, more: Mapping[str, str] | None = None, bound: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process in the background, in the folder where its output goes.

    Args:
        command: The program and its arguments.
        output: The file that takes what it prints, behind what is there.
        more: Added to its environment.
        bound: Let the kernel end it when this process is killed; otherwise it goes on.
    """
    setpriv = shutil.which("setpriv")  # it becomes the program, so the process id stays
    prefix = [setpriv, "--pdeathsig", "KILL"] if bound and setpriv else []
    with output.open("ab") as sink:
        # A session of its own, so that Ctrl-C in the terminal does not reach it.
        return subprocess.Popen(
            [*prefix, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(more or {})},
            cwd=output.parent,
            start_new_session=True,
        )


def java_command(folder: Path, classpath: str, *options: str) -> list[str]:
    """The words that start a Java program which prints what it has to say; the class and its arguments follow.

    Raises:
        NoJavaError: There is no Java.
    """
    settings = folder / "log4j2.properties"
    settings.write_text(_LOGGING)
    return [str(find_java()), *options, f"-Dlog4j2.configurationFile={settings}", "-cp", classpath]


def free_ports(count: int, wanted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Ports of 127.0.0.1 that nobody listens on; of those wanted, each that still is free.

    One that is taken does not cost the others: clients know the first, while the last may be held for some moments
    more by a helper of a server that was killed.

    Example:
        >>> first, second = free_ports(2)
        >>> first != second
        True
    """
    known = wanted if len(wanted) == count else (0,) * count
    kept = [port if port and _free(port) else 0 for port in known]
    with contextlib.ExitStack() as held:
        return tuple(port or _new_port(held, kept) for port in kept)


def _new_port(held: contextlib.ExitStack, kept: list[int]) -> int:
    """A port, held until all are known, so that no two are the same."""
    while True:
        tried = held.enter_context(socket.socket())
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        if port not in kept:
            return port


def _free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        return tried.connect_ex(("127.0.0.1", port)) != 0
