"""A real Kafka broker: one node, KRaft, on loopback, in a folder of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headwater.errors import EnvironmentFaultError
from headwater.services.kafka import launch_kafka
from headwater.services.launched import Launched as Broker
from tests.services.system_packages import UnavailableError

__all__ = ["Broker", "create_kafka_topic", "kafka_broker", "start_kafka"]


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
    """Start a broker and wait until it answers; the caller stops it, or the kernel when this process is killed.

    Raises:
        UnavailableError: There are no jars or no Java to start it with.
    """
    try:
        broker = launch_kafka(folder, overrides, heap=heap, bound=True)
    except EnvironmentFaultError as missing:
        raise UnavailableError(str(missing)) from missing
    broker.wait(timeout=timeout)
    return broker


def create_kafka_topic(address: str, name: str, *, partitions: int = 1, **settings: object) -> None:
    """Create a topic and wait until the broker has it; settings with `_` for `.`: `flush_messages=1`."""
    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([topic]).values():
        created.result(timeout=30)
