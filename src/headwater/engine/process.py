"""The engine process: `python -m headwater.engine.process JSON`, with an `EngineCommand` as JSON.

`runner.EngineProcess` starts and watches it. It ends when its standard input closes, so it never outlives its parent.
Messages for the parent go to standard output, one JSON document per line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from headwater.app_file import load_app
from headwater.backends import open_log, open_store, ping_log
from headwater.backoff import Backoff
from headwater.config import JAVA_PATIENCE, SPARK_CORES, SPARK_MEMORY
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import CheckpointFolder, EngineContext, HadoopFolder, LocalFolder
from headwater.engine.dry_run import dry_run
from headwater.engine.engine import Engine
from headwater.engine.failpoints import failpoint
from headwater.engine.replay import replay
from headwater.engine.spark.session import Spark, SparkSettings
from headwater.errors import BadSettingError, HeadwaterError, LockedError, UnreachableError
from headwater.events import SystemClock
from headwater.log.storage.disk import Disk
from headwater.pipelines import PipelineKind
from headwater.profiles import Profile, read_profile
from headwater.store.status import EngineStatus, write_engine_status

__all__ = ["main"]

T = TypeVar("T")
_BACKOFF: Final = Backoff(timedelta(seconds=1), timedelta(seconds=10))
_POLL_INTERVAL: Final = 0.5  # seconds between checks for failed pipelines and another driver


class EngineCommand(msgspec.Struct, frozen=True):
    """The command of the engine process, as one JSON argument.

    Attributes:
        app: The user's file.
        data: The data folder.
        work: "run"; "catch-up", which ends when everything now in the log is committed; "check"; or "replay".
        rebuild: The views to rebuild.
        since: The offset or time, as text, from which a rebuild reads.
        names: The pipelines to replay; all, if empty.
        rows: The approximate number of events in a batch of a replay; 100,000, if 0.
        profile: The name of the profile; embedded, if empty.
        here: The folder in which the file of profiles is searched.
    """

    app: str
    data: str
    work: str = "run"
    rebuild: tuple[str, ...] = ()
    since: str = "earliest"
    names: tuple[str, ...] = ()
    rows: int = 0
    profile: str = ""
    here: str = ""

    def load_profile(self) -> Profile:
        """Returns the profile, which names log, store and Spark."""
        return read_profile(self.profile or None, Path(self.here or "."))


def main(argument: str) -> int:
    """Execute the command; returns the exit code of its error, or 0."""
    command = msgspec.json.decode(argument, type=EngineCommand)
    data = Path(command.data).absolute()
    if data.exists():
        (data / "engine").mkdir(exist_ok=True)
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(filename=data / "engine" / "engine.log", level=logging.INFO, format=form)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    execute = {"check": _dry_run, "replay": _replay}.get(command.work, _run)
    try:
        execute(command, data, _stop_event())
    except HeadwaterError as error:
        _print_message({"error": error.problem()})
        return error.exit_code
    return 0


def _run(command: EngineCommand, data: Path, ended: threading.Event) -> None:
    profile = command.load_profile()
    spark = Spark(data / "engine", _spark_settings(profile), Path(command.app))
    with _lock_data_folder(data), _open_context(profile, data, spark, ended) as context:
        graph = load_app(command.app).resolve()
        rebuild = {name: Rebuild(command.since) for name in command.rebuild}
        engine = Engine(graph, lambda: spark.session, context, rebuild)
        engine.start()
        _report_when_running(data, spark)
        try:
            if command.work == "catch-up":
                engine.catch_up()
            else:
                _watch(engine, ended)
        finally:
            engine.stop()
            spark.stop()


def _watch(engine: Engine, ended: threading.Event) -> None:
    """Wait for the end of the process; report each pipeline that is given up, once, and pass on retry requests.

    Raises:
        FencedError: Another driver has taken over the pipelines.
    """
    reported: set[str] = set()
    while not ended.wait(_POLL_INTERVAL):
        with contextlib.suppress(LockedError, UnreachableError):  # unknown until the store answers
            engine.context.check_owner()
            engine.take_retries()
        for name, supervisor in engine.supervisors.items():
            if supervisor.error is not None and name not in reported:
                reported.add(name)
                _print_message({"failed": name, "problem": supervisor.error.problem()})


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
    log = open_log(log_url, index_time=True, cache=data / "engine" / "pages" if is_local else None)
    url = profile.store.resolve() if profile.store else None
    open_ = partial(open_store, url, data, log.clock, partial(failpoint, "in-sink-commit"))
    with contextlib.closing(log), contextlib.closing(_wait_until_reachable(open_, data, ended)) as store:
        cores, checkpoints = _spark_settings(profile).cores, _checkpoint_folder(profile, spark)
        yield EngineContext(data, log, store, log.clock, cores=cores, checkpoints=checkpoints, jars=profile.jars)


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


def _report_when_running(data: Path, spark: Spark) -> None:
    """Write the engine's status once Spark runs, and watch its Java process from then on."""

    def wait() -> None:
        try:
            spark.watch(JAVA_PATIENCE.number())
            state = EngineStatus("running", SystemClock().micros(), pid=os.getpid())
        except HeadwaterError as error:
            state = EngineStatus("failed", SystemClock().micros(), error.what, os.getpid())
        write_engine_status(data, state)

    threading.Thread(target=wait, name="headwater-spark", daemon=True).start()


