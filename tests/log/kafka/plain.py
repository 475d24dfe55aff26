"""What other programs do: a plain producer and a plain consumer of the driver."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition


def produce(address: str, topic: str, *records: tuple[bytes | None, bytes | None], **options: Any) -> None:
    """Write records of key and value."""
    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})
    for key, value in records:
        producer.produce(topic, value, key=key, **options)
    assert producer.flush(30) == 0


def consume(address: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[Message]:
    """Everything in a topic, as a reader of committed records (or of all) sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "plain",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: list[Message] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 30
    while len(ended) < partitions:
        assert time.monotonic() < deadline, "the end never came"
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return found
