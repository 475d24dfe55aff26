"""The channel of a receiver, with the messages RabbitMQ has sent over it, and the group's counters.

RabbitMQ reports only how many messages wait; `GroupCounters` counts what this process did with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from headwater.errors import UnreachableError
from headwater.queues.protocol import GroupCounts
from headwater.queues.rabbitmq.connection import CONNECTION_ERRORS, RabbitConnection, driver

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

__all__ = ["ConsumerChannel", "GroupCounters", "new_counters", "settle"]


@dataclass
class GroupCounters:
    """Counts of one group."""

    published: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dropped: int = 0
    in_flight: int = 0
    prefetched: int = 0
    due: list[datetime] = field(default_factory=list)

    def add_delayed(self, milliseconds: int) -> None:
        """A message was sent to rest for a time."""
        insort(self.due, datetime.now(UTC) + timedelta(milliseconds=milliseconds))

    def counts(self, group: str, waiting: int, dead: int) -> GroupCounts:
        """Together with what RabbitMQ tells.

        Example:
            >>> counters = GroupCounters(published=3, acked=1)
            >>> counters.counts("send", waiting=2, dead=0).waiting
            2
        """
        del self.due[: bisect_right(self.due, datetime.now(UTC))]
        return GroupCounts(
            group,
            waiting + self.prefetched,
            len(self.due),
            self.in_flight,
            dead,
            self.published,
            self.acked,
            self.redelivered,
            self.expired,
            self.dropped,
        )


def new_counters() -> defaultdict[tuple[str, str], GroupCounters]:
    """Empty counts for each queue and group."""
    return defaultdict(GroupCounters)


_RPC_TIMEOUT: Final = 10.0  # seconds for an answer; a queue without a leader gives none


class ConsumerChannel:
    """Messages that came from one queue of RabbitMQ and are with nobody yet.

    Args:
        connection: The connection, for receiving alone.
        name: The queue in RabbitMQ.
        prefetch: How many messages RabbitMQ gives without an acknowledgement.
        counters: Counts of the group.
        on_lost: Called when the channel is gone, and with it all that was not settled.
    """

    def __init__(
        self,
        connection: RabbitConnection,
        name: str,
        prefetch: int,
        *,
        counters: GroupCounters,
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._name = name
        self._prefetch = prefetch
        self._counters = counters
        self._on_lost = on_lost
        self._lock = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None
        self._consumer: str | None = None
        self._buffer: deque[AbstractIncomingMessage] = deque()
        self._lost_at: float | None = None
        self.lost_errors = (*CONNECTION_ERRORS, driver().exceptions.AMQPError)
        self.changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether there is a channel."""
        return self._channel is not None and not self._channel.is_closed

    @property
    def has_messages(self) -> bool:
        """Whether a message has come."""
        return bool(self._buffer)

    @property
    def is_prefetching(self) -> bool:
        """Whether RabbitMQ sends, or has sent, what nobody has asked for yet."""
        return self._consumer is not None or bool(self._buffer)

    def pop_messages(self, max_messages: int) -> list[AbstractIncomingMessage]:
        """Messages that came, up to so many."""
        taken = [self._buffer.popleft() for _ in range(max(0, min(max_messages, len(self._buffer))))]
        self._counters.prefetched -= len(taken)
        return taken

    async def ensure_open(self, timeout: float | None) -> bool:
        """Whether there is a channel; a new one if need be. False when the time was over before.

        Raises:
            UnreachableError: RabbitMQ has not answered for longer than the link's patience.
        """
        async with self._lock:
            if self.is_open:
                return True
            self.reset()
            now = asyncio.get_running_loop().time
            self._lost_at = self._lost_at or now()
            patience = self._connection.patience if timeout is None else max(timeout, 0.5)
            try:
                channel = await self._connection.open_channel(patience=min(patience, self._connection.patience))
                channel.close_callbacks.add(lambda *_: self.changed.set())
                await channel.set_qos(self._prefetch)
            except (UnreachableError, *self.lost_errors):
                if now() - self._lost_at > self._connection.patience or timeout is None:
                    raise
                return False
            self._queue = await channel.get_queue(self._name, ensure=False)
            self._channel, self._lost_at = channel, None
            return True

    async def consume(self) -> None:
        """Have messages sent from now on."""
        async with self._lock:
            queue, buffer = self._queue, self._buffer
            if queue is None or self._consumer is not None:
                return

            async def on_message(message: AbstractIncomingMessage) -> None:
                buffer.append(message)
                self._counters.prefetched += 1
                self.changed.set()

            try:
                self._consumer = await queue.consume(on_message, timeout=_RPC_TIMEOUT)
            except self.lost_errors:
                await self.close()  # whatever it answers later, the channel is not there any more

    async def poll(self) -> bool:
        """Whether a message is here now: one is fetched, or what RabbitMQ sent before its answer has come in."""
        if self._channel is None or self._queue is None:
            return False
        try:
            if self._consumer is not None:
                await self._channel.set_qos(self._prefetch, timeout=_RPC_TIMEOUT)
                await asyncio.sleep(0.002)
            elif (message := await self._queue.get(fail=False, timeout=_RPC_TIMEOUT)) is not None:
                self._buffer.append(message)
                self._counters.prefetched += 1
        except self.lost_errors:
            await self.close()
        return bool(self._buffer)

    async def pause(self) -> None:
        """Have no more messages sent."""
        if self._queue is not None and self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await self._queue.cancel(consumer, timeout=_RPC_TIMEOUT)

    async def close(self) -> None:
        """Close the channel, which gives back what is not settled and what is on its way."""
        channel = self._channel
        self.reset()
        if channel is not None and not channel.is_closed:
            with contextlib.suppress(*self.lost_errors):
                await asyncio.wait_for(channel.close(), 5.0)

    def reset(self) -> None:
        """Forget everything: RabbitMQ has taken it back, or will."""
        self._counters.prefetched -= len(self._buffer)
        # A new one: what the old channel still gives goes to the old.
        self._buffer = deque()
        self._channel = self._queue = self._consumer = None
        self._on_lost()


async def settle(incoming: AbstractIncomingMessage, *, requeue: bool = False) -> None:
    """Acknowledge, or have it handed out again; on a channel that is gone, a word would end the whole connection.

    Raises:
        ConnectionError: The channel is gone.
    """
    if incoming.channel.is_closed:
        raise ConnectionError("the channel is closed")
    if requeue:
        await incoming.nack(requeue=True)
    else:
        await incoming.ack()
