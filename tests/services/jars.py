"""Java 17 and the jars of the servers that run on it.

Jars are resolved by Maven from its own settings, so that a mirror configured there is used, and kept for all
later runs in `$XDG_CACHE_HOME/headwater/NAME`. The versions are pinned here and nowhere else.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services.system_packages import (
    MissingProgramError,
    UnavailableError,
    install_package,
    installed_program,
)

__all__ = ["KAFKA", "KAFKA_VERSION", "cache_folder", "jars", "java"]

OLDEST_JAVA = 17
JAVA_PACKAGE = "openjdk-17-jre-headless"
KAFKA_VERSION = "4.1.0"
KAFKA = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka depends on the logging interface only; without this one a broker that fails says nothing.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headwater.services</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def cache_folder() -> Path:
    """Where downloads are kept between runs: `$XDG_CACHE_HOME/headwater`, else `~/.cache/headwater`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"


def java() -> Path:
    """Java 17 or later, from `JAVA_HOME` or the path; as root it is installed when there is none.

    Raises:
        MissingProgramError: There is none, or only an older one, and it could not be installed.
    """
    seen = []
    for candidate in _java_candidates():
        version = _java_version(candidate)
        if version >= OLDEST_JAVA:
            return candidate
        seen.append(f"{candidate} is Java {version}; {OLDEST_JAVA} or later is needed")
    if seen:
        raise MissingProgramError(f"Java {OLDEST_JAVA}", JAVA_PACKAGE, "\n".join(seen))
    return installed_program("java", JAVA_PACKAGE)


def jars(name: str, coordinates: tuple[str, ...]) -> Path:
    """A folder with the jars of `coordinates` and all they depend on, downloaded once per `name`.

    The folder appears complete or not at all: jars go to a folder beside it, which is then renamed. Two runs
    that start together download once, since the second waits for the lock of the first.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _download(folder, coordinates)
    return folder


def _java_candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    found = [str(Path(home) / "bin" / "java")] if home else []
    return [Path(path) for path in (*found, shutil.which("java")) if path and Path(path).is_file()]


def _java_version(program: Path) -> int:
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def _maven() -> Path:
    if shutil.which("mvn") is None:
        java()  # the package of Maven would otherwise choose a Java by itself
        install_package("mvn", "maven")
    return installed_program("mvn", "maven")


def _download(folder: Path, coordinates: tuple[str, ...]) -> None:
    maven = _maven()
    sys.stderr.write(f"fetching the jars of {folder.name} with Maven ...\n")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.partial-") as work:
        pom = Path(work) / "pom.xml"
        dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
        pom.write_text(_POM.format(name=folder.name, dependencies=dependencies))
        target = Path(work) / "libs"
        command = [str(maven), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        options = [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0 or not any(target.glob("*.jar")):
            said = (done.stdout + done.stderr)[-2000:]
            raise UnavailableError(f"Maven could not fetch {', '.join(coordinates)}:\n{said}")
        target.rename(folder)
