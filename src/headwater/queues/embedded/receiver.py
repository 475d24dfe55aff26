"""The receiver of the embedded broker: claims messages of one group for one worker, and settles them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from headwater.errors import UsageError
from headwater.queues.embedded.delivery import (
    DeliveryFailure,
    DeliveryTag,
    acknowledge,
    claim,
    extend,
    fail,
    next_timer,
    requeue,
    to_micros,
)
from headwater.queues.embedded.queue_file import QueueFile
from headwater.queues.embedded.transaction import QueueTransaction
from headwater.queues.protocol import AckResult, Delivery

__all__ = ["EmbeddedReceiver"]

# A publisher may be killed between its commit and its notification: look again after this many seconds at the latest.
_MAX_WAIT = 5.0


class EmbeddedReceiver:
    """Receives for one group; threads may share it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.queues.queue import Queue
        >>> from headwater.queues.embedded import EmbeddedBroker
        >>> from headwater.queues.protocol import OutgoingMessage
        >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
        ...     _ = broker.declare(Queue.declare("emails"))
        ...     _ = broker.publish("emails", [OutgoingMessage(b'{"to": "ada"}')])
        ...     receiver = broker.receiver("emails")
        ...     [delivery] = receiver.receive(timeout=5)
        ...     delivery.message.body, delivery.attempt, receiver.ack([delivery])
        (b'{"to": "ada"}', 1, [<AckResult.DONE: 'done'>])
    """

    def __init__(self, file: QueueFile, group: int, worker: str, prefetch: int) -> None:
        self._file = file
        self._group = group
        self._worker = worker or f"process {os.getpid()}"
        self._prefetch = prefetch
        self._changed = threading.Condition()
        self._unacked: dict[tuple[int, int], DeliveryTag] = {}  # unsettled deliveries, by message and delivery number
        self._reserved = 0  # places within the prefetch that running `_claim` calls may fill
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it has stopped receiving."""
        return self._closed

    # -- in ----------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = 0, max_messages: int = 1) -> list[Delivery]:
        """Returns the next messages, at most `max_messages`.

        Returns an empty list when none arrives within `timeout` seconds. None waits without a limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            # Read before the claim: a message published after it must end the wait below.
            generation = self._file.notifier.generation() if timeout != 0 else 0
            reserved = self._reserve(max_messages, deadline)
            if not reserved:
                return []
            found, wait = self._claim(reserved)
            if found:
                return found
            if not wait:  # more was due than one transaction releases
                continue
            left = wait if deadline is None else min(wait, deadline - time.monotonic())
            if left <= 0:
                return []
            self._file.notifier.wait(generation, left)
        return []

    def _reserve(self, max_messages: int, deadline: float | None) -> int:
        """Reserve places within the prefetch; waits while there is none, and returns 0 at the deadline."""
        with self._changed:
            while not self._closed:
                now = self._file.queue_clock.micros()
                self._unacked = {key: tag for key, tag in self._unacked.items() if tag.until > now}
                free = min(max_messages, self._prefetch - len(self._unacked) - self._reserved)
                if free > 0:
                    self._reserved += free
                    return free
                left = _MAX_WAIT if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return 0
                self._changed.wait(min(left, _MAX_WAIT))
            return 0

    def _claim(self, max_messages: int) -> tuple[list[Delivery], float]:
        """Returns the next messages; if there are none, the seconds until the next check."""

        def step(transaction: QueueTransaction) -> tuple[list[Delivery], float]:
            found = claim(transaction, self._group, self._worker, max_messages)
            if found:
                return found, 0.0
            # A delivery to another receiver from now on cannot be overdue before a whole visibility timeout.
            wait = min(_MAX_WAIT, transaction.queue.visibility_timeout.total_seconds())
            timer = next_timer(transaction, self._group)
            return [], wait if timer is None else max(0.0, min(wait, (timer - transaction.now) / 1e6))

        found: list[Delivery] = []
        try:
            found, wait = self._file.run(step)
        finally:
            with self._changed:
                self._reserved -= max_messages
                self._unacked |= {_tag_key(delivery): delivery.tag for delivery in found}
        if self._closed and found:  # closed meanwhile, so nobody will settle these
            self._requeue([delivery.tag for delivery in found])
            return [], 0.0
        return found, wait

    # -- out ---------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Acknowledge: the messages are never delivered again."""
        tags = self._pop_tags(deliveries)
        done = self._file.run(lambda transaction: [acknowledge(transaction, tag) for tag in tags], rows=len(tags))
        return list(map(_to_ack_result, done))

    def nack(self, delivery: Delivery, why: str = "", *, stack: str = "", delay: timedelta | None = None) -> AckResult:
        """Report a failure: redelivered after the queue's backoff or `delay`; dead after the last attempt."""
        return self._fail(delivery, DeliveryFailure(why, stack, delay))

    def reject(self, delivery: Delivery, why: str = "", *, stack: str = "") -> AckResult:
        """Reject: the message becomes a dead letter at once."""
        return self._fail(delivery, DeliveryFailure(why, stack, final=True))

    def _fail(self, delivery: Delivery, failure: DeliveryFailure) -> AckResult:
        [tag] = self._pop_tags([delivery])
        return _to_ack_result(self._file.run(lambda transaction: fail(transaction, tag, failure)))

    def extend(self, delivery: Delivery, by: timedelta | None = None) -> AckResult:
        """Extend the visibility timeout from now: by the queue's setting, or `by`."""
        tag = self._unacked.get(_tag_key(delivery), delivery.tag)

        def step(transaction: QueueTransaction) -> int | None:
            length = by if by is not None else transaction.queue.visibility_timeout
            until = transaction.now + to_micros(length)
            return until if extend(transaction, tag, until) else None

        until = self._file.run(step)
        with self._changed:
            if until is None:
                self._unacked.pop(_tag_key(delivery), None)
                return AckResult.STALE
            self._unacked[_tag_key(delivery)] = tag._replace(until=until)
        return AckResult.DONE

    def _pop_tags(self, deliveries: Sequence[Delivery]) -> list[DeliveryTag]:
        with self._changed:
            tags = [self._unacked.pop(_tag_key(delivery), delivery.tag) for delivery in deliveries]
            self._changed.notify_all()
        return tags

    def _requeue(self, tags: Sequence[DeliveryTag]) -> None:
        self._file.run(lambda transaction: [requeue(transaction, tag) for tag in tags])

    def close(self) -> None:
        """Stop receiving; unsettled messages are requeued at once."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            tags = list(self._unacked.values())
            self._unacked.clear()
            self._changed.notify_all()
        with contextlib.suppress(UsageError):  # the queue may have been deleted
            if tags:
                self._requeue(tags)
        self._file.notifier.notify()  # a thread may still wait in `receive`


def _tag_key(delivery: Delivery) -> tuple[int, int]:
    tag: DeliveryTag = delivery.tag
    return tag.id, tag.claims


def _to_ack_result(done: bool) -> AckResult:
    return AckResult.DONE if done else AckResult.STALE
