"""Where checkpoints lie: a folder of this machine or of a mounted share, or whatever Hadoop finds under a URL."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headwater.address import redacted
from headwater.errors import UnreachableError

__all__ = ["Folder", "HadoopFolder", "LocalFolder"]


class Folder(Protocol):
    """A folder that outlives its driver. Files in it are named relative to it."""

    @property
    def address(self) -> str:
        """The folder, as Spark takes it."""

    def inside(self, name: str) -> Folder:
        """A folder in this one, there or not."""

    def names(self, name: str = ".") -> list[str]:
        """What lies in a folder inside; nothing, when it is not there."""

    def read(self, name: str) -> bytes:
        """A whole file.

        Raises:
            FileNotFoundError: There is none.
        """

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of the one that is there; after a crash it is the old one or the new one."""

    def settle(self) -> None:
        """Return when all that Spark has written here survives a power cut."""


class LocalFolder:
    """A folder that this machine has mounted.

    Example:
        >>> import tempfile
        >>> folder = LocalFolder(Path(tempfile.mkdtemp())).inside("revenue")
        >>> folder.write("made.json", b"{}")
        >>> folder.read("made.json"), folder.names(), folder.names("checkpoint")
        (b'{}', ['made.json'], [])
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def address(self) -> str:
        """The folder, as Spark takes it."""
        return str(self.path)

    def inside(self, name: str) -> LocalFolder:
        """A folder in this one, there or not."""
        return LocalFolder(self.path / name)

    def names(self, name: str = ".") -> list[str]:
        """What lies in a folder inside; nothing, when it is not there."""
        folder = self.path / name
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def read(self, name: str) -> bytes:
        """A whole file."""
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of the one that is there; after a crash it is the old one or the new one."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def settle(self) -> None:
        """Put the whole file system of this folder on the disk: Spark itself never does."""
        handle = os.open(self.path, os.O_RDONLY)
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
    """A folder by URL, reached by the means with which Spark reaches its checkpoints there.

    Args:
        address: Such as `s3a://bucket/checkpoints` or `hdfs://name/checkpoints`.
        spark: Gives the session; asked when something is read or written.
    """

    def __init__(self, address: str, spark: Callable[[], SparkSession]) -> None:
        self.address = address.rstrip("/")
        self._spark = spark

    def inside(self, name: str) -> HadoopFolder:
        """A folder in this one, there or not."""
        return HadoopFolder(f"{self.address}/{name}", self._spark)

    def names(self, name: str = ".") -> list[str]:
        """What lies in a folder inside; nothing, when it is not there."""
        try:
            with self._files(name) as (files, path):
                return [str(found.getPath().getName()) for found in files.list(path)]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """A whole file."""
        with self._files(name) as (files, path):
            stream = files.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of the one that is there; after a crash it is the old one or the new one."""
        with self._files(name) as (files, path):
            files.mkdirs(path.getParent())
            stream = files.createAtomic(path, True)
            stream.write(data)
            stream.close()

    def settle(self) -> None:
        """Nothing: what such storage has taken is its to keep."""

    @contextmanager
    def _files(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Spark's own file manager for checkpoints, and the path of a file; errors of Java as ours."""
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
            what = f"checkpoints cannot be reached at {redacted(self.address)}"
            raise UnreachableError(what, detail=redacted(java.toString()), fix="docs/profiles.md") from None
