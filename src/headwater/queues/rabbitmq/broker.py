"""The RabbitMQ broker: implements the `Broker` protocol on exchanges and quorum queues."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from headwater.errors import OverloadedError
from headwater.log.topic import WhenFull
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.message import check_message
from headwater.queues.protocol import DeadLetter, GroupCounts, OutgoingMessage, PublishConfirm
from headwater.queues.queue import Queue, check_prefetch, merge_definition, unknown_group_error, unknown_queue_error
from headwater.queues.rabbitmq import requeue
from headwater.queues.rabbitmq.capabilities import check_message_support, check_queue
from headwater.queues.rabbitmq.channel import GroupCounters
from headwater.queues.rabbitmq.connection import RabbitConnection
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.publisher import Publication, Publisher, PublishOutcome
from headwater.queues.rabbitmq.receiver import RabbitReceiver
from headwater.queues.rabbitmq.requeue import Requeuer
from headwater.queues.rabbitmq.topology import DefinitionRegistry, Topology, dead_letter_queue, group_queue
from headwater.queues.routing import Router

__all__ = ["RabbitBroker"]

_DEFINITION_MAX_AGE: Final = 5.0  # seconds for which a cached definition is used
_FULL_PAUSE: Final = 0.1  # seconds between two attempts to publish to a full queue


@dataclass(frozen=True)
class _CachedDefinition:
    queue: Queue
    router: Router
    read_at: float


class RabbitBroker:
    """The queues of one RabbitMQ; safe to share between threads. It connects on first use.

    Args:
        url: `amqp://[user:password@]host[:port][,host…][/vhost]`.
        patience: How long to retry while RabbitMQ does not answer or accepts no messages.

    Raises:
        BadSettingError: The URL has another form.
    """

    counts_all_processes = False
    """RabbitMQ reports only waiting messages and dead letters; each process counts the rest for itself."""

    def __init__(self, url: str, *, patience: timedelta = timedelta(seconds=30)) -> None:
        # When RabbitMQ is low on memory, it stops reading from connections that publish; acks must not wait for that.
        self._publish_connection = RabbitConnection(url, "publishing", patience)
        self._receive_connection = RabbitConnection(url, "receiving", patience)
        self._publisher = Publisher(self._publish_connection)
        self._topology = Topology(self._receive_connection)
        self._registry = DefinitionRegistry(self._receive_connection, self._publisher)
        self._counters: defaultdict[tuple[str, str], GroupCounters] = defaultdict(GroupCounters)
        self._definitions: dict[str, _CachedDefinition] = {}
        self._limit_lock = asyncio.Lock()
        self._receivers: list[RabbitReceiver] = []
        self._loop = EventLoopThread("headwater-rabbitmq")

    def declare(self, queue: Queue) -> Queue:
        """Create a queue, or update it to this definition.

        A group that is no longer declared gets no new messages; its waiting messages stay in RabbitMQ.

        Raises:
            RefusedError: RabbitMQ does not support an option; see docs/rabbitmq.md.
            QueueExistsError: It exists with settings that cannot be changed in place.
        """
        queue.check()
        check_queue(queue)
        return self._loop.run(self._receive_connection.run_with_retry(lambda: self._declare(queue)))

    def queues(self) -> list[str]:
        """Returns the names of all queues declared by Headwater."""
        return sorted(self._loop.run(self._receive_connection.run_with_retry(self._registry.read)))

    def queue(self, name: str) -> Queue:
        """Returns a queue's definition.

        Raises:
            UnknownQueueError: No queue has this name.
        """
        return self._loop.run(self._load_definition(name, 0)).queue

    def publish(self, name: str, messages: Sequence[OutgoingMessage]) -> list[PublishConfirm]:
        """Publish messages; returns when RabbitMQ has confirmed all.

        A message whose confirm was lost is sent again with the same id, so it may be delivered twice.

        Raises:
            UnreachableError: RabbitMQ did not answer in time.
            OverloadedError: RabbitMQ was low on memory all the time, or the queue is full.
            BadEventError: A message is invalid; nothing was published.
            RefusedError: RabbitMQ does not support an option of a message; nothing was published.
        """
        for row, message in enumerate(messages):
            check_message(message, row)
            check_message_support(name, message)
        return self._loop.run(self._publish(name, messages)) if messages else []

    def receiver(self, name: str, group: str = "", *, worker: str = "", prefetch: int = 1) -> RabbitReceiver:
        """Returns a receiver for a group; up to `prefetch` deliveries may be unsettled at a time.

        Raises:
            UnknownGroupError: The queue has no such group.
        """
        check_prefetch(prefetch)
        return self._loop.run(self._open_receiver(name, group, worker, prefetch))

    def counts(self, name: str) -> list[GroupCounts]:
        """Returns the counts of each group; `delayed`, `in_flight` and the totals cover only this process."""
        return self._loop.run(self._counts(name))

    def dead_letters(self, name: str, group: str | None = None) -> Iterator[DeadLetter]:
        """Returns dead letters, oldest first in each group; all are read at once."""
        return iter(self._loop.run(self._read_dead_letters(name, group)))

    def redrive(self, name: str, letters: Iterable[DeadLetter]) -> int:
        """Redrive dead letters, each with the message it has now; returns how many were still dead letters."""
        found = list(letters)
        for row, letter in enumerate(found):
            check_message(letter.message, row)
            check_message_support(name, letter.message)
        return self._loop.run(self._redrive(name, found))

    def close(self) -> None:
        """Close receivers and connections."""
        if not self._loop.closed:
            self._loop.run(self._close())
            self._loop.close()

    def __enter__(self) -> RabbitBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _declare(self, queue: Queue) -> Queue:
        async with self._registry.lock():
            before = (await self._registry.read(allow_empty=True)).get(queue.name)
            now = merge_definition(before, queue) if before else replace(queue, given=None)
            check_queue(replace(now, given=None))
            await self._topology.declare(now, before)
            if now != before:  # written last: what a stored definition names exists
                await self._registry.write(now)
        self._cache_definition(now)
        return now

    async def _load_definition(self, name: str, max_age: float | None = None) -> _CachedDefinition:
        """Returns a definition read at most `max_age` seconds ago; None accepts any age."""
        known = self._definitions.get(name)
        now = asyncio.get_running_loop().time()
        if known is None or (max_age is not None and now - known.read_at > max_age):
            queues = await self._receive_connection.run_with_retry(self._registry.read)
            if name not in queues:
                raise unknown_queue_error(name, sorted(queues))
            known = self._cache_definition(queues[name])
        return known

    def _cache_definition(self, queue: Queue) -> _CachedDefinition:
        before = self._definitions.get(queue.name)
        router = before.router if before is not None and before.queue == queue else Router(queue)
        known = _CachedDefinition(queue, router, asyncio.get_running_loop().time())
        self._definitions[queue.name] = known
        return known

    async def _publish(self, name: str, messages: Sequence[OutgoingMessage]) -> list[PublishConfirm]:
        known = await self._load_definition(
            name, _DEFINITION_MAX_AGE if any(message.delay for message in messages) else None
        )
        envelopes = [Envelope.new(message, known.queue.ttl) for message in messages]
        routes = known.router.route(messages)
        now = [each for each in envelopes if not each.message.delay]
        publications = [Publication(name, each.message.routing_key, each.to_amqp(expires=True)) for each in now]
        outcomes = iter(await self._send(known.queue, publications))
        await self._publish_delayed(known.queue, zip(envelopes, routes, strict=True))
        return [
            self._confirm(
                known.queue, envelope, groups, PublishOutcome.CONFIRMED if envelope.message.delay else next(outcomes)
            )
            for envelope, groups in zip(envelopes, routes, strict=True)
        ]

    async def _publish_delayed(self, queue: Queue, envelopes: Iterable[tuple[Envelope, Sequence[int]]]) -> None:
        """Publish delayed messages to the delay queues, once per group."""
        delayed: dict[tuple[timedelta, int], list[Envelope]] = {}
        for envelope, groups in envelopes:
            for number in groups if envelope.message.delay else ():
                delayed.setdefault((envelope.message.delay, number), []).append(envelope)
        for (delay, number), those in delayed.items():
            await self._requeuer(queue.name, queue.groups[number].name).requeue(those, delay)

    def _confirm(
        self, queue: Queue, envelope: Envelope, groups: Sequence[int], outcome: PublishOutcome
    ) -> PublishConfirm:
        """Count the outcome in each group, and return the confirm."""
        for number in groups:
            counters = self._counters[queue.name, queue.groups[number].name]
            counters.published += outcome is not PublishOutcome.UNROUTABLE
            counters.dropped += outcome is PublishOutcome.FULL
        count = len(groups) if outcome is PublishOutcome.CONFIRMED else 0
        return PublishConfirm(str(envelope.message.id), dropped=outcome is PublishOutcome.FULL, groups=count)

    async def _send(self, queue: Queue, publications: list[Publication]) -> list[PublishOutcome]:
        """Publish messages under the queue's overload policy; returns the outcome of each."""
        outcomes = await self._try_send(queue, publications)
        if queue.overload.when_full is not WhenFull.WAIT:
            return outcomes
        timeout = queue.overload.timeout
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout.total_seconds()
        while full := [index for index, outcome in enumerate(outcomes) if outcome is PublishOutcome.FULL]:
            if end is not None and asyncio.get_running_loop().time() > end:
                what = f'queue "{queue.name}" is full: {len(full)} of {len(publications)} messages were not published'
                raise OverloadedError(what, fix="publish them later", queue=queue.name, limit=queue.limit)
            await asyncio.sleep(_FULL_PAUSE)
            again = await self._try_send(queue, [publications[index] for index in full])
            for index, outcome in zip(full, again, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def _try_send(self, queue: Queue, publications: list[Publication]) -> list[PublishOutcome]:
        if queue.limit is None:
            return await self._publisher.send(publications)
        # Held from the count to the publish, so that calls of this process do not fill the same room twice.
        async with self._limit_lock:
            [waiting] = await self._message_counts(group_queue(queue.name, queue.groups[0].name))
            room = max(0, queue.limit - waiting)
            sent = await self._publisher.send(publications[:room])
        return sent + [PublishOutcome.FULL] * (len(publications) - len(sent))

    async def _message_counts(self, *queues: str) -> list[int]:
        """Returns how many messages wait in queues of RabbitMQ."""

        async def read() -> list[int]:
            async with self._receive_connection.channel() as channel:
                found = [await channel.declare_queue(queue, passive=True) for queue in queues]
                return [queue.declaration_result.message_count or 0 for queue in found]

        return await self._receive_connection.run_with_retry(read)

    async def _open_receiver(self, name: str, group: str, worker: str, prefetch: int) -> RabbitReceiver:
        queue = (await self._load_definition(name, 0)).queue
        receiver = RabbitReceiver(
            self._loop,
            self._receive_connection,
            queue,
            _group_number(queue, group),
            requeuer=self._requeuer(name, group),
            counters=self._counters[name, group],
            worker=worker,
            prefetch=prefetch,
        )
        self._receivers = [known for known in self._receivers if not known.is_closed] + [receiver]
        return receiver

    async def _counts(self, name: str) -> list[GroupCounts]:
        groups = [group.name for group in (await self._load_definition(name, _DEFINITION_MAX_AGE)).queue.groups]
        waiting = await self._message_counts(*(group_queue(name, group) for group in groups))
        dead = await self._message_counts(*(dead_letter_queue(name, group) for group in groups))
        return [
            self._counters[name, group].counts(group, *found)
            for group, *found in zip(groups, waiting, dead, strict=True)
        ]

    async def _read_dead_letters(self, name: str, group: str | None) -> list[DeadLetter]:
        queue = (await self._load_definition(name, _DEFINITION_MAX_AGE)).queue
        groups = queue.groups if group is None else (queue.groups[_group_number(queue, group)],)
        found: list[DeadLetter] = []
        for each in groups:
            found += await self._receive_connection.run_with_retry(
                partial(requeue.read_dead_letters, self._receive_connection, name, each.name)
            )
        return found

    async def _redrive(self, name: str, letters: list[DeadLetter]) -> int:
        queue = (await self._load_definition(name, _DEFINITION_MAX_AGE)).queue
        done = 0
        for group in {letter.group: _group_number(queue, letter.group) for letter in letters}:
            wanted = {letter.number: letter for letter in letters if letter.group == group}
            requeuer = self._requeuer(name, group)
            # `run_with_retry` may run it again: it finds those still dead, and may redrive one twice, with the same id.
            again = partial(requeue.redrive, self._receive_connection, name, group, wanted, requeuer)
            done += await self._receive_connection.run_with_retry(again)
        return done

    def _requeuer(self, name: str, group: str) -> Requeuer:
        return Requeuer(name, group, self._publisher, self._topology, self._counters[name, group])

    async def _close(self) -> None:
        for receiver in self._receivers:
            await receiver.close_in_loop()
        await self._publisher.close()
        for connection in (self._receive_connection, self._publish_connection):
            await connection.close()


def _group_number(queue: Queue, name: str) -> int:
    names = [group.name for group in queue.groups]
    if name not in names:
        raise unknown_group_error(queue.name, name, names)
    return names.index(name)
