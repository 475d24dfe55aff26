"""Runs bridges: copies events from a topic to a queue, and messages from a queue to a topic.

With a `BridgeBroker`, every record arrives once, whichever process is killed. With other brokers, delivery is at least
once, with ids by which a consumer can detect duplicates.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from headwater.client import Client
from headwater.errors import BadEventError, BadKeyError, FencedError, OverloadedError, UnknownTopicError
from headwater.events import Event
from headwater.queues import Broker, OutgoingMessage
from headwater.queues.declarations import Bridge, TargetKind
from headwater.queues.message import MessageCodec, key_text
from headwater.queues.protocol import BridgeBroker, Receiver

__all__ = ["BridgeRunner", "open_runner", "run_bridge"]

logger = logging.getLogger("headwater.workers")
_BATCH_SIZE: Final = 500  # records per step
_POLL_TIMEOUT: Final = 1.0  # seconds of one wait for records, after which a bridge checks whether to stop


class BridgeRunner(ABC):
    """One running bridge."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge

    @abstractmethod
    def run_once(self, timeout: float) -> int:
        """Copy one batch of records, waiting up to `timeout` seconds for the first; returns their number."""

    @abstractmethod
    def close(self) -> None:
        """Close the reader."""


def run_bridge(client: Client, bridge: Bridge, stopping: threading.Event) -> None:
    """Copy records until `stopping`; waits for a missing topic, because pipelines create theirs at start."""
    runner: BridgeRunner | None = None
    while runner is None and not stopping.is_set():
        try:
            runner = open_runner(client, bridge)
        except UnknownTopicError:
            stopping.wait(_POLL_TIMEOUT)
    try:
        while runner is not None and not stopping.is_set():
            runner.run_once(_POLL_TIMEOUT)
    finally:
        if runner is not None:
            runner.close()


def open_runner(client: Client, bridge: Bridge) -> BridgeRunner:
    """Returns the runner of a bridge between the log and the broker of a client; topic and queue must exist.

    Example:
        >>> import headwater as hw, tempfile
        >>> with hw.connect(tempfile.mkdtemp()) as client:
        ...     _ = client.create_topic("orders", "order_id string")
        ...     _ = client.create_queue("parcels")
        ...     _ = client.send("orders", {"order_id": "o-1"})
        ...     runner = open_runner(client, Bridge("orders", "parcels", TargetKind.QUEUE))
        ...     _ = runner.run_once(5); runner.close()
        ...     with client.queue("parcels") as parcels:
        ...         message = parcels.receive(timeout=5)
        ...         message.value, message.id
        ({'order_id': 'o-1'}, 'orders/0/0')
    """
    return _TopicToQueue(client, bridge) if bridge.target_kind is TargetKind.QUEUE else _QueueToTopic(client, bridge)


class _TopicToQueue(BridgeRunner):
    def __init__(self, client: Client, bridge: Bridge) -> None:
        super().__init__(bridge)
        self._broker: Broker = client.broker
        self._queue = self._broker.queue(bridge.target)
        self._consumer = client.consumer(bridge.source, group=bridge.group)
        self._codec = MessageCodec()
        first = client.topic(bridge.source).first_version
        # A topic that was created again has the offsets of the deleted one, but not its events.
        self._origin = bridge.source if first == 1 else f"{bridge.source}@{first}"
        self._max_messages = min(_BATCH_SIZE, self._queue.limit or _BATCH_SIZE)
        self._pending: list[Event] = []

    def run_once(self, timeout: float) -> int:
        self._pending = self._pending or self._consumer.poll(timeout, self._max_messages)
        partitions: dict[int, list[tuple[int, OutgoingMessage]]] = {}
        for event in self._pending:
            if event.value is None:
                why = f"cannot be read: {event.error}" if event.error else "deletes its key"
                logger.warning("%s: no message for %s, which %s", self.bridge.name, _event_id(event), why)
                continue
            partitions.setdefault(event.partition, []).append((event.offset, self._to_message(event)))
        try:
            for partition, messages in partitions.items():
                if isinstance(self._broker, BridgeBroker):
                    self._broker.publish_from(self.bridge.target, f"{self._origin}/{partition}", messages)
                else:
                    self._broker.publish(self.bridge.target, [message for _, message in messages])
        except OverloadedError as error:  # `_pending` still has them: the next call publishes them again
            logger.info("%s waits: %s", self.bridge.name, error.what)
            return 0
        copied, self._pending = len(self._pending), []
        # Committed after the publish: after a crash in between, `publish_from` skips what is published.
        try:
            self._consumer.commit()
        except FencedError:  # another process now reads the partition; `publish_from` skips what is published
            logger.info("%s: another process now reads a partition", self.bridge.name)
        return copied

    def _to_message(self, event: Event) -> OutgoingMessage:
        field = self._queue.key
        key = event.key if field is None else (event.value or {}).get(field)
        return OutgoingMessage(
            self._codec.encode(event.value),
            id=f"{self._origin}/{event.partition}/{event.offset}",
            routing_key=event.topic,
            key=None if key is None else key_text(key),
            headers=dict(event.headers or {}),
            traceparent=event.traceparent,
        )

    def close(self) -> None:
        self._consumer.close()


