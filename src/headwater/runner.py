"""Runs an app: the engine and the workers as supervised child processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.backoff import Backoff, RestartLimit
from headwater.errors import EngineFailedError, HeadwaterError
from headwater.events import SystemClock
from headwater.plan import PipelineCheck
from headwater.store.status import EngineStatus, write_engine_status

__all__ = ["EngineProcess", "WorkerProcesses", "catch_up", "check", "last_app", "replay"]

logger = logging.getLogger("headwater.runner")
_MAX_FAILURES: Final = 3
_FAILURE_WINDOW: Final = timedelta(minutes=1)
_BACKOFF: Final = Backoff(timedelta(seconds=0.5), timedelta(seconds=10))
_STOP_TIMEOUT: Final = 45.0  # seconds for a process to end by itself
_HEALTHY_AFTER: Final = 60.0  # seconds; after a longer run the backoff starts again at its first delay


def last_app(data: Path) -> Path | None:
    """Returns the app file that was last run on a data folder; None if there is none."""
    try:
        return Path((data / "engine" / "app").read_text())
    except FileNotFoundError:
        return None


def _record_app(app: str, data: Path) -> None:
    (data / "engine").mkdir(parents=True, exist_ok=True)
    (data / "engine" / "app").write_text(app)


class EngineProcess:
    """The supervised engine process; log and views stay readable while it is down.

    Args:
        app: The app file.
        data: The data folder.
        rebuild: The views to rebuild.
        profile: The name of the profile.
        notify: Called with messages for people: what the engine waits for, which pipelines have failed.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        rebuild: Sequence[str] = (),
        profile: str | None = None,
        notify: Callable[[str], None] = logger.warning,
    ) -> None:
        self._command = _command(app, data, profile, rebuild=list(rebuild))
        self._data = data
        self._notify = notify
        self.error: HeadwaterError | None = None
        """Why the engine is no longer restarted; None while it is."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headwater-engine", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process id of the engine; None while it is down."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start the engine and restart it whenever it ends, until `stop`."""
        self._write_state("starting", "Spark is starting; log and views work meanwhile")
        _record_app(self._command["app"], self._data)
        self._thread.start()

    def stop(self) -> None:
        """Stop the engine and its child processes."""
        self._stopping.set()  # before the process ends, or `_watch` would restart it
        _stop_process(self._process)
        self._thread.join(timeout=_STOP_TIMEOUT)
        self._write_state("stopped")

    def _watch(self) -> None:
        # Only this thread starts the process; `stop` sets the event first, so that no new one is started.
        restarts = RestartLimit(_MAX_FAILURES, _FAILURE_WINDOW)
        while not self._stopping.is_set():
            self._process = _start_process(self._command | {"work": "run"})
            self._command["rebuild"] = []  # the engine resumes an interrupted rebuild; a restart must not begin another
            self._write_state("restarting" if restarts.recent else "starting")
            error = self._relay_output(self._process)
            code = self._process.wait()
            _kill_group(self._process)  # Java may outlive the Python process
            if self._stopping.is_set():
                return
            why = error.what if error else f"the engine process exited with code {code}"
            logger.error("%s", why)
            if restarts.record(time.monotonic()) or (error is not None and not error.retryable):
                self._write_state("failed", why)
                detail = f"see engine/engine.log in {self._data}"
                self.error = error or EngineFailedError(why, detail=detail)
                return
            self._write_state("restarting", why)
            self._stopping.wait(_BACKOFF.delay(restarts.recent).total_seconds())

    def _relay_output(self, process: subprocess.Popen[bytes]) -> HeadwaterError | None:
        """Relay the engine's output until it ends; returns the error it ended with, if it reported one."""
        error = None
        for document in _read_documents(process):
            if "error" in document:
                error = HeadwaterError.from_problem(document["error"])
            else:
                self._notify(_describe_event(document))
        return error

    def _write_state(self, state: str, detail: str = "") -> None:
        write_engine_status(self._data, EngineStatus(state, SystemClock().micros(), detail, self.pid))


