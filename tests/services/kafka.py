"""A real Kafka broker: one node, KRaft, on loopback, in a folder of the run."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.services.jars import KAFKA, KAFKA_VERSION, jars, java

__all__ = ["Broker", "create_kafka_topic", "kafka_broker", "start_kafka"]

# What Kafka's own start script passes, apart from the heap.
_JVM = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c)%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""


@dataclass(frozen=True)
class Broker:
    """A running broker: its bootstrap address, its process and what it prints."""

    address: str
    process: subprocess.Popen[bytes]
    output: Path

    def tail(self, lines: int = 30) -> str:
        """The last lines the broker printed."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the broker: asked first, killed when it has not ended after ten seconds."""
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def kafka_broker(folder: Path, **overrides: object) -> Iterator[str]:
    """The bootstrap address of a broker that runs while the block does.

    Args:
        folder: Where its data, settings and output go; made when missing.
        overrides: Settings of the broker, with `_` for `.`: `log_flush_interval_messages=1`.
    """
    broker = start_kafka(folder, overrides)
    try:
        yield broker.address
    finally:
        broker.stop()


def start_kafka(
    folder: Path, overrides: dict[str, object] | None = None, *, heap: str = "512m", timeout: float = 60.0
) -> Broker:
    """Start a broker and wait until it answers; the caller stops it.

    Raises:
        RuntimeError: It ended or did not answer in time; the message ends with what it printed last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = _java_command(folder, heap)
    port, controller_port = _free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(_settings(folder, port, controller_port, overrides or {}))
    output = folder / "broker.log"
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    with output.open("wb") as sink:
        format_storage = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        subprocess.run(format_storage, stdout=sink, stderr=subprocess.STDOUT, check=False)
        # A session of its own, so that Ctrl-C reaches the test first and the broker is stopped in order.
        run_broker = [*_ends_with_us(), *command, "kafka.Kafka", str(settings)]
        process = subprocess.Popen(run_broker, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    broker = Broker(f"127.0.0.1:{port}", process, output)
    try:
        _wait_until_it_answers(broker, timeout)
    except BaseException:
        broker.stop()
        raise
    return broker


def create_kafka_topic(address: str, name: str, *, partitions: int = 1, **settings: object) -> None:
    """Create a topic and wait until the broker has it; settings with `_` for `.`: `flush_messages=1`."""
    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([topic]).values():
        created.result(timeout=30)


def _java_command(folder: Path, heap: str) -> list[str]:
    logging_settings = folder / "log4j2.properties"
    logging_settings.write_text(_LOGGING)
    libraries = jars(f"kafka-{KAFKA_VERSION}", KAFKA)
    logging_option = f"-Dlog4j2.configurationFile={logging_settings}"
    return [str(java()), f"-Xmx{heap}", *_JVM, logging_option, "-cp", f"{libraries}{os.sep}*"]


def _ends_with_us() -> list[str]:
    """A prefix that makes the kernel end the broker when this process is killed; the process id stays."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _settings(folder: Path, port: int, controller_port: int, overrides: dict[str, object]) -> str:
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
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


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        # All are held until all are known, so that no two are the same.
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_until_it_answers(broker: Broker, timeout: float) -> None:
    # Refused connections are expected until the broker is up: what the client says of them is not shown.
    quiet = logging.Logger("kafka-start")
    quiet.addHandler(logging.NullHandler())
    admin = AdminClient({"bootstrap.servers": broker.address, "reconnect.backoff.max.ms": 200}, logger=quiet)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if broker.process.poll() is not None:
            code = broker.process.returncode
            raise RuntimeError(f"the Kafka broker ended with code {code}:\n{broker.tail()}")
        with contextlib.suppress(KafkaException):
            if admin.list_topics(timeout=1).brokers:
                return
    raise RuntimeError(f"no Kafka broker on {broker.address} after {timeout:.0f} s:\n{broker.tail()}")
