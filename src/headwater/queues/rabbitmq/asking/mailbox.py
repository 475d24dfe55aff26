"""One channel of an asker: RabbitMQ brings answers to the channel on which the question went out, and to no other."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from headwater.queues.asking.request import Request
from headwater.queues.asking.wire import encoded
from headwater.queues.rabbitmq.link import driver
from headwater.queues.rabbitmq.names import LONGEST, ask_queue, cancel_key

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

__all__ = ["CANCELLING", "Mailbox", "Unheard"]

CANCELLING: Final = "amq.direct"
"""The exchange, one of RabbitMQ's own, over which whoever answers hears of cancelled questions."""
_REPLIES: Final = "amq.rabbitmq.reply-to"
_BRIEFLY: Final = 1.0  # seconds for word of a cancelled question to go out


class Unheard(StrEnum):
    """Why there is no reply to a question."""

    NOBODY = "nobody"
    """Nobody answers on the subject, and RabbitMQ gave it back."""
    FULL = "full"
    """As many wait as may."""
    CANCELLED = "cancelled"
    """Nobody waits for it any more."""
    LOST = "lost"
    """The channel is gone, and with it the way back."""


class Mailbox:
    """Questions of one channel that have no reply yet; all calls come from one event loop.

    Args:
        channel: A channel with confirms, for this alone.
    """

    def __init__(self, channel: AbstractChannel) -> None:
        self._driver = driver()
        self._channel = channel
        self._name = uuid.uuid4().hex
        self._count = 0
        self._waiting: dict[str, asyncio.Future[bytes | Unheard]] = {}
        channel.close_callbacks.add(lambda *_: self._lose())

    @classmethod
    async def opened(cls, channel: AbstractChannel) -> Mailbox:
        """One that receives replies."""
        mailbox = cls(channel)
        replies = await channel.get_queue(_REPLIES, ensure=False)
        await replies.consume(mailbox._came, no_ack=True)
        return mailbox

    @property
    def live(self) -> bool:
        """Whether a question can go out and its reply come back."""
        return not self._channel.is_closed

    def new_id(self) -> str:
        """A name for a question that no other has."""
        self._count += 1
        return f"{self._name}-{self._count}"

    async def ask(self, request: Request, id_: str) -> bytes | Unheard:
        """The reply to a question, as it came.

        RabbitMQ drops a question that is still in line when its time is over.
        """
        future: asyncio.Future[bytes | Unheard] = asyncio.get_running_loop().create_future()
        self._waiting[id_] = future
        message = self._driver.Message(
            encoded(request.asked()),
            content_type="application/json",
            correlation_id=id_,
            reply_to=_REPLIES,
            expiration=min(timedelta(seconds=max(0.001, request.left)), LONGEST),
        )
        try:
            answer: Any = await self._channel.default_exchange.publish(
                message, ask_queue(request.subject), mandatory=True
            )
            if hasattr(answer, "body"):  # the message itself, in place of a confirmation
                return Unheard.NOBODY
            return await future
        except self._driver.exceptions.DeliveryError:
            return Unheard.FULL
        finally:
            del self._waiting[id_]

    async def cancel(self, subject: str, id_: str) -> None:
        """End the wait for a reply, and tell those who answer that nobody waits for it."""
        future = self._waiting.get(id_)
        if future is None or future.done():
            return
        future.set_result(Unheard.CANCELLED)
        exchange = await self._channel.get_exchange(CANCELLING, ensure=False)
        word = self._driver.Message(b"", correlation_id=id_)
        await exchange.publish(word, cancel_key(subject), mandatory=False, timeout=_BRIEFLY)

    async def _came(self, message: AbstractIncomingMessage) -> None:
        future = self._waiting.get(message.correlation_id or "")
        if future is not None and not future.done():  # else its time was over
            future.set_result(message.body)

    def _lose(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_result(Unheard.LOST)
