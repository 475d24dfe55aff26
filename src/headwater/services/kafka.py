"""A local Kafka broker: one node that is broker and controller, on loopback; and the jars it needs.

Jars are cached in `$XDG_CACHE_HOME/headwater/NAME`. Maven resolves them where it is installed, so that a
configured mirror is used; otherwise Ivy does, which comes with Spark. The versions are pinned.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headwater.engine.spark.java import find_java, spark_jars
from headwater.errors import ServiceFailedError
from headwater.services.servers import LaunchedServer, ProgressCallback, exchange, free_ports, java_command, launch

__all__ = ["cache_folder", "fetch_jars", "kafka_command", "kafka_settings", "launch_kafka"]

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headwater.services</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def cache_folder() -> Path:
    """Returns the folder of downloads: `$XDG_CACHE_HOME/headwater`, else `~/.cache/headwater`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"


def fetch_jars(name: str, coordinates: tuple[str, ...], on_progress: ProgressCallback | None = None) -> Path:
    """Returns a folder with the jars of `coordinates` and their dependencies, downloaded once per `name`.

    The jars are downloaded into a temporary folder, which is renamed when it is complete. A lock file makes concurrent
    runs download once.

    Raises:
        ServiceFailedError: The download failed.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            if on_progress is not None:
                on_progress(f"downloading the jars of {name}, once for this machine")
            _download(folder, coordinates)
    return folder


def _download(folder: Path, coordinates: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.partial-") as work:
        target = Path(work, "libs")
        maven = shutil.which("mvn")
        commands = (
            [_maven_command(maven, Path(work), target, coordinates)]
            if maven
            else _ivy_commands(Path(work), target, coordinates)
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                what = f"{Path(command[0]).name} could not download {', '.join(coordinates)}"
                fix = "check the network, or the mirrors in Maven's settings"
                raise ServiceFailedError(what, detail="\n".join(lines[-8:]), fix=fix, service=folder.name)
        target.rename(folder)


def _maven_command(program: str, work: Path, target: Path, coordinates: tuple[str, ...]) -> list[str]:
    pom = work / "pom.xml"
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    pom.write_text(_POM.format(name=target.name, dependencies=dependencies))
    options = [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    return [program, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]


def _ivy_commands(work: Path, target: Path, coordinates: tuple[str, ...]) -> list[list[str]]:
    """Returns one command per coordinate; its exit code is not 0 if a jar is missing."""
    start = [str(find_java()), "-cp", f"{spark_jars()}/*", "org.apache.ivy.Main", "-cache", str(work / "ivy")]
    kept = ["-retrieve", f"{target}/[artifact]-[revision].[ext]", "-confs", "default", "-types", "jar", "bundle"]
    return [[*start, "-dependency", *coordinate.split(":"), *kept] for coordinate in coordinates]


_VERSION: Final = "4.1.0"
_COORDINATES: Final = (
    f"org.apache.kafka:kafka_2.13:{_VERSION}",
    # Kafka depends on the logging interface only; without an implementation a failing broker prints nothing.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
# The options of Kafka's own start script, apart from the heap.
_JVM: Final = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_HEAP: Final = "512m"
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # length, API key, version, correlation id, no client id


def launch_kafka(
    folder: Path, *, ports: tuple[int, ...] = (), on_progress: ProgressCallback | None = None
) -> LaunchedServer:
    """Start a broker; it answers when `wait` returns. Existing data in the folder is kept.

    Args:
        folder: The folder of its data, settings and output; created if missing.
        ports: Preferred ports of the broker and the controller.
        on_progress: Receives progress messages.

    Raises:
        ServiceFailedError: The jars could not be downloaded, or the folder could not be formatted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = kafka_command(folder, _HEAP, on_progress)
    broker, controller = free_ports(2, ports)
    settings = folder / "server.properties"
    settings.write_text(kafka_settings(folder, broker, controller, {}))
    output = folder / "broker.log"
    if not (folder / "data" / "meta.properties").exists():
        _format_storage(command, settings, output)
    process = launch([*command, "kafka.Kafka", settings], output)
    url = f"kafka://127.0.0.1:{broker}"
    # The port is open before the broker is ready; a whole response header means that it is.
    return LaunchedServer(
        "kafka", url, (broker, controller), process, output, lambda: len(exchange(broker, _API_VERSIONS, 8)) == 8
    )


def kafka_command(folder: Path, heap: str, on_progress: ProgressCallback | None = None) -> list[str]:
    """Returns a command that starts Java with Kafka's jars; the caller adds the class and its arguments.

    Raises:
        ServiceFailedError: The jars could not be downloaded.
    """
    libraries = fetch_jars(f"kafka-{_VERSION}", _COORDINATES, on_progress)
    return java_command(folder, f"{libraries}{os.sep}*", f"-Xmx{heap}", *_JVM)


def _format_storage(command: list[str], settings: Path, output: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    java, *options = command
    quick = [java, "-XX:TieredStopAtLevel=1", *options]  # too short for optimised code to pay off
    arguments = [*quick, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    output.write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        what = f"kafka could not prepare {settings.parent}"
        raise ServiceFailedError(what, detail=done.stderr[-2000:], fix=f"read {output}", service="kafka")


def kafka_settings(folder: Path, broker: int, controller: int, overrides: Mapping[str, object]) -> str:
    """Returns server.properties of a broker that is its own controller.

    Names in `overrides` have `_` in place of `.`: `log_flush_interval_messages`.
    """
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }
    settings.update({name.replace("_", "."): value for name, value in overrides.items()})
    return "".join(f"{name}={value}\n" for name, value in settings.items())
