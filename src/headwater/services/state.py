"""What is known of the servers of a folder: a file with their process ids, read by whoever comes later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headwater.errors import DataError
from headwater.services.launched import Launched

__all__ = ["Service", "State", "began"]

_FILE = "services.json"


class Service(msgspec.Struct, frozen=True):
    """A server that was started.

    Attributes:
        name: What it is, in one word.
        url: Where it answers; without secrets.
        ports: The ports it has, and gets again the next time if they are free.
        output: The file that takes what it prints.
        ending: The signal that asks it to end.
        pid: Its process; 0 after it was ended.
        born: When that process began, in the kernel's words: another process may have the same id later.
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
        """One of running, ended, died."""
        if not self.pid:
            return "ended"
        return "running" if began(self.pid) == self.born else "died"

    def end(self, patience: float = 20.0) -> None:
        """End its process, if that still is the one that was started: asked first, then killed."""
        for kind, seconds in ((self.ending, patience), (signal.SIGKILL, patience)):
            deadline = time.monotonic() + seconds
            with contextlib.suppress(ProcessLookupError):
                if self.state == "running":
                    os.kill(self.pid, kind)
            while self.state == "running" and time.monotonic() < deadline:
                time.sleep(0.02)


class State:
    """The servers of a folder, by name.

    Args:
        folder: Where they keep everything; made when missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else starts or ends servers of this folder while the block runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def services(self) -> dict[str, Service]:
        """All that were ever started here.

        Raises:
            DataError: The file is not what was written.
        """
        file = self.folder / _FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, Service])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise DataError(f"{file} cannot be read: {error}", fix=f"remove {file}", file=str(file)) from None

    def put(self, launched: Launched) -> None:
        """Remember a server from its first moment on, so that it can be ended whatever happens next."""
        pid = launched.process.pid
        output = str(launched.output)
        self._write(
            Service(
                launched.name,
                launched.url,
                launched.ports,
                output,
                launched.ending,
                pid,
                began(pid) or "gone",
            )
        )

    def end(self, service: Service) -> None:
        """End a server and remember its ports."""
        service.end()
        self._write(msgspec.structs.replace(service, pid=0, born=""))

    def _write(self, service: Service) -> None:
        services = self.services() | {service.name: service}
        partial = self.folder / f"{_FILE}.partial"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(services)) + b"\n")
        partial.rename(self.folder / _FILE)


def began(pid: int) -> str | None:
    """When a process began, in ticks since the machine started; None when there is none, or only its exit code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
