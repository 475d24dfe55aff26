"""The engine process: `python -m headwater.engine.process JSON`, with an `EngineCommand` as JSON.

`runner.EngineProcess` starts and watches it. It ends when its standard input closes, so it never outlives its parent.
Messages for the parent go to standard output, one JSON document per line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from headwater.app import App
from headwater.app_file import load_app, reload_app
from headwater.backends import open_log, open_store, ping_log
from headwater.backoff import Backoff
from headwater.captures import bind_captures
from headwater.config import BATCH_SIZE, DATA, JAVA_PATIENCE, SPARK_CORES, SPARK_MEMORY, STATE_MEMORY
from headwater.diagnostics import write_diagnostics
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import CheckpointFolder, EngineContext, HadoopFolder, LocalFolder
from headwater.engine.dry_run import dry_run
from headwater.engine.engine import Engine
from headwater.engine.failpoints import failpoint
from headwater.engine.reload.reloader import Reloader
from headwater.engine.replay import replay
from headwater.engine.reports.memory import record_memory
from headwater.engine.reports.progress import CatchUp, report_progress
from headwater.engine.reports.start_report import StartReport, render
from headwater.engine.spark.session import Lifetime, Spark, SparkSettings
from headwater.engine.supervisor import PipelineSupervisor
from headwater.errors import (
    BadSettingError,
    BadTimeError,
    HeadwaterError,
    LockedError,
    SourceLocation,
    UnreachableError,
)
from headwater.events import SystemClock
from headwater.invocation import Invocation
from headwater.log.storage.disk import Disk
from headwater.memory import parent_process
from headwater.pipelines import Graph, PipelineKind, Selection
from headwater.profiles import Profile, read_profile
from headwater.store.status import EngineStatus, ReloadReport, WorkProgress, take_out_of_memory, write_engine_status
from headwater.units import size

__all__ = ["main"]

logger = logging.getLogger("headwater.engine")
T = TypeVar("T")
_BACKOFF: Final = Backoff(timedelta(seconds=1), timedelta(seconds=10))
_CLEANUP_INTERVAL: Final = 3600.0  # seconds between two removals of side data
_CATCH_UP_WAIT: Final = 0.2
"""Seconds that an input waits for events before a query is known to have caught up."""
_POLL_INTERVAL: Final = 0.5  # seconds between checks for failed pipelines and another driver
_LOCK_INTERVAL: Final = 0.2  # seconds between looks whether a parent has ended, or its engine
_ORPHAN_GRACE: Final = 2.0  # seconds that running batches get when the parent has ended
_ORPHAN_TIMEOUT: Final = 60.0  # seconds to wait for the end of an engine whose parent has ended
_PARENT: Final = os.getppid()
_print_lock = threading.Lock()


class EngineCommand(msgspec.Struct, frozen=True):
    """The command of the engine process, as one JSON argument.

    Attributes:
        app: The user's file.
        data: The data folder.
        work: "run"; "catch-up", which ends when everything now in the log is committed; "check"; or "replay".
        rebuild: The views to rebuild.
        since: The offset or time, as text, from which a rebuild reads.
        resume: Whether an engine that has ended may have begun the rebuilds.
        select: Selectors of the pipelines to run, check or replay; all, if empty.
        exclude: Selectors of the pipelines to leave out.
        rows: The approximate number of events in a batch of a replay; 100,000, if 0.
        profile: The name of the profile; embedded, if empty.
        here: The folder in which the file of profiles is searched.
        explain_start: Whether the steps of the start are measured and reported.
        dev: Whether lines on the standard input ask for a "reload" of the app or a "rebuild" of changed views.
    """

    app: str
    data: str
    work: str = "run"
    rebuild: tuple[str, ...] = ()
    since: str = "earliest"
    resume: bool = False
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rows: int = 0
    profile: str = ""
    here: str = ""
    explain_start: bool = False
    dev: bool = False

    def load_profile(self) -> Profile:
        """Returns the profile, which names log, store and Spark."""
        return read_profile(self.profile or None, Path(self.here or "."))

    def load_app(self, *, again: bool = False) -> App:
        """Returns the app, with the topics of its captured tables; `again` imports its modules as they are now."""
        app = reload_app(self.app) if again else load_app(self.app)
        bind_captures(app, self.load_profile(), Path(self.data))
        return app

    @property
    def invocation(self) -> Invocation:
        """How the app was called, from the folder in which that was."""
        default = Path(self.data) == Path(self.here or ".", DATA.default).absolute()
        app = SourceLocation.at(self.app, 1).file
        return Invocation(app, None if default else self.data, self.profile or None)

    def resolve(self, app: App) -> tuple[Graph, tuple[str, ...]]:
        """Returns the graph of the app, and the names of the selected pipelines."""
        graph = app.resolve()
        return graph, Selection(self.select, self.exclude).names(graph)


def main(argument: str) -> int:
    """Execute the command; returns the exit code of its error, or 0."""
    command = msgspec.json.decode(argument, type=EngineCommand)
    data = Path(command.data).absolute()
    if data.exists():
        (data / "engine").mkdir(exist_ok=True)
        write_diagnostics(data / "engine" / "engine.log")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    ended = _stop_event(requests.put)
    execute = {"check": _dry_run, "replay": _replay}.get(command.work, partial(_run, requests=requests))
    graceful = command.work == "run"  # nothing but the pipelines of a node is worth stopping gracefully
    end = partial(_die_with_parent, ended, graceful=graceful)
    threading.Thread(target=end, name="headwater-end", daemon=True).start()
    try:
        execute(command, data, ended)
    except HeadwaterError as error:
        command.invocation.complete_error(error)
        _print_error(error)
        return error.exit_code
    return 0


def _run(command: EngineCommand, data: Path, ended: threading.Event, requests: queue.SimpleQueue[str]) -> None:
    profile = command.load_profile()
    catches_up = command.work == "catch-up"
    report = StartReport(command.explain_start)
    report.record("checked the app and started the engine process")
    settings = _spark_settings(profile, "batch" if catches_up else "long")
    spark = Spark(data / "engine", settings, Path(command.app), report)
    report.on_first_rows = spark.make_archive
    with _lock_data_folder(data, ended), _launch(spark), _open_context(profile, data, spark, ended) as context:
        app = command.load_app()
        graph, names = command.resolve(app)
        report.record("loaded the app, opened log and store")
        wait = _CATCH_UP_WAIT if catches_up else context.wait
        resumed = replace(
            context,
            wait=wait,
            out_of_memory=take_out_of_memory(data),
            invocation=command.invocation,
            start_report=report,
        )
        rebuild = {name: Rebuild(command.since, command.resume) for name in command.rebuild}
        engine = Engine(graph, lambda: spark.session, resumed, rebuild, names, app.name)
        reloader = None
        if command.dev:
            selection = Selection(command.select, command.exclude)
            load = partial(command.load_app, again=True)
            reloader = Reloader(engine, spark, Path(command.app), load, graph, selection, requests, _print_reload)
        engine.start()
        _report_when_running(data, spark, ended)
        if catches_up or command.rebuild or command.dev:
            report_progress(CatchUp(engine, rebuilds=command.work == "run"), _print_progress, ended)
        if reloader is not None:
            reloader.start()
        try:
            if catches_up:
                engine.catch_up()
                _print_start(report)
                _remove_expired(engine)
            else:
                _watch(engine, ended)
        finally:
            if reloader is not None:
                reloader.stop()
            engine.stop()


@contextlib.contextmanager
def _launch(spark: Spark) -> Iterator[None]:
    """Start Java beside what else a start needs; stop it after the block."""
    spark.launch()
    try:
        yield
    finally:
        spark.stop()


def _watch(engine: Engine, ended: threading.Event) -> None:
    """Wait for the end of the process; report each pipeline that is given up, once, and pass on retry requests.

    Raises:
        FencedError: Another driver has taken over the pipelines.
    """
    reported: set[PipelineSupervisor] = set()
    start_report = engine.context.start_report
    cleaned_at = -_CLEANUP_INTERVAL
    while not ended.wait(_POLL_INTERVAL):
        if start_report.measures and start_report.has_batches(list(engine.supervisors)):
            _print_start(start_report)
        if time.monotonic() - cleaned_at > _CLEANUP_INTERVAL:
            cleaned_at = time.monotonic()
            threading.Thread(target=_remove_expired, args=[engine], name="headwater-cleanup", daemon=True).start()
        with contextlib.suppress(LockedError, UnreachableError):  # unknown until the store answers
            engine.context.check_owner()
            engine.take_retries()
            engine.finish_rebuilds()
        for name, supervisor in engine.supervisors.items():
            if supervisor.error is not None and supervisor not in reported:
                reported.add(supervisor)
                _print_message({"failed": name, "problem": supervisor.error.problem()})


def _print_start(report: StartReport) -> None:
    """Send the steps of the start, if they were measured; once."""
    if report.measures:
        report.measures = False
        for line in render(report.steps):
            _print_message({"start": line})


def _remove_expired(engine: Engine) -> None:
    try:
        engine.remove_expired()
    except (HeadwaterError, OSError):  # it is tried again in an hour
        logger.exception("side data could not be removed")


def _wait_until_reachable(open_: Callable[[], T], data: Path, ended: threading.Event) -> T:
    """Call a function until its server answers; reports each failed attempt.

    Raises:
        UnreachableError: The process ends before the server answers.
    """
    began, attempt = time.monotonic(), 0
    while True:
        attempt += 1
        try:
            return open_()
        except UnreachableError as error:
            message = f"{error.what}; waiting for {time.monotonic() - began:.0f} s so far"
            write_engine_status(data, EngineStatus("starting", SystemClock().micros(), message, os.getpid()))
            _print_message({"waiting": message})
            if ended.wait(_BACKOFF.delay(attempt).total_seconds()):
                raise


@contextlib.contextmanager
def _open_context(profile: Profile, data: Path, spark: Spark, ended: threading.Event) -> Iterator[EngineContext]:
    """Yields an engine context with the log and store of a profile; closes both after the block."""
    log_url = profile.log.resolve() if profile.log else str(data)
    _wait_until_reachable(partial(ping_log, log_url), data, ended)
    is_local = profile.spark.resolve().startswith("local")
    pages = data / "engine" / "~pages" if is_local else None
    log = open_log(log_url, data=data, index_time=True, cache=pages)
    url = profile.store.resolve() if profile.store else None
    open_ = partial(open_store, url, data, log.clock, partial(failpoint, "in-sink-commit"))
    with contextlib.closing(log), contextlib.closing(_wait_until_reachable(open_, data, ended)) as store:
        settings, checkpoints = _spark_settings(profile), _checkpoint_folder(profile, spark)
        yield EngineContext(
            data,
            log,
            store,
            log.clock,
            batch_size=batch_size(settings),
            cores=settings.cores,
            turns=threading.Semaphore(max(1, settings.cores // 2)),
            checkpoints=checkpoints,
            jars=profile.jars,
        )


def batch_size(settings: SparkSettings) -> int:
    """Returns the limit of bytes of a batch: the setting, or what the heap suffices for.

    Raises:
        BadSettingError: The setting is no number of bytes.
    """
    given = BATCH_SIZE.read()
    try:
        return max(1, size(given)) if given else settings.batch_size
    except BadTimeError:
        what = f"batch_size is {given!r}, which is no number of bytes"
        raise BadSettingError(what, fix=f"{BATCH_SIZE.variable}='32 MB'", setting=BATCH_SIZE.name) from None


def _checkpoint_folder(profile: Profile, spark: Spark) -> CheckpointFolder | None:
    """Returns the profile's checkpoint folder; None if checkpoints are in the data folder.

    Raises:
        BadSettingError: Workers on other machines cannot access the data folder.
    """
    if profile.checkpoints is None:
        if not profile.spark.resolve().startswith("local"):
            what = f"the workers of {profile.spark} cannot access the data folder"
            fix = 'checkpoints = "/a/shared/folder", or "s3a://bucket/checkpoints"'
            detail = "driver and workers must both access the checkpoints"
            raise BadSettingError(what, detail=detail, fix=fix, setting="checkpoints")
        return None
    address = profile.checkpoints.resolve()
    if _needs_hadoop(profile):
        return HadoopFolder(address, lambda: spark.session)
    return LocalFolder(Path(address.removeprefix("file://")))


def _needs_hadoop(profile: Profile) -> bool:
    """Returns whether checkpoints are at a URL that only Hadoop can open."""
    return profile.checkpoints is not None and profile.checkpoints.scheme not in ("", "file")


def _report_when_running(data: Path, spark: Spark, ended: threading.Event) -> None:
    """Write the engine's status once Spark runs; from then on watch its Java process and record the memory."""

    def wait() -> None:
        try:
            spark.watch(JAVA_PATIENCE.number(), _print_error)
        except HeadwaterError as error:
            write_engine_status(data, EngineStatus("failed", SystemClock().micros(), error.what, os.getpid()))
            return
        write_engine_status(data, EngineStatus("running", SystemClock().micros(), pid=os.getpid()))
        record_memory(spark.session, data, ended)

    threading.Thread(target=wait, name="headwater-spark", daemon=True).start()


