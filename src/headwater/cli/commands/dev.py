"""The commands `init` and `dev`: make a new app, and run it while it is written."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.cli.commands.run import NodeRun, load_checked, open_profile
from headwater.cli.options import DEFAULTS, EVERY_PIPELINE, Options, PipelineOptions, local_folder
from headwater.cli.output import Output
from headwater.cli.run.app_processes import AppProcesses, RunSettings
from headwater.cli.run.display import RunDisplay
from headwater.cli.run.messages import RunMessage, describe_error, describe_failure, describe_reload
from headwater.cli.run.status import StatusReader
from headwater.config import PORT
from headwater.errors import BadAppError, BadSettingError, HeadwaterError, PortTakenError
from headwater.invocation import Invocation, program

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.dev.app_watcher import AppWatcher
    from headwater.server import Node
    from headwater.server.pid_file import NodeInfo
    from headwater.store.status import ReloadReport

__all__ = ["dev", "init"]

_DEFAULT_APP: Final = "app.py"
_POLL_INTERVAL: Final = 0.2  # seconds between looks whether to stop

_ORDER = """'{"order_id": "o-1", "category": "tea", "cents": 450, "placed_at": "2026-01-01T12:00:00Z"}'"""


def init(name: str, /, *, options: Options = DEFAULTS) -> int:
    """Make a new app in a folder of its own, with a test that passes.

    Refuses a folder that is not empty, and prints the commands to go on with.

    Args:
        name: The folder, whose last part becomes the name of the app.
        options: Options of every command.
    """
    from headwater.dev.new_app import create_app

    folder = Path(name)
    created = create_app(folder)
    commands = {
        f"cd {folder}": "",
        "headwater dev": "run the app; it reloads whenever you save a file",
        f"headwater send orders {_ORDER}": "in a second terminal",
        "headwater view revenue": "",
        "pytest": "test it (pip install pytest)",
    }
    lines = [f"  {command:28}   # {remark}" if remark else f"  {command}" for command, remark in commands.items()]
    document = {"folder": str(folder), "files": [str(path) for path in created], "commands": list(commands)}
    Output(options).print_record(document, [f"created {', '.join(map(str, created))}", "next:", *lines])
    return 0


def dev(
    app: str = _DEFAULT_APP,
    /,
    *,
    port: int | None = None,
    rebuild: tuple[str, ...] = (),
    pipelines: PipelineOptions = EVERY_PIPELINE,
    options: Options = DEFAULTS,
) -> int:
    """Run an app while you write it: it reloads whenever you save a file.

    Like `run`, with node, page and table. After an edit, Spark goes on: changed pipelines are replaced, with those that
    read them, and the others keep running; workers and answers start anew. A file that cannot be loaded, or a pipeline
    that is refused, is shown with its error, and what ran before keeps running. If the state of a view does not fit the
    edit, `r` and Enter rebuilds it from the log. A second `dev` on the same data folder shows the first one.

    Args:
        app: A Python file that defines an app.
        port: The port of the node and the page [default: HEADWATER_PORT, else 8642, or a free one if that is taken].
        rebuild: A changed view to rebuild from the log at the start; may be given several times.
        pipelines: Which pipelines to run; they read what the others have committed before.
        options: Options of every command.
    """
    from headwater.server.pid_file import find_node

    folder = local_folder(options)
    if options.kafka:
        what = f"dev needs a log in a folder, and that of profile {options.effective_profile.name} is on Kafka"
        raise BadSettingError(what, fix=f"headwater run {app}", setting="profile")
    settings = RunSettings(app, folder, rebuild, pipelines.selection(), options)
    running = find_node(folder)
    if running is not None:
        return _attach(running, settings)
    _require_file(app)
    store = options.effective_profile.store
    node = _open_node(folder, port, store.resolve() if store else None)
    runner = _DevRun(node, settings)
    try:
        node.serve(runner.start, runner.begin_stop)
    finally:
        runner.stop()
    return 0


def _require_file(app: str) -> None:
    """Check that the file exists; whether it can be loaded is another matter, because that may soon change."""
    if not Path(app).is_file():
        what = f"no file {app!r}" if app != _DEFAULT_APP else f"there is no {_DEFAULT_APP} in this folder"
        names = sorted(path.name for path in Path(app).parent.glob("*.py"))
        detail = f"Python files here: {', '.join(names[:5])}" if names else "there is no Python file here"
        fix = f"headwater dev {Path(app).parent / names[0]}" if len(names) == 1 else "headwater init shop"
        raise BadAppError(what, detail=detail, fix=fix, path=app)


def _open_node(folder: Path, port: int | None, store: str | None) -> Node:
    """Returns a node on the port that was asked for; on a free one, if none was and the default is taken."""
    from headwater.server import Node

    try:
        return Node(folder, PORT.number(port), store=store)
    except PortTakenError:
        if port is not None or PORT.variable in os.environ:
            raise
        return Node(folder, 0, store=store)


class _DevRun(NodeRun):
    """A run that loads its app again after each edit."""

    def __init__(self, node: Node, settings: RunSettings) -> None:
        super().__init__(node, settings)
        self._file = settings.file or _DEFAULT_APP
        self._interactive = sys.stdin is not None and sys.stdin.isatty()
        options = settings.options
        self._invocation = Invocation(self._file, options.data, options.profile, program=program())
        self._processes = AppProcesses(settings, self._on_reload, self._on_failed)
        self._ended = threading.Event()

    def begin_stop(self, interrupted: bool) -> None:
        """Begin to stop the processes, in a thread, while the node finishes its requests."""
        self._ended.set()
        super().begin_stop(interrupted)

    def stop(self) -> None:
        """Wait until the processes have ended; raise the error that kept the app from starting."""
        self._ended.set()
        super().stop()

    @property
    def _rebuild(self) -> str:
        """How to rebuild a view."""
        if self._interactive:
            return "type r and Enter: it is rebuilt from the log"
        return self._invocation.complete(f"stop dev; headwater dev {self._file} --rebuild {{}}")

    def _start_app(self) -> None:
        from headwater.dev.app_watcher import AppWatcher

        watcher = AppWatcher(self._file)
        app = self._load_first(watcher)
        if app is None:
            return
        self._print_banner(app)
        self._processes.start(app, self._open_views, self._node.url)
        if self._interactive:
            threading.Thread(target=self._read_keys, name="headwater-keys", daemon=True).start()
        loaded = True
        while not self._ended.is_set():
            if watcher.wait(_POLL_INTERVAL, beside=not loaded):
                loaded = self._reload()

    def _load_first(self, watcher: AppWatcher) -> App | None:
        """Load the app, after as many edits as that takes; returns None if the run ends before."""
        while not self._ended.is_set():
            try:
                return self._load()
            except HeadwaterError as error:
                self._invocation.complete_error(error)
                waiting = f"waiting for an edit of {self._file}; the node answers at {self._node.url}"
                self._processes.show(RunMessage("error", f"{error.render()}\n{waiting}", {"problem": error.problem()}))
            while not (self._ended.is_set() or watcher.wait(_POLL_INTERVAL, beside=True)):
                pass
        return None

    def _load(self) -> App:
        """Load the app as its files are now, check it, and create what it needs.

        Raises:
            HeadwaterError: The app cannot run.
        """
        app = load_checked(self._file, self._settings, self._node.log, again=True)
        self._create(app)
        return app

    def _reload(self) -> bool:
        """Take over an edit; returns whether the file could be loaded."""
        began = time.monotonic()
        try:
            app = self._load()
        except HeadwaterError as error:
            self._invocation.complete_error(error)
            self._processes.show(describe_error(error))
            return False
        if not self._processes.reload(app, self._open_views, self._node.url):
            seconds = time.monotonic() - began
            what = "Spark starts with it" if app.pipelines else "its workers have started anew"
            text = f"reloaded {self._file} in {seconds:.1f} s: {what}"
            self._processes.show(RunMessage("reloaded", text, {"seconds": round(seconds, 2)}))
        return True

    def _on_reload(self, report: ReloadReport) -> None:
        self._processes.show(describe_reload(report, self._file, self._rebuild))

    def _on_failed(self, name: str, error: HeadwaterError) -> None:
        self._processes.show(describe_failure(name, error, self._rebuild))

    def _read_keys(self) -> None:
        """Rebuild when "r" is typed; a process in the background reads nothing, which would stop it."""
        keys = sys.stdin.fileno()
        while not self._ended.is_set():
            ready, _, _ = select.select([keys], [], [], _POLL_INTERVAL)
            if ready and _in_background(keys):
                self._ended.wait(_POLL_INTERVAL)
            elif ready:
                typed = os.read(keys, 4096)
                if not typed:  # end of input
                    return
                if typed.strip().lower() == b"r" and not self._processes.rebuild():
                    self._processes.show(RunMessage("error", "there is nothing to rebuild: Spark does not run"))


def _in_background(terminal: int) -> bool:
    """Whether a read from the terminal would stop this process."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:  # it is not the terminal that controls this process
        return False


