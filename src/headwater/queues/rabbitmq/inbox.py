"""What a receiver does, in the event loop: takes messages of one group from RabbitMQ, and settles them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import HeadwaterError
from headwater.queues.choosing import Chooser
from headwater.queues.definition import Queue
from headwater.queues.protocol import Attempt, Delivery, Settled
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.forwarding import Forwarding
from headwater.queues.rabbitmq.intake import Intake, done
from headwater.queues.rabbitmq.link import Link
from headwater.queues.rabbitmq.names import group_queue
from headwater.queues.rabbitmq.tally import Tally

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage

__all__ = ["Inbox"]

logger = logging.getLogger("headwater.rabbitmq")
_CHANCE: Final = random.Random()
_IDLE: Final = 0.25  # seconds without a question, after which a receiver takes no more in advance


@dataclass
class _Held:
    """A message that is with the caller."""

    envelope: Envelope
    incoming: AbstractIncomingMessage
    attempt: int
    timer: asyncio.TimerHandle


class Inbox:
    """Messages of one group that RabbitMQ has sent, and those that are with the caller.

    RabbitMQ gives a message to a channel until that ends, without a time. The time for which a message is the caller's
    is kept here: when it is over, the message goes back to the line.

    Args:
        link: The connection, for receiving alone.
        queue: The definition.
        group: The number of its group.
        forwarding: Sends messages of the group on.
        tally: Counts of the group.
        worker: Who receives.
        prefetch: How many messages RabbitMQ gives without an acknowledgement.
    """

    def __init__(
        self,
        link: Link,
        queue: Queue,
        group: int,
        *,
        forwarding: Forwarding,
        tally: Tally,
        worker: str,
        prefetch: int,
    ) -> None:
        self._queue = queue
        self._name = group_queue(queue.name, queue.groups[group].name)
        self._intake = Intake(link, self._name, prefetch, tally=tally, lost=self._lost)
        self._number = group
        self._chooser = Chooser(queue) if queue.groups[group].where else None
        self._forwarding = forwarding
        self._tally = tally
        self._worker = worker
        self._prefetch = prefetch
        self._receiving = 0
        self._resting = asyncio.Lock()
        self._held: dict[str, _Held] = {}
        self._tags = (f"{uuid.uuid4().hex}-{number}" for number in itertools.count())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def receive(self, timeout: float | None, most: int) -> list[Delivery]:
        """As `Receiver.receive`."""
        self._receiving += 1
        try:
            return await self._received(timeout, most)
        finally:
            self._receiving -= 1
            self._rest_soon()

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """As `Receiver.ack`."""
        return [await self._acked(delivery) for delivery in deliveries]

    async def nack(self, delivery: Delivery, why: str, stack: str, delay: timedelta | None) -> Settled:
        """As `Receiver.nack`."""
        held = self._let_go(delivery.tag)
        if held is None:
            return Settled.STALE
        failed = held.envelope.failed(self._attempt(held, why, stack))
        if failed.failures >= self._queue.retry.attempts:
            return await self._moved(delivery.tag, held, failed, "failed")
        rest = self._queue.retry.delay(failed.failures, _CHANCE) if delay is None else delay
        return await self._moved(delivery.tag, held, failed, delay=rest, exact=delay is not None)

    async def reject(self, delivery: Delivery, why: str, stack: str) -> Settled:
        """As `Receiver.reject`."""
        held = self._let_go(delivery.tag)
        if held is None:
            return Settled.STALE
        failed = held.envelope.failed(self._attempt(held, why, stack))
        return await self._moved(delivery.tag, held, failed, "rejected")

    async def extend(self, delivery: Delivery, by: timedelta | None) -> Settled:
        """As `Receiver.extend`."""
        held = self._held.get(delivery.tag)
        if held is None:
            return Settled.STALE
        held.timer.cancel()
        held.timer = self._timer(delivery.tag, by or self._queue.visible)
        return Settled.DONE

    async def close(self) -> None:
        """As `Receiver.close`: copies go back to the line, so that RabbitMQ does not count them as lost."""
        if not self._closed:
            self._closed = True
            self._intake.news.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._give_back()

    async def _received(self, timeout: float | None, most: int) -> list[Delivery]:
        now = asyncio.get_running_loop().time
        end = None if timeout is None else now() + timeout
        while not self._closed:
            async with self._resting:
                if not await self._intake.opened(None if end is None else end - now()):
                    return []
            if found := self._taken(min(most, self._prefetch - len(self._held))):
                return found
            left = None if end is None else end - now()
            free = len(self._held) < self._prefetch
            over = left is not None and left <= 0
            # One at a time, to fetch it costs less than to have it sent, and have that stopped again.
            single = self._prefetch == 1 and not self._intake.ahead
            if free and (over or single) and await self._intake.look():
                continue
            if over:
                return []
            if free:
                await self._intake.consume()
            await self._news(left, free)
        return []

    async def _news(self, timeout: float | None, free: bool) -> None:
        """Wait until a message came, one was settled, or the channel is gone."""
        self._intake.news.clear()
        if self._intake.live and not (free and self._intake.waiting):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._intake.news.wait(), timeout)

    def _rest_soon(self) -> None:
        """Stop taking messages in advance when nobody has asked for a while."""
        if self._idle() and self._intake.ahead and not self._closed:
            asyncio.get_running_loop().call_later(_IDLE, lambda: self._spawn(self._rest()))

    def _idle(self) -> bool:
        return not self._held and not self._receiving

    async def _rest(self) -> None:
        async with self._resting:
            if self._idle() and self._intake.ahead and not self._closed:
                await self._give_back()

    async def _give_back(self) -> None:
        """Give back what is not settled; what is on its way goes back with the channel."""
        try:
            if self._intake.live:
                await self._intake.pause()
                held = [each for each in map(self._let_go, list(self._held)) if each]
                waiting = self._intake.take(self._prefetch)
                envelopes = [replace(each.envelope, deliveries=each.attempt) for each in held]
                envelopes += [Envelope.of(incoming, self._queue.name) for incoming in waiting]
                await self._forwarding.back(envelopes)
                for incoming in [each.incoming for each in held] + waiting:
                    await done(incoming)
        except (HeadwaterError, *self._intake.gone) as error:
            logger.warning("RabbitMQ takes back messages of %s by itself: %s", self._name, error)
        await self._intake.close()

    async def _finish(self, incoming: AbstractIncomingMessage) -> None:
        """Acknowledge. With one message at a time, none comes in its place until somebody asks."""
        if self._prefetch == 1 and self._idle():
            await self._intake.pause()
        await done(incoming)
        self._intake.news.set()
        self._rest_soon()

    def _taken(self, most: int) -> list[Delivery]:
        batch = self._intake.take(most)
        envelopes = [Envelope.of(incoming, self._queue.name) for incoming in batch]
        wanted = self._wanted(envelopes)
        found = []
        for incoming, envelope, good in zip(batch, envelopes, wanted, strict=True):
            if good and not self._over(envelope):
                found.append(self._hold(incoming, envelope))
            else:
                self._spawn(self._put_away(incoming, envelope, good))
        return found

    def _wanted(self, envelopes: list[Envelope]) -> list[bool]:
        if self._chooser is None or not envelopes:
            return [True] * len(envelopes)
        chosen = self._chooser.chosen([envelope.message for envelope in envelopes])
        return [self._number in groups for groups in chosen]

    def _over(self, envelope: Envelope) -> str:
        """Why it is not to be handed out any more; nothing for one that is."""
        if envelope.failures >= self._queue.retry.attempts:
            return "failed"
        late = envelope.expires_at is not None and envelope.expires_at <= datetime.now(UTC)
        return "expired" if late and not envelope.deliveries else ""

    async def _put_away(self, incoming: AbstractIncomingMessage, envelope: Envelope, wanted: bool) -> None:
        """Acknowledge what the group does not choose; the rest is dead."""
        try:
            if wanted:
                why = self._over(envelope)
                if why == "expired":
                    self._tally.expired += 1
                lost = Attempt(
                    envelope.deliveries, datetime.now(UTC), "its receiver went away without a word"
                )
                history = (*envelope.history, lost) if why == "failed" else envelope.history
                buried = replace(envelope, why=why, died_at=datetime.now(UTC), history=history)
                await self._forwarding.bury(buried)
            await done(incoming)
        except (HeadwaterError, *self._intake.gone) as error:
            logger.warning("a message of %s could not be put away and comes again: %s", self._name, error)
            with contextlib.suppress(*self._intake.gone):
                await done(incoming, again=True)

    def _hold(self, incoming: AbstractIncomingMessage, envelope: Envelope) -> Delivery:
        tag = next(self._tags)
        attempt = envelope.deliveries + 1
        self._held[tag] = _Held(envelope, incoming, attempt, self._timer(tag, self._queue.visible))
        self._tally.in_flight += 1
        self._tally.redelivered += attempt > 1
        until = datetime.now(UTC) + self._queue.visible
        return Delivery(envelope.message, envelope.published_at, attempt, until, tag)

    def _timer(self, tag: str, span: timedelta) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(span.total_seconds(), self._time_over, tag)

    def _time_over(self, tag: str) -> None:
        if held := self._let_go(tag):
            failed = held.envelope.failed(self._attempt(held, f"no word for {self._queue.visible}", ""))
            dead = "failed" if failed.failures >= self._queue.retry.attempts else ""
            self._spawn(self._moved(tag, held, failed, dead))

    async def _acked(self, delivery: Delivery) -> Settled:
        held = self._let_go(delivery.tag)
        if held is None:
            return Settled.STALE
        try:
            await self._finish(held.incoming)
        except self._intake.gone:
            return Settled.STALE
        self._tally.acked += 1
        return Settled.DONE

    async def _moved(
        self,
        tag: str,
        held: _Held,
        envelope: Envelope,
        why: str = "",
        *,
        delay: timedelta = timedelta(0),
        exact: bool = True,
    ) -> Settled:
        """Send a copy on, then acknowledge; the caller keeps it when the copy is not safe."""
        try:
            if why:
                await self._forwarding.bury(replace(envelope, why=why, died_at=datetime.now(UTC)))
            else:
                await self._forwarding.back([envelope], delay, exact=exact)
        except BaseException:
            if self._intake.live and not self._closed:
                held.timer = self._timer(tag, self._queue.visible)
                self._held[tag] = held
                self._tally.in_flight += 1
            raise
        with contextlib.suppress(*self._intake.gone):  # then it comes once more
            await self._finish(held.incoming)
        return Settled.DONE

    def _attempt(self, held: _Held, why: str, stack: str) -> Attempt:
        return Attempt(held.attempt, datetime.now(UTC), why, self._worker, stack)

    def _let_go(self, tag: str) -> _Held | None:
        """Take a message from the caller; None when it is not the caller's any more."""
        if not self._intake.live:
            self._lost()
        held = self._held.pop(tag, None)
        if held is not None:
            held.timer.cancel()
            self._tally.in_flight -= 1
        return held

    def _lost(self) -> None:
        """RabbitMQ has taken back all that was with the caller."""
        for held in self._held.values():
            held.timer.cancel()
        self._tally.in_flight -= len(self._held)
        self._held.clear()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning(
                "a message of %s that took too long could not be given back: %s", self._name, error
            )
