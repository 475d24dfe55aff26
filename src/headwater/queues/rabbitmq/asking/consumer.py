"""Questions on one subject, as they come from RabbitMQ, and the replies that go back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, RefusedError, TooLargeError
from headwater.queues.asking.desk import Desk
from headwater.queues.asking.wire import Ask, Reply, encoded, handed_back
from headwater.queues.rabbitmq.asking.mailbox import CANCELLING
from headwater.queues.rabbitmq.intake import done
from headwater.queues.rabbitmq.link import LOST, Link, driver
from headwater.queues.rabbitmq.names import ask_queue, cancel_key

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

__all__ = ["Consumer"]

logger = logging.getLogger("headwater.workers")
T = TypeVar("T")
_TRIES: Final = 10  # the queue may go, or change, between two words
_ANSWER: Final = 5.0  # seconds for RabbitMQ to answer, when we end
_REMEMBERED: Final = 10_000  # questions that were cancelled
# Milliseconds for which questions wait when nobody is there to answer: about as long as a process takes to start again.
_KEPT: Final = 15_000


class Consumer:
    """Brings the questions on one subject to where they are answered; all calls come from one event loop.

    A question is acknowledged when it was replied to. If this process dies before, RabbitMQ gives the question to
    another, which does not put it a second time: it tells the asker.

    Args:
        link: The connection.
        desk: Where they are answered.
    """

    def __init__(self, link: Link, desk: Desk) -> None:
        self.desk = desk
        self.gone = asyncio.Event()
        self._link = link
        self._driver = driver()
        self._lost = (*LOST, self._driver.exceptions.AMQPError)
        self._subject = desk.answer.subject
        self._source: AbstractQueue | None = None
        self._tag = ""
        self._as_it_is = False
        self._closing = False
        self._cancelled: dict[str, None] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Receive questions, over a new channel.

        Raises:
            UnreachableError: RabbitMQ does not answer.
            RefusedError: It does not let us.
        """
        known = self._driver.exceptions
        error: Exception | None = None
        for _ in range(_TRIES):
            channel = await self._link.channel()
            try:
                await self._consume(channel)
                return
            except known.ChannelPreconditionFailed:
                logger.warning('others answer "%s" with another limit, which holds', self._subject)
                self._as_it_is = True
            except known.ChannelNotFoundEntity:  # whoever made it has just removed it
                self._as_it_is = False
            except self._lost as failed:
                error = failed
        what = f'RabbitMQ gives us no questions on "{self._subject}"'
        raise RefusedError(what, detail=str(error) if error else None, fix="look at the rights of its user")

    async def retire(self) -> None:
        """Take no more questions; if nobody else takes them, hand back those that wait."""
        self._closing = True
        if self._source is None:
            return
        with contextlib.suppress(HeadwaterError, *self._lost):
            await self._source.cancel(self._tag, timeout=_ANSWER)
            left = await self._removed()
            # Only now: a question that is asked again must not find the queue that nobody looks into.
            channel = await self._link.channel(patience=1.0)
            for message in left:
                await self._send(channel, message, await self._reply(message))

    async def _removed(self) -> list[AbstractIncomingMessage]:
        """Remove the queue, unless others receive from it; the questions that were in it."""
        left: list[AbstractIncomingMessage] = []
        for _ in range(_TRIES):
            channel = await self._link.channel(patience=1.0)
            try:
                queue = await channel.declare_queue(ask_queue(self._subject), passive=True)
                if queue.declaration_result.consumer_count:
                    break
                while message := await queue.get(no_ack=True, fail=False, timeout=_ANSWER):
                    left.append(message)
                await queue.delete(if_unused=True, if_empty=True, timeout=_ANSWER)
                break
            except self._driver.exceptions.ChannelPreconditionFailed:
                continue  # another question has come, or somebody who answers
            except self._lost:
                break  # others have removed it
        return left

    async def finish(self, timeout: float) -> None:
        """Wait until the replies to what was answered have gone out."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)

    async def _consume(self, channel: AbstractChannel) -> None:
        gone = self.gone = asyncio.Event()
        channel.close_callbacks.add(lambda *_: gone.set())
        below: Any = await channel.get_underlay_channel()
        # RabbitMQ ends a consumer whose queue was deleted, or was on a machine that went; older drivers do not tell.
        told: set[Any] = getattr(below, "on_consumer_cancel_callbacks", set())
        told.add(lambda *_: gone.set())
        await channel.set_qos(self.desk.answer.threads)
        arguments: dict[str, Any] = {
            "x-max-length": self.desk.answer.limit,
            "x-overflow": "reject-publish",
            "x-expires": _KEPT,
        }
        # Durable, since RabbitMQ 4 warns of queues that several share and that are not; questions never are.
        queue = await channel.declare_queue(
            ask_queue(self._subject), durable=True, passive=self._as_it_is, arguments=arguments
        )
        cancelled = await channel.declare_queue(exclusive=True, auto_delete=True)
        await cancelled.bind(CANCELLING, cancel_key(self._subject))
        await cancelled.consume(self._cancel, no_ack=True)
        self._source, self._tag = queue, await queue.consume(partial(self._came, channel))

    async def _cancel(self, message: AbstractIncomingMessage) -> None:
        self._cancelled[message.correlation_id or ""] = None
        if len(self._cancelled) > _REMEMBERED:
            del self._cancelled[next(iter(self._cancelled))]

    async def _came(self, channel: AbstractChannel, message: AbstractIncomingMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            reply = await self._reply(message)
            with contextlib.suppress(
                *self._lost
            ):  # then it comes again, here or elsewhere, and the asker is told
                await self._send(channel, message, reply)
                await done(message)
        finally:
            self._running.discard(task)

    async def _reply(self, message: AbstractIncomingMessage) -> Reply | None:
        try:
            ask = msgspec.json.decode(message.body, type=Ask)
        except msgspec.DecodeError as error:
            logger.warning('what came on "%s" is no question: %s', self._subject, error)
            return None
        if message.redelivered:
            what = f'whoever was to answer "{self._subject}" ended'
            lost = NoAnswerError(what, detail="the function may have run", subject=self._subject, sent=True)
            return Reply(ask.number, problem=lost.problem())
        if self._closing:
            return handed_back(ask)
        id_ = message.correlation_id or ""
        return await _in_thread(lambda: self.desk.reply(ask, wanted=lambda: id_ not in self._cancelled))

    async def _send(
        self, channel: AbstractChannel, message: AbstractIncomingMessage, reply: Reply | None
    ) -> None:
        if reply is not None and message.reply_to:
            try:
                body = encoded(reply)
            except TooLargeError as error:
                body = encoded(Reply(reply.number, problem=error.problem()))
            answer = self._driver.Message(
                body, content_type="application/json", correlation_id=message.correlation_id
            )
            await channel.default_exchange.publish(answer, message.reply_to, mandatory=False)


async def _in_thread(work: Callable[[], T]) -> T:
    """What work returns, from a thread that does not keep the process from ending, as those of an executor do."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():  # the channel is gone, and who waited with it
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(tell, result, failed)

    threading.Thread(target=run, name="headwater-answer", daemon=True).start()
    return await future
