"""The side that answers: a consumer for each subject, made anew when its channel was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from headwater.errors import HeadwaterError
from headwater.queues.asking.answer import Answer
from headwater.queues.asking.desk import Desk
from headwater.queues.rabbitmq.asking.consumer import Consumer
from headwater.queues.rabbitmq.link import Link
from headwater.queues.rabbitmq.loop_thread import LoopThread

__all__ = ["RabbitAnswering"]

logger = logging.getLogger("headwater.workers")
_PAUSE: Final = 1.0  # seconds before another try, when RabbitMQ did not answer for longer than our patience
_SENDING: Final = 2.0  # seconds for the last replies to go out


class RabbitAnswering:
    """Answers questions that come through one RabbitMQ, until it is closed.

    Args:
        url: `amqp://[user:password@]host[:port][,host…][/vhost]`.
        answers: What to answer.
        patience: How long to look for a RabbitMQ that answers; later on, it is looked for until it is there.

    Raises:
        UnreachableError: RabbitMQ does not answer.
        MissingPackageError: The package aio-pika is not installed.
        BadSettingError: The URL cannot be one.
    """

    def __init__(
        self, url: str, answers: Sequence[Answer], *, patience: timedelta = timedelta(seconds=30)
    ) -> None:
        self._link = Link(url, "answering", patience)
        self._consumers = [Consumer(self._link, Desk(answer)) for answer in answers]
        self._keepers: list[asyncio.Task[None]] = []
        self._loop = LoopThread("headwater-answers")
        try:
            self._loop.run(self._begin())
        except BaseException:
            self.close(grace=0)
            raise

    def close(self, grace: float = 10.0) -> None:
        """Take no more questions; what is being answered may finish within `grace` seconds."""
        if self._loop.closed:
            return
        deadline = time.monotonic() + grace
        self._loop.run(self._retire())
        for consumer in self._consumers:
            consumer.desk.close(deadline)
        self._loop.run(self._finish())
        self._loop.close()

    def __enter__(self) -> RabbitAnswering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _begin(self) -> None:
        for consumer in self._consumers:
            await consumer.open()
        self._keepers = [asyncio.create_task(_kept(consumer)) for consumer in self._consumers]

    async def _retire(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        for consumer in self._consumers:
            await consumer.retire()

    async def _finish(self) -> None:
        for consumer in self._consumers:
            await consumer.finish(_SENDING)
        await self._link.close()


async def _kept(consumer: Consumer) -> None:
    """Open it again whenever its channel is gone."""
    while True:
        await consumer.gone.wait()
        try:
            await consumer.open()
        except HeadwaterError as error:
            logger.warning("%s", error)
            await asyncio.sleep(_PAUSE)
