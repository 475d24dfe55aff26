"""The Spark session that all pipelines of a process share, with its settings.

`Spark.watch` detects a Java process that has ended or no longer responds: paused, out of memory, or in continuous
garbage collection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pyspark.sql import SparkSession

from headwater.config import CLASS_ARCHIVE
from headwater.engine.reports.start_report import StartReport
from headwater.engine.spark.class_archive import ClassRecording, archive_options
from headwater.engine.spark.fork_server import ForkServer
from headwater.engine.spark.java import Jvm, find_java, heap_size, spark_jars, start_jvm
from headwater.engine.spark.python_workers import ship_app
from headwater.errors import EngineFailedError
from headwater.profiles import ARCHIVE_SUFFIXES
from headwater.store.status import EXIT_OUT_OF_MEMORY, record_out_of_memory

__all__ = ["Lifetime", "Spark", "SparkSettings"]

logger = logging.getLogger("headwater.engine")
_HEARTBEAT_INTERVAL: Final = 5.0  # seconds
_EXIT_JVM_HANGS: Final = 75
"""The exit code of an engine whose Java has ended or hangs."""
_OUT_OF_MEMORY: Final = {
    3: "Java's heap was too small",
    -signal.SIGABRT: "Java got no memory from the system",
    -signal.SIGKILL: "Java was killed, as the kernel does when memory is short",
}
"""By exit code of Java. It exits with 3 because of `ExitOnOutOfMemoryError`."""
_OTHER_MEMORY: Final = re.compile(
    rb"Terminating due to java\.lang\.OutOfMemoryError: (?:unable to create|Metaspace|Compressed class space)"
)
"""Java ended because of its threads or classes, which do not depend on the size of a batch."""
_LOG_TAIL: Final = 64 << 10  # bytes
_END_TIMEOUT: Final = 2.0  # seconds
_ERROR_LINE: Final = re.compile(r"^[^\t].*(?:error|exception|fatal)|^#  ", re.IGNORECASE)
"""A line of Java's output that may say why it has ended."""

_STREAMING = "spark.sql.streaming."
_STATE = f"{_STREAMING}stateStore."
_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

FIXED_CONF: Final[dict[str, str]] = {
    f"{_STATE}providerClass": _ROCKSDB,
    f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
    # In milliseconds: stop() must return even if a batch hangs.
    f"{_STREAMING}stopTimeout": "30000",
    # The sink reads the start of a batch from the offsets of the batch before.
    f"{_STREAMING}minBatchesToRetain": "100",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",  # each task keeps such a batch in direct memory
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # Windows and casts must have the same meaning on every machine.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # How long a real-time query buffers rows between two stages, in milliseconds.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    # Nothing reads the history of executions, jobs, stages and progress. Spark keeps it even without its web page: by
    # default 1,000 jobs and stages with 100,000 tasks.
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    f"{_STREAMING}numRecentProgressUpdates": "2",
    # One cache for all state stores of a process. By default each store has its own block cache and write buffers, so
    # memory grows with the number of stateful steps and partitions.
    f"{_STATE}rocksdb.boundedMemoryUsage": "true",
    # Spark removes shuffle files, broadcasts and state of ended queries when Java collects the objects that stand for
    # them. Without it Java collects old objects only when its heap is large: the demo took 415 MB of heap for 100 MB of
    # live objects.
    "spark.cleaner.periodicGC.interval": "2min",
}

JAVA_OPTIONS: Final = (
    # Spark's periodic collection runs beside the pipelines and does not stop them.
    "-XX:+ExplicitGCInvokesConcurrent",
    # After it, Java returns what exceeds twice the live objects; by default it keeps more than three times as much.
    "-XX:MinHeapFreeRatio=25",
    "-XX:MaxHeapFreeRatio=50",
    # By default Java takes more heap, up to its limit, when collections take 8 % of the time, as on any busy machine:
    # the heap of the demo went from 240 to 500 MB within a minute of each collection.
    "-XX:GCTimeRatio=4",
    "-XX:MaxMetaspaceSize=1g",  # bounds a leak of classes; a hundred pipelines need less
    # Java collects all garbage whenever its classes exceed a limit that begins at 21 MB; Spark's take 100 MB at once.
    "-XX:MetaspaceSize=192m",
    "-XX:ReservedCodeCacheSize=128m",
    # RocksDB and compilers allocate through malloc, which keeps freed memory. In milliseconds; unknown to Java 17.0.8
    # and older.
    "-XX:TrimNativeHeapInterval=60000",
)

