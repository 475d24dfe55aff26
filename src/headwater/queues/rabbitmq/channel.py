"""The channel of a receiver with its prefetched messages, and the counters of a group.

RabbitMQ reports only how many messages wait; `GroupCounters` counts what this process did with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from headwater.errors import UnreachableError
from headwater.queues.protocol import GroupCounts
from headwater.queues.rabbitmq.connection import LOST_ERRORS, RabbitConnection

__all__ = ["ConsumerChannel", "GroupCounters", "settle"]


@dataclass
class GroupCounters:
    """What this process counts for one group; `due` has the end of each delay."""

    published: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dropped: int = 0
    in_flight: int = 0
    prefetched: int = 0
    due: list[datetime] = field(default_factory=list)

    def add_delayed(self, milliseconds: int) -> None:
        """Count a delayed message."""
        insort(self.due, datetime.now(UTC) + timedelta(milliseconds=milliseconds))

    def counts(self, group: str, waiting: int, dead: int) -> GroupCounts:
        """Returns the counts, with the message counts that RabbitMQ reports.

        Example:
            >>> counters = GroupCounters(published=3, acked=1)
            >>> counters.counts("send", waiting=2, dead=0).waiting
            2
        """
        del self.due[: bisect_right(self.due, datetime.now(UTC))]
        totals = (self.published, self.acked, self.redelivered, self.expired, self.dropped)
        return GroupCounts(group, waiting + self.prefetched, len(self.due), self.in_flight, dead, *totals)


_RPC_TIMEOUT: Final = 10.0  # seconds; a quorum queue without a leader does not answer


class ConsumerChannel:
    """A channel that consumes one RabbitMQ queue, and its messages that are not delivered to the caller yet.

    Args:
        connection: The connection for receiving.
        name: The name of the RabbitMQ queue.
        prefetch: The largest number of unacknowledged messages.
        counters: The counters of the group.
        on_lost: Called when the channel is lost and RabbitMQ has requeued all unacknowledged messages.
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
        self._lost_at: float | None = None  # time of the loop since which the channel is closed
        self.changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether the channel is open."""
        return self._channel is not None and not self._channel.is_closed

    @property
    def has_messages(self) -> bool:
        """Whether a prefetched message waits."""
        return bool(self._buffer)

    @property
    def is_prefetching(self) -> bool:
        """Whether RabbitMQ sends messages in advance, or some of them wait here."""
        return self._consumer is not None or bool(self._buffer)

    def pop_messages(self, max_messages: int) -> list[AbstractIncomingMessage]:
        """Returns up to `max_messages` prefetched messages."""
        taken = [self._buffer.popleft() for _ in range(max(0, min(max_messages, len(self._buffer))))]
        self._counters.prefetched -= len(taken)
        return taken

    async def ensure_open(self, timeout: float | None) -> bool:
        """Open the channel unless it is open; returns False when `timeout` passed before.

        Raises:
            UnreachableError: RabbitMQ has not answered for longer than the connection's patience.
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
            except (UnreachableError, *LOST_ERRORS):
                if now() - self._lost_at > self._connection.patience or timeout is None:
                    raise
                return False
            self._queue = await channel.get_queue(self._name, ensure=False)
            self._channel, self._lost_at = channel, None
            return True

    async def consume(self) -> None:
        """Start consuming: RabbitMQ sends messages from now on."""
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
            except LOST_ERRORS:
                await self.close()  # a late consume-ok must not start a consumer on a channel in use

    async def poll(self) -> bool:
        """Fetch one message; if consuming, wait for those on their way. Returns whether a message is here."""
        if self._channel is None or self._queue is None:
            return False
        try:
            if self._consumer is not None:
                # A round trip: RabbitMQ sends the messages that are ready before its answer.
                await self._channel.set_qos(self._prefetch, timeout=_RPC_TIMEOUT)
                await asyncio.sleep(0.002)
            elif (message := await self._queue.get(fail=False, timeout=_RPC_TIMEOUT)) is not None:
                self._buffer.append(message)
                self._counters.prefetched += 1
        except LOST_ERRORS:
            await self.close()
        return bool(self._buffer)

    async def pause(self) -> None:
        """Stop consuming; prefetched messages stay here."""
        if self._queue is not None and self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await self._queue.cancel(consumer, timeout=_RPC_TIMEOUT)

    async def close(self) -> None:
        """Close the channel; RabbitMQ requeues its unacknowledged messages."""
        channel = self._channel
        self.reset()
        if channel is not None and not channel.is_closed:
            with contextlib.suppress(*LOST_ERRORS):
                await asyncio.wait_for(channel.close(), 5.0)

    def reset(self) -> None:
        """Forget all messages, which RabbitMQ requeues."""
        self._counters.prefetched -= len(self._buffer)
        # A new deque: the consumer of the old channel may still append to the old one.
        self._buffer = deque()
        self._channel = self._queue = self._consumer = None
        self._on_lost()


async def settle(incoming: AbstractIncomingMessage, *, requeue: bool = False) -> None:
    """Acknowledge or requeue a message.

    The check of the channel is necessary: an ack of a message of a closed channel makes RabbitMQ close the connection.

    Raises:
        ConnectionError: The channel is closed.
    """
    if incoming.channel.is_closed:
        raise ConnectionError("the channel is closed")
    if requeue:
        await incoming.nack(requeue=True)
    else:
        await incoming.ack()
