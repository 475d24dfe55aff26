"""The channel of a receiver: opened when it is needed, and what RabbitMQ has sent over it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.errors import UnreachableError
from headwater.queues.rabbitmq.link import LOST, Link, driver
from headwater.queues.rabbitmq.tally import Tally

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

__all__ = ["Intake", "done"]

_ANSWER: Final = 10.0  # seconds for an answer; a queue without a leader gives none


class Intake:
    """Messages that came from one queue of RabbitMQ and are with nobody yet.

    Args:
        link: The connection, for receiving alone.
        name: The queue in RabbitMQ.
        prefetch: How many messages RabbitMQ gives without an acknowledgement.
        tally: Counts of the group.
        lost: Called when the channel is gone, and with it all that was not settled.
    """

    def __init__(
        self, link: Link, name: str, prefetch: int, *, tally: Tally, lost: Callable[[], None]
    ) -> None:
        self._link = link
        self._name = name
        self._prefetch = prefetch
        self._tally = tally
        self._lost = lost
        self._lock = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self._source: AbstractQueue | None = None
        self._consumer: str | None = None
        self._arrived: deque[AbstractIncomingMessage] = deque()
        self._lost_at: float | None = None
        self.gone = (*LOST, driver().exceptions.AMQPError)
        self.news = asyncio.Event()

    @property
    def live(self) -> bool:
        """Whether there is a channel."""
        return self._channel is not None and not self._channel.is_closed

    @property
    def waiting(self) -> bool:
        """Whether a message has come."""
        return bool(self._arrived)

    @property
    def ahead(self) -> bool:
        """Whether RabbitMQ sends, or has sent, what nobody has asked for yet."""
        return self._consumer is not None or bool(self._arrived)

    def take(self, most: int) -> list[AbstractIncomingMessage]:
        """Messages that came, up to so many."""
        taken = [self._arrived.popleft() for _ in range(max(0, min(most, len(self._arrived))))]
        self._tally.prefetched -= len(taken)
        return taken

    async def opened(self, left: float | None) -> bool:
        """Whether there is a channel; a new one if need be. False when the time was over before.

        Raises:
            UnreachableError: RabbitMQ has not answered for longer than the link's patience.
        """
        async with self._lock:
            if self.live:
                return True
            self.forget()
            now = asyncio.get_running_loop().time
            self._lost_at = self._lost_at or now()
            patience = self._link.patience if left is None else max(left, 0.5)
            try:
                channel = await self._link.channel(patience=min(patience, self._link.patience))
                channel.close_callbacks.add(lambda *_: self.news.set())
                await channel.set_qos(self._prefetch)
            except (UnreachableError, *self.gone):
                if now() - self._lost_at > self._link.patience or left is None:
                    raise
                return False
            self._source = await channel.get_queue(self._name, ensure=False)
            self._channel, self._lost_at = channel, None
            return True

    async def consume(self) -> None:
        """Have messages sent from now on."""
        async with self._lock:
            source, arrived = self._source, self._arrived
            if source is None or self._consumer is not None:
                return

            async def came(message: AbstractIncomingMessage) -> None:
                arrived.append(message)
                self._tally.prefetched += 1
                self.news.set()

            try:
                self._consumer = await source.consume(came, timeout=_ANSWER)
            except self.gone:
                await self.close()  # whatever it answers later, the channel is not there any more

    async def look(self) -> bool:
        """Whether a message is here now: one is fetched, or what RabbitMQ sent before its answer has come in."""
        if self._channel is None or self._source is None:
            return False
        try:
            if self._consumer is not None:
                await self._channel.set_qos(self._prefetch, timeout=_ANSWER)
                await asyncio.sleep(0.002)
            elif (message := await self._source.get(fail=False, timeout=_ANSWER)) is not None:
                self._arrived.append(message)
                self._tally.prefetched += 1
        except self.gone:
            await self.close()
        return bool(self._arrived)

    async def pause(self) -> None:
        """Have no more messages sent."""
        if self._source is not None and self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await self._source.cancel(consumer, timeout=_ANSWER)

    async def close(self) -> None:
        """Close the channel, which gives back what is not settled and what is on its way."""
        channel = self._channel
        self.forget()
        if channel is not None and not channel.is_closed:
            with contextlib.suppress(*self.gone):
                await asyncio.wait_for(channel.close(), 5.0)

    def forget(self) -> None:
        """Forget everything: RabbitMQ has taken it back, or will."""
        self._tally.prefetched -= len(self._arrived)
        # A new one: what the old channel still gives goes to the old.
        self._arrived = deque()
        self._channel = self._source = self._consumer = None
        self._lost()


async def done(incoming: AbstractIncomingMessage, *, again: bool = False) -> None:
    """Acknowledge, or have it handed out again; on a channel that is gone, a word would end the whole connection.

    Raises:
        ConnectionError: The channel is gone.
    """
    if incoming.channel.is_closed:
        raise ConnectionError("the channel is closed")
    if again:
        await incoming.nack(requeue=True)
    else:
        await incoming.ack()
