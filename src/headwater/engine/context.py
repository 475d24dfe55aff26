"""The engine context, query directories and checkpoint folders.

`EngineContext` holds what all queries of a process share: log, store, clock and limits. `QueryDirectory` has the files
of one query: its manifest, its checkpoint, and files that its processes share. `CheckpointFolder` is where manifests
and checkpoints are stored: a folder of this machine (`LocalFolder`), or a URL that Hadoop can open (`HadoopFolder`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headwater.engine.reports.start_report import StartReport
from headwater.errors import FencedError, UnreachableError
from headwater.events import Clock
from headwater.invocation import Invocation
from headwater.log.protocol import TimedLog
from headwater.log.storage.disk import Disk
from headwater.profiles import redact
from headwater.store import RetriedEvent, Store
from headwater.store.commit.retries import EventPosition

__all__ = ["CheckpointFolder", "EngineContext", "HadoopFolder", "LocalFolder", "QueryDirectory", "QueryManifest"]


class CheckpointFolder(Protocol):
    """A folder that outlives its driver; file names are relative to it."""

    @property
    def address(self) -> str:
        """The path or URL of the folder, as Spark accepts it."""

    def subfolder(self, name: str) -> CheckpointFolder:
        """Returns a folder in this one; it need not exist."""

    def list_names(self, name: str = ".") -> list[str]:
        """Returns the names in a subfolder; empty if it does not exist."""

    def read(self, name: str) -> bytes:
        """Returns the content of a file.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically: after a crash it is the old one or the new one."""

    def delete(self, name: str) -> None:
        """Delete a file or a folder with everything in it, if it exists."""

    def remove(self) -> None:
        """Delete the folder with everything in it, if it exists."""

    def sync(self) -> None:
        """Return when everything that Spark has written here would survive a power failure."""


_Entry: TypeAlias = tuple[str, int, int, int]
"""Path and inode; of files also the size and the time of the last change in nanoseconds."""


class LocalFolder:
    """A folder in a file system of this machine.

    Example:
        >>> import tempfile
        >>> folder = LocalFolder(Path(tempfile.mkdtemp())).subfolder("revenue")
        >>> folder.write("made.json", b"{}")
        >>> folder.read("made.json"), folder.list_names(), folder.list_names("checkpoint")
        (b'{}', ['made.json'], [])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._synced: set[_Entry] | None = None  # at the last sync

    @property
    def address(self) -> str:
        """The path or URL of the folder, as Spark accepts it."""
        return str(self.path)

    def subfolder(self, name: str) -> LocalFolder:
        """Returns a folder in this one; it need not exist."""
        return LocalFolder(self.path / name)

    def list_names(self, name: str = ".") -> list[str]:
        """Returns the names in a subfolder; empty if it does not exist."""
        folder = self.path / name
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically: after a crash it is the old one or the new one."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Disk().write_file(path, data)

    def delete(self, name: str) -> None:
        """Delete a file or a folder with everything in it, if it exists."""
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder with everything in it, if it exists."""
        # A process of a stopped query may still write here; what it leaves is removed with the next call.
        shutil.rmtree(self.path, ignore_errors=True)

    def sync(self) -> None:
        """Sync what is new in this folder since the last call; Spark itself never syncs a file."""
        found = set(_list_entries(self.path))
        fresh = found if self._synced is None else found - self._synced
        # The first call knows nothing of earlier processes, and many files cost more than the whole file system.
        if self._synced is None or len(fresh) > _MAX_SYNCED:
            _sync_file_system(self.path)
        else:
            paths = {path for path, *_ in fresh}
            _sync_files(sorted(paths | {str(Path(path).parent) for path in paths}))
        self._synced = found


_MAX_SYNCED: Final = 24
"""The largest number of new files that are synced one by one; more cost as much as the whole file system."""
_sync_threads: Final = ThreadPoolExecutor(8, thread_name_prefix="headwater-sync")


def _list_entries(folder: str | Path) -> Iterator[_Entry]:
    """Yields all entries below a folder.

    Spark writes most files under a hidden name first, but uploads files of state under their own name while a batch
    may sync: a file that has changed since is not the one that was synced.
    """
    with suppress(FileNotFoundError):  # Spark has removed an old folder meanwhile
        for entry in os.scandir(folder):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield entry.path, entry.inode(), 0, 0
                yield from _list_entries(entry.path)
                continue
            with suppress(FileNotFoundError):  # Spark has removed an old file meanwhile
                found = entry.stat()
                yield entry.path, found.st_ino, found.st_size, found.st_mtime_ns


def _sync_files(paths: Sequence[str]) -> None:
    """Sync files and folders, concurrently: the disk then writes its journal once for most of them."""
    for _ in _sync_threads.map(_sync_file, paths):
        pass


def _sync_file(path: str) -> None:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # Spark has removed an old file meanwhile
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _sync_file_system(folder: Path) -> None:
    """Sync everything in the file system of a folder, including what other programs wrote."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "syncfs"):
            if libc.syncfs(handle) != 0:
                raise OSError(ctypes.get_errno(), "the checkpoint could not be synced")
        else:
            os.sync()
    finally:
        os.close(handle)


