"""The protocols of a broker: publish, receive, settle, and redrive dead letters.

`Broker` and `Receiver` are implemented by `queues/embedded` and `queues/rabbitmq`. `BridgeBroker` adds what
a bridge between a topic and a queue needs: progress that commits together with the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from headwater.queues.queue import Queue

__all__ = [
    "AckResult",
    "Attempt",
    "BridgeBatch",
    "BridgeBroker",
    "Broker",
    "DeadLetter",
    "Delivery",
    "GroupCounts",
    "OutgoingMessage",
    "PublishConfirm",
    "Receiver",
]


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to publish.

    Args:
        body: The value as JSON.
        id: The message id; a second message with the same id is discarded within the deduplication window.
        routing_key: Words separated by dots; groups select messages by patterns over it.
        key: Ordered queues deliver the messages of a key in order, one at a time.
        headers: Short texts by name.
        priority: 0 to 9; higher priorities are delivered first.
        delay: The time before the first delivery.
        ttl: The time to live: a message not delivered by then becomes a dead letter.
        traceparent: The trace context (W3C).
    """

    body: bytes
    id: str | None = None
    routing_key: str = ""
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    priority: int = 0
    delay: timedelta = timedelta(0)
    ttl: timedelta | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class PublishConfirm:
    """The broker has stored the message, as durably as the queue is declared.

    Args:
        id: The message id; generated if none was given.
        duplicate: A message with this id exists; nothing was added.
        dropped: A full group has dropped the message.
        groups: The number of groups that got the message.
    """

    id: str
    duplicate: bool = False
    dropped: bool = False
    groups: int = 1


@dataclass(frozen=True)
class Delivery:
    """One delivery of a message to a receiver; after `visible_until` the message is delivered again.

    Args:
        message: The published message.
        published_at: The time of publishing.
        attempt: The number of this delivery to the group, from 1.
        visible_until: The end of the visibility timeout, unless the delivery is settled or extended before.
        tag: The broker's id of this delivery.
    """

    message: OutgoingMessage
    published_at: datetime
    attempt: int
    visible_until: datetime
    tag: Any

    @property
    def is_redelivery(self) -> bool:
        """Whether the message was delivered before."""
        return self.attempt > 1


class AckResult(StrEnum):
    """The result of settling a delivery, or of extending it."""

    DONE = "done"
    STALE = "stale"
    """The delivery had expired or was settled before; nothing was changed."""


@dataclass(frozen=True)
class Attempt:
    """One failed delivery.

    Args:
        number: The number of the delivery, from 1.
        at: When it failed.
        why: The reason.
        worker: The name of the receiver.
        stack: The traceback of the worker's function.
    """

    number: int
    at: datetime
    why: str
    worker: str = ""
    stack: str = ""


@dataclass(frozen=True)
class DeadLetter:
    """A message that a group could not process, with the history of its failed deliveries.

    Args:
        number: The number of the dead letter in its queue.
        group: The group whose deliveries failed.
        message: The published message.
        published_at: The time of publishing.
        died_at: When it became a dead letter.
        why: "rejected", "failed" (all attempts), "expired" or "full".
        attempts: The failed deliveries.
    """

    number: int
    group: str
    message: OutgoingMessage
    published_at: datetime
    died_at: datetime
    why: str
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class GroupCounts:
    """Counts of one group of a queue; those from `published` on are totals since the queue was created.

    They add up: published = waiting + delayed + in_flight + dead + acked + dropped.

    Args:
        group: The name of the group; "" for the group of a queue that declares none.
        waiting: Messages ready for delivery, or blocked by an earlier message of their key.
        delayed: Messages published with a delay, or between two attempts.
        in_flight: Deliveries that are not settled.
        dead: Dead letters.
        published: Messages that the group selected.
        acked: Acknowledged messages.
        redelivered: Deliveries after the first one of a message.
        expired: Messages that reached their time to live before a delivery.
        dropped: Messages dropped by the overload policy.
    """

    group: str
    waiting: int
    delayed: int
    in_flight: int
    dead: int
    published: int
    acked: int
    redelivered: int
    expired: int
    dropped: int


