"""Real Kafka brokers in KRaft mode on loopback, in a temporary folder."""

from __future__ import annotations

import base64
import contextlib
import logging
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headwater.services.kafka import kafka_command, kafka_settings
from headwater.services.servers import free_ports

__all__ = ["Broker", "create_kafka_topic", "kafka_broker", "restart_kafka", "start_cluster", "start_kafka"]


@dataclass(frozen=True)
class Broker:
    """A running broker: its bootstrap address, its process and the file of its output."""

    address: str
    process: subprocess.Popen[bytes]
    output: Path
    login: str = ""  # the address for users with a password

    def tail(self, lines: int = 30) -> str:
        """Returns the last lines of its output."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Stop the broker; kill it if it has not ended after ten seconds."""
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def kafka_broker(folder: Path, **overrides: object) -> Iterator[str]:
    """Yields the bootstrap address of a broker that runs during the block.

    Args:
        folder: The folder of its data, settings and output; created if missing.
        overrides: Settings of the broker, with `_` in place of `.`: `log_flush_interval_messages=1`.
    """
    broker = start_kafka(folder, overrides)
    try:
        yield broker.address
    finally:
        broker.stop()


def start_kafka(
    folder: Path,
    overrides: dict[str, object] | None = None,
    *,
    users: dict[str, str] | None = None,
    heap: str = "512m",
    timeout: float = 60.0,
) -> Broker:
    """Start a broker and wait until it answers; the caller stops it.

    Args:
        folder: The folder of its data, settings and output; created if missing.
        overrides: Settings of the broker, with `_` in place of `.`.
        users: Passwords by user name; the broker then has a second address, for them.
        heap: The maximum heap of its JVM.
        timeout: Seconds in which it must answer.

    Raises:
        RuntimeError: It ended or did not answer in time; the message ends with its last output.
    """
    port, controller_port, login_port = free_ports(3)
    settings = kafka_settings(
        folder, port, controller_port, (overrides or {}) | _login(users, port, controller_port, login_port)
    )
    _format(folder, settings, _cluster_id(), heap)
    return _run(folder, f"127.0.0.1:{port}", f"127.0.0.1:{login_port}" if users else "", heap, timeout)


def restart_kafka(broker: Broker, *, heap: str = "512m", timeout: float = 60.0) -> Broker:
    """Start a stopped broker again, with its data and its addresses."""
    return _run(broker.output.parent, broker.address, broker.login, heap, timeout)


def start_cluster(folder: Path, number: int = 3, *, heap: str = "256m", timeout: float = 120.0) -> list[Broker]:
    """Start brokers that replicate to one another; the caller stops them."""
    ports = [free_ports(2) for _ in range(number)]
    voters = ",".join(f"{node}@127.0.0.1:{pair[1]}" for node, pair in enumerate(ports, 1))
    cluster = _cluster_id()
    copies = {"offsets.topic": number, "transaction.state.log": number}
    brokers = []
    for node, (port, controller_port) in enumerate(ports, 1):
        own: dict[str, object] = {"node.id": node, "controller.quorum.voters": voters}
        own |= {f"{topic}.replication.factor": copy for topic, copy in copies.items()}
        own |= {"default.replication.factor": number, "transaction.state.log.min.isr": 2}
        place = folder / str(node)
        _format(place, kafka_settings(place, port, controller_port, own), cluster, heap)
        brokers.append(_run(place, f"127.0.0.1:{port}", "", heap, timeout, wait=False))
    for broker in brokers:
        _wait_until_it_answers(broker, timeout, brokers=number)
    return brokers


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _login(users: dict[str, str] | None, port: int, controller_port: int, login_port: int) -> dict[str, object]:
    if not users:
        return {}
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f"{module} required {known};",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
        f"LOGIN://127.0.0.1:{login_port}",
    }


def _format(folder: Path, settings: str, cluster: str, heap: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "server.properties"
    path.write_text(settings)
    command = [*kafka_command(folder, heap), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(path)]
    with (folder / "broker.log").open("wb") as sink:
        subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, check=False)


def _run(folder: Path, address: str, login: str, heap: str, timeout: float, *, wait: bool = True) -> Broker:
    output = folder / "broker.log"
    # A new session, so that Ctrl-C reaches the test only and the broker is shut down.
    command = [*_ends_with_us(), *kafka_command(folder, heap), "kafka.Kafka", str(folder / "server.properties")]
    with output.open("ab") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    broker = Broker(address, process, output, login)
    try:
        if wait:
            _wait_until_it_answers(broker, timeout)
    except BaseException:
        broker.stop()
        raise
    return broker


def create_kafka_topic(address: str, name: str, *, partitions: int = 1, **settings: object) -> None:
    """Create a topic and wait until the broker has it; settings with `_` in place of `.`: `flush_messages=1`."""
    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    for created in admin.create_topics([topic]).values():
        created.result(timeout=30)


def _ends_with_us() -> list[str]:
    """Returns a command prefix: the kernel kills the broker if this process is killed; the process id stays."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _wait_until_it_answers(broker: Broker, timeout: float, *, brokers: int = 1) -> None:
    # Connections are refused until the broker is up; the client's messages about them are hidden.
    quiet = logging.Logger("kafka-start")
    quiet.addHandler(logging.NullHandler())
    admin = AdminClient({"bootstrap.servers": broker.address, "reconnect.backoff.max.ms": 200}, logger=quiet)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if broker.process.poll() is not None:
            code = broker.process.returncode
            raise RuntimeError(f"the Kafka broker ended with code {code}:\n{broker.tail()}")
        with contextlib.suppress(KafkaException):
            if len(admin.list_topics(timeout=1).brokers) >= brokers:
                return
    raise RuntimeError(f"no Kafka broker on {broker.address} after {timeout:.0f} s:\n{broker.tail()}")
