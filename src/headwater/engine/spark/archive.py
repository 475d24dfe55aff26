"""Classes of Spark that Java has read once and need not read again: from an archive of them it starts much faster.

Before its first batch Spark loads some 15,000 classes, and Java reads, checks and links each of them, at every start.
It can also write down what comes of that, and map it into memory the next time. The archive lies in the environment of
this Python; its name says of which Java and which jars it is, so that no other takes it up.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from headwater.errors import EngineFailedError, NotWritableError

__all__ = ["class_path", "from_archive", "room_for_archive", "write_archive"]


def class_path(jars: Path) -> str:
    """All jars of a folder, in one order: an archive is of one order, and `*` is another on each file system."""
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


def from_archive(java: Path, jars: Path) -> list[str]:
    """The options with which Java takes classes from the archive; none where there is no archive."""
    archive = _archive_of(java, jars)
    # Java falls back to the jars by itself where it cannot use it, for instance with a heap of over 32 GB.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"] if archive.is_file() else []


def room_for_archive(java: Path, jars: Path) -> Path:
    """Where the archive will be; its folder is there.

    Raises:
        NotWritableError: The environment belongs to somebody else.
    """
    archive = _archive_of(java, jars)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=archive.parent).close()
    except OSError as error:
        raise NotWritableError(
            f"{archive.parent} cannot be written: {error.strerror}",
            fix="run it as the user who has installed Headwater, or install it in an environment of your own",
        ) from None
    return archive


def write_archive(java: Path, jars: Path, classes: Path) -> Path:
    """Write the archive; it appears whole or not at all, and those of other Javas and jars go.

    Args:
        java: The java program.
        jars: The folder of jars.
        classes: The list of classes that Java writes with `-XX:DumpLoadedClassList`.

    Raises:
        NotWritableError: The environment belongs to somebody else.
        EngineFailedError: Java could not do it.
    """
    archive = room_for_archive(java, jars)
    part = archive.with_suffix(f".{os.getpid()}")
    try:
        _dump(java, jars, classes, part)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    for other in archive.parent.glob("spark-*.jsa"):
        if other != archive:
            other.unlink(missing_ok=True)
    return archive


def _archive_of(java: Path, jars: Path) -> Path:
    release = java.resolve().parent.parent / "release"
    facts = [str(java.resolve()), release.read_text() if release.is_file() else ""]
    for jar in sorted(jars.glob("*.jar")):
        stat = jar.stat()
        seconds = int(stat.st_mtime)  # layers of images keep no more of a time
        facts.append(f"{jar} {stat.st_size} {seconds}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return Path(sys.prefix, "share", "headwater", f"spark-{digest[:16]}.jsa")


def _dump(java: Path, jars: Path, classes: Path, archive: Path) -> None:
    command = [str(java), "-Xshare:dump", "-Xlog:disable", "-XX:+UseSerialGC", "-cp", class_path(jars)]
    command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"]
    # Where it fails, it must not leave a report of the fault in the folder of whoever called.
    done = subprocess.run(command, capture_output=True, cwd=classes.parent, check=False)
    if done.returncode or not archive.is_file():
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineFailedError(
            "Java did not write the archive of classes",
            detail="\n".join(said[-3:]) or f"it ended with code {done.returncode}",
            fix="nothing: Spark starts without it as before",
        )
