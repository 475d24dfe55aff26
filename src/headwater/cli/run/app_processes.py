"""The processes of a running app, engine, workers and captures, with the display of what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from headwater.cli.options import Options, local_folder
from headwater.cli.output import Output
from headwater.cli.run.display import RunDisplay
from headwater.cli.run.messages import RunMessage, describe_failure
from headwater.cli.run.status import StatusReader
from headwater.log.protocol import TimedLog
from headwater.store.views.store_views import StoreViews

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.captures import DatabaseCapture
    from headwater.errors import HeadwaterError
    from headwater.pipelines import Selection
    from headwater.runner import CaptureProcesses, EngineProcess, WorkerProcesses
    from headwater.store.status import ReloadReport

__all__ = [
    "AppProcesses",
    "OpenViews",
    "RunSettings",
    "catch_signals",
    "declare_queues",
    "exit_soon",
    "open_profile_log",
]

OpenViews: TypeAlias = tuple[TimedLog, StoreViews]
"""A log, and the views of its events."""
_EXIT_TIMEOUT: Final = 2.7  # seconds from Ctrl-C to the end of this process
_INTERRUPTED: Final = 130


@dataclass(frozen=True)
class RunSettings:
    """What to run.

    Attributes:
        file: The app file; None, if only a node runs.
        folder: The data folder.
        rebuild: The views to rebuild.
        selection: The pipelines to run.
        options: The options of the command.
        explain_start: Whether the steps of the start are printed.
    """

    file: str | None
    folder: Path
    rebuild: tuple[str, ...]
    selection: Selection
    options: Options
    explain_start: bool = False


class AppProcesses:
    """The engine, the workers and the captures of an app, and their display.

    Args:
        settings: What to run.
        on_reload: Called with what the engine has done after `reload` or `rebuild`; without it there are none.
        on_failed: Called with each pipeline that has failed, and its error; it is printed, if omitted.
    """

    def __init__(
        self,
        settings: RunSettings,
        on_reload: Callable[[ReloadReport], None] | None = None,
        on_failed: Callable[[str, HeadwaterError], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_reload = on_reload
        self._on_failed = on_failed or (lambda name, error: self.show(describe_failure(name, error)))
        self._output = Output(settings.options)
        self._engine: EngineProcess | None = None
        self._workers: WorkerProcesses | None = None
        self._captures: CaptureProcesses | None = None
        self._captured: list[DatabaseCapture] = []
        self._display: RunDisplay | None = None
        self._reader: StatusReader | None = None
        self._lock = threading.Lock()  # held while processes start, so that `stop` sees all or none of them
        self._stopped = False

    @property
    def error(self) -> HeadwaterError | None:
        """Why the engine is no longer restarted; None while it is."""
        return None if self._engine is None else self._engine.error

    def start(self, app: App, open_views: Callable[[], OpenViews], url: str) -> None:
        """Start the engine, if the app has pipelines, its workers, answers and captures, and the display.

        Args:
            app: The app.
            open_views: Opens the log and the views, for the display.
            url: The URL of the page; empty, if there is none.
        """
        with self._lock:
            if self._stopped:
                return
            display = self._make_display(app, open_views, url)
            if app.pipelines:
                self._start_engine(self._settings.rebuild)
            if display is not None:  # after the engine has replaced the status that an earlier run has left
                display.start()
            self._start_workers(app)
            self._start_captures(app)

    def reload(self, app: App, open_views: Callable[[], OpenViews], url: str) -> bool:
        """Take over an app that was loaded again: the running engine loads it, too, and the workers start anew.

        Captures start anew if what they capture has changed.

        Returns:
            Whether `on_reload` will be called; a new engine starts with the app.
        """
        with self._lock:
            if self._stopped:
                return False
            display = self._make_display(app, open_views, url)
            reported = self._reload_engine(app)
            if display is not None:
                display.start()
            workers, self._workers = self._workers, None
            captures = None
            if self._find_captures(app) != self._captured:
                captures, self._captures = self._captures, None
        for part in (workers, captures):
            if part is not None:
                part.interrupt()
        with self._lock:
            if not self._stopped:
                self._start_workers(app)
                if self._captures is None:
                    self._start_captures(app)
        return reported

    def _reload_engine(self, app: App) -> bool:
        """Have the engine load the app, or start one; returns whether it reports that."""
        if self._engine is not None and self._engine.error is None:
            return self._engine.request("reload")
        if app.pipelines:
            self._start_engine(())
        return False

    def rebuild(self) -> bool:
        """Ask the engine to rebuild the views whose state does not fit; returns whether `on_reload` will be called."""
        return self._engine is not None and self._engine.request("rebuild")

    def show(self, message: RunMessage) -> None:
        """Print a message, above the table if there is one."""
        if self._display is not None:
            self._display.show(message)
        elif self._output.json:
            self._output.note(message.json)
        else:
            for line in message.text.splitlines():
                self._output.note(line)

    def _make_display(self, app: App, open_views: Callable[[], OpenViews], url: str) -> RunDisplay | None:
        """Returns the display of the pipelines, if it is new; one that is shown goes on with those of this app."""
        names = self._settings.selection.names(app.resolve())
        if self._reader is not None:
            self._reader.names = names
        elif app.pipelines:
            self._reader = StatusReader(open_views, self._settings.folder, names)
            self._display = RunDisplay(self._output, self._reader, app.name, url)
            return self._display
        return None

    def _start_engine(self, rebuild: tuple[str, ...]) -> None:
        from headwater.runner import EngineListener, EngineProcess

        settings, display = self._settings, self._display
        assert display is not None
        listener = EngineListener(display.note, self._on_failed, display.show_rebuild, self._on_reload)
        file, profile = settings.file or "", settings.options.profile
        self._engine = EngineProcess(
            file,
            settings.folder,
            rebuild,
            profile,
            listener,
            settings.selection,
            explain_start=settings.explain_start,
        )
        self._engine.start()

    def _start_workers(self, app: App) -> None:
        from headwater.runner import WorkerProcesses

        if not (app.queues or app.answers):
            return
        from headwater.workers.process import plan_processes

        settings, display = self._settings, self._display
        self._workers = WorkerProcesses(
            settings.file or "",
            settings.folder,
            plan_processes(app),
            settings.options.profile,
            display.note if display else self._output.note,
            display.note if display and display.animated else None,
        )
        self._workers.start()

    def _start_captures(self, app: App) -> None:
        from headwater.runner import CaptureProcesses

        self._captured = self._find_captures(app)
        if not self._captured:
            return
        settings, display = self._settings, self._display
        self._captures = CaptureProcesses(
            settings.file or "",
            settings.folder,
            [capture.name for capture in self._captured],
            settings.options.profile,
            display.note if display else self._output.note,
        )
        self._captures.start()

    def _find_captures(self, app: App) -> list[DatabaseCapture]:
        if not app.captures:
            return []
        from headwater.captures import captures_of

        return captures_of(app, self._settings.options.effective_profile)

    def stop(self, interrupted: bool) -> None:
        """Stop everything, and say what is waited for.

        Args:
            interrupted: Whether after Ctrl-C: then the processes get two seconds only.
        """
        from headwater.runner import INTERRUPT_TIMEOUT, STOP_TIMEOUT

        with self._lock:
            self._stopped = True
        timeout = INTERRUPT_TIMEOUT if interrupted else STOP_TIMEOUT
        if self._display is not None:
            self._display.close()
        if (names := self._names()) and not self._output.json:
            self._output.note(f"stopping, waiting for {names} (at most {timeout:g} s)")
        parts = [part for part in (self._engine, self._workers, self._captures) if part is not None]
        stops = [part.interrupt if interrupted else part.stop for part in parts]
        threads = [threading.Thread(target=stop, daemon=True) for stop in stops]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _names(self) -> str:
        engine = ["the engine"] if self._engine is not None and self._engine.pid is not None else []
        number = 0 if self._workers is None else len(self._workers.pids)
        workers = [f"{number} worker process{'' if number == 1 else 'es'}"] if number else []
        captures = ["captures"] if self._captures is not None and self._captures.pids else []
        return " and ".join([*engine, *workers, *captures])

    def kill(self) -> None:
        """Kill every process at once."""
        for part in (self._engine, self._workers, self._captures):
            if part is not None:
                part.kill()


def exit_soon(processes: AppProcesses) -> None:
    """End this process in some seconds, whatever it still does: after Ctrl-C nobody wants to wait.

    What was acknowledged is on disk, so this is a crash that loses nothing.
    """

    def end() -> None:
        time.sleep(_EXIT_TIMEOUT)
        with contextlib.suppress(Exception):
            processes.kill()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(_INTERRUPTED)

    threading.Thread(target=end, name="headwater-exit", daemon=True).start()


def declare_queues(app: App, folder: Path, profile: str | None) -> None:
    """Create the app's queues, whether or not it has workers: other programs may publish to them at once."""
    if not app.queues:
        return
    from headwater.backends import broker_url, open_broker
    from headwater.profiles import read_profile

    with contextlib.closing(open_broker(broker_url(read_profile(profile), folder))) as broker:
        for queue in app.queues.values():
            broker.declare(queue.definition)


def catch_signals() -> tuple[threading.Event, threading.Event]:
    """Returns an event that SIGTERM and Ctrl-C set, and one that only Ctrl-C sets."""
    ended, interrupted = threading.Event(), threading.Event()

    def end(number: int, _: object) -> None:
        if number == signal.SIGINT:
            interrupted.set()
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return ended, interrupted


def open_profile_log(options: Options) -> TimedLog:
    """Open the log of the profile, for a command that works on the folder itself."""
    from headwater.backends import open_log

    profile, folder = options.effective_profile, local_folder(options)
    return open_log(profile.log.resolve() if profile.log else str(folder), data=folder)
