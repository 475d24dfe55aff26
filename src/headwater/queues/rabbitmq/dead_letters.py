"""Dead letters in RabbitMQ: looked at without being taken, and put back in line."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headwater.queues.protocol import DeadLetter
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.forwarding import Forwarding
from headwater.queues.rabbitmq.link import Link
from headwater.queues.rabbitmq.names import dead_queue

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage

__all__ = ["look", "revive"]


async def look(link: Link, queue: str, group: str) -> list[DeadLetter]:
    """The dead letters of a group, oldest first. While they are read, nobody else sees them."""
    async with _held(link, queue, group) as letters:
        return [_letter(queue, group, incoming) async for incoming in letters]


async def revive(
    link: Link, queue: str, group: str, wanted: Mapping[int, DeadLetter], forwarding: Forwarding
) -> int:
    """Put letters back in line, with the messages they are given; how many there were.

    Args:
        link: The connection.
        queue: The queue's name.
        group: The group's.
        wanted: What to put back, by the letters' numbers.
        forwarding: Sends messages of the group on.
    """
    left = dict(wanted)
    async with _held(link, queue, group) as letters:
        async for incoming in letters:
            letter = left.pop(_letter(queue, group, incoming).number, None)
            if letter is not None:
                found = Envelope.of(incoming, queue)
                fresh = replace(
                    found,
                    message=replace(letter.message, id=letter.message.id or found.message.id),
                    expires_at=None,
                    failures=0,
                    why="",
                    died_at=None,
                )
                await forwarding.back([fresh])
                await incoming.ack()
            if not left:
                break
    return len(wanted) - len(left)


@contextlib.asynccontextmanager
async def _held(link: Link, queue: str, group: str) -> AsyncIterator[AsyncIterator[AbstractIncomingMessage]]:
    """All letters that are there, each once; those that are not acknowledged go back when the block ends."""
    channel = await link.channel()
    source = await channel.get_queue(dead_queue(queue, group), ensure=False)

    async def letters() -> AsyncIterator[AbstractIncomingMessage]:
        while (incoming := await source.get(fail=False, timeout=link.patience)) is not None:
            yield incoming

    try:
        yield letters()
    finally:
        if not channel.is_closed:
            await channel.close()


def _letter(queue: str, group: str, incoming: AbstractIncomingMessage) -> DeadLetter:
    envelope = Envelope.of(incoming, queue)
    died_at = envelope.died_at or datetime.now(UTC)
    # A number that stays the same however often it is looked at, since RabbitMQ gives none.
    death = incoming.headers.get("hw-died-at") or incoming.headers.get("x-death")
    facts = f"{group}\n{envelope.message.id}\n{death!r}"
    number = int.from_bytes(hashlib.blake2b(facts.encode(), digest_size=5).digest())
    return DeadLetter(
        number, group, envelope.message, envelope.published_at, died_at, envelope.why, envelope.history
    )