def _attach(running: NodeInfo, settings: RunSettings) -> int:
    """Show what runs on the folder already: on a terminal until Ctrl-C, which does not end it, elsewhere once."""
    from headwater.app_file import load_app
    from headwater.runner import last_app

    output = Output(settings.options)
    file = last_app(settings.folder)
    app = None if file is None else load_app(file)
    names = settings.selection.names(app.resolve()) if app else ()
    reader = StatusReader(lambda: open_profile(settings), settings.folder, names)
    title = app.name if app else "log"
    display = RunDisplay(output, reader, title, running.url, hint="Ctrl-C ends this display, not the app")
    status = reader.read()
    output.print_record(
        {
            "app": app.name if app else None,
            "url": running.url,
            "pid": running.pid,
            "started_at": running.started_at,
            "engine": status.engine,
            "pipelines": [{"name": one.name, "state": one.state, "detail": one.detail} for one in status.pipelines],
        },
        [
            f"{title} runs already at {running.url} (process {running.pid}, since {running.started_at})",
            *(f"  {one.name} is {one.state}{f': {one.detail}' if one.detail else ''}" for one in status.pipelines),
        ],
    )
    if not display.animated:
        return 0
    display.start()
    try:
        while running.pid and Path(f"/proc/{running.pid}").exists():
            time.sleep(_POLL_INTERVAL)
        output.note(f"process {running.pid} has ended")
    finally:
        display.close()
    return 0
