"""The receiver on RabbitMQ.

RabbitMQ has no visibility timeout: `RabbitReceiver` starts a timer for each delivery and requeues the message when it
expires. A nack publishes a copy and acknowledges the original (`_fail`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from aio_pika.abc import AbstractIncomingMessage

from headwater.errors import HeadwaterError
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.protocol import AckResult, Attempt, Delivery
from headwater.queues.queue import Queue
from headwater.queues.rabbitmq.channel import ConsumerChannel, GroupCounters, settle
from headwater.queues.rabbitmq.connection import LOST_ERRORS, RabbitConnection
from headwater.queues.rabbitmq.envelope import Envelope
from headwater.queues.rabbitmq.requeue import Requeuer
from headwater.queues.rabbitmq.topology import group_queue
from headwater.queues.routing import Router

__all__ = ["RabbitReceiver"]

logger = logging.getLogger("headwater.rabbitmq")
_IDLE_TIMEOUT: Final = 0.25  # seconds without a call of `receive`, after which prefetched messages are requeued


@dataclass
class _UnackedMessage:
    """A message that is delivered to the caller and not settled; `timer` ends its visibility timeout."""

    envelope: Envelope
    incoming: AbstractIncomingMessage
    attempt: int
    timer: asyncio.TimerHandle


class RabbitReceiver:
    """Receives the messages of one group; safe to share between threads.

    Args:
        loop: The event loop of the broker, in which the coroutines run.
        connection: The connection for receiving.
        queue: The definition of the queue.
        group: The number of the group.
        requeuer: The requeuer of the group.
        counters: The counters of the group.
        worker: The name of the receiver, for the history of messages.
        prefetch: The largest number of unacknowledged messages.
    """

    def __init__(
        self,
        loop: EventLoopThread,
        connection: RabbitConnection,
        queue: Queue,
        group: int,
        *,
        requeuer: Requeuer,
        counters: GroupCounters,
        worker: str,
        prefetch: int,
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._name = group_queue(queue.name, queue.groups[group].name)
        self._channel = ConsumerChannel(
            connection, self._name, prefetch, counters=counters, on_lost=self._on_channel_lost
        )
        self._group = group
        self._router = Router(queue) if queue.groups[group].where else None
        self._requeuer = requeuer
        self._counters = counters
        self._worker = worker
        self._prefetch = prefetch
        self._receiving = 0
        self._pause_lock = asyncio.Lock()
        self._unacked: dict[str, _UnackedMessage] = {}
        self._tags = (f"{uuid.uuid4().hex}-{number}" for number in itertools.count())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it has stopped receiving."""
        return self._closed

    def receive(self, timeout: float | None = 0, max_messages: int = 1) -> list[Delivery]:
        """Returns the next messages; reconnects if the connection is lost meanwhile.

        Raises:
            UnreachableError: RabbitMQ has not answered for longer than the broker's patience.
        """
        return self._loop.run(self._receive(timeout, max_messages))

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Acknowledge the messages."""
        return self._loop.run(self._ack(deliveries))

    def nack(self, delivery: Delivery, why: str = "", *, stack: str = "", delay: timedelta | None = None) -> AckResult:
        """Report a failure. A nack of AMQP neither counts nor delays, so `_fail` publishes a copy instead."""
        return self._loop.run(self._fail(delivery.tag, why, stack, delay))

    def reject(self, delivery: Delivery, why: str = "", *, stack: str = "") -> AckResult:
        """Reject: the message becomes a dead letter at once."""
        return self._loop.run(self._fail(delivery.tag, why, stack, final=True))

    def extend(self, delivery: Delivery, by: timedelta | None = None) -> AckResult:
        """Extend the visibility timeout; RabbitMQ's `consumer_timeout`, by default 30 minutes, still limits it."""
        return self._loop.run(self._extend(delivery.tag, self._queue.visibility_timeout if by is None else by))

    def close(self) -> None:
        """Stop receiving; unsettled messages are requeued."""
        self._loop.run(self.close_in_loop())

    async def close_in_loop(self) -> None:
        """As `close`, for callers in the event loop."""
        if not self._closed:
            self._closed = True
            self._channel.changed.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._requeue_all()

    async def _receive(self, timeout: float | None, max_messages: int) -> list[Delivery]:
        now = asyncio.get_running_loop().time
        end = None if timeout is None else now() + timeout
        self._receiving += 1
        try:
            while not self._closed:
                async with self._pause_lock:
                    if not await self._channel.ensure_open(None if end is None else end - now()):
                        return []
                if found := self._pop_deliveries(min(max_messages, self._prefetch - len(self._unacked))):
                    return found
                left = None if end is None else end - now()
                free = len(self._unacked) < self._prefetch
                over = left is not None and left <= 0
                # With a prefetch of 1, fetching a message costs less than starting and stopping a consumer.
                single = self._prefetch == 1 and not self._channel.is_prefetching
                if free and (over or single) and await self._channel.poll():
                    continue
                if over:
                    return []
                if free:
                    await self._channel.consume()
                await self._wait_for_change(left, free)
            return []
        finally:
            self._receiving -= 1
            self._schedule_pause()

    async def _wait_for_change(self, timeout: float | None, free: bool) -> None:
        """Wait until a message arrives, one is settled, or the channel is lost."""
        self._channel.changed.clear()
        if self._channel.is_open and not (free and self._channel.has_messages):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._channel.changed.wait(), timeout)

    def _schedule_pause(self) -> None:
        """Stop prefetching when `receive` is not called for a while."""
        if self._is_idle() and self._channel.is_prefetching and not self._closed:
            asyncio.get_running_loop().call_later(_IDLE_TIMEOUT, lambda: self._spawn(self._pause()))

    def _is_idle(self) -> bool:
        return not self._unacked and not self._receiving

    async def _pause(self) -> None:
        async with self._pause_lock:
            if self._is_idle() and self._channel.is_prefetching and not self._closed:
                await self._requeue_all()

    async def _requeue_all(self) -> None:
        """Requeue unsettled and prefetched messages, then close the channel."""
        # As copies: RabbitMQ would count a requeue of its own as a failed delivery.
        try:
            if self._channel.is_open:
                await self._channel.pause()
                held = [each for each in map(self._untrack, list(self._unacked)) if each]
                waiting = self._channel.pop_messages(self._prefetch)
                envelopes = [replace(each.envelope, deliveries=each.attempt) for each in held]
                envelopes += [Envelope.from_amqp(incoming, self._queue.name) for incoming in waiting]
                await self._requeuer.requeue(envelopes)
                for incoming in [each.incoming for each in held] + waiting:
                    await settle(incoming)
        except (HeadwaterError, *LOST_ERRORS) as error:
            logger.warning("RabbitMQ requeues messages of %s and counts a failure: %s", self._name, error)
        await self._channel.close()

    async def _acknowledge(self, incoming: AbstractIncomingMessage) -> None:
        """Acknowledge; with a prefetch of 1, stop consuming first: the ack would let RabbitMQ send the next message."""
        if self._prefetch == 1 and self._is_idle():
            await self._channel.pause()
        await settle(incoming)
        self._channel.changed.set()
        self._schedule_pause()

    def _pop_deliveries(self, max_messages: int) -> list[Delivery]:
        batch = self._channel.pop_messages(max_messages)
        envelopes = [Envelope.from_amqp(incoming, self._queue.name) for incoming in batch]
        wanted = [True] * len(envelopes)
        if self._router is not None and envelopes:
            routes = self._router.route([envelope.message for envelope in envelopes])
            wanted = [self._group in groups for groups in routes]
        found = []
        for incoming, envelope, good in zip(batch, envelopes, wanted, strict=True):
            if good and not self._death_reason(envelope):
                found.append(self._track(incoming, envelope))
            else:
                self._spawn(self._discard(incoming, envelope, good))
        return found

    def _death_reason(self, envelope: Envelope) -> str:
        """Returns why the message is dead; empty if it can be delivered."""
        if envelope.failures >= self._queue.retry.attempts:
            return "failed"
        late = envelope.expires_at is not None and envelope.expires_at <= datetime.now(UTC)
        return "expired" if late and not envelope.deliveries else ""

    async def _discard(self, incoming: AbstractIncomingMessage, envelope: Envelope, wanted: bool) -> None:
        """Acknowledge a message that the group's condition excludes; otherwise make it a dead letter."""
        try:
            if wanted:
                why = self._death_reason(envelope)
                if why == "expired":
                    self._counters.expired += 1
                lost = Attempt(envelope.deliveries, datetime.now(UTC), "the connection of the receiver ended")
                history = (*envelope.history, lost) if why == "failed" else envelope.history
                dead = replace(envelope, why=why, died_at=datetime.now(UTC), history=history)
                await self._requeuer.move_to_dead_letters(dead)
            await settle(incoming)
        except (HeadwaterError, *LOST_ERRORS) as error:
            logger.warning("a message of %s could not be discarded and is delivered again: %s", self._name, error)
            with contextlib.suppress(*LOST_ERRORS):
                await settle(incoming, requeue=True)

    def _track(self, incoming: AbstractIncomingMessage, envelope: Envelope) -> Delivery:
        tag = next(self._tags)
        attempt = envelope.deliveries + 1
        timer = self._start_timer(tag, self._queue.visibility_timeout)
        self._unacked[tag] = _UnackedMessage(envelope, incoming, attempt, timer)
        self._counters.in_flight += 1
        self._counters.redelivered += attempt > 1
        visible_until = datetime.now(UTC) + self._queue.visibility_timeout
        return Delivery(envelope.message, envelope.published_at, attempt, visible_until, tag)

    def _start_timer(self, tag: str, span: timedelta) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(span.total_seconds(), self._on_visibility_timeout, tag)

    def _on_visibility_timeout(self, tag: str) -> None:
        why = f"not settled within {self._queue.visibility_timeout}"
        self._spawn(self._fail(tag, why, delay=timedelta(0)))

    async def _ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = [AckResult.STALE] * len(deliveries)
        for index, delivery in enumerate(deliveries):
            held = self._untrack(delivery.tag)
            if held is not None:
                with contextlib.suppress(*LOST_ERRORS):
                    await self._acknowledge(held.incoming)
                    self._counters.acked += 1
                    results[index] = AckResult.DONE
        return results

    async def _extend(self, tag: str, span: timedelta) -> AckResult:
        held = self._unacked.get(tag)
        if held is None:
            return AckResult.STALE
        held.timer.cancel()
        held.timer = self._start_timer(tag, span)
        return AckResult.DONE

    async def _fail(
        self, tag: str, why: str, stack: str = "", delay: timedelta | None = None, *, final: bool = False
    ) -> AckResult:
        """Count a failure; publish a copy for the next attempt, or a dead letter; then acknowledge the original."""
        held = self._untrack(tag)
        if held is None:
            return AckResult.STALE
        failed = held.envelope.add_failure(Attempt(held.attempt, datetime.now(UTC), why, self._worker, stack))
        retry = self._queue.retry
        try:
            if final or failed.failures >= retry.attempts:
                reason = "rejected" if final else "failed"
                await self._requeuer.move_to_dead_letters(replace(failed, why=reason, died_at=datetime.now(UTC)))
            else:
                backoff = retry.delay(failed.failures) if delay is None else delay
                await self._requeuer.requeue([failed], backoff, exact=delay is not None)
        except BaseException:
            # The copy is not confirmed: the caller keeps the message and may settle it again.
            if self._channel.is_open and not self._closed:
                held.timer = self._start_timer(tag, self._queue.visibility_timeout)
                self._unacked[tag] = held
                self._counters.in_flight += 1
            raise
        with contextlib.suppress(*LOST_ERRORS):  # RabbitMQ redelivers the original, besides the copy
            await self._acknowledge(held.incoming)
        return AckResult.DONE

    def _untrack(self, tag: str) -> _UnackedMessage | None:
        """Remove a message from the unsettled ones; returns None if the delivery has expired."""
        if not self._channel.is_open:
            self._on_channel_lost()
        held = self._unacked.pop(tag, None)
        if held is not None:
            held.timer.cancel()
            self._counters.in_flight -= 1
        return held

    def _on_channel_lost(self) -> None:
        """Forget all deliveries: RabbitMQ has requeued them."""
        for held in self._unacked.values():
            held.timer.cancel()
        self._counters.in_flight -= len(self._unacked)
        self._unacked.clear()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning(
                "a message of %s whose visibility timeout expired could not be requeued: %s", self._name, error
            )
