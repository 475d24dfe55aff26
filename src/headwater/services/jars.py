"""Jars of the servers that run on Java, kept for all later runs in `$XDG_CACHE_HOME/headwater/NAME`.

They are resolved by Maven from its own settings where it is installed, so that a mirror configured there is used, and
otherwise by Ivy, which comes with Spark. The versions are pinned beside the servers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from headwater.engine.spark.java import find_java, spark_jars
from headwater.errors import ServiceFailedError
from headwater.services.launched import Tell

__all__ = ["cache_folder", "jars"]

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headwater.services</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def cache_folder() -> Path:
    """Where downloads are kept between runs: `$XDG_CACHE_HOME/headwater`, else `~/.cache/headwater`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"


def jars(name: str, coordinates: tuple[str, ...], tell: Tell | None = None) -> Path:
    """A folder with the jars of `coordinates` and all they depend on, downloaded once per `name`.

    The folder appears complete or not at all: jars go to a folder beside it, which is then renamed. Two runs
    that start together download once, since the second waits for the lock of the first.

    Raises:
        ServiceFailedError: They could not be fetched.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            if tell is not None:
                tell(f"fetching the jars of {name}, once for this machine")
            _download(folder, coordinates)
    return folder


def _download(folder: Path, coordinates: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.partial-") as work:
        target = Path(work, "libs")
        maven = shutil.which("mvn")
        commands = (
            [_maven(maven, Path(work), target, coordinates)]
            if maven
            else _ivy(Path(work), target, coordinates)
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                what = f"{Path(command[0]).name} could not fetch {', '.join(coordinates)}"
                fix = "look at the network, or at the mirrors in Maven's settings"
                raise ServiceFailedError(what, detail="\n".join(lines[-8:]), fix=fix, service=folder.name)
        target.rename(folder)


def _maven(program: str, work: Path, target: Path, coordinates: tuple[str, ...]) -> list[str]:
    pom = work / "pom.xml"
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    pom.write_text(_POM.format(name=target.name, dependencies=dependencies))
    options = [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    return [program, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]


def _ivy(work: Path, target: Path, coordinates: tuple[str, ...]) -> list[list[str]]:
    """One command for each coordinate; the exit code is not 0 when one of its jars is missing."""
    start = [str(find_java()), "-cp", f"{spark_jars()}/*", "org.apache.ivy.Main", "-cache", str(work / "ivy")]
    kept = [
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
    ]
    return [[*start, "-dependency", *coordinate.split(":"), *kept] for coordinate in coordinates]
