"""Exchanges, queues and bindings on RabbitMQ, their names, and the stored definitions.

An exchange has the name of its queue, `emails`. A group's queue is `emails:send`, that of the unnamed group
`emails`; its dead letters are in `emails:send/dead`. No name that a user can give contains `:` or `/`.
`DefinitionRegistry` keeps definitions in a RabbitMQ stream, in which the last one of a name counts.
`Topology` declares the exchanges, queues and bindings of a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import msgspec
from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
from aiormq.exceptions import ChannelLockedResource

from headwater.errors import BadSettingError, DamagedError, LockedError, QueueExistsError, UnreachableError
from headwater.queues.queue import Group, Queue
from headwater.queues.rabbitmq.connection import LOST_ERRORS, RabbitConnection
from headwater.queues.rabbitmq.publisher import Publication, Publisher

__all__ = [
    "DEFINITIONS_STREAM",
    "LOCK_QUEUE",
    "MAX_DELAY",
    "DefinitionRegistry",
    "Topology",
    "cancel_routing_key",
    "dead_letter_queue",
    "delay_queue",
    "group_queue",
    "headers_exchange",
    "request_queue",
    "round_delay",
]

DEFINITIONS_STREAM: Final = "headwater/queues"
"""A stream with the definitions of all queues."""
LOCK_QUEUE: Final = "headwater/queues/lock"
MAX_DELAY: Final = timedelta(milliseconds=2**32 - 1)
"""The longest delay and time to live on RabbitMQ: 49 days."""


def group_queue(queue: str, group: str) -> str:
    """Returns the name of the RabbitMQ queue of a group.

    Example:
        >>> group_queue("emails", ""), group_queue("emails", "send")
        ('emails', 'emails:send')
    """
    return f"{queue}:{group}" if group else queue


def dead_letter_queue(queue: str, group: str) -> str:
    """Returns the name of the dead letter queue of a group."""
    return f"{group_queue(queue, group)}/dead"


def headers_exchange(queue: str, group: str) -> str:
    """Returns the name of the exchange that selects the messages of a group by headers."""
    return f"{group_queue(queue, group)}/headers"


def request_queue(subject: str) -> str:
    """Returns the name of the queue of requests on a subject.

    Example:
        >>> request_queue("prices.quote")
        'headwater/ask/prices.quote'
    """
    return f"headwater/ask/{subject}"


def cancel_routing_key(subject: str) -> str:
    """Returns the routing key of cancellations on a subject."""
    return f"{request_queue(subject)}/cancel"


def delay_queue(milliseconds: int) -> str:
    """Returns the name of the queue that delays messages for a time, and of its exchange."""
    return f"headwater/wait-{milliseconds}"


def round_delay(delay: timedelta, *, exact: bool) -> int:
    """Returns a delay in milliseconds, rounded up, so that few delay queues are needed.

    Each delay needs a queue of its own in RabbitMQ. Delays that a user gives are rounded up to two significant digits,
    which makes them at most a tenth longer. Delays between attempts, which have jitter anyway, are rounded up to one of
    four steps between two powers of two, which makes them at most a quarter longer.

    Example:
        >>> round_delay(timedelta(minutes=1), exact=True), round_delay(timedelta(seconds=1.234), exact=True)
        (60000, 1300)
        >>> round_delay(timedelta(seconds=1.01), exact=False), round_delay(timedelta(0), exact=False)
        (1024, 0)

    Raises:
        BadSettingError: The delay is longer than `MAX_DELAY`.
    """
    if delay > MAX_DELAY:
        what = f"a delay of {delay} is too long for RabbitMQ"
        raise BadSettingError(what, detail=f"the longest is {MAX_DELAY}", fix="publish it later")
    asked = -(-max(delay, timedelta(0)) // timedelta(milliseconds=1))
    if asked < 10:
        return asked and 10
    step = 10 ** (len(str(asked)) - 2) if exact else max(1, 1 << (asked.bit_length() - 3))
    return min(-(-asked // step) * step, 2**32 - 1)


_EMPTY_TIMEOUT: Final = 3.0  # seconds; a stream that sends nothing for so long is empty
_PREFETCH: Final = 200  # records; RabbitMQ requires a limit to read a stream
_PAUSE: Final = 0.05  # seconds between two attempts to get the lock


class DefinitionRegistry:
    """Reads and writes definitions; all calls come from one event loop.

    Args:
        connection: The connection to read by.
        publisher: Publishes new definitions.
    """

    def __init__(self, connection: RabbitConnection, publisher: Publisher) -> None:
        self._connection = connection
        self._publisher = publisher
        self._local_lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Hold the lock of definitions, across all processes, while the block runs.

        The lock is an exclusive queue: RabbitMQ deletes it when the connection of its owner ends.

        Raises:
            LockedError: Another process held the lock for longer than the connection's patience.
        """
        async with (
            self._local_lock
        ):  # the exclusive queue belongs to the connection, which callers of this process share
            channel = await self._acquire_lock()
            try:
                yield
            finally:
                with contextlib.suppress(*LOST_ERRORS):
                    lock_queue = await channel.get_queue(LOCK_QUEUE, ensure=False)
                    await lock_queue.delete(if_unused=False, if_empty=False)
                    await channel.close()

    async def read(self, *, allow_empty: bool = False) -> dict[str, Queue]:
        """Returns all definitions, by name.

        Args:
            allow_empty: Accept an empty stream, for a caller that holds the lock and writes next.

        Raises:
            UnreachableError: RabbitMQ has the stream but does not send its records.
        """
        try:
            async with self._connection.channel() as channel:
                await channel.set_qos(_PREFETCH)
                stream = await channel.declare_queue(DEFINITIONS_STREAM, passive=True)
                # "last" is the last chunk; it holds one record, since a writer awaits the confirm of each.
                last = await _read_records(stream, "last", None)
                if not last and not allow_empty:
                    raise UnreachableError(
                        f'RabbitMQ at {self._connection.redacted_url} does not send its stream "{DEFINITIONS_STREAM}"',
                        detail="the definitions of queues are in it",
                        fix="rabbitmqctl list_queues name state shows whether it runs",
                    )
                records = await _read_records(stream, "first", _stream_offset(last[0])) if last else []
        except ChannelNotFoundEntity:
            return {}
        try:
            queues = [Queue.from_json(record.body) for record in records]
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            what = f'the stream "{DEFINITIONS_STREAM}" of RabbitMQ has a record that is not a queue definition'
            fix = "find the client that writes to it besides Headwater"
            raise DamagedError(what, detail=str(error), fix=fix) from None
        return {queue.name: queue for queue in queues}  # the last definition of a name counts

    async def write(self, queue: Queue) -> None:
        """Append a definition; the caller holds the lock."""
        async with self._connection.channel() as channel:
            await channel.declare_queue(DEFINITIONS_STREAM, durable=True, arguments={"x-queue-type": "stream"})
        message = Message(queue.to_json(), content_type="application/json", delivery_mode=2)
        await self._publisher.send([Publication("", DEFINITIONS_STREAM, message)])

    async def _acquire_lock(self) -> AbstractChannel:
        end = asyncio.get_running_loop().time() + self._connection.patience
        while True:
            channel = await self._connection.open_channel()
            try:
                await channel.declare_queue(LOCK_QUEUE, exclusive=True)
                return channel
            except ChannelLockedResource:
                if asyncio.get_running_loop().time() > end:
                    what = "another process holds the lock of queue definitions in RabbitMQ"
                    raise LockedError(what, fix="stop that process, or try again", lock=LOCK_QUEUE) from None
                await asyncio.sleep(_PAUSE)