def _watch_java(spark: Spark) -> None:
    """Start Spark, and end this process with a clear error if its Java ends."""

    def watch() -> None:
        with contextlib.suppress(HeadwaterError):  # the work itself meets the same error
            spark.watch(JAVA_PATIENCE.number(), _print_error, runs_batches=False)

    threading.Thread(target=watch, name="headwater-spark", daemon=True).start()


def _dry_run(command: EngineCommand, data: Path, _: threading.Event) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as scratch:
        folder = data / "engine" if data.exists() else Path(scratch)  # a plan does not create the data folder
        spark = Spark(folder, _spark_settings(Profile("embedded"), "check"), Path(command.app))
        profile = command.load_profile()
        checkpoints = _checkpoint_folder(profile, spark) if profile.checkpoints else None
        with _launch(spark):
            graph, names = command.resolve(command.load_app())
            _watch_java(spark)
            log_url = profile.log.resolve() if profile.log and any(p.realtime for p in graph.pipelines) else ""
            for checked in dry_run(graph, data, lambda: spark.session, checkpoints, log_url, names, command.invocation):
                _print_message({"checked": checked})


def _replay(command: EngineCommand, data: Path, ended: threading.Event) -> None:
    profile = command.load_profile()
    spark = Spark(data / "engine", _spark_settings(profile, "batch"), Path(command.app))
    with (
        _launch(spark),
        _open_context(profile, data, spark, ended) as context,
        tempfile.TemporaryDirectory(prefix="headwater-") as scratch,
    ):
        graph, names = command.resolve(command.load_app())
        _watch_java(spark)
        for pipeline in graph.pipelines:
            if pipeline.kind is PipelineKind.FILES or pipeline.realtime:
                continue  # they cannot be compared: rows of files are not read back, real-time mode has no ledger
            if pipeline.name in names:
                folder = Path(scratch, pipeline.name)
                result = replay(
                    spark.session, graph, pipeline, context, folder, command.rows or 100_000, _print_progress
                )
                _print_message({"replayed": result})


