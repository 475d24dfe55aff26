"""Runs an app: the engine, the workers and the captures as supervised child processes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from headwater.backoff import Backoff, RestartLimit
from headwater.errors import EngineFailedError, HeadwaterError
from headwater.events import SystemClock
from headwater.memory import count_memory_kills
from headwater.pipelines import ALL, Selection
from headwater.plan import PipelineCheck
from headwater.store.status import (
    EXIT_OUT_OF_MEMORY,
    EngineStatus,
    ReloadReport,
    WorkProgress,
    read_engine_status,
    record_out_of_memory,
    write_engine_status,
)

__all__ = [
    "INTERRUPT_TIMEOUT",
    "STOP_TIMEOUT",
    "CaptureProcesses",
    "ChildProcesses",
    "EngineListener",
    "EngineProcess",
    "WorkerProcesses",
    "catch_up",
    "check",
    "last_app",
    "record_app",
    "replay",
]

logger = logging.getLogger("headwater.runner")
_MAX_FAILURES: Final = 3
_FAILURE_WINDOW: Final = timedelta(minutes=1)
_BACKOFF: Final = Backoff(timedelta(seconds=0.5), timedelta(seconds=10))
_KILLS_BEFORE: Final = count_memory_kills()  # when this process began
STOP_TIMEOUT: Final = 45.0
"""Seconds that running batches and messages get to end after SIGTERM."""
INTERRUPT_TIMEOUT: Final = 2.0
"""Seconds that a process gets after Ctrl-C. Then it is killed: a crash, after which everything continues."""
_MAX_DIVISIONS: Final = 30
_DIVISION_WINDOW: Final = timedelta(minutes=30)
"""After an end for lack of memory, the next engine divides the batches that were running: that takes several ends."""
_HEALTHY_AFTER: Final = 60.0  # seconds; after a longer run the backoff starts again at its first delay


def last_app(data: Path) -> Path | None:
    """Returns the app file that was last run on a data folder; None if there is none."""
    try:
        return Path((data / "engine" / "app").read_text())
    except FileNotFoundError:
        return None


def record_app(app: str, data: Path) -> None:
    """Record the app file that runs on a data folder, for commands that need it later."""
    (data / "engine").mkdir(parents=True, exist_ok=True)
    (data / "engine" / "app").write_text(app)


@dataclass(frozen=True)
class EngineListener:
    """What is called with the messages of an engine.

    Args:
        notify: Messages for people: what the engine waits for.
        on_failed: Each pipeline that has failed, and its error; `notify` gets it, if omitted.
        on_progress: The progress of a rebuild.
        on_reload: The report of each `EngineProcess.request`; without it the engine takes no requests.
    """

    notify: Callable[[str], None] = logger.warning
    on_failed: Callable[[str, HeadwaterError], None] | None = None
    on_progress: Callable[[WorkProgress], None] = lambda _: None
    on_reload: Callable[[ReloadReport], None] | None = None


class EngineProcess:
    """The supervised engine process; log and views stay readable while it is down.

    Args:
        app: The app file.
        data: The data folder.
        rebuild: The views to rebuild.
        profile: The name of the profile.
        listener: What is called with its messages.
        selection: The pipelines to run.
        explain_start: Whether the listener is told the steps of the start.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        rebuild: Sequence[str] = (),
        profile: str | None = None,
        listener: EngineListener | None = None,
        selection: Selection = ALL,
        *,
        explain_start: bool = False,
    ) -> None:
        self._listener = listener or EngineListener()
        options = asdict(selection) | {"dev": self._listener.on_reload is not None, "explain_start": explain_start}
        self._command = _command(app, data, profile, rebuild=list(rebuild), **options)
        self._data = data
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
        record_app(self._command["app"], self._data)
        self._write_state("starting", "Spark is starting; log and views work meanwhile")
        self._thread.start()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop the engine and its child processes.

        Args:
            timeout: Seconds for running batches to end; then the processes are killed.
        """
        self._stopping.set()  # before the process ends, or `_watch` would restart it
        _stop_process(self._process, timeout)
        if self._thread.ident is not None:
            self._thread.join(timeout=STOP_TIMEOUT)
        self._write_state("stopped")

    def request(self, what: str) -> bool:
        """Ask the engine to "reload" the app's file, or to "rebuild" the views whose state no longer fits.

        Returns:
            Whether an engine runs that will report it; one that starts loads the file as it is then.
        """
        process = self._process
        if process is None or process.poll() is not None or process.stdin is None:
            return False
        try:
            process.stdin.write(f"{what}\n".encode())
            process.stdin.flush()
        except (OSError, ValueError):  # it has just ended
            return False
        return True

    def interrupt(self) -> None:
        """Stop the engine after Ctrl-C: running batches get two seconds; while Spark starts there are none."""
        status = read_engine_status(self._data)
        self.stop(INTERRUPT_TIMEOUT if status is not None and status.state == "running" else 0.0)

    def kill(self) -> None:
        """Kill the engine and its child processes, without waiting."""
        self._stopping.set()
        if self._process is not None:
            _signal_group(self._process)

    def _watch(self) -> None:
        # Only this thread starts the process; `stop` sets the event first, so that no new one is started.
        restarts = RestartLimit(_MAX_FAILURES, _FAILURE_WINDOW)
        divisions = RestartLimit(_MAX_DIVISIONS, _DIVISION_WINDOW)
        why = ""
        while not self._stopping.is_set():
            self._process = _start_engine(self._command | {"work": "run"})
            if self._stopping.is_set():  # `stop` has looked before the process was there
                _kill_group(self._process)
                return
            self._command["explain_start"] = False  # only the first start
            self._command["resume"] = True  # a restart continues an interrupted rebuild, and must not begin another
            self._write_state("restarting" if why else "starting", why)
            error = self._relay_output(self._process)
            code = self._process.wait()
            _kill_group(self._process)  # Java may outlive the Python process
            if self._stopping.is_set():
                return
            why = error.what if error else f"the engine process exited with code {code}"
            logger.info("%s", why)
            limit = (
                divisions if _record_memory(code, self._data) and code > 0 else restarts
            )  # a kill may have any cause
            if limit.record(time.monotonic()) or (error is not None and not error.retryable):
                self._write_state("failed", why)
                detail = f"see engine/engine.log in {self._data}"
                self.error = error or EngineFailedError(why, detail=detail)
                return
            self._write_state("restarting", why)
            self._stopping.wait(_BACKOFF.delay(limit.recent).total_seconds())

    def _relay_output(self, process: subprocess.Popen[bytes]) -> HeadwaterError | None:
        """Relay the engine's output until it ends; returns the error it ended with, if it reported one."""
        error, listener = None, self._listener
        for document in _read_documents(process):
            if "error" in document:
                error = HeadwaterError.from_problem(document["error"])
            elif "progress" in document:
                listener.on_progress(msgspec.convert(document["progress"], WorkProgress))
            elif "reloaded" in document and listener.on_reload is not None:
                listener.on_reload(msgspec.convert(document["reloaded"], ReloadReport))
            elif "failed" in document and listener.on_failed is not None:
                listener.on_failed(document["failed"], HeadwaterError.from_problem(document["problem"]))
            else:
                listener.notify(_describe_event(document))
        return error

    def _write_state(self, state: str, detail: str = "") -> None:
        if self._data.exists():  # a folder that was deleted meanwhile is not created again
            with contextlib.suppress(OSError):  # a full disk must not keep the engine from starting again
                write_engine_status(self._data, EngineStatus(state, SystemClock().micros(), detail, self.pid))


