"""Publishing with confirms: messages that were not confirmed before a connection was lost are sent again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aio_pika import Message
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, DeliveryError

from headwater.errors import OverloadedError, RefusedError, UnknownQueueError, UnreachableError
from headwater.queues.rabbitmq.connection import LOST_ERRORS, RabbitConnection

__all__ = ["Publication", "PublishOutcome", "Publisher"]

logger = logging.getLogger("headwater.rabbitmq")
_MAX_UNCONFIRMED: Final = 500  # messages
_CONFIRM_INTERVAL: Final = 1.0  # seconds without a confirm, after which the connection is checked
# Attempts of a batch: a refused message closes the channel, so the others fail with it and are sent again.
_MAX_REFUSALS: Final = 3


class PublishOutcome(StrEnum):
    """What RabbitMQ did with a message."""

    CONFIRMED = "taken"
    """It is in all queues that its routing key selects, on the disks of a majority of their members."""
    UNROUTABLE = "unroutable"
    """Its routing key selects no queue; nothing was stored."""
    FULL = "full"
    """A queue that its routing key selects is full."""


@dataclass(frozen=True)
class Publication:
    """A message with its exchange and routing key."""

    exchange: str
    routing_key: str
    message: Message


class Publisher:
    """Publishes messages over one connection; all calls come from its event loop.

    A message whose confirm was lost with the connection is sent again with the same id: RabbitMQ may have it twice.

    Args:
        connection: A connection for publishing only: RabbitMQ stops reading from it when it is low on memory.
    """

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self._channel: AbstractChannel | None = None

    async def send(self, publications: Sequence[Publication]) -> list[PublishOutcome]:
        """Publish messages and wait until each is confirmed, returned or refused.

        Raises:
            UnreachableError: No broker answered in time; unconfirmed messages may be stored or not.
            OverloadedError: RabbitMQ was low on memory or disk all the time.
            UnknownQueueError: An exchange does not exist.
        """
        outcomes: list[PublishOutcome] = []
        for start in range(0, len(publications), _MAX_UNCONFIRMED):
            outcomes += await self._send_batch(publications[start : start + _MAX_UNCONFIRMED])
        return outcomes

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None and not self._channel.is_closed:
            with contextlib.suppress(*LOST_ERRORS):
                await asyncio.wait_for(self._channel.close(), 5.0)

    async def _send_batch(self, publications: Sequence[Publication]) -> list[PublishOutcome]:
        found: dict[int, PublishOutcome] = {}
        end = asyncio.get_running_loop().time() + self._connection.patience
        refused_attempts = 0
        while open_ := [index for index in range(len(publications)) if index not in found]:
            left = end - asyncio.get_running_loop().time()
            if left < 0:
                raise self._timeout_error(False, len(open_))
            channel = await self._open_channel(max(0.1, left))
            results = await self._publish_all(channel, [publications[index] for index in open_], end)
            pairs = zip(open_, results, strict=True)
            found |= {index: result for index, result in pairs if isinstance(result, PublishOutcome)}
            if refusals := [each for each in results if isinstance(each, Exception)]:
                refused_attempts += 1
                if refused_attempts >= _MAX_REFUSALS:
                    raise self._refusal_error(publications[open_[0]], refusals[0])
        return [found[index] for index in range(len(publications))]

    async def _publish_all(
        self, channel: AbstractChannel, publications: Sequence[Publication], end: float
    ) -> list[PublishOutcome | Exception | None]:
        """Returns for each message an outcome, the error of a refusal, or None when the connection was lost."""
        tasks = [asyncio.create_task(self._publish_one(channel, each)) for each in publications]
        try:
            await self._await_confirms(tasks, end)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        found: list[PublishOutcome | Exception | None] = []
        for result in results:
            if isinstance(result, (PublishOutcome, ChannelClosed)):
                found.append(result)
            elif isinstance(result, LOST_ERRORS):
                found.append(None)
            else:
                raise result
        return found

    async def _publish_one(self, channel: AbstractChannel, publication: Publication) -> PublishOutcome:
        name = publication.exchange
        exchange = await channel.get_exchange(name, ensure=False) if name else channel.default_exchange
        try:
            answer: Any = await exchange.publish(publication.message, publication.routing_key, mandatory=True)
        except DeliveryError:
            return PublishOutcome.FULL
        # A returned message has a body, a confirm has none.
        return PublishOutcome.UNROUTABLE if hasattr(answer, "body") else PublishOutcome.CONFIRMED

    async def _await_confirms(self, tasks: list[asyncio.Task[PublishOutcome]], end: float) -> None:
        """Wait for all confirms; log once when RabbitMQ blocks publishers, and give up at `end`."""
        warned = False
        pending: set[asyncio.Task[PublishOutcome]] = set(tasks)
        while pending := (await asyncio.wait(pending, timeout=_CONFIRM_INTERVAL))[1]:
            blocked = await self._connection.is_blocked()
            if blocked and not warned:
                warned = True
                logger.warning("RabbitMQ at %s is low on memory or disk; publish waits", self._connection.redacted_url)
            if asyncio.get_running_loop().time() > end:
                raise self._timeout_error(blocked, len(pending))

    async def _open_channel(self, patience: float) -> AbstractChannel:
        async with self._lock:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._connection.open_channel(patience=patience)
            return self._channel

    def _timeout_error(self, blocked: bool, waiting: int) -> OverloadedError | UnreachableError:
        detail = f"{waiting} messages were not confirmed; some of them may be stored"
        if blocked:
            what = f"RabbitMQ at {self._connection.redacted_url} accepts no messages: it is low on memory or disk"
            return OverloadedError(what, detail=detail, fix="rabbitmqctl status shows the alarm")
        what = f"RabbitMQ at {self._connection.redacted_url} does not answer"
        return UnreachableError(what, detail=detail, fix="check that it runs")

    def _refusal_error(self, publication: Publication, error: Exception) -> UnknownQueueError | RefusedError:
        if isinstance(error, ChannelNotFoundEntity):
            what = f'RabbitMQ has no exchange "{publication.exchange}"'
            return UnknownQueueError(what, detail=str(error), fix="declare the queue again", queue=publication.exchange)
        return RefusedError("RabbitMQ refused a message", detail=str(error))
