"""A Kafka broker: one node that is broker and controller, on loopback."""

from __future__ import annotations

import base64
import os
import socket
import struct
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headwater.errors import ServiceFailedError
from headwater.services.jars import jars
from headwater.services.launched import Launched, Tell, free_ports, java_command, launch

__all__ = ["kafka_command", "kafka_settings", "launch_kafka"]

_VERSION: Final = "4.1.0"
_COORDINATES: Final = (
    f"org.apache.kafka:kafka_2.13:{_VERSION}",
    # Kafka depends on the logging interface only; without this one a broker that fails says nothing.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
# What Kafka's own start script passes, apart from the heap.
_JVM: Final = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_API_VERSIONS: Final = struct.pack(
    ">ihhih", 10, 18, 0, 1, -1
)  # length, request, version, number, no client id


def launch_kafka(
    folder: Path,
    overrides: Mapping[str, object] | None = None,
    *,
    heap: str = "512m",
    ports: tuple[int, ...] = (),
    bound: bool = False,
    tell: Tell | None = None,
) -> Launched:
    """Start a broker; it answers when `wait` returns. What the folder holds from before is kept.

    Args:
        folder: Where its data, settings and output go; made when missing.
        overrides: Settings of the broker, with `_` for `.`: `log_flush_interval_messages=1`.
        heap: The memory of its Java.
        ports: The broker's and the controller's, if they are free.
        bound: Let the kernel end it when this process is killed.
        tell: Told when something takes time.

    Raises:
        ServiceFailedError: The jars could not be fetched, or the folder could not be prepared.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = kafka_command(folder, heap, tell)
    broker, controller = free_ports(2, ports)
    settings = folder / "server.properties"
    settings.write_text(kafka_settings(folder, broker, controller, overrides or {}))
    output = folder / "broker.log"
    if not (folder / "data" / "meta.properties").exists():
        _format(command, settings, output)
    process = launch([*command, "kafka.Kafka", settings], output, bound=bound)
    url = f"kafka://127.0.0.1:{broker}"
    return Launched("kafka", url, (broker, controller), process, output, lambda: _answers(broker))


def kafka_command(folder: Path, heap: str, tell: Tell | None = None) -> list[str]:
    """Java with Kafka's jars; what it is to run comes behind.

    Raises:
        ServiceFailedError: The jars could not be fetched.
    """
    libraries = jars(f"kafka-{_VERSION}", _COORDINATES, tell)
    return java_command(folder, f"{libraries}{os.sep}*", f"-Xmx{heap}", *_JVM)


def _format(command: list[str], settings: Path, output: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    java, *options = command
    quick = [java, "-XX:TieredStopAtLevel=1", *options]  # it ends before better code would pay
    words = [*quick, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    output.write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        what = f"kafka could not prepare {settings.parent}"
        raise ServiceFailedError(what, detail=done.stderr[-2000:], fix=f"read {output}", service="kafka")


def kafka_settings(folder: Path, broker: int, controller: int, overrides: Mapping[str, object]) -> str:
    """The file of settings of a broker that is its own controller; `overrides` are written with `_` for `.`."""
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


def _answers(port: int) -> bool:
    """Whether the broker says which requests it knows; it listens before it answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
            asked.sendall(_API_VERSIONS)
            return len(asked.recv(8)) == 8
    except OSError:
        return False
