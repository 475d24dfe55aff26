"""Exchanges, queues and bindings in RabbitMQ, made from a definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headwater.errors import QueueExistsError
from headwater.queues.definition import Group, Queue
from headwater.queues.rabbitmq.link import Link, driver
from headwater.queues.rabbitmq.names import dead_queue, group_queue, headers_exchange, wait_queue

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel

__all__ = ["Topology"]

# We count attempts ourselves. Without a number here, RabbitMQ 4 gives up after 20.
_UNLIMITED: Final = 1_000_000_000
_QUORUM: Final[dict[str, Any]] = {"x-queue-type": "quorum", "x-delivery-limit": _UNLIMITED}
# RabbitMQ removes a message here only when it is safe there; that needs publishers to be refused when a queue is full.
_SAFELY: Final[dict[str, Any]] = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


class Topology:
    """Makes what a queue needs; making it twice changes nothing.

    Args:
        link: The connection.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._driver = driver()
        self._waits: set[int] = set()

    async def make(self, queue: Queue, before: Queue | None) -> None:
        """Make all of a queue, and undo bindings that its definition had before and has no more.

        Raises:
            QueueExistsError: RabbitMQ has something of that name that was made otherwise.
        """
        channel = await self._link.channel()
        try:
            await channel.declare_exchange(queue.name, "topic", durable=True)
            for group in queue.groups:
                await self._make_group(channel, queue, group)
                await self._bind(channel, queue.name, group)
            for group in before.groups if before else ():
                now = next((each for each in queue.groups if each.name == group.name), None)
                if now != group:
                    await self._unbind(channel, queue.name, group, now)
        except self._driver.exceptions.ChannelPreconditionFailed as error:
            raise QueueExistsError(
                f'RabbitMQ has "{queue.name}" already, with other settings',
                detail=str(error),
                fix="choose another name, or delete that one in RabbitMQ",
                place=queue.place,
                queue=queue.name,
            ) from None
        finally:
            await channel.close()

    async def wait(self, milliseconds: int) -> str:
        """The exchange that leads to the queue where messages rest so long; the routing key is where they go then."""
        if milliseconds not in self._waits:
            await self._link.asked(lambda: self._make_wait(milliseconds))
            self._waits.add(milliseconds)
        return wait_queue(milliseconds)

    async def _make_wait(self, milliseconds: int) -> None:
        name = wait_queue(milliseconds)
        channel = await self._link.channel()
        try:
            exchange = await channel.declare_exchange(name, "fanout", durable=True)
            arguments = _QUORUM | _SAFELY | {"x-message-ttl": milliseconds}
            queue = await channel.declare_queue(name, durable=True, arguments=arguments)
            await queue.bind(exchange, "")
        finally:
            await channel.close()

    async def _make_group(self, channel: AbstractChannel, queue: Queue, group: Group) -> None:
        dead = dead_queue(queue.name, group.name)
        await channel.declare_queue(dead, durable=True, arguments=_QUORUM)
        arguments = _QUORUM | _SAFELY | {"x-dead-letter-routing-key": dead}
        if queue.limit is not None:
            arguments |= {"x-max-length": queue.limit}
        await channel.declare_queue(group_queue(queue.name, group.name), durable=True, arguments=arguments)

    async def _bind(self, channel: AbstractChannel, name: str, group: Group) -> None:
        queue = await channel.get_queue(group_queue(name, group.name), ensure=False)
        if not group.headers:
            for pattern in group.words or ("#",):
                await queue.bind(name, pattern)
            return
        chooser = await channel.declare_exchange(headers_exchange(name, group.name), "headers", durable=True)
        await queue.bind(chooser, "", arguments={"x-match": "all", **group.headers})
        for pattern in group.words or ("#",):
            await chooser.bind(name, pattern)

    async def _unbind(self, channel: AbstractChannel, name: str, before: Group, now: Group | None) -> None:
        """Bindings that are there as before stay, so that no message misses its group meanwhile."""
        queue = await channel.get_queue(group_queue(name, before.name), ensure=False)
        same_way = now is not None and bool(now.headers) == bool(before.headers)
        kept = (now.words or ("#",)) if now is not None and same_way else ()
        gone = [pattern for pattern in before.words or ("#",) if pattern not in kept]
        if not before.headers:
            for pattern in gone:
                await queue.unbind(name, pattern)
            return
        chooser = await channel.get_exchange(headers_exchange(name, before.name), ensure=False)
        for pattern in gone:
            await chooser.unbind(name, pattern)
        if now is None or now.headers != before.headers:
            await queue.unbind(chooser, "", arguments={"x-match": "all", **before.headers})
