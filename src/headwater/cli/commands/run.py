"""The command `run`: runs an app in a node, or to the present end of the log."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater import __version__
from headwater.cli.commands.topics import event_count
from headwater.cli.formatting import plural
from headwater.cli.options import DEFAULTS, EVERY_PIPELINE, Options, PipelineOptions, local_folder
from headwater.cli.output import Output
from headwater.cli.run.app_processes import (
    AppProcesses,
    OpenViews,
    RunSettings,
    catch_signals,
    declare_queues,
    exit_soon,
    open_profile_log,
)
from headwater.cli.run.engine_progress import EngineProgress
from headwater.config import PORT
from headwater.errors import HeadwaterError, UsageError
from headwater.profiles import describe

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.log.protocol import TimedLog
    from headwater.server import Node

__all__ = ["NodeRun", "load_checked", "open_profile", "run"]

_STARTUP_DELAY: Final = 0.3  # seconds in which waiting clients are served: importing Spark's modules holds the GIL
_JOIN_TIMEOUT: Final = 5.0  # seconds for a file that is still loading when the node stops


def run(
    app: str | None = None,
    /,
    *,
    port: int | None = None,
    rebuild: tuple[str, ...] = (),
    until_current: bool = False,
    explain_start: bool = False,
    pipelines: PipelineOptions = EVERY_PIPELINE,
    options: Options = DEFAULTS,
) -> int:
    """Run an app: its node, pipelines, workers and captures.

    The node serves the log and the views over HTTP on 127.0.0.1 and maintains the log: retention, compaction, idle
    markers. Pipelines on Spark, workers and captures run in their own processes; an app without pipelines does not
    start Spark. On a terminal, a table shows the state, rate, lag and last error of each pipeline; elsewhere there is a
    line for each change, and every ten seconds while events are processed. If the profile's log is on Kafka, no node is
    started, only pipelines, workers and captures.

    Ctrl-C ends everything within 3 seconds, with exit code 130: what runs longer is killed, which loses nothing.
    SIGTERM gives running batches and messages up to 45 seconds.

    Args:
        app: A Python file that defines an app; if left out, only the node is started.
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642].
        rebuild: A changed view to rebuild from the log; may be given several times.
        until_current: Bring captured tables to the present end of their databases and pipelines to the present end of
            the log, then exit; no node is started.
        explain_start: Print the wall and CPU time of each step of the start, up to the first batch of each pipeline.
        pipelines: Which pipelines to run; they read what the others have committed before.
        options: Options of every command.
    """
    folder, selection = local_folder(options), pipelines.selection()
    if until_current:
        from headwater.server.pid_file import forget_killed_node

        code = _run_until_current(RunSettings(app, folder, rebuild, selection, options, explain_start))
        forget_killed_node(folder)
        return code
    if app is not None:
        from headwater.app_file import check_app_file

        check_app_file(app)
    settings = RunSettings(app, folder, rebuild, selection, options, explain_start)
    if options.kafka:
        return _run_without_node(settings)
    from headwater.server import Node

    store = options.effective_profile.store
    node = Node(folder, PORT.number(port), store=store.resolve() if store else None)
    runner = NodeRun(node, settings)
    try:
        node.serve(runner.start, runner.begin_stop)
    finally:
        runner.stop()
    return 0


class NodeRun:
    """Loads an app and starts its processes while the node already answers.

    Args:
        node: The node.
        settings: What to run.
    """

    def __init__(self, node: Node, settings: RunSettings) -> None:
        self._node = node
        self._settings = settings
        self._output = Output(settings.options)
        self._processes = AppProcesses(settings)
        self._error: BaseException | None = None
        self._loading = threading.Thread(target=self._run, name="headwater-app", daemon=True)
        self._stopping: threading.Thread | None = None

    def start(self) -> None:
        """Load the app, create its topics and start its processes, in a thread."""
        if self._settings.file is not None and self._output.terminal:
            self._output.note(f"the node answers at {self._node.url}; loading {self._settings.file}")
        self._loading.start()

    def begin_stop(self, interrupted: bool) -> None:
        """Begin to stop the processes, in a thread, while the node finishes its requests."""
        if interrupted:
            exit_soon(self._processes)
        stop = self._processes.stop
        self._stopping = threading.Thread(target=stop, args=[interrupted], name="headwater-stop", daemon=True)
        self._stopping.start()

    def stop(self) -> None:
        """Wait until the processes have ended; raise the error that kept the app from starting."""
        if self._stopping is None:
            self._processes.stop(interrupted=False)
        else:
            self._stopping.join()
        if self._loading.ident is not None:
            self._loading.join(_JOIN_TIMEOUT)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        time.sleep(_STARTUP_DELAY)
        try:
            self._start_app()
        except BaseException as error:  # `stop` raises it again in the main thread
            self._error = error
            self._node.stop()

    def _start_app(self) -> None:
        app = None
        if self._settings.file is not None:
            app = load_checked(self._settings.file, self._settings, self._node.log)
            self._create(app)
        self._print_banner(app)
        if app is not None:
            self._processes.start(app, self._open_views, self._node.url)

    def _open_views(self) -> OpenViews:
        from headwater.backends import open_views

        store = self._settings.options.effective_profile.store
        return self._node.log, open_views(self._node.log, store.resolve() if store else None)

    def _create(self, app: App) -> None:
        """Create the topics and queues of an app."""
        for topic in app.topics.values():
            try:
                self._node.log.create(topic)
            except HeadwaterError as error:
                error.location = error.location or topic.location
                raise
        declare_queues(app, self._settings.folder, self._settings.options.profile)

    def _print_banner(self, app: App | None) -> None:
        log, url, folder = self._node.log, self._node.url, self._settings.folder
        names = log.topics()
        events = sum(event_count(log, name) for name in names)
        document = {"app": app.name if app else None, "url": url, "folder": str(folder)}
        self._output.print_record(
            document | {"topics": len(names), "events": events, "queues": len(app.queues) if app else 0},
            [
                f"headwater {__version__}  {app.name if app else 'log'}   {url}",
                f"log        ready   {plural(len(names), 'topic')}, {plural(events, 'event')} in {folder}",
                *_queue_lines(app),
                *(["spark      starting; log and web page already work"] if app and app.pipelines else []),
            ],
        )
        if self._output.terminal and not (app and app.pipelines):
            self._output.note("Ctrl-C stops the node")


def load_checked(file: str, settings: RunSettings, log: TimedLog | None = None, *, again: bool = False) -> App:
    """Load the app, and check its graph and the selection before Spark starts; creates topics of captured tables.

    Args:
        file: The app's file.
        settings: What to run.
        log: The open log; opened for the call, if omitted.
        again: Whether the modules of the app are imported again, as their files are now.
    """
    from headwater.app_file import load_app, reload_app

    app = reload_app(file) if again else load_app(file)
    if app.captures:
        from headwater.captures import bind_captures

        with contextlib.ExitStack() as opened:
            log = log or opened.enter_context(contextlib.closing(open_profile_log(settings.options)))
            bind_captures(app, settings.options.effective_profile, settings.folder, log)
    settings.selection.names(app.resolve())
    return app


def _run_without_node(settings: RunSettings) -> int:
    """Run the pipelines and workers of an app whose log is on Kafka, until Ctrl-C or SIGTERM."""
    profile = settings.options.effective_profile
    if settings.file is None:
        what = "there is nothing to run: the log is on Kafka, and no app is given"
        raise UsageError(what, fix=f"headwater run app.py --profile {profile.name}")
    output = Output(settings.options)
    loaded = load_checked(settings.file, settings)
    declare_queues(loaded, settings.folder, settings.options.profile)
    processes, (ended, interrupted) = AppProcesses(settings), catch_signals()
    output.print_record(
        {"app": loaded.name, "folder": str(settings.folder), "profile": profile.name},
        [
            f"headwater {__version__}  {loaded.name}",
            *describe(profile, str(settings.folder)),
            *(["spark        starting"] if loaded.pipelines else []),
        ],
    )
    try:
        processes.start(loaded, lambda: open_profile(settings), "")
        while not ended.wait(0.5):
            if processes.error is not None:
                raise processes.error
    finally:
        if interrupted.is_set():
            exit_soon(processes)
        processes.stop(interrupted.is_set())
    if interrupted.is_set():
        raise KeyboardInterrupt
    return 0


def open_profile(settings: RunSettings) -> OpenViews:
    """Open log and views of the profile, or of the data folder."""
    from headwater.backends import open_views

    profile, log = settings.options.effective_profile, open_profile_log(settings.options)
    return log, open_views(log, profile.store.resolve() if profile.store else None, settings.folder)


def _run_until_current(settings: RunSettings) -> int:
    from headwater.runner import catch_up

    app, folder, options, selection = settings.file, settings.folder, settings.options, settings.selection
    output = Output(options)
    if app is None:
        raise UsageError("--until-current needs an app", fix="headwater run app.py --until-current")
    loaded = load_checked(app, settings)
    if not (loaded.pipelines or loaded.captures):
        what = "--until-current needs pipelines or captures, and the app has none"
        raise UsageError(what, fix=f"headwater run {app}")
    declare_queues(loaded, folder, options.profile)
    if loaded.captures:
        _capture_until_current(loaded, settings, output)
    if not loaded.pipelines:
        return 0
    output.note("Spark is starting")
    selected = selection.names(loaded.resolve())
    with EngineProgress(output) as progress:
        catch_up(
            app,
            folder,
            settings.rebuild,
            profile=options.profile,
            notify=progress.note,
            selection=selection,
            on_progress=progress.update,
            explain_start=settings.explain_start,
        )
    whose = "all pipelines have" if len(selected) == len(loaded.pipelines) else f"{', '.join(selected)}:"
    output.print_record({"current": True, "folder": str(folder)}, [f"{whose} read the log to its end"])
    return 0


def _capture_until_current(app: App, settings: RunSettings, output: Output) -> None:
    """Bring the captured tables to the present end of their databases."""
    from headwater.captures import captures_of, run_until_current
    from headwater.runner import record_app

    record_app(str(Path(settings.file or "").absolute()), settings.folder)
    profile = settings.options.effective_profile
    captures = captures_of(app, profile)
    with contextlib.closing(open_profile_log(settings.options)) as log:
        run_until_current(captures, profile, log, settings.folder)
        for capture in captures:
            output.note(f"capture {capture.name}: {', '.join(capture.tables)} at the present end of the database")


def _queue_lines(app: App | None) -> list[str]:
    if app is None or not (app.queues or app.answers):
        return []
    workers = sum(len(queue.workers) for queue in app.queues.values())
    answers = f", {plural(len(app.answers), 'answer')}" if app.answers else ""
    return [f"queues     ready   {plural(len(app.queues), 'queue')}, {plural(workers, 'worker')}{answers}"]
