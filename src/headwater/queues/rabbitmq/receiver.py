"""Takes messages of one group from RabbitMQ, for callers that know nothing of event loops."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from headwater.queues.protocol import Delivery, Settled
from headwater.queues.rabbitmq.inbox import Inbox
from headwater.queues.rabbitmq.loop_thread import LoopThread

__all__ = ["RabbitReceiver"]


class RabbitReceiver:
    """A group's receiver; safe to share between threads.

    Args:
        loop: Where the inbox lives.
        inbox: Does the work.
    """

    def __init__(self, loop: LoopThread, inbox: Inbox) -> None:
        self._loop = loop
        self._inbox = inbox

    def receive(self, timeout: float | None = 0, most: int = 1) -> list[Delivery]:
        """The next messages; a connection that is lost meanwhile is made anew.

        Raises:
            UnreachableError: RabbitMQ has not answered for longer than the broker's patience.
        """
        return self._loop.run(self._inbox.receive(timeout, most))

    def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """They are done."""
        return self._loop.run(self._inbox.ack(deliveries))

    def nack(
        self, delivery: Delivery, why: str = "", *, stack: str = "", delay: timedelta | None = None
    ) -> Settled:
        """It failed: again after a rest, or dead when it failed too often."""
        return self._loop.run(self._inbox.nack(delivery, why, stack, delay))

    def reject(self, delivery: Delivery, why: str = "", *, stack: str = "") -> Settled:
        """It can never succeed: dead at once."""
        return self._loop.run(self._inbox.reject(delivery, why, stack))

    def extend(self, delivery: Delivery, by: timedelta | None = None) -> Settled:
        """Keep it longer; RabbitMQ itself ends it after its `consumer_timeout`, 30 minutes unless it is set."""
        return self._loop.run(self._inbox.extend(delivery, by))

    def close(self) -> None:
        """Give back what is not settled."""
        self._loop.run(self._inbox.close())