class ChildProcesses:
    """Supervised processes of one program; each is restarted when it ends.

    A process is given up only after an error that the next start would meet again, such as an app file that cannot
    be loaded.

    Args:
        program: The module of the main program.
        noun: What a process is, for messages.
        commands: The command of each process.
        notify: Called with messages for people.
        printed: Called with the lines that the processes print and log; they go to stderr, if omitted.
        on_document: Called with the other documents that the processes write.
    """

    def __init__(
        self,
        program: str,
        noun: str,
        commands: Sequence[dict[str, Any]],
        notify: Callable[[str], None] = logger.warning,
        printed: Callable[[str], None] | None = None,
        on_document: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._program = program
        self._noun = noun
        self._commands = list(commands)
        self._notify = notify
        self._printed = printed
        self._on_document = on_document
        self.error: HeadwaterError | None = None
        """Why a process is no longer restarted; None while all are."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=[number], name=f"headwater-{noun}-{number}", daemon=True)
            for number in range(len(self._commands))
        ]

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def start(self) -> None:
        """Start the processes and restart each that ends, until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Let the processes finish what they do, and end them.

        Args:
            timeout: Seconds for that; then the processes are killed, which loses nothing: messages are due again.
        """
        self._stopping.set()
        for process in list(self._processes.values()):
            _close_input(process)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        for process in list(self._processes.values()):
            _stop_process(process, 0.0)

    def interrupt(self) -> None:
        """Stop the processes after Ctrl-C: what they do gets two seconds."""
        self.stop(INTERRUPT_TIMEOUT)

    def kill(self) -> None:
        """Kill all processes, without waiting."""
        self._stopping.set()
        for process in list(self._processes.values()):
            _signal_group(process)

    def _watch(self, number: int) -> None:
        ends = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            errors = None if self._printed is None else subprocess.PIPE
            process = _start_process(self._commands[number], self._program, errors)
            self._processes[number] = process
            if self._printed is not None:
                _relay_lines(process.stderr, self._printed)
            if self._stopping.is_set():  # `stop` may have run before the process was registered
                _close_input(process)
            error = self._relay_documents(process)
            code = process.wait()
            if self._stopping.is_set():
                return
            _kill_group(process)
            if error is not None and not error.retryable:
                self.error = error
                self._notify(f"{self._noun}s were given up: {error.render()}")
                return
            ends = 1 if time.monotonic() - begun > _HEALTHY_AFTER else ends + 1
            why = error.what if error else f"a {self._noun} process exited with code {code}"
            self._notify(f"{why}; restarting it")
            self._stopping.wait(_BACKOFF.delay(ends).total_seconds())

    def _relay_documents(self, process: subprocess.Popen[bytes]) -> HeadwaterError | None:
        """Pass on the documents of a process until it ends; returns the error it ended with, if it reported one."""
        error = None
        for document in _read_documents(process):
            if "error" in document:
                error = HeadwaterError.from_problem(document["error"])
            else:
                self._on_document(document)
        return error


class WorkerProcesses(ChildProcesses):
    """The supervised processes of an app's workers.

    A message that kills its process becomes a dead letter after its last attempt.

    Args:
        app: The app file.
        data: The data folder.
        shares: The workers of each process, from `workers.process.plan_processes`.
        profile: The name of the profile.
        notify: Called with messages for people.
        printed: Called with the lines that users' functions print and log; they go to stderr, if omitted.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        shares: Sequence[dict[str, str]],
        profile: str | None = None,
        notify: Callable[[str], None] = logger.warning,
        printed: Callable[[str], None] | None = None,
    ) -> None:
        commands = [_command(app, data, profile, **share) for share in shares]
        super().__init__("headwater.workers.process", "worker", commands, notify, printed)


