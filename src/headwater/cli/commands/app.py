"""The commands `run`, `plan` and `prepare`: run an app in a node, show its plan, and speed up Spark's start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
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
    from headwater.plan import Plan
    from headwater.runner import EngineProcess
    from headwater.server import Node

__all__ = ["exit_code", "plan", "prepare", "run"]


def plan(app: str, /, *, mermaid: bool = False, spark: bool = True, options: Options = DEFAULTS) -> int:
    """Show what an app would do, and the errors in it.

    Prints the graph, types, keys, lateness and delivery of every result. Then inspects log, store and Spark's master:
    which topics and tables would be created, and which differ from their definitions. Last, Spark analyses each
    pipeline without running it: the type of its rows, its state, and whether it can continue from its checkpoint.
    Nothing is created or changed. The exit code is 1 if a pipeline cannot run, 4 if the app is not compatible with
    what exists, 3 if a service does not answer.

    Args:
        app: A Python file that defines an app.
        mermaid: Print only the graph, as Mermaid text.
        spark: Check the pipelines on Spark, which takes some seconds.
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
    profile = options.effective_profile
    _print_plan(output, [*([*describe(profile, options.data), ""] if profile.location else []), *planned.lines()])
    if not options.remote:
        from headwater.inspection import inspect_app

        inspection = inspect_app(profile, local_folder(options), planned.graph, kafka=options.kafka)
        planned = replace(planned, inspection=inspection)
        _print_plan(output, ["", *inspection.lines()])
    if spark and planned.graph.pipelines:
        from headwater.runner import check

        if not output.json:
            output.note("Spark is starting, to check the pipelines; --no-spark skips this")
        planned = planned.with_checks(check(app, local_folder(options), options.profile))
        _print_plan(output, ["", *planned.check_lines()])
    if output.json:
        output.print_record(planned.document(), [])
    return exit_code(planned)


def _print_plan(output: Output, lines: list[str]) -> None:
    """Print a part of the plan as soon as it is known; JSON is one document at the end."""
    if not output.json:
        output.print_text("\n".join(map(escape, lines)))


def exit_code(planned: Plan) -> int:
    """Returns 1 if a pipeline cannot run, 4 if the app is not compatible, 3 if a service does not answer, else 0."""
    if planned.has_errors:
        return 1
    if planned.is_refused:
        return 4
    return max((error.exit_code for error in planned.inspection.errors), default=0) if planned.inspection else 0


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
    """Make Spark start faster, once per environment.

    Runs the demo for some seconds to record the Java classes that Spark loads, and writes a class data sharing archive
    into the environment in which Headwater is installed. Takes about a minute. The archive is optional; run the
    command again after Java or Spark was replaced.

    Args:
        options: Options of every command.
    """
    from headwater.engine.spark.java import find_java, prepare_archive_path, spark_jars, write_archive

    output, java, jars = Output(options), find_java(), spark_jars()
    prepare_archive_path(java, jars)  # fails now rather than after a minute
    with tempfile.TemporaryDirectory(prefix="headwater-prepare-") as scratch:
        classes = Path(scratch, "classes")
        output.note(f"running the demo for {_DEMO_DURATION}, to record the classes that Spark loads ...")
        _run_demo(Path(scratch), classes)
        output.note("writing the archive ...")
        archive = write_archive(java, jars, classes)
    output.note(f"Spark starts from {archive} ({format_bytes(archive.stat().st_size)})")
    return 0


