"""The engine's main program: `python -m headwater.engine.process run|check APP DATA`.

Started and watched by the node (runner.py). It ends when its standard input closes, so it never outlives the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from headwater.config import JAVA_PATIENCE, SPARK_CORES, SPARK_MEMORY
from headwater.engine.checking import check
from headwater.engine.engine import Engine
from headwater.engine.folder import Folder, HadoopFolder, LocalFolder
from headwater.engine.points import reach
from headwater.engine.replay import replay
from headwater.engine.spark.heartbeat import watch
from headwater.engine.spark.session import Spark, SparkSettings
from headwater.engine.surroundings import Surroundings
from headwater.engine.versions import Rebuild
from headwater.errors import BadSettingError, HeadwaterError, LockedError, UnreachableError
from headwater.events import SystemClock
from headwater.loading import load_app
from headwater.log.places import open_log, require_log
from headwater.pipelines import Kind
from headwater.profiles import Profile, read_profile
from headwater.store import open_store
from headwater.store.engine_state import EngineState, write_engine_state

__all__ = ["main"]

T = TypeVar("T")
_LONGEST_PAUSE: Final = 10.0
_LOOK: Final = 0.5  # seconds between two looks: has a pipeline failed, has another driver come


class Order(msgspec.Struct, frozen=True):
    """What the engine is to do, as one JSON argument.

    Attributes:
        app: The user's file.
        data: The data folder.
        work: "run"; "catch-up", to end when all that is in the log now is committed; "check"; or "replay".
        rebuild: Views that are to be made anew.
        since: From where on; an offset or a moment as text.
        names: Pipelines to replay; all, if empty.
        rows: About how many events a batch of a replay takes.
        profile: Where log, store and Spark are, by name; embedded, if empty.
        here: The folder where the file with the profile is looked for.
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

    def places(self) -> Profile:
        """Where log, store and Spark are."""
        return read_profile(self.profile or None, Path(self.here or "."))


def main(argument: str) -> int:
    """Do what is ordered; the exit code is that of the error, if there was one."""
    order = msgspec.json.decode(argument, type=Order)
    data = Path(order.data).absolute()
    _log_to_file(data)
    ended = _end_of_input()
    try:
        if order.work == "check":
            return _check(order, data)
        return (_replay if order.work == "replay" else _run)(order, data, ended)
    except HeadwaterError as error:
        _say({"error": error.problem()})
        return error.exit_code


def _run(order: Order, data: Path, ended: threading.Event) -> int:
    profile = order.places()
    spark = Spark(data / "engine", _settings(profile), Path(order.app))
    with _only_one(data), _surroundings(profile, data, spark, ended) as around:
        graph = load_app(order.app).resolve()
        rebuild = {name: Rebuild(order.since) for name in order.rebuild}
        engine = Engine(graph, lambda: spark.session, around, rebuild)
        engine.start()
        _tell_when_up(data, spark)
        try:
            if order.work == "catch-up":
                engine.settle()
            else:
                _watch(engine, ended)
        finally:
            engine.stop()
            spark.stop()
    return 0


def _watch(engine: Engine, ended: threading.Event) -> None:
    """Wait for the end, and say meanwhile which pipelines are given up.

    Raises:
        FencedError: Another driver has taken the pipelines.
    """
    told: set[str] = set()
    while not ended.wait(_LOOK):
        with contextlib.suppress(LockedError, UnreachableError):
            engine.require_owner()
        for name, keeper in engine.keepers.items():
            if keeper.error is not None and name not in told:
                told.add(name)
                _say({"failed": name, "problem": keeper.error.problem()})


def _reached(opened: Callable[[], T], data: Path, ended: threading.Event) -> T:
    """What is opened; while nothing answers there, wait, and say so.

    Raises:
        UnreachableError: Nothing answered until the end.
    """
    began, pause = time.monotonic(), 0.5
    while True:
        try:
            return opened()
        except UnreachableError as error:
            told = f"{error.what}; waiting for {time.monotonic() - began:.0f} s so far"
            write_engine_state(data, EngineState("starting", SystemClock().micros(), told, os.getpid()))
            _say({"waiting": told})
            pause = min(2 * pause, _LONGEST_PAUSE)
            if ended.wait(pause):
                raise