class CaptureProcesses(ChildProcesses):
    """The supervised processes of an app's captures, one for each database.

    A capture that cannot go on, because it would leave a gap, does not end its process: it reports the error, and
    waits for a new snapshot to be asked for.

    Args:
        app: The app file.
        data: The data folder.
        names: The captures.
        profile: The name of the profile.
        notify: Called with messages for people: progress and errors.
    """

    def __init__(
        self,
        app: str | Path,
        data: Path,
        names: Sequence[str],
        profile: str | None = None,
        notify: Callable[[str], None] = logger.warning,
    ) -> None:
        commands = [_command(app, data, profile, capture=name) for name in names]
        record_app(commands[0]["app"], data)

        def pass_note(document: dict[str, Any]) -> None:
            if "note" in document:
                notify(str(document["note"]))

        super().__init__("headwater.capture_process", "capture", commands, notify, notify, pass_note)


def catch_up(  # noqa: PLR0913 - the options of headwater run --until-current
    app: str | Path,
    data: Path,
    rebuild: Sequence[str] = (),
    since: str = "earliest",
    profile: str | None = None,
    notify: Callable[[str], None] = logger.warning,
    selection: Selection = ALL,
    on_progress: Callable[[WorkProgress], None] = lambda _: None,
    *,
    explain_start: bool = False,
) -> None:
    """Run pipelines until they have committed what is in the log now, then stop.

    Args:
        app: The app file.
        data: The data folder.
        rebuild: The views to rebuild.
        since: Where a rebuild starts: an offset or a time.
        profile: The name of the profile.
        notify: Called with messages about what it waits for.
        selection: The pipelines to run.
        on_progress: Called with the progress, about once a second.
        explain_start: Whether `notify` gets the steps of the start.

    Raises:
        HeadwaterError: A pipeline failed.
    """
    how = {"rebuild": list(rebuild), "since": since, "explain_start": explain_start, **asdict(selection)}
    command = _command(app, data, profile, work="catch-up", **how)
    record_app(command["app"], data)
    divisions = RestartLimit(_MAX_DIVISIONS, _DIVISION_WINDOW)
    while True:
        try:
            for line in _engine_output(command, on_progress):
                notify(_describe_event(line))
        except EngineFailedError as error:
            ended = _record_memory(error.data.get("exit_code", 0), data)
            if not ended or divisions.record(time.monotonic()):
                raise
            notify("memory was short; the engine starts again with smaller batches")
            command["resume"] = True  # a rebuild that the engine has begun
        else:
            return