def _print_error(error: HeadwaterError) -> None:
    _print_message({"error": error.problem()})


def _print_progress(progress: WorkProgress) -> None:
    _print_message({"progress": progress})


def _print_reload(report: ReloadReport) -> None:
    _print_message({"reloaded": report})


def _print_message(document: dict[str, Any]) -> None:
    with _print_lock, contextlib.suppress(BrokenPipeError):  # the parent has ended
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.flush()


def _spark_settings(profile: Profile, lifetime: Lifetime = "long") -> SparkSettings:
    cores = SPARK_CORES.number() or os.cpu_count() or 2
    master = profile.spark.resolve()
    master = f"local[{cores}]" if master.startswith("local") else master
    memory, state_memory = SPARK_MEMORY.read(), STATE_MEMORY.number()
    return SparkSettings(cores, memory, state_memory, lifetime, master, profile.python, _needs_hadoop(profile))


def _stop_event(request: Callable[[str], None]) -> threading.Event:
    """Returns an event that is set when the parent process closes the standard input or sends SIGTERM.

    Args:
        request: Called with each line of the standard input.
    """
    ended = threading.Event()

    def wait() -> None:
        with open(0, "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                request(line.decode().strip())
        ended.set()

    threading.Thread(target=wait, name="headwater-parent", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when the engine ends
    return ended


def _die_with_parent(ended: threading.Event, *, graceful: bool) -> None:
    """Kill this process, and Java with it, when its parent has ended, so that another engine can start.

    Args:
        ended: The event of the end.
        graceful: Whether a parent that lives decides when this process ends, and a dead one leaves it two seconds.
    """
    ended.wait()
    while graceful and os.getppid() == _PARENT:
        time.sleep(_LOCK_INTERVAL)
    if graceful:
        time.sleep(_ORPHAN_GRACE)
    if os.getpgrp() == os.getpid():  # not that of a test
        os.killpg(0, signal.SIGKILL)


@contextlib.contextmanager
def _lock_data_folder(data: Path, ended: threading.Event) -> Iterator[None]:
    """Lock the data folder for one engine; the kernel releases the lock when the process ends.

    Waits for an engine whose parent has ended: it ends, too.

    Raises:
        LockedError: Another engine runs.
    """
    (data / "engine").mkdir(parents=True, exist_ok=True)
    # The descriptor is not inherited, so a Java process that outlives the engine does not hold the lock.
    disk = Disk()
    handle = disk.open(data / "engine" / "lock")
    began, reported = time.monotonic(), False
    try:
        while not disk.lock(handle, wait=False):
            pid, _, parent = disk.read(handle, 0, 32).decode().partition(" ")
            expired = time.monotonic() - began > _ORPHAN_TIMEOUT
            if not _is_orphan(pid, parent) or expired or ended.wait(_LOCK_INTERVAL):
                what = f"another engine runs the pipelines of {data}"
                raise LockedError(what, detail=f"process {pid or '?'}", fix=f"kill {pid or '?'}", pid=pid or "?")
            if not reported:
                reported, message = True, f"the last run was killed; waiting until its engine, process {pid}, has ended"
                write_engine_status(data, EngineStatus("starting", SystemClock().micros(), message, os.getpid()))
                _print_message({"waiting": message})
        disk.truncate(handle, 0)
        disk.write(handle, 0, f"{os.getpid()} {_PARENT}".encode())
        yield
    finally:
        disk.close(handle)


def _is_orphan(pid: str, parent: str) -> bool:
    """Whether the parent of an engine has ended; False if that is not known."""
    return parent.isdigit() and parent_process(int(pid)) != int(parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