class HadoopFolder:
    """A folder at a URL, accessed with the file system client that Spark uses for its checkpoints.

    Args:
        address: The URL, such as `s3a://bucket/checkpoints` or `hdfs://name/checkpoints`.
        spark: Returns the session; called at each access.
    """

    def __init__(self, address: str, spark: Callable[[], SparkSession]) -> None:
        self.address = address.rstrip("/")
        self._spark = spark

    def subfolder(self, name: str) -> HadoopFolder:
        """Returns a folder in this one; it need not exist."""
        return HadoopFolder(f"{self.address}/{name}", self._spark)

    def list_names(self, name: str = ".") -> list[str]:
        """Returns the names in a subfolder; empty if it does not exist."""
        try:
            with self._file_manager(name) as (files, path):
                return [str(found.getPath().getName()) for found in files.list(path)]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        with self._file_manager(name) as (files, path):
            stream = files.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically: after a crash it is the old one or the new one."""
        with self._file_manager(name) as (files, path):
            files.mkdirs(path.getParent())
            stream = files.createAtomic(path, True)
            stream.write(data)
            stream.close()

    def delete(self, name: str) -> None:
        """Delete a file or a folder with everything in it, if it exists."""
        with self._file_manager(name) as (files, path):
            files.delete(path)

    def remove(self) -> None:
        """Delete the folder with everything in it, if it exists."""
        with self._file_manager(".") as (files, path):
            files.delete(path)

    def sync(self) -> None:
        """Do nothing: object stores and HDFS are durable once a write returns."""

    @contextmanager
    def _file_manager(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Yields Spark's checkpoint file manager and the path of a file; translates Java's errors."""
        session = self._spark()
        jvm: Any = session._jvm
        address = self.address if name == "." else f"{self.address}/{name}"
        try:
            path = jvm.org.apache.hadoop.fs.Path(address)
            settings = session._jsparkSession.sessionState().newHadoopConf()
            managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
            yield managers.create(path, settings), path
        except Py4JJavaError as error:
            java = error.java_exception
            if java.getClass().getName() == "java.io.FileNotFoundException":
                raise FileNotFoundError(address) from None
            what = f"the checkpoint folder {redact(self.address)} is unreachable"
            raise UnreachableError(what, detail=redact(java.toString()), fix="docs/profiles.md") from None


class QueryManifest(msgspec.Struct, frozen=True):
    """The definition that a query was started with, for comparison with the app's current definition.

    Attributes:
        facts: The facts of the pipeline (see `Pipeline.facts`), the topic of each input, and its lateness if the rows
            depend on it.
        state: The description of its state.
        schema: Its columns as DDL.
        mode: Its output mode.
        rows: The behaviour of its rows (see `RowBehaviour`).
        starts: The start offsets of each input.
        topic_ids: The id of each input's topic (see `TimedLog.topic_id`).
        marks: The tombstone marks of each input, by partition, when the query began (see `TombstoneHorizon`).
    """

    facts: dict[str, str]
    state: str
    schema: str
    mode: str
    rows: str
    starts: dict[str, dict[int, int]]
    topic_ids: dict[str, str] = msgspec.field(name="incarnations", default_factory=dict)
    marks: dict[str, dict[int, int]] = {}