def _dry_run(command: EngineCommand, data: Path, _: threading.Event) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as scratch:
        folder = data / "engine" if data.exists() else Path(scratch)  # a plan does not create the data folder
        spark = Spark(folder, _spark_settings(Profile("embedded")), Path(command.app))
        profile = command.load_profile()
        checkpoints = _checkpoint_folder(profile, spark) if profile.checkpoints else None
        try:
            graph = load_app(command.app).resolve()
            log_url = profile.log.resolve() if profile.log and any(p.realtime for p in graph.pipelines) else ""
            for checked in dry_run(graph, data, lambda: spark.session, checkpoints, log_url):
                _print_message({"checked": checked})
        finally:
            spark.stop()


def _replay(command: EngineCommand, data: Path, ended: threading.Event) -> None:
    profile = command.load_profile()
    spark = Spark(data / "engine", _spark_settings(profile), Path(command.app))
    graph = load_app(command.app).resolve()
    try:
        with (
            _open_context(profile, data, spark, ended) as context,
            tempfile.TemporaryDirectory(prefix="headwater-") as scratch,
        ):
            for pipeline in graph.pipelines:
                if pipeline.kind is PipelineKind.FILES or pipeline.realtime:
                    continue  # they cannot be compared: rows of files are not read back, real-time mode has no ledger
                if not command.names or pipeline.name in command.names:
                    folder = Path(scratch, pipeline.name)
                    result = replay(spark.session, graph, pipeline, context, folder, command.rows or 100_000)
                    _print_message({"replayed": result})
    finally:
        spark.stop()


def _print_message(document: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def _spark_settings(profile: Profile) -> SparkSettings:
    cores = SPARK_CORES.number() or os.cpu_count() or 2
    master = profile.spark.resolve()
    master = f"local[{cores}]" if master.startswith("local") else master
    return SparkSettings(
        cores, SPARK_MEMORY.read(), master=master, python=profile.python, by_url=_needs_hadoop(profile)
    )


def _stop_event() -> threading.Event:
    """Returns an event that is set when the parent process closes the standard input or sends SIGTERM."""
    ended = threading.Event()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=wait, name="headwater-parent", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when the engine ends
    return ended


@contextlib.contextmanager
def _lock_data_folder(data: Path) -> Iterator[None]:
    """Lock the data folder for one engine; the kernel releases the lock when the process ends."""
    (data / "engine").mkdir(parents=True, exist_ok=True)
    # The descriptor is not inherited, so a Java process that outlives the engine does not hold the lock.
    disk = Disk()
    handle = disk.open(data / "engine" / "lock")
    try:
        if not disk.lock(handle, wait=False):
            pid = disk.read(handle, 0, 32).decode() or "?"
            what = f"another engine runs the pipelines of {data}"
            raise LockedError(what, detail=f"process {pid}", fix=f"kill {pid}", pid=pid)
        disk.truncate(handle, 0)
        disk.write(handle, 0, str(os.getpid()).encode())
        yield
    finally:
        disk.close(handle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
