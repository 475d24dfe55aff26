"""Runs an app: the node, and the engine as a process of its own that is watched and started again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import EngineFailedError, HeadwaterError
from headwater.events import SystemClock
from headwater.plan import Checked
from headwater.store.engine_state import EngineState, write_engine_state

__all__ = ["EngineProcess", "app_of", "catch_up", "check", "replay"]

logger = logging.getLogger("headwater.runner")
_TRIES: Final = 3
_TRIES_WITHIN: Final = 60.0
_PATIENCE: Final = 45.0


def app_of(data: Path) -> Path | None:
    """The app file that was last run on a data folder; None when none was."""
    try:
        return Path((data / "engine" / "app").read_text())
    except FileNotFoundError:
        return None


class EngineProcess:
    """The engine, in the background; it may die as often as it likes, log and views stay readable.

    Args:
        app: The user's file.
        data: The data folder.
        rebuild: Views that may be made anew.
        profile: Where log, store and Spark are, by name.
    """

    def __init__(
        self, app: str | Path, data: Path, rebuild: Sequence[str] = (), profile: str | None = None
    ) -> None:
        self._order: dict[str, Any] = {
            "app": str(Path(app).absolute()),
            "data": str(data.absolute()),
            "rebuild": list(rebuild),
            "profile": profile or "",
            "here": str(Path.cwd()),
        }
        self._data = data
        self.failed = ""
        """Why it was given up; empty as long as it was not."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headwater-engine", daemon=True)

    @property
    def pid(self) -> int | None:
        """The engine's process; None while there is none."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Begin, and go on until `stop`."""
        self._tell("starting", "Spark is starting; log and views work meanwhile")
        (self._data / "engine").mkdir(parents=True, exist_ok=True)
        (self._data / "engine" / "app").write_text(str(self._order["app"]))
        self._thread.start()

    def stop(self) -> None:
        """End the engine and everything it started."""
        self._stopping.set()
        _end(self._process)
        self._thread.join(timeout=_PATIENCE)
        self._tell("stopped")

    def _watch(self) -> None:
        ends: deque[float] = deque(maxlen=_TRIES)
        while not self._stopping.is_set():
            self._process = _started(self._order | {"work": "run"})
            self._order[
                "rebuild"
            ] = []  # begun is enough: a rebuild that a crash interrupts goes on by itself
            self._tell("starting" if not ends else "restarting")
            said = self._process.stdout.read() if self._process.stdout else b""
            code = self._process.wait()
            _end_group(self._process)
            if self._stopping.is_set():
                return
            ends.append(time.monotonic())
            error = _told_error(said)
            why = error.what if error else f"the engine's process ended with code {code}"
            logger.error("%s", why)
            if (error is not None and not error.retryable) or self._too_often(ends):
                self._tell("failed", why)
                self.failed = why
                return
            self._tell("restarting", why)
            self._stopping.wait(2 ** len(ends) / 4)

    def _too_often(self, ends: deque[float]) -> bool:
        return len(ends) == _TRIES and ends[-1] - ends[0] < _TRIES_WITHIN

    def _tell(self, state: str, detail: str = "") -> None:
        write_engine_state(self._data, EngineState(state, SystemClock().micros(), detail, self.pid))


def catch_up(
    app: str | Path,
    data: Path,
    rebuild: Sequence[str] = (),
    since: str = "earliest",
    profile: str | None = None,
) -> None:
    """Run all pipelines until they have committed what is in the log now, then end.

    Args:
        app: The user's file.
        data: The data folder.
        rebuild: Views that are to be made anew.
        since: From where on: an offset or a moment.
        profile: Where log, store and Spark are, by name.

    Raises:
        HeadwaterError: A pipeline failed.
    """
    order = {"app": str(Path(app).absolute()), "data": str(data), "rebuild": list(rebuild), "since": since}
    order |= {"profile": profile or "", "here": str(Path.cwd())}
    for _ in _told(order | {"work": "catch-up"}):
        pass


def replay(app: str | Path, data: Path, names: Sequence[str] = (), rows: int = 0) -> Iterator[dict[str, Any]]:
    """Run what pipelines have committed once more, apart from everything, and compare; one document per pipeline.

    Raises:
        HeadwaterError: Spark did not start, or a pipeline has nothing to replay.
    """
    order = {"app": str(Path(app).absolute()), "data": str(data), "names": list(names), "rows": rows}
    for line in _told(order | {"work": "replay"}):
        yield line["replayed"]


def check(app: str | Path, data: Path, profile: str | None = None) -> list[Checked]:
    """What Spark says about the app's pipelines, and whether what ran before in the data folder can go on.

    Raises:
        HeadwaterError: Spark did not start.
    """
    order = {"app": str(Path(app).absolute()), "data": str(data), "work": "check"}
    lines = _told(order | {"profile": profile or "", "here": str(Path.cwd())})
    return [msgspec.convert(line["checked"], Checked) for line in lines]


def _told(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the engine says, line by line, while it works."""
    process = _started(order)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            document = msgspec.json.decode(line)
            if "error" in document:
                raise HeadwaterError.from_problem(document["error"])
            yield document
        if process.wait() != 0:
            what = f"the engine's process ended with code {process.returncode}"
            raise EngineFailedError(
                what, detail="see engine/engine.log and engine/spark.log of the data folder"
            )
    finally:
        _end(process)


def _started(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A process group of its own, so that everything it starts can be ended with it."""
    command = [sys.executable, "-m", "headwater.engine.process", msgspec.json.encode(order).decode()]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """In good order if it can, by force if not."""
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    _end_group(process)
    if process.stdout is not None:
        process.stdout.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _told_error(said: bytes) -> HeadwaterError | None:
    for line in said.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            document = msgspec.json.decode(line)
            if "error" in document:
                return HeadwaterError.from_problem(document["error"])
    return None