async def _read_records(stream: AbstractQueue, start: str, until: int | None) -> list[AbstractIncomingMessage]:
    """Returns the records of the stream from `start` up to an offset; without an offset, only the first one."""
    incoming: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def on_message(message: AbstractIncomingMessage) -> None:
        incoming.put_nowait(message)
        await message.ack()

    tag = await stream.consume(on_message, arguments={"x-stream-offset": start})
    found: list[AbstractIncomingMessage] = []
    try:
        while not found or (until is not None and _stream_offset(found[-1]) < until):
            found.append(await asyncio.wait_for(incoming.get(), _EMPTY_TIMEOUT))
    except TimeoutError:
        if found:
            raise
    finally:
        await stream.cancel(tag)
    return found


def _stream_offset(record: AbstractIncomingMessage) -> int:
    offset: Any = record.headers["x-stream-offset"]
    return int(offset)


# Headwater counts attempts itself. Without this limit, RabbitMQ 4 drops a message after 20 deliveries.
_UNLIMITED: Final = 1_000_000_000
_QUORUM_ARGUMENTS: Final[dict[str, Any]] = {"x-queue-type": "quorum", "x-delivery-limit": _UNLIMITED}
# RabbitMQ removes a dead letter from its queue only when the target confirms it. That requires reject-publish.
_DEAD_LETTER_ARGUMENTS: Final[dict[str, Any]] = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


