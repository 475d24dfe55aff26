"""What a queue is, as its user declares it: groups, retries, times and limits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta

from headwater.errors import Place
from headwater.log import Overload
from headwater.log.keeping import Durability

__all__ = ["Group", "Queue", "Retry", "retry"]


@dataclass(frozen=True)
class Retry:
    """How often a message is tried, and how long it rests between two attempts. Made by `hw.retry`."""

    attempts: int = 5
    backoff: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=10)
    jitter: float = 0.2

    def delay(self, attempt: int, chance: random.Random) -> timedelta:
        """How long to wait after this attempt (1 for the first) has failed."""
        plain = min(self.longest, self.backoff * self.factor ** min(attempt - 1, 64))
        return plain * (1 + self.jitter * chance.uniform(-1, 1))


@dataclass(frozen=True)
class Group:
    """Receivers that share the messages of a queue; every group gets each message that it chooses.

    Args:
        name: Its name.
        words: Patterns over a message's words, such as `orders.*.eu` (`*` one word, `#` any number); one must fit.
        headers: Headers that must all have these values.
        where: A condition in SQL over the message's fields.
    """

    name: str
    words: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    where: str | None = None


@dataclass(frozen=True)
class Queue:
    """A queue's definition.

    Args:
        name: Letters, digits, `.`, `_`, `-`.
        groups: Who gets its messages; one group without a name if there are none.
        key: The field whose value orders messages; with `ordered`, one message of a key is out at a time.
        ordered: Keep the order per key, also through retries.
        retry: Attempts and backoff.
        visible: How long a receiver may keep a message without a word.
        ttl: Messages that nobody took die after this time.
        remember: How long the id of a message is remembered, so that a second one is not taken.
        limit: At most so many messages wait.
        overload: What happens to more than that.
        durability: What a confirmation promises.
    """

    name: str
    groups: tuple[Group, ...] = (Group(""),)
    key: str | None = None
    ordered: bool = False
    retry: Retry = Retry()
    visible: timedelta = timedelta(seconds=30)
    ttl: timedelta | None = None
    remember: timedelta = timedelta(minutes=10)
    limit: int | None = None
    overload: Overload = field(default_factory=Overload)
    durability: Durability = Durability.DURABLE
    place: Place | None = field(default=None, compare=False)
