"""Takes messages of one group for one worker, and settles them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from headwater.errors import UsageError
from headwater.queues.embedded.queue_file import QueueFile
from headwater.queues.embedded.settling import Failure, Tag, acknowledge, extend, fail, give_back
from headwater.queues.embedded.taking import next_timer, take
from headwater.queues.embedded.transaction import Transaction
from headwater.queues.protocol import Delivery, Settled

__all__ = ["EmbeddedReceiver"]

# Who published may have been killed between its commit and the bell: look again after so many seconds at the latest.
_LONGEST_WAIT = 5.0


class EmbeddedReceiver:
    """Receives for one group; threads may share it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.queues.definition import Queue
        >>> from headwater.queues.embedded import EmbeddedBroker
        >>> from headwater.queues.protocol import Outgoing
        >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
        ...     _ = broker.declare(Queue.declare("emails"))
        ...     _ = broker.publish("emails", [Outgoing(b'{"to": "ada"}')])
        ...     receiver = broker.receiver("emails")
        ...     [delivery] = receiver.receive(timeout=5)
        ...     delivery.message.body, delivery.attempt, receiver.ack([delivery])
        (b'{"to": "ada"}', 1, [<Settled.DONE: 'done'>])
    """

    def __init__(self, file: QueueFile, group: int, worker: str, prefetch: int) -> None:
        self._file = file
        self._group = group
        self._worker = worker or f"process {os.getpid()}"
        self._prefetch = prefetch
        self._changed = threading.Condition()
        self._mine: dict[tuple[int, int], Tag] = {}  # what it has, by message and number of the delivery
        self._asked = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it has stopped receiving."""
        return self._closed

    # -- in ----------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = 0, most: int = 1) -> list[Delivery]:
        """The next messages, `most` at a time; none after `timeout` seconds without any. None waits for ever."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            heard = self._file.bell.heard() if timeout != 0 else 0
            reserved = self._reserve(most, deadline)
            if not reserved:
                return []
            found, wait = self._take(reserved)
            if found:
                return found
            if not wait:  # more has become due than one transaction moves: go on with it
                continue
            left = wait if deadline is None else min(wait, deadline - time.monotonic())
            if left <= 0:
                return []
            self._file.bell.wait(heard, left)
        return []

    def _reserve(self, most: int, deadline: float | None) -> int:
        """How many messages may be taken now; waits while it has all that it may have."""
        with self._changed:
            while not self._closed:
                self._forget_overdue()
                free = min(most, self._prefetch - len(self._mine) - self._asked)
                if free > 0:
                    self._asked += free
                    return free
                left = _LONGEST_WAIT if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return 0
                self._changed.wait(min(left, _LONGEST_WAIT))
            return 0

    def _forget_overdue(self) -> None:
        """What it has kept too long is not its own any more."""
        now = self._file.time.micros()
        for place, tag in list(self._mine.items()):
            if tag.until <= now:
                del self._mine[place]

    def _take(self, most: int) -> tuple[list[Delivery], float]:
        """The next messages; if there are none, the seconds after which to look again."""

        def step(transaction: Transaction) -> tuple[list[Delivery], float]:
            found = take(transaction, self._group, self._worker, most)
            if found:
                return found, 0.0
            # A message that another receiver takes from now on cannot be overdue before the visibility time is over.
            wait = min(_LONGEST_WAIT, transaction.queue.visible.total_seconds())
            timer = next_timer(transaction, self._group)
            return [], wait if timer is None else max(0.0, min(wait, (timer - transaction.now) / 1e6))

        found: list[Delivery] = []
        try:
            found, wait = self._file.run(step)
        finally:
            with self._changed:
                self._asked -= most
                self._mine |= {_place(delivery): delivery.tag for delivery in found}
        if self._closed and found:  # closed meanwhile: nobody will settle these
            self._give_back([delivery.tag for delivery in found])
            return [], 0.0
        return found, wait

    # -- out ---------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """They are done: they are never delivered again."""
        tags = self._let_go(deliveries)
        done = self._file.run(
            lambda transaction: [acknowledge(transaction, tag) for tag in tags], rows=len(tags)
        )
        return [_settled(each) for each in done]

    def nack(
        self, delivery: Delivery, why: str = "", *, stack: str = "", delay: timedelta | None = None
    ) -> Settled:
        """It failed: again after the queue's backoff, or after `delay`; dead when it failed too often."""
        return self._fail(delivery, Failure(why, stack, delay))

    def reject(self, delivery: Delivery, why: str = "", *, stack: str = "") -> Settled:
        """It can never succeed: dead at once."""
        return self._fail(delivery, Failure(why, stack, final=True))

    def _fail(self, delivery: Delivery, failure: Failure) -> Settled:
        [tag] = self._let_go([delivery])
        return _settled(self._file.run(lambda transaction: fail(transaction, tag, failure)))

    def extend(self, delivery: Delivery, by: timedelta | None = None) -> Settled:
        """Keep it longer: for the queue's visibility time, or `by`, from now on."""
        tag = self._mine.get(_place(delivery), delivery.tag)

        def step(transaction: Transaction) -> int | None:
            length = by if by is not None else transaction.queue.visible
            until = transaction.now + length // timedelta(microseconds=1)
            return until if extend(transaction, tag, until) else None

        until = self._file.run(step)
        with self._changed:
            if until is None:
                self._mine.pop(_place(delivery), None)
                return Settled.STALE
            self._mine[_place(delivery)] = tag._replace(until=until)
        return Settled.DONE

    def _let_go(self, deliveries: Sequence[Delivery]) -> list[Tag]:
        with self._changed:
            tags = [self._mine.pop(_place(delivery), delivery.tag) for delivery in deliveries]
            self._changed.notify_all()
        return tags

    def _give_back(self, tags: Sequence[Tag]) -> None:
        self._file.run(lambda transaction: [give_back(transaction, tag) for tag in tags])

    def close(self) -> None:
        """Stop receiving; what it has not settled goes back at once."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            tags = list(self._mine.values())
            self._mine.clear()
            self._changed.notify_all()
        with contextlib.suppress(UsageError):  # the queue may have been deleted
            if tags:
                self._give_back(tags)
        self._file.bell.ring()  # a thread may still wait here for messages


def _place(delivery: Delivery) -> tuple[int, int]:
    tag: Tag = delivery.tag
    return tag.id, tag.claims


def _settled(done: bool) -> Settled:
    return Settled.DONE if done else Settled.STALE