@dataclass(frozen=True)
class BridgeBatch:
    """Messages that a bridge has claimed from a queue for a topic.

    Args:
        bridge: The name of the bridge.
        first_sequence: The sequence number of the first message; the others follow without gaps.
        messages: The messages; they keep their sequence numbers until they are confirmed.
    """

    bridge: str
    first_sequence: int
    messages: tuple[OutgoingMessage, ...]


class Receiver(Protocol):
    """Receives messages for one group."""

    def receive(self, timeout: float | None = 0, max_messages: int = 1) -> list[Delivery]:
        """Returns the next messages, at most `max_messages`.

        Returns an empty list when none arrives within `timeout` seconds. None waits without a limit.
        """

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Acknowledge: the messages are never delivered again."""

    def nack(self, delivery: Delivery, why: str = "", *, stack: str = "", delay: timedelta | None = None) -> AckResult:
        """Report a failure: redelivered after the queue's backoff or `delay`; dead after the last attempt."""

    def reject(self, delivery: Delivery, why: str = "", *, stack: str = "") -> AckResult:
        """Reject: the message becomes a dead letter at once."""

    def extend(self, delivery: Delivery, by: timedelta | None = None) -> AckResult:
        """Extend the visibility timeout from now: by the queue's setting, or `by`."""

    def close(self) -> None:
        """Stop receiving; unsettled messages are requeued."""


class Broker(Protocol):
    """Queues that can be declared, published to and received from; safe to share between threads."""

    @property
    def counts_all_processes(self) -> bool:
        """Whether `counts` covers all processes.

        If false, only `waiting` and `dead_letters` cover more than this process.
        """

    def declare(self, queue: Queue) -> Queue:
        """Create a queue, or update it to this definition."""

    def queues(self) -> list[str]:
        """Returns the names of all queues."""

    def queue(self, name: str) -> Queue:
        """Returns a queue's definition."""

    def publish(self, name: str, messages: Sequence[OutgoingMessage]) -> list[PublishConfirm]:
        """Publish messages; returns when all are confirmed."""

    def receiver(self, name: str, group: str = "", *, worker: str = "", prefetch: int = 1) -> Receiver:
        """Returns a receiver for a group; up to `prefetch` deliveries may be unsettled at a time."""

    def counts(self, name: str) -> list[GroupCounts]:
        """Returns the counts of each group."""

    def dead_letters(self, name: str, group: str | None = None) -> Iterator[DeadLetter]:
        """Returns dead letters, oldest first."""

    def redrive(self, name: str, letters: Iterable[DeadLetter]) -> int:
        """Redrive dead letters, each with the message it has now; returns how many were still dead letters."""

    def close(self) -> None:
        """Close files and connections."""


@runtime_checkable
class BridgeBroker(Broker, Protocol):
    """A broker that commits the progress of bridges together with their messages, so no message is copied twice."""

    def publish_from(
        self, name: str, bridge: str, messages: Sequence[tuple[int, OutgoingMessage]]
    ) -> list[PublishConfirm]:
        """Publish messages made from events, in offset order; skips offsets published before."""

    def claim_for_topic(
        self, name: str, group: str, bridge: str, *, max_messages: int = 500, min_sequence: int = 0, timeout: float = 0
    ) -> BridgeBatch | None:
        """Claim messages for a topic; returns the same ones until `confirm_in_topic`, and None after `timeout`."""

    def confirm_in_topic(self, name: str, batch: BridgeBatch, refused: Mapping[int, str] = ...) -> None:
        """Confirm that messages are in the topic.

        `refused` has the reason for each message that the topic refused, by index: those become dead letters.
        """
