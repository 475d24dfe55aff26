"""Messages published with confirmation, received and acknowledged, by our broker and by a bare AMQP client."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel

from benchmarks.measure import Case, Watch
from benchmarks.orders import json_orders
from benchmarks.senders import send_at_once
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Queue

__all__ = ["Embedded", "Rabbit"]

_BLOCK = 1_000


class Embedded:
    """Queues in a folder; its methods return cases for `measure`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = EmbeddedBroker(folder)
        self._numbers = itertools.count()
        self._bodies = json_orders(_BLOCK)

    def queue(self, waiting: int = 0) -> str:
        """Create a queue with `waiting` messages; returns its name."""
        name = f"work-{next(self._numbers)}"
        self.broker.declare(Queue.declare(name))
        for _ in range(0, waiting, _BLOCK):
            self.broker.publish(name, [OutgoingMessage(body) for body in self._bodies])
        return name

    def rounds(self, clients: int, count: int, name: str | None = None) -> Case:
        """Returns a case: `clients` threads publish one message at a time, and one receiver acknowledges them."""

        def case(watch: Watch) -> None:
            queue = name or self.queue()
            with watch.lap(clients * count):
                taking = threading.Thread(target=self._take, args=(queue, clients, clients * count))
                taking.start()
                send_at_once(lambda number: self._publish(queue, number), clients, count)
                taking.join()

        return case

    def _publish(self, name: str, number: int) -> None:
        self.broker.publish(name, [OutgoingMessage(self._bodies[number % _BLOCK])])

    def _take(self, name: str, most: int, count: int) -> None:
        receiver = self.broker.receiver(name, prefetch=most)
        while count:
            found = receiver.receive(timeout=60, max_messages=min(most, count))
            receiver.ack(found)
            count -= len(found)
        receiver.close()

    def close(self) -> None:
        """Close the broker."""
        self.broker.close()


class Rabbit:
    """Quorum queues of a RabbitMQ broker, with a bare client.

    Args:
        url: The URL of the broker.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count()
        self._bodies = json_orders(_BLOCK)

    def rounds(self, clients: int, count: int) -> Case:
        """Returns a case: `clients` tasks publish one message at a time, and one consumer acknowledges them."""

        def case(watch: Watch) -> None:
            asyncio.run(self._rounds(watch, clients, count))

        return case

    async def _rounds(self, watch: Watch, clients: int, count: int) -> None:
        name = f"work-{next(self._numbers)}"
        connection = await aio_pika.connect_robust(self.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            taking = await connection.channel()
            await taking.set_qos(prefetch_count=clients)
            queue = await taking.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            left = asyncio.Semaphore(0)

            async def take(message: AbstractIncomingMessage) -> None:
                await message.ack()
                left.release()

            await queue.consume(take)
            with watch.lap(clients * count):
                await asyncio.gather(*(self._publish(channel, name, first * count, count) for first in range(clients)))
                for _ in range(clients * count):
                    await left.acquire()
            await queue.delete(if_unused=False, if_empty=False)

    async def _publish(self, channel: AbstractRobustChannel, name: str, first: int, count: int) -> None:
        for number in range(first, first + count):
            message = aio_pika.Message(self._bodies[number % _BLOCK], delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, routing_key=name)
