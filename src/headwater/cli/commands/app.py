"""The commands `run`, `plan` and `prepare`: run an app in a node, show its plan, and speed up Spark's start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater import __version__
from headwater.cli.commands.topics import event_count
from headwater.cli.formatting import escape, format_bytes, plural
from headwater.cli.options import DEFAULTS, Options, local_folder
from headwater.cli.output import Output
from headwater.config import PORT
from headwater.errors import EngineFailedError, HeadwaterError, UsageError
from headwater.profiles import describe

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.inspection import Inspection
    from headwater.log import EventLog, Topic
    from headwater.pipelines import Graph
    from headwater.plan import PipelineCheck, Plan
    from headwater.runner import EngineProcess, WorkerProcesses
    from headwater.server import Node

__all__ = ["exit_code", "plan", "prepare", "run"]


def plan(app: str, /, *, mermaid: bool = False, spark: bool = True, options: Options = DEFAULTS) -> int:
    """Show what an app would do, and what is wrong with it.

    The graph, types, keys, lateness and delivery of every result are there at once. Then log, store and Spark's
    master are asked what is there: which topics and tables would be created, and what differs; nothing is touched.
    Last, Spark looks at each pipeline without running it: the type of its rows, its state, and whether what ran
    before can go on, by what lies with its checkpoints. The exit code is 1 when something is wrong, 4 when
    something does not fit what is there, 3 when a service does not answer.

    Args:
        app: A Python file that defines an app.
        mermaid: Print the graph as Mermaid text and nothing else.
        spark: Let Spark check the pipelines; without it the answer is there at once.
        options: Options of every command.
    """
    from headwater.app_file import load_app
    from headwater.pipelines import faults
    from headwater.plan import Plan

    output = Output(options)
    loaded = load_app(app)
    if found := faults(loaded.topics.values(), loaded.pipelines.values()):
        return _print_faults(output, loaded, found)
    planned = Plan.of(loaded)
    if mermaid:
        output.print_text(planned.mermaid())
        return 0
    if not output.json:
        profile_lines = (
            [*describe(options.effective_profile, options.data), ""] if options.effective_profile.location else []
        )
        output.print_text("\n".join(map(escape, [*profile_lines, *planned.lines()])))
    if not options.remote:
        planned = planned.with_inspection(_inspect(options, planned.graph))
        _print_inspection(output, planned)
    if spark and planned.graph.pipelines:
        planned = planned.with_checks(_check_pipelines(output, app, options))
    _print_checks(output, planned)
    return exit_code(planned)


def exit_code(planned: Plan) -> int:
    """1 when a pipeline cannot run, 4 when something does not fit what is there, 3 when a service does not answer."""
    if planned.has_errors:
        return 1
    if planned.is_refused:
        return 4
    return max((error.exit_code for error in planned.inspection.errors), default=0) if planned.inspection else 0


def _inspect(options: Options, graph: Graph) -> Inspection:
    from headwater.inspection import inspect_app

    return inspect_app(options.effective_profile, local_folder(options), graph, kafka=options.kafka)


def _print_inspection(output: Output, planned: Plan) -> None:
    if planned.inspection is not None and not output.json:
        output.print_text("\n".join(map(escape, ["", *planned.inspection.lines()])))


def _check_pipelines(output: Output, app: str, options: Options) -> list[PipelineCheck]:
    """What the engine finds out; it takes as long as Spark takes to start."""
    from headwater.runner import check

    if not output.json:
        output.note("Spark is starting, to check the pipelines; --no-spark leaves that out")
    return check(app, local_folder(options), options.profile)


def _print_checks(output: Output, planned: Plan) -> None:
    if output.json:
        output.print_record(planned.document(), [])
    elif planned.checks:
        output.print_text("\n".join(map(escape, ["", *planned.check_lines()])))


def _print_faults(output: Output, app: App, found: list[HeadwaterError]) -> int:
    if output.json:
        output.print_record({"app": app.name, "faults": [fault.problem() for fault in found]}, [])
    else:
        for fault in found:
            for line in fault.render().splitlines():
                output.note(line)
        output.note(plural(len(found), "fault"))
    return 1


_DEMO_DURATION: Final = "5s"
_REQUIRED_CLASSES: Final = "org/apache/spark/sql/execution/streaming/"


def prepare(*, options: Options = DEFAULTS) -> int:
    """Let Spark start faster from now on.

    To be run once for an environment; it takes about a minute. Runs the demo for a moment to see which classes of Java
    Spark needs, and lets Java write them down as it has them in memory, into the environment that Headwater is
    installed in. Nothing needs it, and nothing else changes. Run it again when Java or Spark was replaced.

    Args:
        options: Options of every command.
    """
    from headwater.engine.spark.java import find_java, prepare_archive_path, spark_jars, write_archive

    output, java, jars = Output(options), find_java(), spark_jars()
    prepare_archive_path(java, jars)  # rather now than after a minute
    with tempfile.TemporaryDirectory(prefix="headwater-prepare-") as scratch:
        classes = Path(scratch, "classes")
        output.note(f"running the demo for {_DEMO_DURATION}, to see what Spark loads ...")
        _run_demo(Path(scratch), classes)
        output.note("writing it down ...")
        archive = write_archive(java, jars, classes)
    output.note(f"Spark starts from {archive} ({format_bytes(archive.stat().st_size)})")
    return 0


def _run_demo(folder: Path, classes: Path) -> None:
    """In a folder and with settings of its own: no profile of the user's may lead it to servers of theirs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    told = environment.get("JDK_JAVA_OPTIONS", "")
    environment["JDK_JAVA_OPTIONS"] = f'{told} -XX:DumpLoadedClassList="{classes}"'.strip()
    program = "import sys; from headwater.cli.entry import main; sys.exit(main())"
    words = ["demo", "--for", _DEMO_DURATION, "--rate", "100", "--port", "0", "--data", str(folder / "data")]
    command = [sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
    # Whether the demo found a fault is not the question here.
    if not classes.is_file() or _REQUIRED_CLASSES not in classes.read_text():
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineFailedError(
            "the demo did not come to its first batch",
            detail="\n".join(said[-3:]) or None,
            fix="headwater demo --for 15s",
        )


_STARTUP_DELAY: Final = 0.3  # seconds for those who wait at the port: Spark's modules take Python's lock
_JOIN_TIMEOUT: Final = 5.0  # seconds for a file that is being loaded when the node is told to end


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
    compaction, idle markers. Spark starts in the background, in a process of its own, and so do workers; an app without
    pipelines starts no Spark. Ctrl-C ends all of them; requests and messages under way get a few seconds. With a
    profile whose log is on Kafka, the brokers do the node's work: only pipelines and workers run.

    Args:
        app: A Python file that defines an app; without one, the log is served as it is.
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642].
        rebuild: A view that was edited, to be made anew from the log; may be given several times.
        until_current: Run the pipelines over all that is in the log now, then end; no node is started.
        options: Options of every command.
    """
    folder = local_folder(options)
    if until_current:
        return _run_until_current(app, folder, rebuild, options)
    if app is not None:
        from headwater.app_file import check_app_file

        check_app_file(app)
    if options.kafka:
        return _run_without_node(app, folder, rebuild, options)
    from headwater.server import Node

    store = options.effective_profile.store
    node = Node(folder, PORT.number(port), store=store.resolve() if store else None)
    runner = _AppRunner(node, folder, app, rebuild, options)
    try:
        node.serve(runner.start)
    finally:
        runner.stop()
    return 0


class _AppRunner:
    """An app beside its node; its file is loaded, with Spark's modules, while the node answers."""

    def __init__(self, node: Node, folder: Path, file: str | None, rebuild: tuple[str, ...], options: Options) -> None:
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

    def start(self) -> None:
        """Load the app, create its topics, start its pipelines; the node serves meanwhile."""
        if self._file is not None and self._output.terminal:
            self._output.note(f"the node answers at {self._node.url}; loading {self._file}")
        self._thread.start()

    def stop(self) -> None:
        """End the pipelines; raises what kept the app from starting."""
        if self._thread.ident is not None:
            self._thread.join(_JOIN_TIMEOUT)
        if self._workers is not None:
            self._workers.stop()
        if self._engine is not None:
            self._engine.stop()
        if self._error is not None:
            raise self._error

    def _load(self) -> None:
        time.sleep(_STARTUP_DELAY)
        try:
            app = None if self._file is None else _load_app(self._file)
            for topic in app.topics.values() if app else ():
                _create_topic(self._node.log, topic)
            if app is not None and app.pipelines:
                from headwater.runner import EngineProcess

                self._engine = EngineProcess(str(self._file), self._folder, self._rebuild, self._profile)
                self._engine.start()
            if app is not None:
                self._workers = _start_workers(app, str(self._file), self._folder, self._profile, self._output)
            self._print_ready(app)
        except BaseException as error:
            self._error = error
            self._node.stop()

    def _print_ready(self, app: App | None) -> None:
        log, url = self._node.log, self._node.url
        names = log.topics()
        events = sum(event_count(log, name) for name in names)
        document = {"app": app.name if app else None, "url": url, "folder": str(self._folder)}
        self._output.print_record(
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


def _load_app(file: str) -> App:
    from headwater.app_file import load_app

    app = load_app(file)
    app.resolve()
    return app


def _run_without_node(app: str | None, folder: Path, rebuild: tuple[str, ...], options: Options) -> int:
    """The pipelines of an app whose log is on Kafka, until Ctrl-C or SIGTERM."""
    from headwater.runner import EngineProcess

    if app is None:
        what = "there is nothing to run: the log is on Kafka, whose brokers serve it"
        raise UsageError(what, fix=f"headwater run app.py --profile {options.effective_profile.name}")
    output = Output(options)
    loaded = _load_app(app)
    engine = EngineProcess(app, folder, rebuild, options.profile, output.note) if loaded.pipelines else None
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if engine is not None:
        engine.start()
    workers = _start_workers(loaded, app, folder, options.profile, output)
    where = describe(options.effective_profile, str(folder))
    output.print_record(
        {"app": loaded.name, "folder": str(folder), "profile": options.effective_profile.name},
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


def _run_until_current(app: str | None, folder: Path, rebuild: tuple[str, ...], options: Options) -> int:
    from headwater.runner import catch_up

    output = Output(options)

    if app is None:
        raise UsageError("there is nothing to run", fix="headwater run app.py --until-current")
    loaded = _load_app(app)
    if not loaded.pipelines:
        raise UsageError(
            "the app has no pipelines, so there is nothing to bring up to date", fix=f"headwater run {app}"
        )
    _declare_queues(loaded, folder, options.profile)
    output.note("Spark is starting")
    catch_up(app, folder, rebuild, profile=options.profile, notify=output.note)
    output.print_record({"current": True, "folder": str(folder)}, ["all pipelines have read the log to its end"])
    return 0


def _start_workers(app: App, file: str, folder: Path, profile: str | None, output: Output) -> WorkerProcesses | None:
    """Declare the app's queues and start its workers and answers, if it has any."""
    if not app.queues and not app.answers:
        return None
    from headwater.runner import WorkerProcesses
    from headwater.workers.process import plan_processes

    _declare_queues(app, folder, profile)
    workers = WorkerProcesses(file, folder, plan_processes(app), profile, output.note)
    workers.start()
    return workers


def _declare_queues(app: App, folder: Path, profile: str | None) -> None:
    """Create the app's queues, whether or not it has workers: other programs may publish to them at once."""
    if not app.queues:
        return
    from headwater.backends import broker_url, open_broker
    from headwater.profiles import read_profile

    broker = open_broker(broker_url(read_profile(profile), folder))
    try:
        for queue in app.queues.values():
            broker.declare(queue.definition)
    finally:
        broker.close()


def _queue_lines(app: App | None) -> list[str]:
    if app is None or not (app.queues or app.answers):
        return []
    workers = sum(len(queue.workers) for queue in app.queues.values())
    answers = f", {plural(len(app.answers), 'answer')}" if app.answers else ""
    return [f"queues     ready   {plural(len(app.queues), 'queue')}, {plural(workers, 'worker')}{answers}"]


def _create_topic(log: EventLog, topic: Topic) -> None:
    """Create a topic; an error quotes the line where it is declared."""
    try:
        log.create(topic)
    except HeadwaterError as error:
        error.location = error.location or topic.location
        raise
