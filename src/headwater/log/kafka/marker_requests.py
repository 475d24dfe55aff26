"""Requests for idle markers, from a process that writes a topic to the one that indexes its event time.

Only the leading indexer of a topic may write idle markers. A process that keeps the event time of a topic itself, such
as a capture, appends a request to the side topic `__headwater.markers`: the event time, and the offset up to which the
topic must be indexed first, because all events up to that time are below it. So a request stays right for ever, and a
process that takes the lead begins with the newest request of each partition, which compaction keeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from headwater.log.kafka.producers import IdempotentProducer
from headwater.log.kafka.topics import COMPACTED_CONFIG, KafkaTopics, PartitionTail

__all__ = ["MARKERS_TOPIC", "MarkerRequest", "MarkerRequests"]

MARKERS_TOPIC: Final = "__headwater.markers"
_READ_INTERVAL: Final = 0.1  # seconds; the indexers of all topics of a process share one read


class MarkerRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request for a marker in one partition: its event time, in microseconds, and an offset that comes before it."""

    event_time: int
    offset: int


class MarkerRequests:
    """Sends and reads requests; safe to share between threads.

    Args:
        topics: The topics; the side topic is created with the first request.
        producer: The producer of requests.
    """

    def __init__(self, topics: KafkaTopics, producer: IdempotentProducer) -> None:
        self._topics = topics
        self._producer = producer
        self._lock = threading.Lock()  # guards the fields below; one thread per consumer
        self._tail = PartitionTail(topics, MARKERS_TOPIC, 0)
        self._read_at = 0.0
        self._newest: dict[str, dict[int, MarkerRequest]] = {}

    def newest(self, index: str, *, fresh: bool = False) -> Mapping[int, MarkerRequest]:
        """Returns the newest request for each partition of a topic, by the side topic of its index.

        Args:
            index: The side topic.
            fresh: Whether to read requests of the last moment, too.
        """
        with self._lock:
            if fresh or time.monotonic() - self._read_at > _READ_INTERVAL:
                self._read()
            return dict(self._newest.get(index, {}))

    def _read(self) -> None:
        if self._topics.partition_count(MARKERS_TOPIC):
            for message in self._tail.read():
                index, partition = msgspec.json.decode(message.key(), type=tuple[str, int])
                request = msgspec.json.decode(message.value(), type=MarkerRequest)
                known = self._newest.setdefault(index, {})
                if partition not in known or request.event_time > known[partition].event_time:
                    known[partition] = request
        self._read_at = time.monotonic()

    def send(self, index: str, offsets: Mapping[int, int], event_time: int) -> None:
        """Ask for a marker in each partition, after an offset; returns when the brokers have the requests."""
        if not self._topics.partition_count(MARKERS_TOPIC):
            self._topics.create(MARKERS_TOPIC, 1, COMPACTED_CONFIG)
        producer = self._producer.get()
        for partition, offset in offsets.items():
            key = msgspec.json.encode((index, partition))
            value = msgspec.json.encode(MarkerRequest(event_time, offset))
            producer.produce(MARKERS_TOPIC, value, key, partition=0)
        producer.flush(self._topics.brokers.patience)

    def close(self) -> None:
        """Close the connection."""
        self._tail.close()
