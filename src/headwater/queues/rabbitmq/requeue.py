"""Requeueing on RabbitMQ: retries, delays, dead letters and their redrive.

AMQP cannot change a message, so each step publishes a copy and then acknowledges the original. A crash
between the two leaves the message twice, with the same id.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from aio_pika.abc import AbstractIncomingMessage

from headwater.errors import OverloadedError, UnknownQueueError
from headwater.queues.protocol import DeadLetter
from headwater.queues.rabbitmq.channel import GroupCounters
from headwater.queues.rabbitmq.connection import RabbitConnection
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.publisher import Publication, Publisher, PublishOutcome
from headwater.queues.rabbitmq.topology import Topology, dead_letter_queue, group_queue, round_delay

__all__ = ["Requeuer", "read_dead_letters", "redrive"]

_FULL_DELAY: Final = 1_000  # milliseconds after which a message is offered to a full queue again


class Requeuer:
    """Publishes copies of the messages of one group; the caller then acknowledges the original.

    Args:
        queue: The name of the queue.
        group: The name of the group.
        publisher: Publishes the copies.
        topology: Declares delay queues.
        counters: The counters of the group.
    """

    def __init__(
        self, queue: str, group: str, publisher: Publisher, topology: Topology, counters: GroupCounters
    ) -> None:
        self._name = group_queue(queue, group)
        self._dead_letter_queue = dead_letter_queue(queue, group)
        self._publisher = publisher
        self._topology = topology
        self._counters = counters

    async def requeue(
        self, envelopes: Sequence[Envelope], delay: timedelta = timedelta(0), *, exact: bool = True
    ) -> None:
        """Publish to the end of the group's queue, after a delay if one is given."""
        if milliseconds := round_delay(delay, exact=exact):
            await self._delay(envelopes, milliseconds)
            return
        publications = [Publication("", self._name, envelope.to_amqp()) for envelope in envelopes]
        outcomes = await self._publisher.send(publications)
        if PublishOutcome.UNROUTABLE in outcomes:
            raise self._unknown_queue(self._name)
        pairs = zip(envelopes, outcomes, strict=True)
        if late := [envelope for envelope, outcome in pairs if outcome is PublishOutcome.FULL]:
            # These were accepted before, so they may not be refused. RabbitMQ moves them from the delay queue to the
            # group's queue as soon as there is room.
            await self._delay(late, _FULL_DELAY)

    async def move_to_dead_letters(self, envelope: Envelope) -> None:
        """Publish to the group's dead letter queue."""
        (outcome,) = await self._publisher.send([Publication("", self._dead_letter_queue, envelope.to_amqp())])
        if outcome is not PublishOutcome.CONFIRMED:
            raise self._unknown_queue(self._dead_letter_queue)

    async def _delay(self, envelopes: Sequence[Envelope], milliseconds: int) -> None:
        exchange = await self._topology.declare_delay_queue(milliseconds)
        publications = [Publication(exchange, self._name, envelope.to_amqp()) for envelope in envelopes]
        for outcome in await self._publisher.send(publications):
            if outcome is not PublishOutcome.CONFIRMED:
                what = f'RabbitMQ refuses a message for the delay queue "{exchange}"'
                raise OverloadedError(what, fix="check the policies of RabbitMQ for that queue")
            self._counters.add_delayed(milliseconds)

    def _unknown_queue(self, queue: str) -> UnknownQueueError:
        what = f'RabbitMQ has no queue "{queue}" any more, or refuses messages for it'
        return UnknownQueueError(what, fix="declare the queue again", queue=queue)


async def read_dead_letters(connection: RabbitConnection, queue: str, group: str) -> list[DeadLetter]:
    """Returns the dead letters of a group, oldest first; other readers do not see them meanwhile."""
    async with contextlib.aclosing(_scan_dead_letters(connection, queue, group)) as letters:
        return [_to_dead_letter(queue, group, incoming) async for incoming in letters]


async def redrive(
    connection: RabbitConnection, queue: str, group: str, wanted: Mapping[int, DeadLetter], requeuer: Requeuer
) -> int:
    """Redrive dead letters with the given messages; returns how many were still dead letters.

    Args:
        connection: The connection to read by.
        queue: The name of the queue.
        group: The name of the group.
        wanted: The dead letters to redrive, by number.
        requeuer: The requeuer of the group.
    """
    left = dict(wanted)
    async with contextlib.aclosing(_scan_dead_letters(connection, queue, group)) as letters:
        async for incoming in letters:
            letter = left.pop(_to_dead_letter(queue, group, incoming).number, None)
            if letter is not None:
                found = Envelope.from_amqp(incoming, queue)
                message = replace(letter.message, id=letter.message.id or found.message.id)
                fresh = replace(found, message=message, expires_at=None, failures=0, why="", died_at=None)
                await requeuer.requeue([fresh])
                await incoming.ack()
            if not left:
                break
    return len(wanted) - len(left)


async def _scan_dead_letters(
    connection: RabbitConnection, queue: str, group: str
) -> AsyncGenerator[AbstractIncomingMessage]:
    """Yields each dead letter once; those that the caller does not acknowledge stay dead letters."""
    async with connection.channel() as channel:
        source = await channel.get_queue(dead_letter_queue(queue, group), ensure=False)
        while (incoming := await source.get(fail=False, timeout=connection.patience)) is not None:
            yield incoming


def _to_dead_letter(queue: str, group: str, incoming: AbstractIncomingMessage) -> DeadLetter:
    envelope = Envelope.from_amqp(incoming, queue)
    died_at = envelope.died_at or datetime.now(UTC)
    # RabbitMQ gives dead letters no number; this one is the same at each read.
    death = incoming.headers.get("hw-died-at") or incoming.headers.get("x-death")
    facts = f"{group}\n{envelope.message.id}\n{death!r}"
    number = int.from_bytes(hashlib.blake2b(facts.encode(), digest_size=5).digest())
    return DeadLetter(number, group, envelope.message, envelope.published_at, died_at, envelope.why, envelope.history)