@contextlib.contextmanager
def _surroundings(
    profile: Profile, data: Path, spark: Spark, ended: threading.Event
) -> Iterator[Surroundings]:
    """Log and store of a profile, open while the block runs."""
    clock = SystemClock()
    where = profile.log.resolved() if profile.log else str(data)
    _reached(partial(require_log, where), data, ended)
    here = profile.spark.resolved().startswith("local")
    log = open_log(where, clock, keeps_time=True, pages=data / "engine" / "pages" if here else None)
    try:
        url = profile.store.resolved() if profile.store else None
        committing = partial(reach, "in-sink-commit")
        store = _reached(partial(open_store, url, data, clock, committing), data, ended)
        try:
            yield Surroundings(
                data,
                log,
                store,
                clock,
                cores=_settings(profile).cores,
                shared=_shared_folder(profile, spark),
                jars=profile.jars,
            )
        finally:
            store.close()
    finally:
        log.close()


def _shared_folder(profile: Profile, spark: Spark) -> Folder | None:
    """Where checkpoints are, if not in the data folder.

    Raises:
        BadSettingError: Workers on other machines would look for a folder of this one.
    """
    if profile.checkpoints is None:
        if not profile.spark.resolved().startswith("local"):
            what = f"the workers of {profile.spark} do not reach the data folder"
            fix = 'checkpoints = "/a/folder/that/all/reach", or "s3a://bucket/checkpoints"'
            raise BadSettingError(what, detail="checkpoints must be where driver and workers are", fix=fix)
        return None
    address = profile.checkpoints.resolved()
    if _by_url(profile):
        return HadoopFolder(address, lambda: spark.session)
    return LocalFolder(Path(address.removeprefix("file://")))


def _by_url(profile: Profile) -> bool:
    """Whether checkpoints are where only Hadoop can reach them."""
    return profile.checkpoints is not None and profile.checkpoints.scheme not in ("", "file")


def _tell_when_up(data: Path, spark: Spark) -> None:
    """Say that Spark runs once it does, and keep an eye on it from then on."""

    def wait() -> None:
        try:
            watch(spark, JAVA_PATIENCE.number())
            state = EngineState("running", SystemClock().micros(), pid=os.getpid())
        except HeadwaterError as error:
            state = EngineState("failed", SystemClock().micros(), error.what, os.getpid())
        write_engine_state(data, state)

    threading.Thread(target=wait, name="headwater-spark", daemon=True).start()


def _check(order: Order, data: Path) -> int:
    folder = data / "engine" if data.exists() else Path(os.devnull).parent
    spark = Spark(folder, _settings(Profile("embedded")), Path(order.app))
    profile = order.places()
    kept = _shared_folder(profile, spark) if profile.checkpoints else None
    try:
        graph = load_app(order.app).resolve()
        log_at = profile.log.resolved() if profile.log and any(p.realtime for p in graph.pipelines) else ""
        for checked in check(graph, data, lambda: spark.session, kept, log_at):
            _say({"checked": checked})
    finally:
        spark.stop()
    return 0


def _replay(order: Order, data: Path, ended: threading.Event) -> int:
    profile = order.places()
    spark = Spark(data / "engine", _settings(profile), Path(order.app))
    graph = load_app(order.app).resolve()
    try:
        with (
            _surroundings(profile, data, spark, ended) as around,
            tempfile.TemporaryDirectory(prefix="headwater-") as scratch,
        ):
            for pipeline in graph.pipelines:
                if pipeline.kind is Kind.FILES or pipeline.realtime:
                    continue  # no ledger says what to run again
                if not order.names or pipeline.name in order.names:
                    folder = Path(scratch, pipeline.name)
                    done = replay(spark.session, graph, pipeline, around, folder, order.rows or 100_000)
                    _say({"replayed": done})
    finally:
        spark.stop()
    return 0


def _say(document: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def _settings(profile: Profile) -> SparkSettings:
    cores = SPARK_CORES.number() or os.cpu_count() or 2
    master = profile.spark.resolved()
    master = f"local[{cores}]" if master.startswith("local") else master
    return SparkSettings(
        cores, SPARK_MEMORY.read(), master=master, python=profile.python, by_url=_by_url(profile)
    )


def _end_of_input() -> threading.Event:
    """Set when the process that started this one is gone, or says so by a signal."""
    ended = threading.Event()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=wait, name="headwater-parent", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return ended


@contextlib.contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """One engine per data folder; a dead one's lock is free."""
    (data / "engine").mkdir(parents=True, exist_ok=True)
    handle = os.open(data / "engine" / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(handle, 32, 0).decode() or "?"
        os.close(handle)
        what = f"another engine runs the pipelines of {data}"
        raise LockedError(what, detail=f"process {pid}", fix=f"kill {pid}", pid=pid) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    try:
        yield
    finally:
        os.close(handle)


def _log_to_file(data: Path) -> None:
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    if data.exists():
        (data / "engine").mkdir(exist_ok=True)
        logging.basicConfig(filename=data / "engine" / "engine.log", level=logging.INFO, format=form)
    logging.getLogger("py4j").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