def replay(
    app: str | Path,
    data: Path,
    selection: Selection = ALL,
    rows: int = 0,
    profile: str | None = None,
    notify: Callable[[str], None] = logger.warning,
    on_progress: Callable[[WorkProgress], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Run the committed batches of pipelines again in isolation and compare; yields one document per pipeline.

    Raises:
        HeadwaterError: Spark did not start, or a pipeline has nothing to replay.
    """
    command = _command(app, data, profile, work="replay", rows=rows, **asdict(selection))
    for line in _engine_output(command, on_progress):
        if "replayed" in line:
            yield line["replayed"]
        else:
            notify(_describe_event(line))


def check(
    app: str | Path, data: Path, profile: str | None = None, selection: Selection = ALL
) -> Iterator[PipelineCheck]:
    """Yields Spark's checks of the app's pipelines, and whether those that ran before can continue.

    Raises:
        HeadwaterError: Spark did not start.
    """
    for line in _engine_output(_command(app, data, profile, work="check", **asdict(selection))):
        yield msgspec.convert(line["checked"], PipelineCheck)


def _record_memory(code: int, data: Path) -> bool:
    """Returns whether an engine may have ended for lack of memory; records it if the engine could not.

    A kill by anything but the kernel is not recorded: it says nothing about the size of batches.
    """
    if code == -signal.SIGKILL and (_KILLS_BEFORE is None or count_memory_kills() != _KILLS_BEFORE):
        record_out_of_memory(data, "the engine was killed, as the kernel does when memory is short")
    return code in (EXIT_OUT_OF_MEMORY, -signal.SIGKILL)


def _command(app: str | Path, data: Path, profile: str | None, **options: Any) -> dict[str, Any]:
    """Returns the command of an engine or worker process (`EngineCommand`, `WorkerCommand`)."""
    places = {"app": str(Path(app).absolute()), "data": str(data.absolute()), "here": str(Path.cwd())}
    return {**places, "profile": profile or "", **options}


def _engine_output(
    command: dict[str, Any], on_progress: Callable[[WorkProgress], None] = lambda _: None
) -> Iterator[dict[str, Any]]:
    """Start the engine and yield the documents that it writes; raises the error that it reports.

    If the caller leaves early, as after Ctrl-C, the engine is killed.
    """
    process = _start_engine(command)
    timeout = 0.0
    try:
        for document in _read_documents(process):
            if "error" in document:
                timeout = STOP_TIMEOUT  # it ends by itself
                raise HeadwaterError.from_problem(document["error"])
            if "progress" in document:
                on_progress(msgspec.convert(document["progress"], WorkProgress))
            else:
                yield document
        if process.wait() != 0:
            what = f"the engine process exited with code {process.returncode}"
            detail = "see engine/engine.log and engine/spark.log of the data folder"
            raise EngineFailedError(what, detail=detail, exit_code=process.returncode)
    finally:
        _stop_process(process, timeout)


def _start_engine(command: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start an engine with a temporary folder of its own: a killed Spark leaves libraries and spilled rows behind."""
    scratch = tempfile.mkdtemp(prefix="headwater-engine-")
    try:
        process = _start_process(command, "headwater.engine.process", subprocess.DEVNULL, TMPDIR=scratch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _scratch_folders[process.pid] = scratch
    return process


_scratch_folders: dict[int, str] = {}  # by process id of the engine


def _start_process(
    order: dict[str, Any], program: str, errors: int | None, **environment: str
) -> subprocess.Popen[bytes]:
    """Start a process in its own process group, so that its children can be ended with it."""
    # The end of the pipe to stdin tells the child that this process stopped or died.
    return subprocess.Popen(
        [sys.executable, "-m", program, msgspec.json.encode(order).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=os.environ | environment,
        start_new_session=True,
    )


def _read_documents(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the JSON documents that a process writes until it ends; other output is ignored."""
    for line in process.stdout or ():
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line)


def _relay_lines(pipe: IO[bytes] | None, printed: Callable[[str], None]) -> None:
    """Pass on the lines of a pipe, in a thread that ends with it."""

    def relay(lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                printed(line.decode(errors="replace").rstrip("\n"))

    if pipe is not None:
        threading.Thread(target=relay, args=[pipe], name="headwater-printed", daemon=True).start()


def _stop_process(process: subprocess.Popen[bytes] | None, timeout: float) -> None:
    """Stop a process gracefully if it ends within seconds, otherwise by kill."""
    if process is None:
        return
    _close_input(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout)
    _kill_group(process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    """Close a process's input, which asks it to stop gracefully."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _signal_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children; remove its temporary folder."""
    _signal_group(process)
    process.wait()
    if scratch := _scratch_folders.pop(process.pid, None):
        shutil.rmtree(scratch, ignore_errors=True)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _describe_event(document: dict[str, Any]) -> str:
    """Returns a message of the engine as text."""
    for kind in ("waiting", "start"):
        if kind in document:
            return str(document[kind])
    return f"{document['failed']} has failed: {HeadwaterError.from_problem(document['problem'])}"
