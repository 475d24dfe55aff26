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
        id: The message id; a second message of the same id is discarded.
        routing_key: Words separated by dots; groups select messages by patterns over it.
        key: Messages of one key are handed out in order, one at a time, in queues that are ordered.
        headers: Short texts by name.
        priority: 0 to 9; higher ones are handed out first.
        delay: Not handed out before this time has passed.
        ttl: Dead after this time, if nobody has taken it.
        traceparent: The trace it belongs to.
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
    """The broker has the message, as safely as the queue's durability says.

    Args:
        id: The message's id; made by us if none was given.
        duplicate: It was there already; nothing was added.
        dropped: The queue was full and its policy dropped this one.
        groups: How many groups it waits for; 0 when it fits none.
    """

    id: str
    duplicate: bool = False
    dropped: bool = False
    groups: int = 1


@dataclass(frozen=True)
class Delivery:
    """One message delivered to one receiver; after `visible_until` it is delivered again.

    Args:
        message: What was published.
        published_at: When.
        attempt: 1 for the first delivery to this group.
        visible_until: When it goes to another receiver, unless it is settled or extended before.
        tag: How the broker knows this very delivery.
    """

    message: OutgoingMessage
    published_at: datetime
    attempt: int
    visible_until: datetime
    tag: Any

    @property
    def is_redelivery(self) -> bool:
        """Whether it was handed out before."""
        return self.attempt > 1


class AckResult(StrEnum):
    """What came of settling a delivery."""

    DONE = "done"
    STALE = "stale"
    """The delivery was not this receiver's any more: nothing was changed."""


@dataclass(frozen=True)
class Attempt:
    """One delivery that did not succeed.

    Args:
        number: 1 for the first.
        at: When it ended.
        why: Reason in words.
        worker: Who had it.
        stack: Where the worker's code failed.
    """

    number: int
    at: datetime
    why: str
    worker: str = ""
    stack: str = ""


@dataclass(frozen=True)
class DeadLetter:
    """A message that was given up, with everything that is known about it.

    Args:
        number: Names it among the dead letters of its queue.
        group: Whose delivery failed.
        message: What was published.
        published_at: When.
        died_at: When it was given up.
        why: "rejected", "failed" (too often), "expired" or "full".
        attempts: Its whole history.
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
    """Counts of one group of a queue; those after `dead` count since the queue was created.

    Every message is somewhere: published = waiting + delayed + in_flight + dead + acked + dropped.

    Args:
        group: Its name; "" is the one that every queue has unless it names groups.
        waiting: Can be taken now, or as soon as another of its key is settled in a queue that is ordered.
        delayed: Can be taken later: delayed, or between two attempts.
        in_flight: With receivers.
        dead: Dead letters.
        published: Messages that came to this group.
        acked: Done.
        redelivered: Handed out once more.
        expired: Dead because nobody took them in time.
        dropped: By an overload policy.
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
    """Messages on their way from a queue to a topic.

    Args:
        bridge: Who carries them.
        first_sequence: The number of the first; the others follow without gaps.
        messages: The same, under the same numbers, until they are done.
    """

    bridge: str
    first_sequence: int
    messages: tuple[OutgoingMessage, ...]


class Receiver(Protocol):
    """Receives messages for one group; unsettled messages are requeued when it closes."""

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
        """Stop receiving."""


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
        """Redrive dead letters with their current message; returns how many there were."""

    def close(self) -> None:
        """Close files and connections."""


@runtime_checkable
class BridgeBroker(Broker, Protocol):
    """A broker that stores the progress of bridges in its own transactions: no message is copied twice."""

    def publish_from(
        self, name: str, bridge: str, messages: Sequence[tuple[int, OutgoingMessage]]
    ) -> list[PublishConfirm]:
        """Publish messages made from events, by rising offset; skips offsets published before."""

    def claim_for_topic(
        self, name: str, group: str, bridge: str, *, max_messages: int = 500, min_sequence: int = 0, timeout: float = 0
    ) -> BridgeBatch | None:
        """Returns messages for a topic; the same ones until `confirm_in_topic`. None after `timeout`."""

    def confirm_in_topic(self, name: str, batch: BridgeBatch, refused: Mapping[int, str] = ...) -> None:
        """Confirm that messages are in the topic; those it refused become dead letters with the reason."""
