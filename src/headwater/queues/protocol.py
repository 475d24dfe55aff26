"""What others need of a broker, wherever it is: publish, receive, settle, and look at what died."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from headwater.queues.definition import Queue

__all__ = [
    "Attempt",
    "Broker",
    "Confirmed",
    "DeadLetter",
    "Delivery",
    "FeedingBroker",
    "GroupCounts",
    "Handover",
    "Outgoing",
    "Receiver",
    "Settled",
]


@dataclass(frozen=True)
class Outgoing:
    """A message to publish.

    Args:
        body: The value as JSON.
        id: Says which message this is: a second one of the same id is not taken.
        words: What it is about, in words separated by dots, for groups that choose by pattern.
        key: Messages of one key are handed out in order, one at a time, in queues that are ordered.
        headers: Short texts by name.
        priority: 0 to 9; higher ones are handed out first.
        delay: Not handed out before this time has passed.
        ttl: Dead after this time, if nobody has taken it.
        traceparent: The trace it belongs to.
    """

    body: bytes
    id: str | None = None
    words: str = ""
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    priority: int = 0
    delay: timedelta = timedelta(0)
    ttl: timedelta | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class Confirmed:
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
    """One message handed to one receiver; it is the receiver's until `until`, then anybody's again.

    Args:
        message: What was published.
        published_at: When.
        attempt: 1 for the first delivery to this group.
        until: When it goes to another receiver, unless it is settled or extended before.
        tag: How the broker knows this very delivery.
    """

    message: Outgoing
    published_at: datetime
    attempt: int
    until: datetime
    tag: Any

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before."""
        return self.attempt > 1


class Settled(StrEnum):
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
    message: Outgoing
    published_at: datetime
    died_at: datetime
    why: str
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class GroupCounts:
    """How one group of a queue stands; counts below `dead` are since the queue exists.

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
class Handover:
    """Messages on their way from a queue to a topic.

    Args:
        feed: Who carries them.
        first: The number of the first; the others follow without gaps.
        messages: The same, under the same numbers, until they are done.
    """

    feed: str
    first: int
    messages: tuple[Outgoing, ...]


class Receiver(Protocol):
    """Takes messages for one group. What it has not settled when it closes goes back at once."""

    def receive(self, timeout: float | None = 0, most: int = 1) -> list[Delivery]:
        """The next messages, `most` at a time; none after `timeout` seconds without any. None waits for ever."""

    def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """They are done: they are never delivered again."""

    def nack(
        self, delivery: Delivery, why: str = "", *, stack: str = "", delay: timedelta | None = None
    ) -> Settled:
        """It failed: again after the queue's backoff, or after `delay`; dead when it failed too often."""

    def reject(self, delivery: Delivery, why: str = "", *, stack: str = "") -> Settled:
        """It can never succeed: dead at once."""

    def extend(self, delivery: Delivery, by: timedelta | None = None) -> Settled:
        """Keep it longer: for the queue's visibility time, or `by`, from now on."""

    def close(self) -> None:
        """Stop receiving."""


class Broker(Protocol):
    """Queues that can be declared, published to and received from; safe to share between threads."""

    @property
    def counts_of_all(self) -> bool:
        """Whether `counts` knows what all processes do; if not, only `waiting` and `dead` are of more than this one."""

    def declare(self, queue: Queue) -> Queue:
        """Create a queue, or bring it up to this definition."""

    def queues(self) -> list[str]:
        """Names of all queues."""

    def queue(self, name: str) -> Queue:
        """A queue's definition."""

    def publish(self, name: str, messages: Sequence[Outgoing]) -> list[Confirmed]:
        """Take messages; comes back when all are safe."""

    def receiver(self, name: str, group: str = "", *, worker: str = "", prefetch: int = 1) -> Receiver:
        """Begin to receive for a group; up to `prefetch` deliveries may be unsettled at a time."""

    def counts(self, name: str) -> list[GroupCounts]:
        """How each group stands."""

    def dead(self, name: str, group: str | None = None) -> Iterator[DeadLetter]:
        """Dead letters, oldest first."""

    def revive(self, name: str, letters: Iterable[DeadLetter]) -> int:
        """Put dead letters back in line, with the message they have now; how many there were."""

    def close(self) -> None:
        """Let go of files and connections."""


@runtime_checkable
class FeedingBroker(Broker, Protocol):
    """A broker that remembers, in its own transactions, how far topics have come: no message is carried twice."""

    def publish_from(self, name: str, feed: str, messages: Sequence[tuple[int, Outgoing]]) -> list[Confirmed]:
        """Take messages made of events, by their rising offsets, except those of offsets that were taken before."""

    def hand_over(
        self, name: str, group: str, feed: str, *, most: int = 500, least: int = 0, timeout: float = 0
    ) -> Handover | None:
        """Messages that are to go to a topic; the same until `handed_over`. None if none came within `timeout`."""

    def handed_over(self, name: str, handover: Handover, refused: Mapping[int, str] = ...) -> None:
        """They are in the topic; those that it refused, by place and with the reason, are dead."""
