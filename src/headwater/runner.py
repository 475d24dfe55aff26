"""Runs an app: the engine and the workers as processes of their own that are watched and started again."""

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import EngineFailedError, HeadwaterError
from headwater.events import SystemClock
from headwater.plan import Checked
from headwater.store.engine_state import EngineState, write_engine_state

__all__ = ["EngineProcess", "WorkerProcesses", "app_of", "catch_up", "check", "replay"]

logger = logging.getLogger("headwater.runner")
_TRIES: Final = 3
_TRIES_WITHIN: Final = 60.0
_PATIENCE: Final = 45.0
_LONGEST_PAUSE: Final = 10.0  # seconds before a process of workers is started again
_SOUND: Final = 60.0  # seconds after which a process of workers counts as having run well


def app_of(data: Path) -> Path | None:
    """The app file that was last run on a data folder; None when none was."""
    try:
        return Path((data / "engine" / "app").read_text())
    except FileNotFoundError:
        return None


def _remember(app: str, data: Path) -> None:
    (data / "engine").mkdir(parents=True, exist_ok=True)
    (data / "engine" / "app").write_text(app)


class EngineProcess:
    """The engine, in the background; it may die as often as it likes, log and views stay readable.

    Args:
        app: The user's file.
        data: The data folder.
        rebuild: Views that may be made anew.
        profile: Where log, store and Spark are, by name.
        tell: Called with what people should know: what it waits for, which pipelines have failed.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        rebuild: Sequence[str] = (),
        profile: str | None = None,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        self._order: dict[str, Any] = {
            "app": str(Path(app).absolute()),
            "data": str(data.absolute()),
            "rebuild": list(rebuild),
            "profile": profile or "",
            "here": str(Path.cwd()),
        }
        self._data = data
        self._note = tell
        self.error: HeadwaterError | None = None
        """Why it was given up; None as long as it was not."""
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
        _remember(self._order["app"], self._data)
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
            error = self._hear(self._process)
            code = self._process.wait()
            _end_group(self._process)
            if self._stopping.is_set():
                return
            ends.append(time.monotonic())
            why = error.what if error else f"the engine's process ended with code {code}"
            logger.error("%s", why)
            if (error is not None and not error.retryable) or self._too_often(ends):
                self._tell("failed", why)
                detail = f"see engine/engine.log in {self._data}"
                self.error = error or EngineFailedError(why, detail=detail)
                return
            self._tell("restarting", why)
            self._stopping.wait(2 ** len(ends) / 4)

    def _hear(self, process: subprocess.Popen[bytes]) -> HeadwaterError | None:
        """Pass on what the engine says until it ends; the error that it ended with, if it said so."""
        error = None
        for document in _documents(process):
            if "error" in document:
                error = HeadwaterError.from_problem(document["error"])
            else:
                self._note(_words(document))
        return error

    def _too_often(self, ends: deque[float]) -> bool:
        return len(ends) == _TRIES and ends[-1] - ends[0] < _TRIES_WITHIN

    def _tell(self, state: str, detail: str = "") -> None:
        write_engine_state(self._data, EngineState(state, SystemClock().micros(), detail, self.pid))


class WorkerProcesses:
    """The processes of an app's workers, in the background; each is started again whenever it ends.

    One is given up only for an error that the next start would meet too, such as a file that cannot be loaded. A
    message that ends its process is no such error: it is a dead letter after so many attempts.

    Args:
        app: The user's file.
        data: The data folder.
        shares: Which workers each process has, as `workers.process.shares` says.
        profile: Where the queues are, by name.
        tell: Called with what people should know.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        shares: Sequence[dict[str, str]],
        profile: str | None = None,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        order = {"app": str(Path(app).absolute()), "data": str(data.absolute()), "profile": profile or ""}
        self._orders = [order | {"here": str(Path.cwd())} | share for share in shares]
        self._note = tell
        self.error: HeadwaterError | None = None
        """Why one was given up; None as long as none was."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._watch, args=[number], name=f"headwater-workers-{number}", daemon=True
            )
            for number in range(len(self._orders))
        ]

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def start(self) -> None:
        """Begin, and go on until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let what is under way finish, give the rest back, and end all processes."""
        self._stopping.set()
        for process in list(self._processes.values()):
            _close_input(process)
        for thread in self._threads:
            thread.join(timeout=_PATIENCE)
        for process in list(self._processes.values()):
            _end(process)

    def _watch(self, number: int) -> None:
        ends = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            process = self._processes[number] = _started(
                self._orders[number], "headwater.workers.process", None
            )
            if self._stopping.is_set():  # it began between the question and the answer
                _close_input(process)
            error = next(
                (HeadwaterError.from_problem(one["error"]) for one in _documents(process) if "error" in one),
                None,
            )
            code = process.wait()
            if self._stopping.is_set():
                return
            _end_group(process)
            if error is not None and not error.retryable:
                self.error = error
                self._note(f"workers were given up: {error.render()}")
                return
            ends = 1 if time.monotonic() - begun > _SOUND else ends + 1
            why = error.what if error else f"a process of workers ended with code {code}"
            self._note(f"{why}; it is started again")
            self._stopping.wait(min(_LONGEST_PAUSE, 2**ends / 4))


def catch_up(
    app: str | Path,
    data: Path,
    rebuild: Sequence[str] = (),
    since: str = "earliest",
    profile: str | None = None,
    tell: Callable[[str], None] = logger.warning,
) -> None:
    """Run all pipelines until they have committed what is in the log now, then end.

    Args:
        app: The user's file.
        data: The data folder.
        rebuild: Views that are to be made anew.
        since: From where on: an offset or a moment.
        profile: Where log, store and Spark are, by name.
        tell: Called with what it waits for.

    Raises:
        HeadwaterError: A pipeline failed.
    """
    order = {"app": str(Path(app).absolute()), "data": str(data), "rebuild": list(rebuild), "since": since}
    order |= {"profile": profile or "", "here": str(Path.cwd())}
    _remember(str(order["app"]), data)
    for line in _told(order | {"work": "catch-up"}):
        tell(_words(line))


def replay(
    app: str | Path,
    data: Path,
    names: Sequence[str] = (),
    rows: int = 0,
    profile: str | None = None,
    tell: Callable[[str], None] = logger.warning,
) -> Iterator[dict[str, Any]]:
    """Run what pipelines have committed once more, apart from everything, and compare; one document per pipeline.

    Raises:
        HeadwaterError: Spark did not start, or a pipeline has nothing to replay.
    """
    order = {"app": str(Path(app).absolute()), "data": str(data), "names": list(names), "rows": rows}
    order |= {"profile": profile or "", "here": str(Path.cwd())}
    for line in _told(order | {"work": "replay"}):
        if "replayed" in line:
            yield line["replayed"]
        else:
            tell(_words(line))


def check(app: str | Path, data: Path, profile: str | None = None) -> list[Checked]:
    """What Spark says about the app's pipelines, and whether what ran before, where a profile says, can go on.

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


def _started(
    order: dict[str, Any], program: str = "headwater.engine.process", errors: int | None = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """A process group of its own, so that everything it starts can be ended with it."""
    command = [sys.executable, "-m", program, msgspec.json.encode(order).decode()]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )


def _documents(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What a process says, line by line, until it ends; anything else that is printed is passed over."""
    for line in process.stdout or ():
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """In good order if it can, by force if not."""
    if process is None:
        return
    _close_input(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    _end_group(process)
    if process.stdout is not None:
        process.stdout.close()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    """Tell a process to end in good order."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _words(document: dict[str, Any]) -> str:
    """What the engine says besides results, for people."""
    if "waiting" in document:
        return str(document["waiting"])
    return f"{document['failed']} has failed: {HeadwaterError.from_problem(document['problem'])}"
