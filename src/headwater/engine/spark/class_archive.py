"""The archive of Java's classes, with which Spark starts faster.

Spark loads about 15,000 classes before its first batch, and Java reads, verifies and links each of them at every start.
A class data sharing (CDS) archive stores the result and is mapped into memory at the next start. The archive is stored
in the Python environment, or in the user's cache folder if the environment is read-only. Its name contains the Java
version and the jars, so no other installation uses it.

The first start records the classes that it loads. When its first rows have committed, a process of its own makes the
archive at the lowest priority: `python -m headwater.engine.spark.class_archive JAVA JARS CLASSES`. It survives the
engine, and `headwater prepare` does the same in the foreground.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.engine.spark.java import class_path, release_text
from headwater.errors import EngineFailedError, HeadwaterError, NotWritableError

__all__ = ["ClassRecording", "archive_options", "main", "prepare_archive_path", "write_archive"]

_ARCHIVE: Final = ".jsa"
_FAILED: Final = ".failed"
"""The suffix of a file that keeps later starts from trying again what Java could not do."""


def archive_options(java: Path, jars: Path) -> list[str]:
    """Returns the Java options that use the archive; empty if there is no archive."""
    for archive in _archive_paths(java, jars):
        if archive.is_file():
            # Java falls back to the jars if it cannot use the archive, for example with a heap of more than 32 GB.
            return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"]
    return []


def prepare_archive_path(java: Path, jars: Path) -> Path:
    """Returns the path of the archive to write, in the first folder that can be written; creates the folder.

    Raises:
        NotWritableError: Neither the environment nor the user's cache folder can be written.
    """
    reasons = []
    for archive in _archive_paths(java, jars):
        try:
            archive.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=archive.parent).close()
        except OSError as error:
            reasons.append(f"{archive.parent}: {error.strerror}")
        else:
            return archive
    raise NotWritableError(
        "no folder for the archive of classes can be written",
        detail="; ".join(reasons),
        fix="XDG_CACHE_HOME=/a/folder headwater prepare",
    )


def write_archive(java: Path, jars: Path, classes: Path, archive: Path | None = None) -> Path:
    """Write the archive atomically, and remove archives of other Java versions and jars.

    Args:
        java: The java program.
        jars: The folder of jars.
        classes: The list of classes that Java writes with `-XX:DumpLoadedClassList`.
        archive: Its path; that of `prepare_archive_path`, if omitted.

    Raises:
        NotWritableError: No folder can be written.
        EngineFailedError: Java failed to write it.
    """
    archive = archive or prepare_archive_path(java, jars)
    part = archive.with_suffix(f".{os.getpid()}")
    command = [str(java), "-Xshare:dump", "-Xlog:disable", "-XX:+UseSerialGC", "-cp", class_path(jars)]
    command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={part}"]
    try:
        # A crash report of Java must not go to the current folder.
        done = subprocess.run(command, capture_output=True, cwd=classes.parent, check=False)
        if done.returncode or not part.is_file():
            said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
            raise EngineFailedError(
                "Java did not write the archive of classes",
                detail="\n".join(said[-3:]) or f"exit code {done.returncode}",
                fix="nothing: Spark starts without the archive, only slower",
            )
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    for other in archive.parent.glob("spark-*"):
        if other != archive and other.suffix in (_ARCHIVE, _FAILED):
            other.unlink(missing_ok=True)
    return archive


@dataclass(frozen=True)
class ClassRecording:
    """The recording of the classes that a virtual machine loads.

    Attributes:
        java: The java program.
        jars: The folder of jars.
        classes: The file to which Java writes the classes.
    """

    java: Path
    jars: Path
    classes: Path

    @classmethod
    def begin(cls, java: Path, jars: Path) -> ClassRecording | None:
        """Returns a new recording; None if no folder can be written, or an earlier archive could not be made."""
        try:
            archive = prepare_archive_path(java, jars)
        except NotWritableError:
            return None
        if archive.with_suffix(_FAILED).exists():
            return None
        _remove_left(archive)
        return cls(java, jars, archive.with_suffix(f".classes-{os.getpid()}"))

    @property
    def options(self) -> list[str]:
        """The Java options that record."""
        return [f"-XX:DumpLoadedClassList={self.classes}"]

    def discard(self) -> None:
        """Remove what was recorded; call it when Java has ended."""
        self.classes.unlink(missing_ok=True)

    def make_archive(self) -> None:
        """Start a process that makes the archive, and do not wait for it."""
        words = [sys.executable, "-m", "headwater.engine.spark.class_archive"]
        # Its own session: the processes of an engine are killed as a group when it ends.
        process = subprocess.Popen(
            [*words, str(self.java), str(self.jars), str(self.classes)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=process.wait, name="headwater-archive", daemon=True).start()


def main(java: Path, jars: Path, classes: Path) -> None:
    """Make the archive from recorded classes at the lowest priority, unless another process does or has."""
    os.nice(19)
    archive = classes.with_suffix(_ARCHIVE)
    with _lock(archive.with_suffix(".lock")) as mine:
        if not mine or archive.is_file():
            classes.unlink(missing_ok=True)
            return
        complete = archive.with_suffix(f".list-{os.getpid()}")
        try:
            # Java goes on to write: the last line may be incomplete.
            complete.write_bytes(classes.read_bytes().rpartition(b"\n")[0] + b"\n")
            classes.unlink()
            write_archive(java, jars, complete, archive)
        except HeadwaterError:
            archive.with_suffix(_FAILED).touch()
            raise
        finally:
            complete.unlink(missing_ok=True)


def _remove_left(archive: Path) -> None:
    """Remove files of processes that ended before they had recorded all classes or written the archive."""
    for left in archive.parent.glob(f"{archive.stem}.*"):
        number = left.suffix.removeprefix(".").rpartition("-")[2]
        if number.isdigit() and not _is_running(int(number)):
            left.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Yields whether this process has locked a file; the kernel releases the lock when the process ends."""
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
            path.unlink(missing_ok=True)


def _archive_paths(java: Path, jars: Path) -> Iterator[Path]:
    """Yields the paths of the archive in the environment and in the user's cache folder."""
    facts = [str(java.resolve()), release_text(java)]
    for jar in sorted(jars.glob("*.jar")):
        stat = jar.stat()
        seconds = int(stat.st_mtime)  # container images keep whole seconds only
        facts.append(f"{jar} {stat.st_size} {seconds}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    name = f"spark-{digest[:16]}{_ARCHIVE}"
    yield Path(sys.prefix, "share", "headwater", name)
    cache = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield (Path(cache) if cache else Path.home() / ".cache") / "headwater" / name


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
