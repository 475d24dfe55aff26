"""Status of the engine process and of pipelines.

The process that watches the engine writes the engine's status to a small file. The engine writes its memory to another
one. Reports of pipelines are rows of the store.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.store.commit.commit import PipelineReport
from headwater.store.commit.row_checks import plain_text
from headwater.store.dialect import Session

__all__ = [
    "EXIT_OUT_OF_MEMORY",
    "EngineMemory",
    "EngineStatus",
    "MemoryReport",
    "ReloadReport",
    "WorkProgress",
    "engine_is_running",
    "folder_id",
    "read_engine_memory",
    "read_engine_status",
    "record_out_of_memory",
    "take_out_of_memory",
    "write_engine_memory",
    "write_engine_status",
    "write_report",
]


def write_report(session: Session, report: PipelineReport, reported_at: int) -> None:
    """Replace the status report of a pipeline; runs in the caller's transaction."""
    error = None if report.error is None else json.dumps(report.error, default=str)
    statement = """
        INSERT INTO hw$reports AS r VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (pipeline, version) DO UPDATE SET
            kind = excluded.kind, state = excluded.state, detail = excluded.detail, error = excluded.error,
            inputs = excluded.inputs, place = excluded.place, doc = excluded.doc, since = excluded.since,
            told_at = excluded.told_at, latency = excluded.latency, delivery = excluded.delivery,
            retries = CASE excluded.retries WHEN '{}' THEN r.retries ELSE excluded.retries END
    """
    session.execute(
        statement,
        (
            *(report.pipeline, report.version, report.kind, report.state, plain_text(report.detail), error),
            *(json.dumps(report.inputs), report.location, report.doc, report.since, reported_at),
            *(report.latency, report.delivery, json.dumps(dict(report.retries))),
        ),
    )


class EngineStatus(msgspec.Struct, frozen=True):
    """The status of the engine: "starting", "running", "restarting", "failed" or "stopped", and since when.

    `since` is in microseconds since 1970. While the engine waits for brokers or a database it is "starting", and
    `detail` names what it waits for and how long it has waited.

    Example:
        >>> EngineStatus("starting", since=0).detail
        ''
    """

    state: str
    since: int
    detail: str = ""
    pid: int | None = None


class WorkProgress(msgspec.Struct, frozen=True):
    """The progress of work that ends, as the engine reports it.

    Attributes:
        step: What is done, such as "read" or "replay".
        done: The number of events done.
        total: The number of events; it grows while new ones arrive.
        at: The pipeline that has most left to do.
        detail: What a pipeline waits for.

    Example:
        >>> WorkProgress("read", done=40, total=100, at="revenue").detail
        ''
    """

    step: str
    done: int
    total: int
    at: str = ""
    detail: str = ""


class ReloadReport(msgspec.Struct, frozen=True):
    """What a running engine has done with an edited app.

    Attributes:
        started: The pipelines that run with the new definition.
        kept: The pipelines that the edit does not concern.
        removed: The pipelines that were stopped, because the app no longer has them.
        rebuilding: The pipelines whose rebuild was asked for and has begun.
        problems: The errors of pipelines that were refused, by name; their last definition that ran keeps running.
        state_changed: Those of them whose view can be rebuilt: only its state does not fit.
        error: Why nothing was done, as a problem document.
        seconds: How long it took.

    Example:
        >>> ReloadReport(started=["revenue"]).problems
        {}
    """

    started: list[str] = []
    kept: list[str] = []
    removed: list[str] = []
    rebuilding: list[str] = []
    problems: dict[str, dict[str, Any]] = {}
    state_changed: list[str] = []
    error: dict[str, Any] | None = None
    seconds: float = 0.0


EXIT_OUT_OF_MEMORY: Final = 76
"""The exit code of an engine that has ended for lack of memory. The next one divides the batches that were running."""
_OUT_OF_MEMORY_FILE: Final = "out-of-memory"


def record_out_of_memory(data: Path, reason: str) -> None:
    """Record that the engine ended for lack of memory.

    Example:
        >>> import tempfile
        >>> data = Path(tempfile.mkdtemp())
        >>> record_out_of_memory(data, "Java's heap was too small")
        >>> take_out_of_memory(data), take_out_of_memory(data)
        ("Java's heap was too small", '')
    """
    _replace(data, _OUT_OF_MEMORY_FILE, reason.encode())


