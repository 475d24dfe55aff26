"""Publishing with confirms: what RabbitMQ did not confirm before a connection broke is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import OverloadedError, RefusedError, UnknownQueueError, UnreachableError
from headwater.queues.rabbitmq.connection import CONNECTION_ERRORS, RabbitConnection, driver

if TYPE_CHECKING:
    from aio_pika import Message
    from aio_pika.abc import AbstractChannel

__all__ = ["Publication", "PublishOutcome", "Publisher"]

logger = logging.getLogger("headwater.rabbitmq")
_MAX_UNCONFIRMED: Final = 500  # messages without a confirmation at a time
_CONFIRM_INTERVAL: Final = 1.0  # seconds without a confirmation after which we look why
_MAX_REFUSALS: Final = 3  # refusals of one message, since one that is refused closes the channel for all


class PublishOutcome(StrEnum):
    """What RabbitMQ said to a message."""

    CONFIRMED = "taken"
    """It is in all queues that it fits, on the disks of a majority of their members."""
    UNROUTABLE = "unroutable"
    """It fits no queue, and nothing was kept."""
    FULL = "full"
    """A queue that it fits is full."""


@dataclass(frozen=True)
class Publication:
    """A message and where it goes: to an exchange, by a routing key."""

    exchange: str
    routing_key: str
    message: Message


class Publisher:
    """Sends messages over one link; all calls come from its event loop.

    A message whose confirmation was lost with a connection is sent again with the same id, so it may be there twice.

    Args:
        connection: The connection, for publishing alone: RabbitMQ stops reading it when memory runs out.
    """

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        self._driver = driver()
        self._lock = asyncio.Lock()
        self._channel: AbstractChannel | None = None

    async def send(self, publications: Sequence[Publication], *, patience: float | None = None) -> list[PublishOutcome]:
        """Publish, and wait until each is confirmed, returned or refused.

        Raises:
            UnreachableError: No broker answered in time; those not confirmed may be there or not.
            OverloadedError: RabbitMQ was low on memory or disk for all that time.
            UnknownQueueError: An exchange is gone.
        """
        outcomes: list[PublishOutcome] = []
        for start in range(0, len(publications), _MAX_UNCONFIRMED):
            part = publications[start : start + _MAX_UNCONFIRMED]
            outcomes += await self._send_batch(part, self._connection.patience if patience is None else patience)
        return outcomes

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None and not self._channel.is_closed:
            with contextlib.suppress(*CONNECTION_ERRORS, self._driver.exceptions.AMQPError):
                await asyncio.wait_for(self._channel.close(), 5.0)

    async def _send_batch(self, publications: Sequence[Publication], patience: float) -> list[PublishOutcome]:
        found: dict[int, PublishOutcome] = {}
        end = asyncio.get_running_loop().time() + patience
        strikes = 0
        while open_ := [index for index in range(len(publications)) if index not in found]:
            left = end - asyncio.get_running_loop().time()
            if left < 0:
                raise self._timeout_error(False, len(open_))
            channel = await self._open_channel(max(0.1, left))
            results = await self._publish_all(channel, [publications[index] for index in open_], end)
            found |= {
                index: result
                for index, result in zip(open_, results, strict=True)
                if isinstance(result, PublishOutcome)
            }
            if refusals := [each for each in results if isinstance(each, Exception)]:
                strikes += 1
                if strikes >= _MAX_REFUSALS:
                    raise self._refusal_error(publications[open_[0]], refusals[0])
        return [found[index] for index in range(len(publications))]

    async def _publish_all(
        self, channel: AbstractChannel, publications: Sequence[Publication], end: float
    ) -> list[PublishOutcome | Exception | None]:
        """What became of each: an outcome, a refusal, or nothing when the connection was lost."""
        tasks = [asyncio.create_task(self._publish_one(channel, letter)) for letter in publications]
        try:
            await self._await_confirms(tasks, end)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        known = self._driver.exceptions
        found: list[PublishOutcome | Exception | None] = []
        for result in results:
            if isinstance(result, (PublishOutcome, known.ChannelClosed)):
                found.append(result)
            elif isinstance(result, (*CONNECTION_ERRORS, known.AMQPError)):
                found.append(None)
            else:
                raise result
        return found

    async def _publish_one(self, channel: AbstractChannel, publication: Publication) -> PublishOutcome:
        exchange = (
            await channel.get_exchange(publication.exchange, ensure=False)
            if publication.exchange
            else channel.default_exchange
        )
        try:
            answer: Any = await exchange.publish(publication.message, publication.routing_key, mandatory=True)
        except self._driver.exceptions.DeliveryError:
            return PublishOutcome.FULL
        returned = answer is not None and hasattr(answer, "body")  # the message itself, in place of a confirmation
        return PublishOutcome.UNROUTABLE if returned else PublishOutcome.CONFIRMED

    async def _await_confirms(self, tasks: list[asyncio.Task[PublishOutcome]], end: float) -> None:
        """Wait for all; say so when RabbitMQ takes nothing, and give up in the end."""
        told = False
        pending: set[asyncio.Task[PublishOutcome]] = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=_CONFIRM_INTERVAL)
            if not pending:
                break
            blocked = await self._connection.is_blocked()
            if blocked and not told:
                told = True
                logger.warning("RabbitMQ at %s is low on memory or disk; publish waits", self._connection.redacted_url)
            if asyncio.get_running_loop().time() > end:
                raise self._timeout_error(blocked, len(pending))

    async def _open_channel(self, patience: float) -> AbstractChannel:
        async with self._lock:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._connection.open_channel(patience=patience)
            return self._channel

    def _timeout_error(self, blocked: bool, waiting: int) -> OverloadedError | UnreachableError:
        detail = f"{waiting} messages were not confirmed; they may be there or not, under the same ids"
        if blocked:
            what = f"RabbitMQ at {self._connection.redacted_url} takes no messages: it is low on memory or disk"
            return OverloadedError(what, detail=detail, fix="rabbitmqctl status tells which alarm it is")
        what = f"RabbitMQ at {self._connection.redacted_url} does not answer"
        return UnreachableError(what, detail=detail, fix="look whether it runs")

    def _refusal_error(self, publication: Publication, error: Exception) -> UnknownQueueError | RefusedError:
        if isinstance(error, self._driver.exceptions.ChannelNotFoundEntity):
            what = f'RabbitMQ has no exchange "{publication.exchange}"'
            return UnknownQueueError(what, detail=str(error), fix="declare the queue again", queue=publication.exchange)
        return RefusedError("RabbitMQ refused a message", detail=str(error))