class WorkerProcesses:
    """The supervised processes of an app's workers; each is restarted when it ends.

    A process is given up only after an error that the next start would meet again, such as an app file that cannot
    be loaded. A message that kills its process is not such an error: it becomes a dead letter after its last attempt.

    Args:
        app: The app file.
        data: The data folder.
        shares: The workers of each process, from `workers.process.plan_processes`.
        profile: The name of the profile.
        notify: Called with messages for people.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        shares: Sequence[dict[str, str]],
        profile: str | None = None,
        notify: Callable[[str], None] = logger.warning,
    ) -> None:
        self._commands = [_command(app, data, profile, **share) for share in shares]
        self._notify = notify
        self.error: HeadwaterError | None = None
        """Why a process is no longer restarted; None while all are."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=[number], name=f"headwater-workers-{number}", daemon=True)
            for number in range(len(self._commands))
        ]

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def start(self) -> None:
        """Start the workers and restart each that ends, until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let running messages finish, requeue the rest, and end all processes."""
        self._stopping.set()
        for process in list(self._processes.values()):
            _close_input(process)
        for thread in self._threads:
            thread.join(timeout=_STOP_TIMEOUT)
        for process in list(self._processes.values()):
            _stop_process(process)

    def _watch(self, number: int) -> None:
        ends = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            # Workers write to our stderr, so that users see what their functions print and log.
            process = self._processes[number] = _start_process(
                self._commands[number], "headwater.workers.process", None
            )
            if self._stopping.is_set():  # `stop` may have run before the process was registered
                _close_input(process)
            error = next(
                (HeadwaterError.from_problem(one["error"]) for one in _read_documents(process) if "error" in one), None
            )
            code = process.wait()
            if self._stopping.is_set():
                return
            _kill_group(process)
            if error is not None and not error.retryable:
                self.error = error
                self._notify(f"workers were given up: {error.render()}")
                return
            ends = 1 if time.monotonic() - begun > _HEALTHY_AFTER else ends + 1
            why = error.what if error else f"a worker process exited with code {code}"
            self._notify(f"{why}; restarting it")
            self._stopping.wait(_BACKOFF.delay(ends).total_seconds())


def catch_up(
    app: str | Path,
    data: Path,
    rebuild: Sequence[str] = (),
    since: str = "earliest",
    profile: str | None = None,
    notify: Callable[[str], None] = logger.warning,
) -> None:
    """Run all pipelines until they have committed what is in the log now, then stop.

    Args:
        app: The app file.
        data: The data folder.
        rebuild: The views to rebuild.
        since: Where a rebuild starts: an offset or a time.
        profile: The name of the profile.
        notify: Called with messages about what it waits for.

    Raises:
        HeadwaterError: A pipeline failed.
    """
    command = _command(app, data, profile, work="catch-up", rebuild=list(rebuild), since=since)
    _record_app(command["app"], data)
    for line in _engine_output(command):
        notify(_describe_event(line))


def replay(
    app: str | Path,
    data: Path,
    names: Sequence[str] = (),
    rows: int = 0,
    profile: str | None = None,
    notify: Callable[[str], None] = logger.warning,
) -> Iterator[dict[str, Any]]:
    """Run the committed batches of pipelines again in isolation and compare; yields one document per pipeline.

    Raises:
        HeadwaterError: Spark did not start, or a pipeline has nothing to replay.
    """
    for line in _engine_output(_command(app, data, profile, work="replay", names=list(names), rows=rows)):
        if "replayed" in line:
            yield line["replayed"]
        else:
            notify(_describe_event(line))


def check(app: str | Path, data: Path, profile: str | None = None) -> list[PipelineCheck]:
    """Returns Spark's checks of the app's pipelines, and whether those that ran before can continue.

    Raises:
        HeadwaterError: Spark did not start.
    """
    lines = _engine_output(_command(app, data, profile, work="check"))
    return [msgspec.convert(line["checked"], PipelineCheck) for line in lines]


def _command(app: str | Path, data: Path, profile: str | None, **options: Any) -> dict[str, Any]:
    """Returns the command of an engine or worker process (`EngineCommand`, `WorkerCommand`)."""
    places = {"app": str(Path(app).absolute()), "data": str(data.absolute()), "here": str(Path.cwd())}
    return {**places, "profile": profile or "", **options}


def _engine_output(command: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Start the engine and yield the documents that it writes; raises the error that it reports."""
    process = _start_process(command)
    try:
        for document in _read_documents(process):
            if "error" in document:
                raise HeadwaterError.from_problem(document["error"])
            yield document
        if process.wait() != 0:
            what = f"the engine process exited with code {process.returncode}"
            raise EngineFailedError(what, detail="see engine/engine.log and engine/spark.log of the data folder")
    finally:
        _stop_process(process)


def _start_process(
    order: dict[str, Any], program: str = "headwater.engine.process", errors: int | None = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process in its own process group, so that its children can be ended with it."""
    # The pipe to stdin is never written: its end tells the child that this process stopped or died.
    command = [sys.executable, "-m", program, msgspec.json.encode(order).decode()]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )


def _read_documents(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the JSON documents that a process writes until it ends; other output is ignored."""
    for line in process.stdout or ():
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line)


def _stop_process(process: subprocess.Popen[bytes] | None) -> None:
    """Stop a process gracefully if possible, otherwise by kill."""
    if process is None:
        return
    _close_input(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT)
    _kill_group(process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    """Close a process's input, which asks it to stop gracefully."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _describe_event(document: dict[str, Any]) -> str:
    """Returns a message of the engine as text."""
    if "waiting" in document:
        return str(document["waiting"])
    return f"{document['failed']} has failed: {HeadwaterError.from_problem(document['problem'])}"
