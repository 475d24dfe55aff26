"""Keys have the partition that Kafka's own clients give them, asked of a real broker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from headwater.events.key import key_bytes, partition_of, partitions_of
from tests.services.kafka import create_kafka_topic, start_kafka
from tests.services.system_packages import UnavailableError

PARTITIONS = 7


def keys() -> list[bytes]:
    """500 keys of all lengths modulo four: ASCII text, numbers as text, and text outside ASCII."""
    chance = random.Random(500)
    letters = "abcdefghijklmnopqrstuvwxyz-_:./ "
    others = "äößéñçøłžαβγдежש中文字日本語🙂🚚"
    texts = ["".join(chance.choices(letters, k=1 + number % 40)) for number in range(200)]
    numbers = [chance.randrange(-(10**6), 10 ** (1 + number % 18)) for number in range(150)]
    foreign = ["".join(chance.choices(others, k=1 + number % 12)) for number in range(150)]
    return [key_bytes(value) for value in (*texts, *numbers, *foreign)]


def partitions_in_kafka(address: str, sent: list[bytes]) -> list[int]:
    """The partition each key was delivered to, as the broker acknowledged it."""
    found: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        found[key] = partition

    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", "acks": "all"})
    for key in sent:
        producer.produce("keys", key=key, value=b"", on_delivery=delivered)
    assert producer.flush(20) == 0
    return [found[key] for key in sent]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    try:
        broker = start_kafka(tmp_path / "kafka")
    except UnavailableError as missing:
        pytest.skip(str(missing))
    yield broker.address
    broker.stop()


@pytest.mark.services
def test_a_key_has_the_same_partition_in_kafka(address):
    sent = keys()
    create_kafka_topic(address, "keys", partitions=PARTITIONS)
    expected = partitions_in_kafka(address, sent)

    assert set(expected) == set(range(PARTITIONS))
    assert [partition_of(key, PARTITIONS) for key in sent] == expected
    assert list(partitions_of(sent, PARTITIONS)) == expected
