"""Requests to complete topics, from any process to the one that indexes event time.

Only the leading indexer of a topic may write idle markers. A process that completes a topic appends a request to the
side topic `__headwater.requests` and waits until the event-time index has the marker. A leader ignores requests from
before it took the lead: whoever sent them was told that nobody leads.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import msgspec

from headwater.errors import UnreachableError
from headwater.log.kafka.event_time_index import EventTimeIndex
from headwater.log.kafka.producers import IdempotentProducer
from headwater.log.kafka.topics import KafkaTopics, PartitionTail

__all__ = ["REQUESTS_TOPIC", "CompletionRequest", "Completions", "no_indexer_error"]

REQUESTS_TOPIC: Final = "__headwater.requests"
_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "86400000"}
_TIMEOUT: Final = 15.0  # seconds that a request waits for the leading indexer


class CompletionRequest(msgspec.Struct, frozen=True):
    """A request: the side topic of the topic's index, and the event time up to which the topic is complete."""

    index: str
    event_time: int


def no_indexer_error(topic: str) -> UnreachableError:
    """Returns the error for a topic whose event time no process indexes.

    Example:
        >>> no_indexer_error("orders").data
        {'topic': 'orders'}
    """
    return UnreachableError(
        f'topic "{topic}" was not completed: no process indexes its event time',
        detail="on Kafka, the process that runs the pipelines of a topic keeps its event time",
        fix="headwater run app.py, then try again",
        topic=topic,
    )


class Completions:
    """Sends and reads requests; safe to share between threads.

    Args:
        topics: The topics; the side topic is created with the first request.
        producer: The producer of requests.
    """

    def __init__(self, topics: KafkaTopics, producer: IdempotentProducer) -> None:
        self._topics = topics
        self._producer = producer
        self._lock = threading.Lock()  # guards the fields below; one thread per consumer
        self._tail = PartitionTail(topics, REQUESTS_TOPIC, 0)
        self._newest: dict[str, int] = {}

    def newest(self, index: str) -> int:
        """Returns the latest event time that was requested for a topic, by the side topic of its index; 0 if none."""
        with self._lock:
            if self._topics.partition_count(REQUESTS_TOPIC):
                for message in self._tail.read():
                    request = msgspec.json.decode(message.value(), type=CompletionRequest)
                    self._newest[request.index] = max(request.event_time, self._newest.get(request.index, 0))
            return self._newest.get(index, 0)

    def request(self, index: EventTimeIndex, event_time: int, topic: str, timeout: float = _TIMEOUT) -> None:
        """Ask the leading indexer to complete a topic, and wait until it has done so.

        Raises:
            UnreachableError: No process indexes the event time of the topic.
        """
        if not self._topics.partition_count(REQUESTS_TOPIC):
            self._topics.create(REQUESTS_TOPIC, 1, _CONFIG)
        producer = self._producer.get()
        producer.produce(REQUESTS_TOPIC, msgspec.json.encode(CompletionRequest(index.name, event_time)), partition=0)
        producer.flush(timeout)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            index.refresh()
            if all(index.end(number).max_event_time >= event_time for number in range(index.partitions)):
                return
            index.wait(min(1.0, max(0.0, deadline - time.monotonic())))
        raise no_indexer_error(topic)

    def close(self) -> None:
        """Close the connection."""
        self._tail.close()
