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
from headwater.queues.rabbitmq.link import LOST, Link, driver

if TYPE_CHECKING:
    from aio_pika import Message
    from aio_pika.abc import AbstractChannel

__all__ = ["Letter", "Outcome", "Publisher"]

logger = logging.getLogger("headwater.rabbitmq")
_AT_ONCE: Final = 500  # messages without a confirmation at a time
_STEP: Final = 1.0  # seconds without a confirmation after which we look why
_STRIKES: Final = 3  # refusals of one message, since one that is refused closes the channel for all


class Outcome(StrEnum):
    """What RabbitMQ said to a message."""

    TAKEN = "taken"
    """It is in all queues that it fits, on the disks of a majority of their members."""
    UNROUTABLE = "unroutable"
    """It fits no queue, and nothing was kept."""
    FULL = "full"
    """A queue that it fits is full."""


@dataclass(frozen=True)
class Letter:
    """A message and where it goes: to an exchange, by a routing key."""

    exchange: str
    key: str
    message: Message


class Publisher:
    """Sends messages over one link; all calls come from its event loop.

    A message whose confirmation was lost with a connection is sent again with the same id, so it may be there twice.

    Args:
        link: The connection, for publishing alone: RabbitMQ stops reading it when memory runs out.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._driver = driver()
        self._lock = asyncio.Lock()
        self._channel: AbstractChannel | None = None

    async def send(self, letters: Sequence[Letter], *, patience: float | None = None) -> list[Outcome]:
        """Publish, and wait until each is confirmed, returned or refused.

        Raises:
            UnreachableError: No broker answered in time; those not confirmed may be there or not.
            OverloadedError: RabbitMQ was low on memory or disk for all that time.
            UnknownQueueError: An exchange is gone.
        """
        outcomes: list[Outcome] = []
        for start in range(0, len(letters), _AT_ONCE):
            part = letters[start : start + _AT_ONCE]
            outcomes += await self._part(part, self._link.patience if patience is None else patience)
        return outcomes

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None and not self._channel.is_closed:
            with contextlib.suppress(*LOST, self._driver.exceptions.AMQPError):
                await asyncio.wait_for(self._channel.close(), 5.0)

    async def _part(self, letters: Sequence[Letter], patience: float) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        end = asyncio.get_running_loop().time() + patience
        strikes = 0
        while open_ := [index for index in range(len(letters)) if index not in found]:
            left = end - asyncio.get_running_loop().time()
            if left < 0:
                raise self._gave_up(False, len(open_))
            channel = await self._opened(max(0.1, left))
            results = await self._tried(channel, [letters[index] for index in open_], end)
            found |= {
                index: result
                for index, result in zip(open_, results, strict=True)
                if isinstance(result, Outcome)
            }
            if refusals := [each for each in results if isinstance(each, Exception)]:
                strikes += 1
                if strikes >= _STRIKES:
                    raise self._refused(letters[open_[0]], refusals[0])
        return [found[index] for index in range(len(letters))]

    async def _tried(
        self, channel: AbstractChannel, letters: Sequence[Letter], end: float
    ) -> list[Outcome | Exception | None]:
        """What became of each: an outcome, a refusal, or nothing when the connection was lost."""
        tasks = [asyncio.create_task(self._one(channel, letter)) for letter in letters]
        try:
            await self._confirmed(tasks, end)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        known = self._driver.exceptions
        found: list[Outcome | Exception | None] = []
        for result in results:
            if isinstance(result, (Outcome, known.ChannelClosed)):
                found.append(result)
            elif isinstance(result, (*LOST, known.AMQPError)):
                found.append(None)
            else:
                raise result
        return found

    async def _one(self, channel: AbstractChannel, letter: Letter) -> Outcome:
        exchange = (
            await channel.get_exchange(letter.exchange, ensure=False)
            if letter.exchange
            else channel.default_exchange
        )
        try:
            answer: Any = await exchange.publish(letter.message, letter.key, mandatory=True)
        except self._driver.exceptions.DeliveryError:
            return Outcome.FULL
        returned = answer is not None and hasattr(
            answer, "body"
        )  # the message itself, in place of a confirmation
        return Outcome.UNROUTABLE if returned else Outcome.TAKEN

    async def _confirmed(self, tasks: list[asyncio.Task[Outcome]], end: float) -> None:
        """Wait for all; say so when RabbitMQ takes nothing, and give up in the end."""
        told = False
        pending: set[asyncio.Task[Outcome]] = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=_STEP)
            if not pending:
                break
            blocked = await self._link.blocked()
            if blocked and not told:
                told = True
                logger.warning("RabbitMQ at %s is low on memory or disk; publish waits", self._link.shown)
            if asyncio.get_running_loop().time() > end:
                raise self._gave_up(blocked, len(pending))

    async def _opened(self, patience: float) -> AbstractChannel:
        async with self._lock:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._link.channel(patience=patience)
            return self._channel

    def _gave_up(self, blocked: bool, waiting: int) -> OverloadedError | UnreachableError:
        detail = f"{waiting} messages were not confirmed; they may be there or not, under the same ids"
        if blocked:
            what = f"RabbitMQ at {self._link.shown} takes no messages: it is low on memory or disk"
            return OverloadedError(what, detail=detail, fix="rabbitmqctl status tells which alarm it is")
        what = f"RabbitMQ at {self._link.shown} does not answer"
        return UnreachableError(what, detail=detail, fix="look whether it runs")

    def _refused(self, letter: Letter, error: Exception) -> UnknownQueueError | RefusedError:
        if isinstance(error, self._driver.exceptions.ChannelNotFoundEntity):
            what = f'RabbitMQ has no exchange "{letter.exchange}"'
            return UnknownQueueError(
                what, detail=str(error), fix="declare the queue again", queue=letter.exchange
            )
        return RefusedError("RabbitMQ refused a message", detail=str(error))
