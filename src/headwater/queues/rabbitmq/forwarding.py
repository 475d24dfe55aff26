"""How a message that came goes on: back to its group, at once or after a rest, or to the dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from headwater.errors import OverloadedError, UnknownQueueError
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.link import driver
from headwater.queues.rabbitmq.names import dead_queue, group_queue, wait_time
from headwater.queues.rabbitmq.publisher import Letter, Outcome, Publisher
from headwater.queues.rabbitmq.tally import Tally
from headwater.queues.rabbitmq.topology import Topology

__all__ = ["Forwarding"]

_ROOM: Final = 1_000  # milliseconds after which a message looks again for room in a queue that is full


class Forwarding:
    """Sends copies of messages of one group; whoever calls acknowledges the original when the copy is safe.

    If the process dies between the two, the message is there twice, with the same id.

    Args:
        queue: The queue's name.
        group: The group's.
        publisher: Sends.
        topology: Makes the queues where messages rest.
        tally: Counts of the group.
    """

    def __init__(
        self, queue: str, group: str, publisher: Publisher, topology: Topology, tally: Tally
    ) -> None:
        self._name = group_queue(queue, group)
        self._dead = dead_queue(queue, group)
        self._publisher = publisher
        self._topology = topology
        self._tally = tally
        self._driver = driver()

    async def back(
        self, envelopes: Sequence[Envelope], delay: timedelta = timedelta(0), *, exact: bool = True
    ) -> None:
        """To the end of the line, after a rest if one is given."""
        rest = wait_time(delay, exact=exact)
        if rest:
            await self._rest(envelopes, rest)
            return
        letters = [Letter("", self._name, envelope.amqp(self._driver)) for envelope in envelopes]
        outcomes = await self._publisher.send(letters)
        if Outcome.UNROUTABLE in outcomes:
            raise self._gone(self._name)
        pairs = zip(envelopes, outcomes, strict=True)
        if late := [envelope for envelope, outcome in pairs if outcome is Outcome.FULL]:
            # It was in line before. From where it rests, RabbitMQ moves it on as soon as there is room.
            await self._rest(late, _ROOM)

    async def bury(self, envelope: Envelope) -> None:
        """To the dead letters."""
        (outcome,) = await self._publisher.send([Letter("", self._dead, envelope.amqp(self._driver))])
        if outcome is not Outcome.TAKEN:
            raise self._gone(self._dead)

    async def _rest(self, envelopes: Sequence[Envelope], milliseconds: int) -> None:
        exchange = await self._topology.wait(milliseconds)
        letters = [Letter(exchange, self._name, envelope.amqp(self._driver)) for envelope in envelopes]
        for outcome in await self._publisher.send(letters):
            if outcome is not Outcome.TAKEN:
                what = f'RabbitMQ does not take a message that is to rest in "{exchange}"'
                raise OverloadedError(what, fix="look at the policies of RabbitMQ for that queue")
            self._tally.rests(milliseconds)

    def _gone(self, queue: str) -> UnknownQueueError:
        what = f'RabbitMQ has no queue "{queue}" any more, or takes nothing for it'
        return UnknownQueueError(what, fix="declare the queue again", queue=queue)
