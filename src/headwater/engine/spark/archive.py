"""Classes of Spark that Java has read once and need not read again: from an archive of them it starts in half the time.

Before its first batch Spark loads some 15,000 classes, and Java reads, checks and links each of them, at every start.
It can also write down what comes of that, and map it into memory the next time. The archive lies in the environment
that has the jars and goes with it; its name says of which Java and which jars it is, so that no other takes it up.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from headwater.errors import EngineFailedError, NotWritableError

__all__ = ["archive_of", "from_archive", "write_archive"]


def archive_of(java: Path, jars: Path) -> Path:
    """Where the archive for a Java and a folder of jars is, or would be."""
    release = java.resolve().parent.parent / "release"
    facts = [str(java.resolve()), release.read_text() if release.is_file() else ""]
    for jar in sorted(jars.glob("*.jar")):
        stat = jar.stat()
        facts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return Path(sys.prefix, "share", "headwater", f"spark-{digest[:16]}.jsa")


def from_archive(java: Path, jars: Path) -> list[str]:
    """The options with which Java takes classes from the archive; none where there is no archive."""
    archive = archive_of(java, jars)
    # Java falls back to the jars by itself where it cannot use it, for instance with a heap of over 32 GB.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"] if archive.is_file() else []


def write_archive(java: Path, jars: Path, classes: Path) -> Path:
    """Write the archive; it appears whole or not at all.

    Args:
        java: The java program.
        jars: The folder of jars.
        classes: The list of classes that Java writes with `-XX:DumpLoadedClassList`.

    Raises:
        NotWritableError: The environment belongs to somebody else.
        EngineFailedError: Java could not do it.
    """
    archive = archive_of(java, jars)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        for old in archive.parent.glob(
            "spark-*.jsa"
        ):  # of other versions of Java or Spark in this environment
            old.unlink()
    except OSError as error:
        raise NotWritableError(
            f"{archive.parent} cannot be written: {error.strerror}",
            fix="run it as the user who has installed Headwater, or install it in an environment of your own",
        ) from None
    part = archive.with_suffix(f".{classes.parent.name}")
    command = [
        str(java),
        "-Xshare:dump",
        "-Xlog:disable",
        "-XX:+UseSerialGC",
        f"-XX:SharedClassListFile={classes}",
    ]
    command += [f"-XX:SharedArchiveFile={part}", "-cp", f"{jars}/*"]
    # Where it fails, it must not leave a report of the fault in the folder of whoever called.
    done = subprocess.run(command, capture_output=True, cwd=classes.parent, check=False)
    if done.returncode or not part.is_file():
        part.unlink(missing_ok=True)
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineFailedError(
            "Java did not write the archive of classes",
            detail="\n".join(said[-3:]) or f"it ended with code {done.returncode}",
            fix="nothing: Spark starts without it as before",
        )
    part.rename(archive)
    return archive
