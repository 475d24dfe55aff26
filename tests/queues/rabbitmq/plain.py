"""A plain client of RabbitMQ on the other side: the bare driver, which knows nothing of Headwater."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

T = TypeVar("T")


def with_channel(url: str, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
    """What `work` gives, with a channel of its own."""

    async def connected() -> T:
        async with await aio_pika.connect(url) as connection:
            return await work(await connection.channel())

    return asyncio.run(connected())


def get(url: str, queue: str, settle: str = "ack") -> AbstractIncomingMessage:
    """The next message of a queue, settled by a method of the driver's message."""

    async def work(channel: AbstractChannel) -> AbstractIncomingMessage:
        source = await channel.get_queue(queue)
        end = asyncio.get_running_loop().time() + 20
        while (message := await source.get(fail=False)) is None:
            assert asyncio.get_running_loop().time() < end, f"nothing came in {queue}"
            await asyncio.sleep(0.02)
        await (message.reject(requeue=False) if settle == "reject" else message.ack())
        return message

    return with_channel(url, work)


def put(url: str, exchange: str, body: bytes, routing_key: str = "", **properties: Any) -> None:
    """Publish to an exchange."""

    async def work(channel: AbstractChannel) -> None:
        target = await channel.get_exchange(exchange)
        await target.publish(aio_pika.Message(body, **properties), routing_key)

    with_channel(url, work)