Lifetime = Literal["long", "batch", "short", "check"]
_LEAST_WORK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
LIFETIME_OPTIONS: Final[dict[Lifetime, tuple[str, ...]]] = {
    "long": (),
    # Java's second compiler takes a quarter of the CPU time of a start. So it compiles only methods that are called ten
    # times as often as by default: those that a long backlog needs.
    "batch": (
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=6000",
        "-XX:Tier4CompileThreshold=150000",
        "-XX:Tier4BackEdgeThreshold=400000",
    ),
    "short": _LEAST_WORK,
    # Room for all objects of a check, so that none are collected.
    "check": (*_LEAST_WORK, "-Xmn256m"),
}
CHECK_CONF: Final[dict[str, str]] = {
    # A check runs each query on no events. One task is enough, and is not worth compiling.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
}

_MIN_DIRECT_MEMORY: Final = 256 << 20  # bytes
_MAX_SERIAL_HEAP: Final = 2 << 30
"""The largest heap, in bytes, of which one thread collects the garbage of a batch of work; that takes less CPU time."""


@dataclass(frozen=True)
class SparkSettings:
    """The size and location of Spark.

    Args:
        cores: The number of task slots, and of partitions of keyed state.
        memory: The limit of Java's heap.
        state_memory: The limit of the caches of all state stores in a process, in megabytes. Pinned blocks may exceed
            it for a moment.
        lifetime: How long Spark runs: a "long" run is worth much work of Java's compilers and collectors, a "batch" of
            work less, a "short" run, such as a test, the least, and a "check" runs on no events.
        master: The address of Spark's master; tasks run on this machine, if omitted.
        python: The Python of the workers, or an archive with one; that of this process, if omitted.
        by_url: Whether checkpoints are at a URL rather than in a folder.
    """

    cores: int = field(default_factory=lambda: os.cpu_count() or 2)
    memory: str = "1g"
    state_memory: int = 256
    lifetime: Lifetime = "long"
    master: str = ""
    python: str | None = None
    by_url: bool = False

    @property
    def is_local(self) -> bool:
        """Whether all workers run on this machine, so that the driver listens on loopback only."""
        return not self.master or self.master.startswith("local") or "//127.0.0.1" in self.master

    @property
    def batch_size(self) -> int:
        """The bytes of events in a batch for which the heap suffices: Java holds several copies of them."""
        return heap_size(self.memory) * 3 // 32

    def conf(self) -> dict[str, str]:
        """Returns the Spark configuration."""
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        packed = {"spark.archives": f"{self.python}#environment"} if self.python_is_archive else {}
        # In a folder, offsets and commits cost 7 ms each with this file manager, 28 ms with the default one. At a URL
        # the default is needed: it creates files atomically where storage can.
        files = {} if self.by_url else {f"{_STREAMING}checkpointFileManagerClass": _FILES}
        return {
            **FIXED_CONF,
            **(loopback if self.is_local else {}),
            **packed,
            **files,
            "spark.master": self.master or f"local[{self.cores}]",
            "spark.executorEnv.MALLOC_ARENA_MAX": "1",
            "spark.app.name": "headwater",
            "spark.sql.shuffle.partitions": str(self.cores),
            "spark.executor.pyspark.memory": "2g",  # the limit of one Python worker
            f"{_STATE}rocksdb.maxMemoryUsageMB": str(self.state_memory),
            **(CHECK_CONF if self.lifetime == "check" else {}),
        }

    def java_options(self) -> list[str]:
        """Returns the options of Java."""
        # A batch grows with the heap, and so do its copies in direct memory.
        direct = max(_MIN_DIRECT_MEMORY, heap_size(self.memory) // 2)
        serial = self.lifetime == "batch" and heap_size(self.memory) <= _MAX_SERIAL_HEAP
        collector = ["-XX:+UseSerialGC"] if serial else []
        limits = [f"-XX:MaxDirectMemorySize={direct}", f"-Dio.netty.maxDirectMemory={direct}"]
        return [f"-Xmx{self.memory}", *limits, *JAVA_OPTIONS, *LIFETIME_OPTIONS[self.lifetime], *collector]

    @property
    def python_is_archive(self) -> bool:
        """Whether the Python of the workers is an archive that Spark unpacks on each worker."""
        return self.python is not None and self.python.endswith(ARCHIVE_SUFFIXES)

    @property
    def forks_workers(self) -> bool:
        """Whether all Python processes are on this machine and run this Python, so that a fork server can fork them."""
        return self.python is None and (not self.master or self.master.startswith("local["))

    @property
    def worker_python(self) -> str:
        """The command that starts Python on a worker."""
        return "./environment/bin/python" if self.python_is_archive else self.python or sys.executable


class Spark:
    """A session with its Java virtual machine; one per process serves all pipelines.

    Args:
        folder: The folder of its log file.
        settings: Its size and location.
        app: The user's file, whose functions the workers run; the modules beside it are shipped to them.
        report: Records the steps of the start.
    """

    def __init__(
        self,
        folder: Path,
        settings: SparkSettings | None = None,
        app: Path | None = None,
        report: StartReport | None = None,
    ) -> None:
        self._report = report or StartReport()
        self._folder = folder
        self._app = app
        self._settings = settings or SparkSettings()
        self._launched: Future[Jvm] | None = None
        self._jvm: Jvm | None = None
        self._failure: EngineFailedError | None = None
        self._fork_server: ForkServer | None = None
        self._recording: ClassRecording | None = None
        self._session: SparkSession | None = None
        self._scratch = Path()
        self._mutex = threading.Lock()  # held for the whole start, so that concurrent callers get one session

    @property
    def session(self) -> SparkSession:
        """Returns the session; the first call starts it.

        Raises:
            EngineFailedError: Java does not start, or has ended while Spark started.
        """
        with self._mutex:
            if self._failure is not None:
                raise self._failure
            if self._session is None:
                self._jvm = self._launch().result()
                self._report.record("started Java")
                try:
                    self._session = self._connect(self._jvm)
                except Exception as error:  # PySpark connects a process to one Java only
                    logger.exception("Spark did not start")
                    self._failure = _describe_end(self._jvm, f"Spark did not start: {error}", self._log)
                    raise self._failure from error
            return self._session

    def launch(self) -> None:
        """Begin to start Java, and return at once; `session` connects to it once the app is loaded."""
        with self._mutex:
            self._launch()

    def _launch(self) -> Future[Jvm]:
        if self._launched is None or (self._launched.done() and self._launched.exception() is not None):
            self._launched = Future()
            threading.Thread(target=self._start_java, args=[self._launched], name="headwater-java", daemon=True).start()
        return self._launched

    def _start_java(self, launched: Future[Jvm]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.mkdtemp(prefix="headwater-spark-")
            self._scratch = Path(scratch)
            folders = {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
            # Workers run the same Python with the same packages, unless the profile names another.
            self._fork_server = ForkServer(Path(scratch)) if self._settings.forks_workers else None
            forked = str(self._fork_server.python) if self._fork_server else None
            os.environ["PYSPARK_DRIVER_PYTHON"] = forked or sys.executable
            os.environ["PYSPARK_PYTHON"] = forked or self._settings.worker_python
            where = _write_python_wrapper(Path(scratch)) if self._settings.python_is_archive else None
            options = [*self._settings.java_options(), *self._archive_options()]
            launched.set_result(start_jvm(self._settings.conf() | folders, options, self._log, where))
        except BaseException as error:
            launched.set_exception(error)

    @property
    def _log(self) -> Path:
        return self._folder.absolute() / "spark.log"

    def _connect(self, jvm: Jvm) -> SparkSession:
        os.environ["PYSPARK_GATEWAY_PORT"] = str(jvm.port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = jvm.secret
        try:
            session = SparkSession.builder.getOrCreate()
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        # `.crc` files of checkpoints would double the writes, and the ledger detects the same damage.
        context: Any = session.sparkContext
        files = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
        files.setWriteChecksum(False)
        files.setVerifyChecksum(False)
        if self._app is not None:
            ship_app(session, self._app, self._scratch)
        # PySpark and py4j log every error a second time.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j.clientserver"):
            logging.getLogger(name).disabled = True
        self._report.record("started Spark's session")
        return session

    def _archive_options(self) -> list[str]:
        """Returns the options of Java that use the class archive, or that record the classes for one."""
        java, jars = find_java(), spark_jars()
        options = archive_options(java, jars)
        if options or self._settings.lifetime in ("short", "check") or CLASS_ARCHIVE.read() == "off":
            return options
        self._recording = ClassRecording.begin(java, jars)
        return self._recording.options if self._recording else []

    def make_archive(self) -> None:
        """Make the class archive in the background if there is none; call it once a batch with rows has committed."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.make_archive()

    def ship_app(self) -> None:
        """Ship the app and the modules beside it again; the app must be loaded. Starts the session."""
        if self._app is not None:
            ship_app(self.session, self._app, self._scratch)

    def watch(self, timeout: float, report: Callable[[EngineFailedError], None], *, runs_batches: bool = True) -> None:
        """End this process if Java has ended or does not respond; the node restarts it.

        The first call of `session` or `watch` starts the session. Nothing is lost: batches that were not committed run
        again.

        Args:
            timeout: The seconds within which Java must respond.
            report: Called with the reason before this process ends.
            runs_batches: Whether a lack of memory is recorded, so that the next engine divides the batches.
        """

        def end(error: EngineFailedError) -> None:
            logger.error("%s; the engine ends", error.what)
            if runs_batches and error.data["memory"]:
                record_out_of_memory(self._folder.parent, error.what)
            report(error)
            logging.shutdown()
            os._exit(error.data["exit_code"])

        try:
            session = self.session
        except EngineFailedError:
            if self._failure is not None:
                end(self._failure)
            raise
        self._start_heartbeat(session, timeout, end)

    def _start_heartbeat(self, session: SparkSession, timeout: float, end: Callable[[EngineFailedError], None]) -> None:
        java: Any = session.sparkContext._jvm
        answered = time.monotonic()

        def ping() -> None:
            nonlocal answered
            while True:
                java.java.lang.System.nanoTime()
                answered = time.monotonic()
                time.sleep(_HEARTBEAT_INTERVAL)

        def watchdog() -> None:
            while (jvm := self._jvm) is not None:
                if jvm.process.poll() is not None or time.monotonic() - answered >= timeout:
                    end(_describe_end(jvm, f"Java has not responded for {timeout:g} s", self._log))
                time.sleep(1.0)

        # Two threads, because a call into a Java process that hangs does not return.
        for work in (ping, watchdog):
            threading.Thread(target=work, name=f"headwater-heartbeat-{work.__name__}", daemon=True).start()

    def stop(self) -> None:
        """Stop all queries, the session and the virtual machine."""
        with self._mutex:
            launched = self._launched  # one that is not done ends with this process
            if self._jvm is None and launched is not None and launched.done() and launched.exception() is None:
                self._jvm = launched.result()
            session, jvm, self._session, self._jvm, self._launched = self._session, self._jvm, None, None, None
            fork_server, self._fork_server = self._fork_server, None
            recording, self._recording = self._recording, None
        if session is not None and jvm is not None and jvm.process.poll() is None:
            gateway: Any = session.sparkContext._gateway
            try:
                session.stop()
            finally:
                # Python's garbage collector releases Java objects later, and would call a virtual machine that ended.
                gateway.shutdown()
                jvm.stop()
        elif jvm is not None:
            jvm.stop()
        if fork_server is not None:
            fork_server.stop()
        if recording is not None:
            recording.discard()


def _describe_end(jvm: Jvm, fault: str, log: Path) -> EngineFailedError:
    """Returns why Java has ended, with the exit code for this process and whether memory was short.

    Args:
        jvm: The virtual machine.
        fault: What is wrong if it has not ended.
        log: Its output.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):  # its connections end before it does
        jvm.process.wait(_END_TIMEOUT)
    code = jvm.process.poll()
    memory = "" if code is None else _memory_reason(code, log)
    what = fault if code is None else memory or f"Java has ended with exit code {code}"
    said = [line for line in log.read_text(errors="replace").splitlines() if _ERROR_LINE.search(line)]
    return EngineFailedError(
        what,
        detail="\n".join(said[-3:]) or None,
        fix="headwater doctor",
        exit_code=EXIT_OUT_OF_MEMORY if memory else _EXIT_JVM_HANGS,
        memory=bool(memory) or code is None,  # a Java that does not respond may be collecting garbage without an end
    )


def _memory_reason(code: int, log: Path) -> str:
    """Returns why Java ended if a batch may have been too large for its memory; empty otherwise.

    Args:
        code: The exit code of Java.
        log: Its output, which names what was short.
    """
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL))
        return "" if _OTHER_MEMORY.search(file.read()) else _OUT_OF_MEMORY.get(code, "")


def _write_python_wrapper(folder: Path) -> Path:
    """Write a script that starts the driver's Python, under the path of the workers' Python.

    Spark has one setting for both.
    """
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return folder
