"""Queues on RabbitMQ, behind the protocol that all brokers have."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from headwater.errors import OverloadedError, UnknownGroupError, UnknownQueueError
from headwater.log.door.overload import WhenFull
from headwater.queues.checking import check_message
from headwater.queues.choosing import Chooser
from headwater.queues.definition import Queue, brought_up
from headwater.queues.protocol import Confirmed, DeadLetter, GroupCounts, Outgoing
from headwater.queues.rabbitmq import dead_letters
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.forwarding import Forwarding
from headwater.queues.rabbitmq.inbox import Inbox
from headwater.queues.rabbitmq.link import Link, driver
from headwater.queues.rabbitmq.loop_thread import LoopThread
from headwater.queues.rabbitmq.names import dead_queue, group_queue
from headwater.queues.rabbitmq.publisher import Letter, Outcome, Publisher
from headwater.queues.rabbitmq.receiver import RabbitReceiver
from headwater.queues.rabbitmq.registry import Registry
from headwater.queues.rabbitmq.support import refuse_message, refuse_queue
from headwater.queues.rabbitmq.tally import tallies
from headwater.queues.rabbitmq.topology import Topology

__all__ = ["RabbitBroker"]

_FRESH: Final = 5.0  # seconds for which a definition is taken as it was read
_ROOM: Final = 0.1  # seconds between two looks whether a full queue has room


@dataclass(frozen=True)
class _Known:
    """A definition, as it was read."""

    queue: Queue
    chooser: Chooser
    read_at: float


class RabbitBroker:
    """Queues of one RabbitMQ; safe to share between threads. Nothing is connected before it is needed.

    Args:
        url: `amqp://[user:password@]host[:port][,host…][/vhost]`.
        patience: How long to go on while RabbitMQ does not answer, or takes no messages.

    Raises:
        MissingPackageError: The package aio-pika is not installed.
        BadSettingError: The URL cannot be one.
    """

    def __init__(self, url: str, *, patience: timedelta = timedelta(seconds=30)) -> None:
        self._driver = driver()
        # RabbitMQ stops reading a connection that publishes when it is low on memory; acks must not wait for that.
        self._out = Link(url, "publishing", patience)
        self._in = Link(url, "receiving", patience)
        self._publisher = Publisher(self._out)
        self._topology = Topology(self._in)
        self._registry = Registry(self._in, self._publisher)
        self._tallies = tallies()
        self._known: dict[str, _Known] = {}
        self._door = asyncio.Lock()
        self._inboxes: list[Inbox] = []
        self._loop = LoopThread("headwater-rabbitmq")

    @property
    def counts_of_all(self) -> bool:
        """RabbitMQ says how many wait; the rest is counted by each process for itself."""
        return False

    def declare(self, queue: Queue) -> Queue:
        """Create a queue, or bring it up to this definition.

        A group that is left out gets nothing more; what waits for it stays in RabbitMQ.

        Raises:
            RefusedError: RabbitMQ cannot do what it asks for; see docs/rabbitmq.md.
            QueueExistsError: There is such a queue, and it cannot be changed in that way.
        """
        queue.check()
        refuse_queue(queue)
        return self._loop.run(self._in.asked(lambda: self._declare(queue)))

    def queues(self) -> list[str]:
        """Names of all queues that were declared by Headwater."""
        return sorted(self._loop.run(self._in.asked(self._registry.read)))

    def queue(self, name: str) -> Queue:
        """A queue's definition.

        Raises:
            UnknownQueueError: There is none of that name.
        """
        return self._loop.run(self._definition(name, 0)).queue

    def publish(self, name: str, messages: Sequence[Outgoing]) -> list[Confirmed]:
        """Take messages; comes back when RabbitMQ has confirmed all.

        A message whose confirmation was lost is sent again with the same id: it may come twice.

        Raises:
            UnreachableError: RabbitMQ did not answer in time.
            OverloadedError: It was low on memory for all that time, or the queue is full.
            BadEventError: A message cannot be as it is; nothing was taken.
            RefusedError: RabbitMQ cannot do what a message asks for; nothing was taken.
        """
        for row, message in enumerate(messages):
            check_message(message, row)
            refuse_message(name, message)
        return self._loop.run(self._publish(name, messages)) if messages else []

    def receiver(self, name: str, group: str = "", *, worker: str = "", prefetch: int = 1) -> RabbitReceiver:
        """Begin to receive for a group.

        Raises:
            UnknownGroupError: The queue has no such group.
        """
        return RabbitReceiver(self._loop, self._loop.run(self._inbox(name, group, worker, prefetch)))

    def counts(self, name: str) -> list[GroupCounts]:
        """How each group stands; delayed, in flight and totals are those of this process."""
        return self._loop.run(self._counts(name))

    def dead(self, name: str, group: str | None = None) -> Iterator[DeadLetter]:
        """Dead letters, oldest first in each group; they are read at once."""
        return iter(self._loop.run(self._dead(name, group)))

    def revive(self, name: str, letters: Iterable[DeadLetter]) -> int:
        """Put dead letters back in line, with the message they have now; how many there were."""
        found = list(letters)
        for row, letter in enumerate(found):
            check_message(letter.message, row)
            refuse_message(name, letter.message)
        return self._loop.run(self._revive(name, found))

    def close_receivers(self) -> None:
        """Close all receivers of this broker that are open; what they have not settled goes back."""
        self._loop.run(self._close_inboxes())

    def close(self) -> None:
        """Close receivers and connections."""
        if not self._loop.closed:
            self.close_receivers()
            self._loop.run(self._close())
            self._loop.close()

    def __enter__(self) -> RabbitBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _declare(self, queue: Queue) -> Queue:
        async with self._registry.locked():
            before = (await self._registry.read(none_yet=True)).get(queue.name)
            now = brought_up(before, queue) if before else replace(queue, given=None)
            refuse_queue(replace(now, given=None))
            await self._topology.make(now, before)
            if now != before:
                await self._registry.write(now)
        self._remember(now)
        return now

    async def _definition(self, name: str, fresh: float | None = None) -> _Known:
        """A definition that was read at most so many seconds ago; however long ago without a number."""
        known = self._known.get(name)
        now = asyncio.get_running_loop().time()
        if known is None or (fresh is not None and now - known.read_at > fresh):
            queues = await self._in.asked(self._registry.read)
            if name not in queues:
                near = difflib.get_close_matches(name, queues, n=1)
                detail = f"queues: {', '.join(sorted(queues)) or 'none'}"
                fix = near[0] if near else "declare it first"
                raise UnknownQueueError(f'no queue "{name}" in RabbitMQ', detail=detail, fix=fix, queue=name)
            known = self._remember(queues[name])
        return known

    def _remember(self, queue: Queue) -> _Known:
        before = self._known.get(queue.name)
        chooser = before.chooser if before is not None and before.queue == queue else Chooser(queue)
        known = _Known(queue, chooser, asyncio.get_running_loop().time())
        self._known[queue.name] = known
        return known

    async def _publish(self, name: str, messages: Sequence[Outgoing]) -> list[Confirmed]:
        known = await self._definition(name, _FRESH if any(message.delay for message in messages) else None)
        envelopes = [Envelope.new(message, known.queue.ttl) for message in messages]
        chosen = known.chooser.chosen(messages)
        now = [each for each in envelopes if not each.message.delay]
        letters = [Letter(name, each.message.words, each.amqp(self._driver, expires=True)) for each in now]
        outcomes = iter(await self._sent(known.queue, letters))
        confirmed = []
        await self._delayed(known.queue, zip(envelopes, chosen, strict=True))
        for envelope, groups in zip(envelopes, chosen, strict=True):
            outcome = Outcome.TAKEN if envelope.message.delay else next(outcomes)
            confirmed.append(self._counted(known.queue, envelope, groups, outcome))
        return confirmed

    async def _delayed(self, queue: Queue, envelopes: Iterable[tuple[Envelope, Sequence[int]]]) -> None:
        """Send those that rest first to each of their groups."""
        resting: dict[tuple[timedelta, int], list[Envelope]] = {}
        for envelope, groups in envelopes:
            for number in groups if envelope.message.delay else ():
                resting.setdefault((envelope.message.delay, number), []).append(envelope)
        for (delay, number), those in resting.items():
            await self._forwarding(queue.name, queue.groups[number].name).back(those, delay)

    def _counted(
        self, queue: Queue, envelope: Envelope, groups: Sequence[int], outcome: Outcome
    ) -> Confirmed:
        for number in groups:
            tally = self._tallies[queue.name, queue.groups[number].name]
            tally.published += outcome is not Outcome.UNROUTABLE
            tally.dropped += outcome is Outcome.FULL
        count = len(groups) if outcome is Outcome.TAKEN else 0
        return Confirmed(str(envelope.message.id), dropped=outcome is Outcome.FULL, groups=count)

    async def _sent(self, queue: Queue, letters: list[Letter]) -> list[Outcome]:
        """What became of each, after the queue's policy for what it has no room for."""
        outcomes = await self._tried(queue, letters)
        if queue.overload.when_full is not WhenFull.WAIT:
            return outcomes
        timeout = queue.overload.timeout
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout.total_seconds()
        while full := [index for index, outcome in enumerate(outcomes) if outcome is Outcome.FULL]:
            if end is not None and asyncio.get_running_loop().time() > end:
                what = f'queue "{queue.name}" is full: {len(full)} of {len(letters)} messages were not taken'
                raise OverloadedError(what, fix="publish them later", queue=queue.name, limit=queue.limit)
            await asyncio.sleep(_ROOM)
            again = await self._tried(queue, [letters[index] for index in full])
            for index, outcome in zip(full, again, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def _tried(self, queue: Queue, letters: list[Letter]) -> list[Outcome]:
        if queue.limit is None:
            return await self._publisher.send(letters)
        async with self._door:  # one at a time, so that none takes room that was counted for another
            [waiting] = await self._waiting(group_queue(queue.name, queue.groups[0].name))
            room = max(0, queue.limit - waiting)
            sent = await self._publisher.send(letters[:room])
        return sent + [Outcome.FULL] * (len(letters) - len(sent))

    async def _waiting(self, *queues: str) -> list[int]:
        """How many messages wait in queues of RabbitMQ."""
        return await self._in.asked(lambda: self._counted_there(queues))

    async def _counted_there(self, queues: Sequence[str]) -> list[int]:
        channel = await self._in.channel()
        try:
            there = [await channel.declare_queue(queue, passive=True) for queue in queues]
            return [queue.declaration_result.message_count or 0 for queue in there]
        finally:
            if not channel.is_closed:
                await channel.close()

    async def _inbox(self, name: str, group: str, worker: str, prefetch: int) -> Inbox:
        queue = (await self._definition(name, 0)).queue
        inbox = Inbox(
            self._in,
            queue,
            _group(queue, group),
            forwarding=self._forwarding(name, group),
            tally=self._tallies[name, group],
            worker=worker,
            prefetch=prefetch,
        )
        self._inboxes.append(inbox)
        return inbox

    async def _counts(self, name: str) -> list[GroupCounts]:
        groups = [group.name for group in (await self._definition(name, _FRESH)).queue.groups]
        waiting = await self._waiting(*(group_queue(name, group) for group in groups))
        dead = await self._waiting(*(dead_queue(name, group) for group in groups))
        return [
            self._tallies[name, group].counts(group, *found)
            for group, *found in zip(groups, waiting, dead, strict=True)
        ]

    async def _dead(self, name: str, group: str | None) -> list[DeadLetter]:
        queue = (await self._definition(name, _FRESH)).queue
        groups = queue.groups if group is None else (queue.groups[_group(queue, group)],)
        found: list[DeadLetter] = []
        for each in groups:
            found += await self._in.asked(partial(dead_letters.look, self._in, name, each.name))
        return found

    async def _revive(self, name: str, letters: list[DeadLetter]) -> int:
        queue = (await self._definition(name, _FRESH)).queue
        done = 0
        for group in {letter.group: _group(queue, letter.group) for letter in letters}:
            wanted = {letter.number: letter for letter in letters if letter.group == group}
            forwarding = self._forwarding(name, group)
            # Again after a break, it finds those that are still dead; one may then come twice, with the same id.
            again = partial(dead_letters.revive, self._in, name, group, wanted, forwarding)
            done += await self._in.asked(again)
        return done

    def _forwarding(self, name: str, group: str) -> Forwarding:
        return Forwarding(name, group, self._publisher, self._topology, self._tallies[name, group])

    async def _close_inboxes(self) -> None:
        inboxes, self._inboxes = self._inboxes, []
        for inbox in inboxes:
            await inbox.close()

    async def _close(self) -> None:
        await self._publisher.close()
        for link in (self._in, self._out):
            await link.close()


def _group(queue: Queue, name: str) -> int:
    """The number of a group."""
    names = [group.name for group in queue.groups]
    if name not in names:
        what = f'queue "{queue.name}" has no group "{name}"'
        detail = f"groups: {', '.join(each or '(the one without a name)' for each in names)}"
        raise UnknownGroupError(what, detail=detail, fix=names[0] or "leave the group out", group=name)
    return names.index(name)
