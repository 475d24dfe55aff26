"""The Spark session that all pipelines of a process share, with its settings.

`Spark.watch` detects a Java process that has ended or no longer responds: paused, out of memory, or in continuous
garbage collection.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from headwater.engine.spark.java import Jvm, start_jvm
from headwater.engine.spark.python_workers import ship_app
from headwater.profiles import ARCHIVE_SUFFIXES

__all__ = ["Spark", "SparkSettings"]

logger = logging.getLogger("headwater.engine")
_HEARTBEAT_INTERVAL: Final = 5.0  # seconds
_EXIT_JVM_HANGS: Final = 75
"""The exit code of an engine whose Java has ended or hangs."""

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
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # Windows and casts must have the same meaning on every machine.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # How long a real-time query buffers rows between two stages, in milliseconds.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    # Nothing reads the history of executions and progress, which would occupy memory.
    "spark.sql.ui.retainedExecutions": "1",
    f"{_STREAMING}numRecentProgressUpdates": "2",
}


@dataclass(frozen=True)
class SparkSettings:
    """The size and location of Spark.

    Args:
        cores: The number of task slots, and of partitions of keyed state.
        memory: The limit of Java's heap.
        quick: Start fast rather than run fast, for tests: Java compiles little.
        master: The address of Spark's master; tasks run on this machine, if omitted.
        python: The Python of the workers, or an archive with one; that of this process, if omitted.
        by_url: Whether checkpoints are at a URL rather than in a folder.
    """

    cores: int = field(default_factory=lambda: os.cpu_count() or 2)
    memory: str = "1g"
    quick: bool = False
    master: str = ""
    python: str | None = None
    by_url: bool = False

    @property
    def is_local(self) -> bool:
        """Whether all workers run on this machine, so that the driver listens on loopback only."""
        return not self.master or self.master.startswith("local") or "//127.0.0.1" in self.master

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
        }

    @property
    def python_is_archive(self) -> bool:
        """Whether the Python of the workers is an archive that Spark unpacks on each worker."""
        return self.python is not None and self.python.endswith(ARCHIVE_SUFFIXES)

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
    """

    def __init__(self, folder: Path, settings: SparkSettings | None = None, app: Path | None = None) -> None:
        self._folder = folder
        self._app = app
        self._settings = settings or SparkSettings()
        self._jvm: Jvm | None = None
        self._session: SparkSession | None = None
        self._mutex = threading.Lock()  # held for the whole start, so that concurrent callers get one session

    @property
    def session(self) -> SparkSession:
        """Returns the session; the first call starts it."""
        with self._mutex:
            if self._session is None:
                self._session = self._start()
            return self._session

    def _start(self) -> SparkSession:
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="headwater-spark-")
        conf = self._settings.conf() | {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        # Workers run the same Python with the same packages, unless the profile names another.
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = self._settings.worker_python
        where = _write_python_wrapper(Path(scratch)) if self._settings.python_is_archive else None
        quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"] if self._settings.quick else []
        options = [f"-Xmx{self._settings.memory}", *quick]
        self._jvm = start_jvm(conf, options, self._folder.absolute() / "spark.log", where)
        os.environ["PYSPARK_GATEWAY_PORT"] = str(self._jvm.port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = self._jvm.secret
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
            ship_app(session, self._app, Path(scratch))
        # PySpark and py4j log every error a second time.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j.clientserver"):
            logging.getLogger(name).disabled = True
        return session

    def watch(self, timeout: float) -> None:
        """End this process if Java has ended or does not respond within a timeout in seconds; the node restarts it.

        The first call of `session` or `watch` starts the session. Nothing is lost: batches that were not committed run
        again.
        """
        java: Any = self.session.sparkContext._jvm
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
                    logger.error("Java has ended or has not responded for %g s; the engine ends", timeout)
                    logging.shutdown()
                    os._exit(_EXIT_JVM_HANGS)
                time.sleep(1.0)

        # Two threads, because a call into a Java process that hangs does not return.
        for work in (ping, watchdog):
            threading.Thread(target=work, name=f"headwater-heartbeat-{work.__name__}", daemon=True).start()

    def stop(self) -> None:
        """Stop all queries, the session and the virtual machine."""
        with self._mutex:
            session, jvm, self._session, self._jvm = self._session, self._jvm, None, None
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


def _write_python_wrapper(folder: Path) -> Path:
    """Write a script that starts the driver's Python, under the path of the workers' Python.

    Spark has one setting for both.
    """
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return folder