def take_out_of_memory(data: Path) -> str:
    """Returns why the last engine ended for lack of memory, once; empty if it did not."""
    file = data / "engine" / _OUT_OF_MEMORY_FILE
    try:
        reason = file.read_text()
    except FileNotFoundError:
        return ""
    file.unlink()
    return reason


class EngineMemory(msgspec.Struct, frozen=True):
    """The memory of the engine's processes in bytes; all parts add up to `total`.

    Attributes:
        sampled_at: When it was sampled, in microseconds since 1970.
        pid: The id of the engine process.
        driver: The engine process: Python, the store, operators at the sink.
        java_heap: What Java has taken from the system for its heap, used or not.
        java_classes: Loaded classes (metaspace) and compiled code.
        java_native: The rest of Java: threads, buffers, garbage collector, its files and jars.
        state_store: Block cache and write buffers of RocksDB, where Spark keeps the state of pipelines.
        python_workers: The Python processes that plan and read batches and run functions.
        python_processes: The number of these processes.
        java_heap_used: What objects take of the heap, including those not yet collected.
        java_heap_limit: The limit of the heap.

    Example:
        >>> EngineMemory(0, 7, 100, 500, 90, 200, 30, 400, python_processes=9).total
        1320
    """

    sampled_at: int
    pid: int
    driver: int
    java_heap: int = 0
    java_classes: int = 0
    java_native: int = 0
    state_store: int = 0
    python_workers: int = 0
    python_processes: int = 0
    java_heap_used: int = 0
    java_heap_limit: int = 0

    @property
    def total(self) -> int:
        """The sum of all parts."""
        java = self.java_heap + self.java_classes + self.java_native
        return self.driver + java + self.state_store + self.python_workers


class MemoryReport(msgspec.Struct, frozen=True):
    """The memory of a node and of the engine of its folder, in bytes; `engine` is None while Spark is not running."""

    node: int
    engine: EngineMemory | None = None


def write_engine_status(data: Path, state: EngineStatus) -> None:
    """Replace the status file atomically."""
    _replace(data, "state.json", msgspec.json.encode(state))


def read_engine_status(data: Path) -> EngineStatus | None:
    """Returns the last written status; None if no engine ever ran here.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_engine_status(folder, EngineStatus("running", since=0, pid=7))
        >>> read_engine_status(folder).pid
        7
    """
    try:
        return msgspec.json.decode((data / "engine" / "state.json").read_bytes(), type=EngineStatus)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def engine_is_running(data: Path) -> bool:
    """Whether the engine of a data folder runs; a killed one leaves its last status behind.

    Example:
        >>> import tempfile
        >>> engine_is_running(Path(tempfile.mkdtemp()))
        False
    """
    status = read_engine_status(data)
    if status is None or status.state in ("stopped", "failed"):
        return False
    return status.pid is None or Path(f"/proc/{status.pid}").exists()


def write_engine_memory(data: Path, memory: EngineMemory) -> None:
    """Replace the file of the engine's memory atomically."""
    _replace(data, "memory.json", msgspec.json.encode(memory))


def read_engine_memory(data: Path) -> EngineMemory | None:
    """Returns the last sample of the running engine; None if no engine runs, or Spark has not started.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_engine_memory(folder, EngineMemory(0, pid=os.getpid(), driver=100))
        >>> read_engine_memory(folder).driver
        100
        >>> write_engine_memory(folder, EngineMemory(0, pid=-1, driver=100))
        >>> read_engine_memory(folder)
    """
    try:
        memory = msgspec.json.decode((data / "engine" / "memory.json").read_bytes(), type=EngineMemory)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return memory if Path(f"/proc/{memory.pid}").exists() else None


def folder_id(data: Path) -> tuple[int, int] | None:
    """Returns what tells a data folder from another one of its name; None if there is none.

    Example:
        >>> import tempfile
        >>> folder_id(Path(tempfile.mkdtemp())) == folder_id(Path(tempfile.mkdtemp()))
        False
    """
    try:
        found = data.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _replace(data: Path, name: str, content: bytes) -> None:
    """Replace one of the engine's files atomically; leaves it if the data folder is gone or full.

    A status is no reason to stop, and a folder that was removed while an app runs must not come back half empty.
    """
    folder = data / "engine"
    temporary = folder / f"{name}.{os.getpid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(folder / name)
