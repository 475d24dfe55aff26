"""A simple model of a queue: a list of messages for each group, scanned from the start at each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from headwater.queues.queue import Queue

__all__ = ["Held", "Model", "Waiting"]

SECOND = 1_000_000


@dataclass(eq=False)
class Waiting:
    """One message for one group; `state` is "there", "taken", "dead" or "done"."""

    number: int
    body: bytes
    key: str | None
    priority: int
    due: int
    ttl: int | None
    expires: int | None
    state: str = "there"
    until: int = 0
    claims: int = 0
    failed: int = 0
    history: list[str] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True, eq=False)
class Held:
    """A delivery as its receiver sees it; it may have expired."""

    message: Waiting
    claims: int


class Model:
    """The expected behaviour of a queue; times are in microseconds."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.now = 0
        self.groups: dict[str, list[Waiting]] = {group.name: [] for group in queue.groups}
        self.published = 0
        self.redelivered = dict.fromkeys(self.groups, 0)
        self.ids: dict[str, int] = {}

    def publish(
        self, body: bytes, *, id: str | None, key: str | None, priority: int, delay: int, ttl: int | None
    ) -> bool:
        """Returns False for a duplicate."""
        if id is not None and self.ids.get(id, 0) > self.now:
            return False
        if id is not None:
            self.ids[id] = self.now + self.queue.deduplication_window // timedelta(microseconds=1)
        for line in self.groups.values():
            expires = None if ttl is None else self.now + ttl
            line.append(Waiting(self.published, body, key, priority, self.now + delay, ttl, expires))
        self.published += 1
        return True

    def receive(self, group: str, most: int) -> list[Held]:
        """Claim the next messages."""
        self.settle_time(group)
        found = []
        for message in self.available(group)[:most]:
            message.state, message.expires = "taken", None
            message.until = self.now + self.queue.visibility_timeout // timedelta(microseconds=1)
            self.redelivered[group] += message.claims > 0
            message.claims += 1
            found.append(Held(message, message.claims))
        return found

    def available(self, group: str) -> list[Waiting]:
        """Returns the deliverable messages, in order."""
        there = [message for message in self.groups[group] if self._can_be_taken(group, message)]
        return sorted(there, key=lambda message: (-message.priority, message.number))

    def _can_be_taken(self, group: str, message: Waiting) -> bool:
        return message.state == "there" and message.due <= self.now and not self.behind(group, message)

    def behind(self, group: str, message: Waiting) -> bool:
        """Whether an earlier message of its key is not settled."""
        if not self.queue.ordered or message.key is None:
            return False
        line = [other for other in self.groups[group] if other.key == message.key]
        first = min((o for o in line if o.state in ("there", "taken")), key=lambda o: o.number)
        return first is not message

    def has(self, held: Held) -> bool:
        """Whether a delivery has not expired and is not settled."""
        return held.message.state == "taken" and held.message.claims == held.claims

    def ack(self, held: Held) -> bool:
        """Acknowledge."""
        if has := self.has(held):
            held.message.state = "done"
        return has

    def fail(self, held: Held, why: str, rest: int | None, *, final: bool = False) -> bool:
        """Delay until the next attempt, or make a dead letter."""
        if not self.has(held):
            return False
        message, retry = held.message, self.queue.retry
        message.history.append(why)
        message.failed += 1
        if final or message.failed >= retry.attempts:
            message.state, message.why = "dead", "rejected" if final else "failed"
            return True
        if rest is None:
            rest = round(retry.backoff.total_seconds() * retry.factor ** (message.failed - 1) * SECOND)
        message.state, message.due = "there", self.now + rest
        return True

    def give_back(self, held: Held) -> None:
        """Requeue: the receiver closed."""
        if self.has(held):
            held.message.state, held.message.due = "there", self.now

    def extend(self, held: Held, by: int) -> bool:
        """Extend the visibility timeout."""
        if has := self.has(held):
            held.message.until = self.now + by
        return has

    def redrive(self, group: str, message: Waiting) -> None:
        """Move a dead letter to the end of the queue."""
        message.state, message.failed, message.due = "there", 0, self.now
        message.expires = None if message.ttl is None else self.now + message.ttl
        message.number, self.published = self.published, self.published + 1

    def settle_time(self, group: str) -> None:
        """Fail overdue deliveries, and expire messages that were not delivered."""
        for message in self.groups[group]:
            if message.state == "taken" and message.until <= self.now:
                self.fail(Held(message, message.claims), "not settled within the visibility timeout", 0)
        for message in self.groups[group]:
            if message.state == "there" and message.expires is not None and message.expires <= self.now:
                message.state, message.why = "dead", "expired"

    def counts(self, group: str) -> tuple[int, int, int, int, int, int]:
        """Waiting, delayed, in flight, dead, acknowledged, redelivered."""
        self.settle_time(group)
        line = self.groups[group]
        there = [message for message in line if message.state == "there"]
        delayed = [m for m in there if m.due > self.now and not self.behind(group, m)]
        states = [message.state for message in line]
        return (
            len(there) - len(delayed),
            len(delayed),
            states.count("taken"),
            states.count("dead"),
            states.count("done"),
            self.redelivered[group],
        )