class QueryDirectory:
    """The files of one version of a pipeline.

    The manifest and Spark's checkpoint are below `shared`, because the next driver needs them, on any machine. Files
    that each run creates again are in `engine/NAME/VERSION` of the data folder, which is also the default of `shared`.

    Example:
        >>> import tempfile
        >>> directory = QueryDirectory(Path(tempfile.mkdtemp()), "revenue", 1)
        >>> directory.query_id, directory.load_manifest() is None
        ('revenue@1', True)
    """

    def __init__(self, data: Path, name: str, version: int, shared: CheckpointFolder | None = None) -> None:
        self.query_id = f"{name}@{version}"
        self._local = data / "engine" / name / str(version)
        self._shared = (shared or LocalFolder(data / "engine")).subfolder(f"{name}/{version}")
        self.checkpoint = self._shared.subfolder("checkpoint")
        self.pacing_file = self._local / "notes"
        self.barrier_file = self._local / "loaded"
        self.budget_file = self._local / "budget.json"

    @property
    def staging_folder(self) -> Path | None:
        """Where workers write large results for the driver; None if they share no folder with it."""
        return self._shared.path / "staged" if isinstance(self._shared, LocalFolder) else None

    def load_manifest(self) -> QueryManifest | None:
        """Returns the manifest; None if the query has never run."""
        try:
            return msgspec.json.decode(self._shared.read("made.json"), type=QueryManifest, strict=False)
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Delete all files of the query."""
        for folder in (LocalFolder(self._local), self._shared):
            folder.remove()

    def prepare(self, manifest: QueryManifest, inputs: int) -> None:
        """Create the local files anew, and write the manifest if it has changed."""
        self._local.mkdir(parents=True, exist_ok=True)
        for file in (self.pacing_file, self.barrier_file):
            file.write_bytes(bytes(inputs))  # one byte per input
        for path in self._local.glob("*.decided"):  # no reader may follow one that has ended
            path.unlink()
        if manifest != self.load_manifest():
            self._shared.write("made.json", msgspec.json.format(msgspec.json.encode(manifest), indent=2))

    def skips_file(self, input_: str) -> Path:
        """Returns the file with the offsets that an input skips; it is written from the store at each start."""
        return self._local / f"skips-{input_}.json"

    def write_skips(self, topics: Mapping[str, str], skipped: Sequence[EventPosition]) -> None:
        """Write the quarantined events that the inputs skip; `topics` has the topic of each input."""
        for name, topic in topics.items():
            positions = sorted({(partition, offset) for of, partition, offset in skipped if of == topic})
            self.skips_file(name).write_bytes(msgspec.json.encode(positions))

    def retries_file(self, input_: str) -> Path:
        """Returns the file with the events that an input retries; it is replaced when there are new ones."""
        return self._local / f"retries-{input_}.json"

    def write_retries(self, topics: Mapping[str, str], retried: Sequence[RetriedEvent]) -> None:
        """Write the events that the inputs retry; `topics` has the topic of each input."""
        for name, topic in topics.items():
            rows = [(one.number, one.partition, one.offset) for one in retried if one.topic == topic]
            Disk().write_file(self.retries_file(name), msgspec.json.encode(rows))


_OWNER: Final = "@driver"
"""The name under which a driver opens an epoch in the store, before it opens one for each query."""


@dataclass(frozen=True)
class EngineContext:
    """Log, store, clock and settings that all queries of a process share.

    Args:
        data: The data folder.
        log: The log that pipelines read and publish to.
        store: The store that they commit to.
        clock: The source of the current time.
        rows: The approximate number of events in a batch while catching up.
        batch_size: The limit of bytes of events in a batch.
        stage_above: Workers stage a result that is expected to have more rows than this.
        cores: The number of tasks of a batch.
        turns: How many pipelines are built and started at the same time (see `StartTurn`).
        wait: The longest wait of an input for events, in seconds.
        checkpoints: A folder that driver and workers can access, for checkpoints; in the data folder, if omitted.
        dry_run_log: In a dry run, the address of the log that a run would use.
        out_of_memory: Why the last engine ended for lack of memory; empty if it did not.
        jars: A folder with the jars of Spark's Kafka connector; they are fetched, if omitted.
        realtime_batch: The length of a real-time batch, which bounds what runs again after a crash.
        scratch: A folder for isolated queries, such as replays: they write nowhere else and publish nothing.
        owner: The epoch of this driver (see `claim_ownership`); None for isolated queries.
        invocation: How the app was started; completes the commands in errors.
        start_report: Records the steps of the start.
    """

    data: Path
    log: TimedLog
    store: Store
    clock: Clock
    rows: int = 1_000_000
    batch_size: int = 64 << 20
    stage_above: int = 200_000
    cores: int = 2
    turns: threading.Semaphore = field(default_factory=threading.Semaphore)
    wait: float = 1.0
    checkpoints: CheckpointFolder | None = None
    dry_run_log: str = ""
    out_of_memory: str = ""
    jars: str | None = None
    realtime_batch: timedelta = timedelta(seconds=30)
    scratch: Path | None = None
    owner: int | None = None
    invocation: Invocation = field(default_factory=Invocation)
    start_report: StartReport = field(default_factory=StartReport)

    def claim_ownership(self) -> EngineContext:
        """Open a new epoch for this driver, which fences every earlier driver; returns the context with it."""
        return replace(self, owner=self.store.open_epoch(_OWNER))

    def check_owner(self) -> None:
        """Check that no other driver has taken over the pipelines.

        Raises:
            FencedError: Another driver has a newer epoch.
        """
        if self.owner is None:
            return
        try:
            self.store.check_epoch(_OWNER, self.owner)
        except FencedError as newer:
            what, fix = "another driver runs these pipelines now", "stop this one; the other continues"
            raise FencedError(what, detail=newer.detail, fix=fix, **newer.data) from None

    @property
    def kafka(self) -> str | None:
        """The address of the log, if it is on Kafka."""
        where = self.dry_run_log or self.log.url
        return where if where.startswith("kafka://") else None

    def query_directory(self, name: str, version: int) -> QueryDirectory:
        """Returns the directory of a query."""
        shared = self.checkpoints if self.scratch is None else None
        return QueryDirectory(self.scratch or self.data, name, version, shared)

    def versions_after(self, name: str, version: int) -> list[int]:
        """Returns the later versions of a pipeline that have a directory, in order."""
        shared = self.checkpoints or LocalFolder(self.data / "engine")
        return sorted(int(one) for one in shared.subfolder(name).list_names() if one.isdigit() and int(one) > version)

    def discard_version(self, name: str, version: int) -> None:
        """Delete everything that the store and the directory have of an unfinished version of a view.

        Raises:
            FencedError: Another driver has taken over the pipelines.
        """
        # The store first: from then on a runner of this version cannot commit.
        self.store.discard_version(name, version, None if self.owner is None else (_OWNER, self.owner))
        self.query_directory(name, version).remove()