class Topology:
    """Declares the exchanges, queues and bindings of a queue; declaring them twice changes nothing.

    Args:
        connection: The connection to declare by.
    """

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        self._delays: set[int] = set()

    async def declare(self, queue: Queue, before: Queue | None) -> None:
        """Declare all parts of a queue, and remove bindings that only the definition `before` has.

        Raises:
            QueueExistsError: RabbitMQ has a queue or exchange of that name with other arguments.
        """
        try:
            async with self._connection.channel() as channel:
                await channel.declare_exchange(queue.name, "topic", durable=True)
                for group in queue.groups:
                    await self._declare_group(channel, queue, group)
                    await self._bind(channel, queue.name, group)
                # Old bindings go last, so that no message misses a group while its bindings change.
                for group in before.groups if before else ():
                    now = next((each for each in queue.groups if each.name == group.name), None)
                    if now != group:
                        await self._unbind(channel, queue.name, group, now)
        except ChannelPreconditionFailed as error:
            raise QueueExistsError(
                f'RabbitMQ has "{queue.name}" already, with other settings',
                detail=str(error),
                fix="choose another name, or delete that one in RabbitMQ",
                location=queue.location,
                queue=queue.name,
            ) from None

    async def declare_delay_queue(self, milliseconds: int) -> str:
        """Declare a delay queue; returns its exchange. The routing key of a message names the queue it goes to next."""
        if milliseconds not in self._delays:
            await self._connection.run_with_retry(lambda: self._declare_delay_queue(milliseconds))
            self._delays.add(milliseconds)
        return delay_queue(milliseconds)

    async def _declare_delay_queue(self, milliseconds: int) -> None:
        name = delay_queue(milliseconds)
        async with self._connection.channel() as channel:
            exchange = await channel.declare_exchange(name, "fanout", durable=True)
            arguments = _QUORUM_ARGUMENTS | _DEAD_LETTER_ARGUMENTS | {"x-message-ttl": milliseconds}
            queue = await channel.declare_queue(name, durable=True, arguments=arguments)
            await queue.bind(exchange, "")

    async def _declare_group(self, channel: AbstractChannel, queue: Queue, group: Group) -> None:
        dead = dead_letter_queue(queue.name, group.name)
        await channel.declare_queue(dead, durable=True, arguments=_QUORUM_ARGUMENTS)
        arguments = _QUORUM_ARGUMENTS | _DEAD_LETTER_ARGUMENTS | {"x-dead-letter-routing-key": dead}
        if queue.limit is not None:
            arguments |= {"x-max-length": queue.limit}
        await channel.declare_queue(group_queue(queue.name, group.name), durable=True, arguments=arguments)

    async def _bind(self, channel: AbstractChannel, name: str, group: Group) -> None:
        queue = await channel.get_queue(group_queue(name, group.name), ensure=False)
        if not group.headers:
            for pattern in group.routing_key or ("#",):
                await queue.bind(name, pattern)
            return
        exchange = await channel.declare_exchange(headers_exchange(name, group.name), "headers", durable=True)
        await queue.bind(exchange, "", arguments={"x-match": "all", **group.headers})
        for pattern in group.routing_key or ("#",):
            await exchange.bind(name, pattern)

    async def _unbind(self, channel: AbstractChannel, name: str, before: Group, now: Group | None) -> None:
        """Remove old bindings; unchanged ones stay in place, so that no message misses its group."""
        queue = await channel.get_queue(group_queue(name, before.name), ensure=False)
        same_way = now is not None and bool(now.headers) == bool(before.headers)
        kept = (now.routing_key or ("#",)) if now is not None and same_way else ()
        gone = [pattern for pattern in before.routing_key or ("#",) if pattern not in kept]
        if not before.headers:
            for pattern in gone:
                await queue.unbind(name, pattern)
            return
        exchange = await channel.get_exchange(headers_exchange(name, before.name), ensure=False)
        for pattern in gone:
            await exchange.unbind(name, pattern)
        if now is None or now.headers != before.headers:
            await queue.unbind(exchange, "", arguments={"x-match": "all", **before.headers})