def _run_demo(folder: Path, classes: Path) -> None:
    """Run the demo in its own folder, without the user's settings: a profile could lead it to the user's servers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    given = environment.get("JDK_JAVA_OPTIONS", "")
    environment["JDK_JAVA_OPTIONS"] = f'{given} -XX:DumpLoadedClassList="{classes}"'.strip()
    program = "import sys; from headwater.cli.entry import main; sys.exit(main())"
    words = ["demo", "--for", _DEMO_DURATION, "--rate", "100", "--port", "0", "--data", str(folder / "data")]
    command = [sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
    # The exit code does not matter: the classes are loaded even if the audit finds a difference.
    if not classes.is_file() or _REQUIRED_CLASSES not in classes.read_text():
        printed = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineFailedError(
            "the demo did not reach its first batch",
            detail="\n".join(printed[-3:]) or None,
            fix="headwater demo --for 15s",
        )


_STARTUP_DELAY: Final = 0.3  # seconds in which waiting clients are served: importing Spark's modules holds the GIL
_JOIN_TIMEOUT: Final = 5.0  # seconds for a file that is still loading when the node stops


def run(
    app: str | None = None,
    /,
    *,
    port: int | None = None,
    rebuild: tuple[str, ...] = (),
    until_current: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run an app: its node, pipelines and workers.

    The node serves the log and the views over HTTP on 127.0.0.1 and maintains the log: retention, compaction, idle
    markers. Pipelines on Spark and workers run in their own processes; an app without pipelines does not start Spark.
    Ctrl-C stops all of them; requests and messages in progress get a few seconds. If the profile's log is on Kafka,
    no node is started, only pipelines and workers.

    Args:
        app: A Python file that defines an app; if left out, only the node is started.
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642].
        rebuild: A changed view to rebuild from the log; may be given several times.
        until_current: Run the pipelines to the present end of the log, then exit; no node is started.
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
    """Loads an app and starts its processes while the node already answers."""

    def __init__(self, node: Node, folder: Path, file: str | None, rebuild: tuple[str, ...], options: Options) -> None:
        self._node = node
        self._options = options
        self._folder = folder
        self._file = file
        self._rebuild = rebuild
        self._output = Output(options)
        self._processes = contextlib.ExitStack()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="headwater-app", daemon=True)

    def start(self) -> None:
        """Load the app, create its topics and start its processes, in a thread."""
        if self._file is not None and self._output.terminal:
            self._output.note(f"the node answers at {self._node.url}; loading {self._file}")
        self._thread.start()

    def stop(self) -> None:
        """Stop the processes; raise the error that kept the app from starting."""
        if self._thread.ident is not None:
            self._thread.join(_JOIN_TIMEOUT)
        self._processes.close()
        if self._error is not None:
            raise self._error

    def _load(self) -> None:
        time.sleep(_STARTUP_DELAY)
        try:
            app = None if self._file is None else self._start_app(self._file)
            self._print_ready(app)
        except BaseException as error:  # `stop` raises it again in the main thread
            self._error = error
            self._node.stop()

    def _start_app(self, file: str) -> App:
        app = _load_app(file)
        for topic in app.topics.values():
            try:
                self._node.log.create(topic)
            except HeadwaterError as error:
                error.location = error.location or topic.location
                raise
        _start_processes(app, file, self._folder, self._rebuild, self._options, self._processes)
        return app

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
                *(["spark      starting; log and web page already work"] if app and app.pipelines else []),
            ],
        )
        if self._output.terminal:
            self._output.note("Ctrl-C stops the node")


def _load_app(file: str) -> App:
    from headwater.app_file import load_app

    app = load_app(file)
    app.resolve()
    return app


def _run_without_node(app: str | None, folder: Path, rebuild: tuple[str, ...], options: Options) -> int:
    """Run the pipelines and workers of an app whose log is on Kafka, until Ctrl-C or SIGTERM."""
    if app is None:
        what = "there is nothing to run: the log is on Kafka, and no app is given"
        raise UsageError(what, fix=f"headwater run app.py --profile {options.effective_profile.name}")
    output = Output(options)
    loaded = _load_app(app)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    where = describe(options.effective_profile, str(folder))
    with contextlib.ExitStack() as processes:
        engine = _start_processes(loaded, app, folder, rebuild, options, processes)
        output.print_record(
            {"app": loaded.name, "folder": str(folder), "profile": options.effective_profile.name},
            [f"headwater {__version__}  {loaded.name}", *where, *(["spark        starting"] if engine else [])],
        )
        while not ended.wait(0.5):
            if engine is not None and engine.error:
                raise engine.error
    return 0


def _run_until_current(app: str | None, folder: Path, rebuild: tuple[str, ...], options: Options) -> int:
    from headwater.runner import catch_up

    output = Output(options)
    if app is None:
        raise UsageError("--until-current needs an app", fix="headwater run app.py --until-current")
    loaded = _load_app(app)
    if not loaded.pipelines:
        raise UsageError("--until-current needs pipelines, and the app has none", fix=f"headwater run {app}")
    _declare_queues(loaded, folder, options.profile)
    output.note("Spark is starting")
    catch_up(app, folder, rebuild, profile=options.profile, notify=output.note)
    output.print_record({"current": True, "folder": str(folder)}, ["all pipelines have read the log to its end"])
    return 0


def _start_processes(
    app: App, file: str, folder: Path, rebuild: tuple[str, ...], options: Options, processes: contextlib.ExitStack
) -> EngineProcess | None:
    """Start the engine, if the app has pipelines, and its workers and answers; `processes` stops them."""
    from headwater.runner import EngineProcess, WorkerProcesses

    note = Output(options).note
    engine: EngineProcess | None = None
    if app.pipelines:
        engine = EngineProcess(file, folder, rebuild, options.profile, note)
        engine.start()
        processes.callback(engine.stop)
    if app.queues or app.answers:
        from headwater.workers.process import plan_processes

        _declare_queues(app, folder, options.profile)
        workers = WorkerProcesses(file, folder, plan_processes(app), options.profile, note)
        workers.start()
        processes.callback(workers.stop)
    return engine


def _declare_queues(app: App, folder: Path, profile: str | None) -> None:
    """Create the app's queues, whether or not it has workers: other programs may publish to them at once."""
    if not app.queues:
        return
    from headwater.backends import broker_url, open_broker
    from headwater.profiles import read_profile

    with contextlib.closing(open_broker(broker_url(read_profile(profile), folder))) as broker:
        for queue in app.queues.values():
            broker.declare(queue.definition)


def _queue_lines(app: App | None) -> list[str]:
    if app is None or not (app.queues or app.answers):
        return []
    workers = sum(len(queue.workers) for queue in app.queues.values())
    answers = f", {plural(len(app.answers), 'answer')}" if app.answers else ""
    return [f"queues     ready   {plural(len(app.queues), 'queue')}, {plural(workers, 'worker')}{answers}"]
