"""The asyncio client: each call runs the synchronous one in a thread, so there is one implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack

from headwater.client.client import Client, connect
from headwater.client.consumer import Consumer
from headwater.client.deletion import Deletion
from headwater.client.disk_usage import DiskUsage
from headwater.client.producer import Producer
from headwater.client.queue import OpenQueue, PublishOptions
from headwater.events import Clock, Event, Receipt
from headwater.events.envelope import Receipts
from headwater.log import Start, Topic
from headwater.log.write.write_batch import EventAttributes
from headwater.pipelines.declaration import TopicOptions
from headwater.queues import Message, PublishConfirm, Queue, QueueOptions

__all__ = ["AsyncClient", "AsyncConsumer", "AsyncProducer", "AsyncQueue", "connect_async"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", Consumer, Producer, OpenQueue)
_CHUNK_SIZE = 500


class _Run(Protocol):
    """Runs a blocking call in a thread of the client."""

    async def __call__(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> R: ...


def connect_async(
    where: str | Path | None = None, *, profile: str | None = None, clock: Clock | None = None
) -> AsyncClient:
    """Returns an asyncio client.

    Args:
        where: A folder, a node's URL or "kafka://host:port"; the profile's log if left out.
        profile: A profile of headwater.toml or pyproject.toml.
        clock: The clock, for tests.

    Example:
        >>> import asyncio, tempfile
        >>> async def main():
        ...     async with connect_async(tempfile.mkdtemp()) as client:
        ...         await client.create_topic("orders", "order_id string")
        ...         receipt = await client.send("orders", {"order_id": "a"})
        ...         return receipt.offset, [event.value async for event in client.read("orders")]
        >>> asyncio.run(main())
        (0, [{'order_id': 'a'}])
    """
    return AsyncClient(connect(where, profile=profile, clock=clock))


class AsyncClient:
    """`Client` for asyncio. It has threads of its own: waiting readers do not block the loop's default executor."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="headwater")

    async def _run(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **options))

    async def create_topic(self, name: str, type_: object, **options: Unpack[TopicOptions]) -> Topic:
        """Create a topic, or update it to this type and these options."""
        return await self._run(self.client.create_topic, name, type_, **options)

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> Deletion:
        """Delete a topic; with `dry_run`, only return what would go."""
        return await self._run(self.client.delete_topic, name, dry_run=dry_run)

    async def delete_group(self, name: str, topic: str | None = None, *, dry_run: bool = False) -> Deletion:
        """Delete the committed offsets of a group; with `dry_run`, only return what would go."""
        return await self._run(self.client.delete_group, name, topic, dry_run=dry_run)

    async def disk_usage(self) -> DiskUsage:
        """Returns what the data folder holds by part, how long it is kept, and who holds back retention."""
        return await self._run(self.client.disk_usage)

    async def send(self, topic: str, value: Any, *, key: Any = None, **attributes: Unpack[EventAttributes]) -> Receipt:
        """Send one event and wait until it is as safe as the topic's durability promises."""
        return await self._run(self.client.send, topic, value, key=key, **attributes)

    async def send_many(self, topic: str, rows: Any, *, keys: Any = None, skip_invalid: bool = False) -> Receipts:
        """Send many events at once."""
        return await self._run(self.client.send_many, topic, rows, keys=keys, skip_invalid=skip_invalid)

    async def delete(self, topic: str, key: Any) -> Receipt:
        """Delete a key from a compacted topic."""
        return await self._run(self.client.delete, topic, key)

    async def complete(self, topic: str) -> datetime:
        """Say that the history of a topic is complete."""
        return await self._run(self.client.complete, topic)

    async def read(
        self,
        topic: str,
        start: Start = "earliest",
        stop: Start | None = "end",
        *,
        partitions: Sequence[int] | None = None,
        as_: type | None = None,
    ) -> AsyncIterator[Event]:
        """Yields the events of a topic; with `stop=None` it follows without an end."""
        events = self.client.read(topic, start, stop, partitions=partitions, as_=as_)
        # A follower takes events one by one: it would wait until a larger chunk is full.
        async for event in _iterate(self._run, events, 1 if stop is None else _CHUNK_SIZE):
            yield event

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        start: Start = "earliest",
        timeout: str | timedelta | None = None,
        session: str | timedelta = "5 minutes",
    ) -> AsyncConsumer:
        """Returns a member of a consumer group, for `async with`."""
        open_ = partial(self.client.consumer, topic, group=group, start=start, timeout=timeout, session=session)
        return AsyncConsumer(self._run, open_)

    def producer(self, topic: str, *, id: str | None = None) -> AsyncProducer:
        """Returns a producer, for `async with`."""
        return AsyncProducer(self._run, lambda: self.client.producer(topic, id=id))

    def queue(
        self,
        name: str,
        *,
        group: str | None = None,
        as_: type | None = None,
        prefetch: int = 10,
        timeout: str | timedelta | None = None,
    ) -> AsyncQueue:
        """Returns a queue, for `async with`."""
        open_ = partial(self.client.queue, name, group=group, as_=as_, prefetch=prefetch, timeout=timeout)
        return AsyncQueue(self._run, open_)

    async def create_queue(self, name: str, type_: object = None, /, **options: Unpack[QueueOptions]) -> Queue:
        """Create a queue, or update it to this type and these options."""
        return await self._run(self.client.create_queue, name, type_, **options)

    async def ask(
        self, subject: str, value: Any = None, *, timeout: float | str | timedelta = 5, as_: type | None = None
    ) -> Any:
        """Send a request; cancelling the task cancels the request."""
        request = self.client.request(subject, value, timeout=timeout, as_=as_)
        try:
            return await self._run(request.answer)
        except asyncio.CancelledError:
            # In a thread: on RabbitMQ it returns when responders have been told. The pool may be full of requests.
            await asyncio.shield(asyncio.to_thread(request.cancel))
            raise

    async def close(self) -> None:
        """Finish pending sends and close files and connections."""
        await self._run(self.client.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _AsyncHandle(Generic[H]):
    """A consumer, producer or queue that is opened by `async with`; opening and closing run in threads, too."""

    def __init__(self, run: _Run, open_: Callable[[], H]) -> None:
        self._run = run
        self._open: Callable[[], H] = open_

    async def __aenter__(self) -> Self:
        self._opened: H = await self._run(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._run(self._opened.close)


class AsyncConsumer(_AsyncHandle[Consumer]):
    """Like `Consumer`: `async for event in consumer`, `await consumer.commit()`."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return _iterate(self._run, iter(self._opened))

    async def poll(self, timeout: float = 0, most: int = _CHUNK_SIZE) -> list[Event]:
        """Returns up to `most` events; waits up to `timeout` seconds for the first."""
        return await self._run(self._opened.poll, timeout, most)

    async def commit(self) -> None:
        """Commit everything delivered so far."""
        await self._run(self._opened.commit)


class AsyncProducer(_AsyncHandle[Producer]):
    """Like `Producer`: `await producer.send(...)`, `await producer.flush()`."""

    async def send(
        self, value: Any, *, key: Any = None, sequence: int | None = None, **attributes: Unpack[EventAttributes]
    ) -> None:
        """Send one event; waits only when the append buffer is full."""
        await self._run(self._opened.send, value, key=key, sequence=sequence, **attributes)

    async def flush(self) -> list[Receipt]:
        """Wait until everything sent so far is as safe as the topic's durability promises."""
        return await self._run(self._opened.flush)


class AsyncQueue(_AsyncHandle[OpenQueue]):
    """Like `OpenQueue`: `await queue.publish(...)`, `async for message in queue`.

    A message is the same object as in `OpenQueue`. Its `ack`, `nack` and `reject` are synchronous and short.
    """

    async def publish(self, value: Any, **options: Unpack[PublishOptions]) -> PublishConfirm:
        """Publish one message and wait until it is as safe as the queue's durability promises."""
        return await self._run(self._opened.publish, value, **options)

    async def receive(self, timeout: float | None = 0) -> Message | None:
        """Returns the next message; None after `timeout` seconds without one."""
        return await self._run(self._opened.receive, timeout)

    def __aiter__(self) -> AsyncIterator[Message]:
        return _iterate(self._run, iter(self._opened))


async def _iterate(run: _Run, items: Iterator[T], most: int = 1) -> AsyncIterator[T]:
    """Yields the items of a blocking iterator; `most` items are taken per call of a thread."""
    while chunk := await run(lambda: list(islice(items, most))):
        for item in chunk:
            yield item