class _QueueToTopic(BridgeRunner):
    def __init__(self, client: Client, bridge: Bridge) -> None:
        super().__init__(bridge)
        self._broker: Broker = client.broker
        self._client = client
        self._codec = MessageCodec()
        self._keyless = not client.topic(bridge.target).key
        self._producer_id = f"queue/{bridge.source}/{bridge.group}"
        self._min_sequence = 0
        self._receiver: Receiver | None = None
        if isinstance(self._broker, BridgeBroker):
            self._min_sequence = max(client.log.last_sequences(bridge.target, self._producer_id)) + 1
        else:
            self._receiver = self._broker.receiver(
                bridge.source, bridge.group, worker=bridge.name, prefetch=_BATCH_SIZE
            )

    def run_once(self, timeout: float) -> int:
        if self._receiver is not None:
            return self._run_at_least_once(self._receiver, timeout)
        assert isinstance(self._broker, BridgeBroker)
        batch = self._broker.claim_for_topic(
            self.bridge.source,
            self.bridge.group,
            self.bridge.name,
            max_messages=_BATCH_SIZE,
            min_sequence=self._min_sequence,
            timeout=timeout,
        )
        if batch is None:
            return 0
        refused = self._send(batch.messages, self._producer_id, batch.first_sequence)
        self._broker.confirm_in_topic(self.bridge.source, batch, refused)
        return len(batch.messages)

    def _run_at_least_once(self, receiver: Receiver, timeout: float) -> int:
        found = receiver.receive(timeout, _BATCH_SIZE)
        refused = self._send([delivery.message for delivery in found])
        for at, why in refused.items():
            receiver.reject(found[at], why)
        receiver.ack([delivery for at, delivery in enumerate(found) if at not in refused])
        return len(found)

    def _send(
        self, messages: Sequence[OutgoingMessage], producer_id: str | None = None, first_sequence: int = 0
    ) -> dict[int, str]:
        """Send messages to the topic; returns why it refuses some, by index. A producer id makes it skip repeats."""
        refused = {}
        with self._client.producer(self.bridge.target, id=producer_id) as producer:
            for at, message in enumerate(messages):
                try:
                    value = self._codec.decode(message.body)
                    producer.send(value, sequence=first_sequence + at, **self._event_attributes(message))
                except (BadEventError, BadKeyError) as error:
                    refused[at] = error.what
        return refused

    def _event_attributes(self, message: OutgoingMessage) -> dict[str, Any]:
        attributes: dict[str, Any] = {"id": message.id, "headers": message.headers, "traceparent": message.traceparent}
        if self._keyless:
            attributes["key"] = message.key
        return {name: value for name, value in attributes.items() if value}

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()


def _event_id(event: Event) -> str:
    return f"{event.topic}/{event.partition}/{event.offset}"
