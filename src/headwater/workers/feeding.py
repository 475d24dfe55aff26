"""Carries events from a topic into a queue, and messages from a queue into a topic.

Between the log and a broker that is a `FeedingBroker` each of them arrives once, whatever is killed; on other brokers
at least once, with ids that tell a second one.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Any, Final

from headwater.client import Client
from headwater.errors import (
    BadEventError,
    BadKeyError,
    FencedError,
    OverloadedError,
    UnknownTopicError,
)
from headwater.events import Event
from headwater.queues import Broker, Delivery, Outgoing
from headwater.queues.body import Bodies, key_text
from headwater.queues.feed import Feed, Into
from headwater.queues.protocol import FeedingBroker, Handover, Receiver

__all__ = ["Carrier", "carrier", "carry"]

logger = logging.getLogger("headwater.workers")
_AT_ONCE: Final = 500
_LOOK: Final = 1.0  # seconds after which a carrier that waits sees at the latest that it is to stop


class Carrier(ABC):
    """One feed at work."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    @abstractmethod
    def once(self, timeout: float) -> int:
        """Carry what is there, wait for it up to `timeout` seconds; how many there were."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it reads from."""


def carry(client: Client, feed: Feed, stopping: threading.Event) -> None:
    """Carry until `stopping`; a topic that is not there yet is waited for: pipelines make theirs when they start."""
    carrying: Carrier | None = None
    while carrying is None and not stopping.is_set():
        try:
            carrying = carrier(client, feed)
        except UnknownTopicError:
            stopping.wait(_LOOK)
    try:
        while carrying is not None and not stopping.is_set():
            carrying.once(_LOOK)
    finally:
        if carrying is not None:
            carrying.close()


def carrier(client: Client, feed: Feed) -> Carrier:
    """What carries a feed between the log and the broker of a client; topic and queue exist.

    Example:
        >>> import headwater as hw, tempfile
        >>> with hw.connect(tempfile.mkdtemp()) as client:
        ...     _ = client.create_topic("orders", "order_id string")
        ...     _ = client.create_queue("parcels")
        ...     _ = client.send("orders", {"order_id": "o-1"})
        ...     carrying = carrier(client, Feed("orders", "parcels", Into.QUEUE))
        ...     _ = carrying.once(5); carrying.close()
        ...     with client.queue("parcels") as parcels:
        ...         message = parcels.receive(timeout=5)
        ...         message.value, message.id
        ({'order_id': 'o-1'}, 'orders/0/0')
    """
    return _IntoQueue(client, feed) if feed.into is Into.QUEUE else _IntoTopic(client, feed)


class _IntoQueue(Carrier):
    def __init__(self, client: Client, feed: Feed) -> None:
        super().__init__(feed)
        self._broker: Broker = client.broker
        self._queue = self._broker.queue(feed.target)
        self._consumer = client.consumer(feed.source, group=feed.group)
        self._bodies = Bodies()
        self._most = min(_AT_ONCE, self._queue.limit or _AT_ONCE)
        self._waiting: list[Event] = []

    def once(self, timeout: float) -> int:
        self._waiting = self._waiting or self._consumer.poll(timeout, self._most)
        partitions: dict[int, list[tuple[int, Outgoing]]] = {}
        for event in self._waiting:
            if event.value is None:
                why = f"cannot be read: {event.error}" if event.error else "deletes its key"
                logger.warning("%s: no message for %s, which %s", self.feed.name, _place(event), why)
                continue
            partitions.setdefault(event.partition, []).append((event.offset, self._message(event)))
        try:
            for partition, messages in partitions.items():
                self._publish(partition, messages)
        except OverloadedError as error:  # what was not taken is offered again
            logger.info("%s waits: %s", self.feed.name, error.what)
            return 0
        carried, self._waiting = len(self._waiting), []
        try:
            self._consumer.commit()
        except FencedError:  # another process reads the partition by now, and knows what is there already
            logger.info("%s: a partition has moved", self.feed.name)
        return carried

    def _publish(self, partition: int, messages: list[tuple[int, Outgoing]]) -> None:
        if isinstance(self._broker, FeedingBroker):
            self._broker.publish_from(self.feed.target, f"{self.feed.source}/{partition}", messages)
        else:
            self._broker.publish(self.feed.target, [message for _, message in messages])

    def _message(self, event: Event) -> Outgoing:
        field = self._queue.key
        key = event.key if field is None else (event.value or {}).get(field)
        return Outgoing(
            self._bodies.encode(event.value),
            id=_place(event),
            words=event.topic,
            key=None if key is None else key_text(key),
            headers=dict(event.headers or {}),
            traceparent=event.traceparent,
        )

    def close(self) -> None:
        self._consumer.close()


class _IntoTopic(Carrier):
    def __init__(self, client: Client, feed: Feed) -> None:
        super().__init__(feed)
        self._broker: Broker = client.broker
        self._client = client
        self._bodies = Bodies()
        self._keyless = not client.topic(feed.target).key
        self._id = f"queue/{feed.source}/{feed.group}"
        self._least = 0
        self._receiver: Receiver | None = None
        if isinstance(self._broker, FeedingBroker):
            self._least = max(client.log.last_sequences(feed.target, self._id)) + 1
        else:
            self._receiver = self._broker.receiver(
                feed.source, feed.group, worker=feed.name, prefetch=_AT_ONCE
            )

    def once(self, timeout: float) -> int:
        if self._receiver is not None:
            return self._at_least_once(self._receiver, timeout)
        assert isinstance(self._broker, FeedingBroker)
        handover = self._broker.hand_over(
            self.feed.source,
            self.feed.group,
            self.feed.name,
            most=_AT_ONCE,
            least=self._least,
            timeout=timeout,
        )
        if handover is None:
            return 0
        self._broker.handed_over(self.feed.source, handover, self._sent(handover))
        return len(handover.messages)

    def _sent(self, handover: Handover) -> dict[int, str]:
        """Send the messages under their numbers; those that the topic refuses, with the reason."""
        refused = {}
        with self._client.producer(self.feed.target, id=self._id) as producer:
            for at, message in enumerate(handover.messages):
                try:
                    value = self._bodies.decode(message.body)
                    producer.send(value, sequence=handover.first + at, **self._about(message))
                except (BadEventError, BadKeyError) as error:
                    refused[at] = error.what
        return refused

    def _at_least_once(self, receiver: Receiver, timeout: float) -> int:
        found = receiver.receive(timeout, _AT_ONCE)
        sent: list[Delivery] = []
        with self._client.producer(self.feed.target) as producer:
            for delivery in found:
                try:
                    producer.send(self._bodies.decode(delivery.message.body), **self._about(delivery.message))
                    sent.append(delivery)
                except (BadEventError, BadKeyError) as error:
                    receiver.reject(delivery, error.what)
        receiver.ack(sent)
        return len(found)

    def _about(self, message: Outgoing) -> dict[str, Any]:
        about: dict[str, Any] = {
            "id": message.id,
            "headers": message.headers,
            "traceparent": message.traceparent,
        }
        if self._keyless:
            about["key"] = message.key
        return {name: value for name, value in about.items() if value}

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()


def _place(event: Event) -> str:
    return f"{event.topic}/{event.partition}/{event.offset}"
