"""`headwater run`: the node, with the topics of an app."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from headwater import __version__
from headwater.cli.commands.topics import events_held
from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Output
from headwater.cli.words import plural
from headwater.config import PORT
from headwater.errors import HeadwaterError, UsageError
from headwater.profiles import describe

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.app import App
    from headwater.log import EventLog, Topic
    from headwater.runner import EngineProcess, WorkerProcesses
    from headwater.server import Node

__all__ = ["run"]

_PAGE_FIRST: Final = 0.3  # seconds for those who wait at the port: Spark's modules take Python's lock
_PATIENCE: Final = 5.0  # seconds for a file that is being loaded when the node is told to end


def run(
    app: str | None = None,
    /,
    *,
    port: int | None = None,
    rebuild: tuple[str, ...] = (),
    until_current: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run an app: the node with its topics, its pipelines on Spark, and the workers of its queues.

    The node serves the log and the views over HTTP, on this machine only, and keeps the log in order: retention,
    compaction, time marks. Spark starts in the background, in a process of its own, and so do workers; an app without
    pipelines starts no Spark. Ctrl-C ends all of them; requests and messages under way get a few seconds. With a
    profile whose log is on Kafka, the brokers do the node's work: only pipelines and workers run.

    Args:
        app: A Python file that defines an app; without one, the log is served as it is.
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642].
        rebuild: A view that was edited, to be made anew from the log; may be given several times.
        until_current: Run the pipelines over all that is in the log now, then end; no node is started.
        options: Options of every command.
    """
    folder = new_folder(options)
    if until_current:
        return _until_current(app, folder, rebuild, options)
    if app is not None:
        from headwater.loading import checked_file

        checked_file(app)
    if options.kafka:
        return _without_node(app, folder, rebuild, options)
    from headwater.server import Node

    store = options.settled.store
    node = Node(folder, PORT.number(port), store=store.resolved() if store else None)
    running = _Running(node, folder, app, rebuild, options)
    try:
        node.serve(running.begin)
    finally:
        running.end()
    return 0


class _Running:
    """An app beside the node that serves it. Its file is loaded, with Spark's modules, while the node answers."""

    def __init__(
        self, node: Node, folder: Path, file: str | None, rebuild: tuple[str, ...], options: Options
    ) -> None:
        self._node = node
        self._profile = options.profile
        self._folder = folder
        self._file = file
        self._rebuild = rebuild
        self._output = Output(options)
        self._engine: EngineProcess | None = None
        self._workers: WorkerProcesses | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="headwater-app", daemon=True)

    def begin(self) -> None:
        """Load the app, create its topics, start its pipelines; the node goes on serving meanwhile."""
        if self._file is not None and self._output.terminal:
            self._output.note(f"the node answers at {self._node.url}; loading {self._file}")
        self._thread.start()

    def end(self) -> None:
        """End the pipelines; raises what kept the app from starting."""
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)
        if self._workers is not None:
            self._workers.stop()
        if self._engine is not None:
            self._engine.stop()
        if self._error is not None:
            raise self._error

    def _load(self) -> None:
        time.sleep(_PAGE_FIRST)
        try:
            app = None if self._file is None else _loaded(self._file)
            for topic in app.topics.values() if app else ():
                _create(self._node.log, topic)
            if app is not None and app.pipelines:
                from headwater.runner import EngineProcess

                self._engine = EngineProcess(str(self._file), self._folder, self._rebuild, self._profile)
                self._engine.start()
            if app is not None:
                self._workers = _workers(app, str(self._file), self._folder, self._profile, self._output)
            self._tell(app)
        except BaseException as error:
            self._error = error
            self._node.stop()

    def _tell(self, app: App | None) -> None:
        log, url = self._node.log, self._node.url
        names = log.topics()
        events = sum(events_held(log, name) for name in names)
        document = {"app": app.name if app else None, "url": url, "folder": str(self._folder)}
        self._output.record(
            document | {"topics": len(names), "events": events, "queues": len(app.queues) if app else 0},
            [
                f"headwater {__version__}  {app.name if app else 'log'}   {url}",
                f"log        ready   {plural(len(names), 'topic')}, {plural(events, 'event')} in {self._folder}",
                *_queue_lines(app),
                *(["spark      starting; log and page already work"] if self._engine else []),
            ],
        )
        if self._output.terminal:
            self._output.note("Ctrl-C ends it")


def _loaded(file: str) -> App:
    from headwater.loading import load_app

    app = load_app(file)
    app.resolve()
    return app


def _without_node(app: str | None, folder: Path, rebuild: tuple[str, ...], options: Options) -> int:
    """The pipelines of an app whose log is on Kafka, until Ctrl-C or SIGTERM."""
    from headwater.runner import EngineProcess

    if app is None:
        what = "there is nothing to run: the log is on Kafka, whose brokers serve it"
        raise UsageError(what, fix=f"headwater run app.py --profile {options.settled.name}")
    output = Output(options)
    loaded = _loaded(app)
    engine = EngineProcess(app, folder, rebuild, options.profile, output.note) if loaded.pipelines else None
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if engine is not None:
        engine.start()
    workers = _workers(loaded, app, folder, options.profile, output)
    where = describe(options.settled, str(folder))
    output.record(
        {"app": loaded.name, "folder": str(folder), "profile": options.settled.name},
        [f"headwater {__version__}  {loaded.name}", *where, *(["spark        starting"] if engine else [])],
    )
    try:
        while not ended.wait(0.5):
            if engine is not None and engine.error:
                raise engine.error
    finally:
        if workers is not None:
            workers.stop()
        if engine is not None:
            engine.stop()
    return 0


def _until_current(app: str | None, folder: Path, rebuild: tuple[str, ...], options: Options) -> int:
    from headwater.runner import catch_up

    output = Output(options)

    if app is None:
        raise UsageError("there is nothing to run", fix="headwater run app.py --until-current")
    if not _loaded(app).pipelines:
        raise UsageError(
            "the app has no pipelines, so there is nothing to bring up to date", fix=f"headwater run {app}"
        )
    output.note("Spark is starting")
    catch_up(app, folder, rebuild, profile=options.profile, tell=output.note)
    output.record({"current": True, "folder": str(folder)}, ["all pipelines have read the log to its end"])
    return 0


def _workers(
    app: App, file: str, folder: Path, profile: str | None, output: Output
) -> WorkerProcesses | None:
    """Declare the app's queues and start its workers and answers, if it has any."""
    if not app.queues and not app.answers:
        return None
    from headwater.profiles import read_profile
    from headwater.queues import broker_place, open_broker
    from headwater.runner import WorkerProcesses
    from headwater.workers.process import shares

    broker = open_broker(broker_place(read_profile(profile), folder))
    try:
        for queue in app.queues.values():
            broker.declare(queue.definition)
    finally:
        broker.close()
    workers = WorkerProcesses(file, folder, shares(app), profile, output.note)
    workers.start()
    return workers


def _queue_lines(app: App | None) -> list[str]:
    if app is None or not (app.queues or app.answers):
        return []
    workers = sum(len(queue.workers) for queue in app.queues.values())
    answers = f", {plural(len(app.answers), 'answer')}" if app.answers else ""
    return [f"queues     ready   {plural(len(app.queues), 'queue')}, {plural(workers, 'worker')}{answers}"]


def _create(log: EventLog, topic: Topic) -> None:
    """Create a topic; an error quotes the line where it is declared."""
    try:
        log.create(topic)
    except HeadwaterError as error:
        error.place = error.place or topic.place
        raise
