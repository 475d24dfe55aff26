"""Definitions of queues, kept in RabbitMQ itself: a stream of them, in which the last one of a name counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.errors import DamagedError, LockedError, UnreachableError
from headwater.queues.definition import Queue
from headwater.queues.rabbitmq.link import LOST, Link, driver
from headwater.queues.rabbitmq.names import DEFINITIONS, LOCK
from headwater.queues.rabbitmq.publisher import Letter, Publisher

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

__all__ = ["Registry"]

_EMPTY: Final = 3.0  # seconds after which a stream that says nothing is taken to be empty
_PREFETCH: Final = 200  # streams are read only with a limit
_PAUSE: Final = 0.05


class Registry:
    """Reads and writes definitions; all calls come from one event loop.

    Args:
        link: The connection to read by.
        publisher: Writes.
    """

    def __init__(self, link: Link, publisher: Publisher) -> None:
        self._link = link
        self._publisher = publisher
        self._driver = driver()
        self._own = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Nobody else changes definitions while the block runs.

        The lock is a queue that only the connection that made it can have; it goes with that connection.

        Raises:
            LockedError: Another process had the lock all the time.
        """
        async with self._own:
            channel = await self._lock()
            try:
                yield
            finally:
                with contextlib.suppress(*LOST, self._driver.exceptions.AMQPError):  # then it is free, too
                    lock = await channel.get_queue(LOCK, ensure=False)
                    await lock.delete(if_unused=False, if_empty=False)
                    await channel.close()

    async def read(self, *, none_yet: bool = False) -> dict[str, Queue]:
        """All definitions, by name.

        Args:
            none_yet: A stream that says nothing is empty. The caller has the lock, and writes next.

        Raises:
            UnreachableError: RabbitMQ has the stream, and does not give what is in it.
        """
        channel = await self._link.channel()
        try:
            await channel.set_qos(_PREFETCH)
            stream = await channel.declare_queue(DEFINITIONS, passive=True)
            # Each record is a chunk of its own, since one process writes at a time and waits for its confirmation.
            last = await _records(stream, "last", None)
            if not last and not none_yet:
                raise self._silent()
            records = await _records(stream, "first", _offset(last[0])) if last else []
        except self._driver.exceptions.ChannelNotFoundEntity:
            return {}
        finally:
            if not channel.is_closed:
                await channel.close()
        queues = [_definition(record.body) for record in records]
        return {queue.name: queue for queue in queues}

    async def write(self, queue: Queue) -> None:
        """Add a definition; the caller has the lock."""
        channel = await self._link.channel()
        try:
            await channel.declare_queue(DEFINITIONS, durable=True, arguments={"x-queue-type": "stream"})
        finally:
            await channel.close()
        message = self._driver.Message(queue.to_json(), content_type="application/json", delivery_mode=2)
        await self._publisher.send([Letter("", DEFINITIONS, message)])

    def _silent(self) -> UnreachableError:
        return UnreachableError(
            f'RabbitMQ at {self._link.shown} does not give its stream "{DEFINITIONS}"',
            detail="the definitions of queues are in it",
            fix="rabbitmqctl list_queues name state tells whether it runs",
        )

    async def _lock(self) -> AbstractChannel:
        from aiormq.exceptions import ChannelLockedResource

        end = asyncio.get_running_loop().time() + self._link.patience
        while True:
            channel = await self._link.channel()
            try:
                await channel.declare_queue(LOCK, exclusive=True)
                return channel
            except ChannelLockedResource:
                if asyncio.get_running_loop().time() > end:
                    what = "another process is declaring queues in RabbitMQ and does not end"
                    raise LockedError(what, fix="end that process", lock=LOCK) from None
                await asyncio.sleep(_PAUSE)


async def _records(stream: AbstractQueue, start: str, until: int | None) -> list[AbstractIncomingMessage]:
    """Records of the stream from `start` up to an offset; only the first one without an offset."""
    came: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def take(message: AbstractIncomingMessage) -> None:
        came.put_nowait(message)
        await message.ack()

    tag = await stream.consume(take, arguments={"x-stream-offset": start})
    found: list[AbstractIncomingMessage] = []
    try:
        while not found or (until is not None and _offset(found[-1]) < until):
            found.append(await asyncio.wait_for(came.get(), _EMPTY))
    except TimeoutError:
        if found:
            raise
    finally:
        await stream.cancel(tag)
    return found


def _offset(record: AbstractIncomingMessage) -> int:
    offset: Any = record.headers["x-stream-offset"]
    return int(offset)


def _definition(body: bytes) -> Queue:
    try:
        return Queue.from_json(body)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        what = f'the stream "{DEFINITIONS}" of RabbitMQ has a record that is no definition of a queue'
        raise DamagedError(
            what, detail=str(error), fix="find out who writes there besides Headwater"
        ) from None
