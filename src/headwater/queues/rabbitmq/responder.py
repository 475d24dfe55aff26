"""Request/reply on RabbitMQ, the answering side: a consumer per subject, reopened when its channel is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, RefusedError, TooLargeError
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.rabbitmq.channel import settle
from headwater.queues.rabbitmq.connection import CONNECTION_ERRORS, RabbitConnection, driver
from headwater.queues.rabbitmq.requester import CANCEL_EXCHANGE
from headwater.queues.rabbitmq.topology import cancel_routing_key, request_queue
from headwater.queues.request_reply.dispatcher import Answer, Dispatcher
from headwater.queues.request_reply.wire import Reply, Request, decline, encode_document

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

__all__ = ["RabbitResponder", "RequestConsumer"]

logger = logging.getLogger("headwater.workers")
T = TypeVar("T")
_MAX_TRIES: Final = 10  # the queue may go, or change, between two words
_RPC_TIMEOUT: Final = 5.0  # seconds for RabbitMQ to answer, when we end
_MAX_CANCELLED: Final = 10_000  # questions that were cancelled
# Milliseconds for which questions wait when nobody is there to answer: about as long as a process takes to start again.
_QUEUE_EXPIRY: Final = 15_000


class RequestConsumer:
    """Brings the questions on one subject to where they are answered; all calls come from one event loop.

    A question is acknowledged when it was replied to. If this process dies before, RabbitMQ gives the question to
    another, which does not put it a second time: it tells the asker.

    Args:
        connection: The connection.
        dispatcher: Where they are answered.
    """

    def __init__(self, connection: RabbitConnection, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.channel_closed = asyncio.Event()
        self._connection = connection
        self._driver = driver()
        self._connection_errors = (*CONNECTION_ERRORS, self._driver.exceptions.AMQPError)
        self._subject = dispatcher.answer.subject
        self._queue: AbstractQueue | None = None
        self._tag = ""
        self._passive = False
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
        for _ in range(_MAX_TRIES):
            channel = await self._connection.open_channel()
            try:
                await self._consume(channel)
                return
            except known.ChannelPreconditionFailed:
                logger.warning('others answer "%s" with another limit, which holds', self._subject)
                self._passive = True
            except known.ChannelNotFoundEntity:  # whoever made it has just removed it
                self._passive = False
            except self._connection_errors as failed:
                error = failed
        what = f'RabbitMQ gives us no questions on "{self._subject}"'
        raise RefusedError(what, detail=str(error) if error else None, fix="look at the rights of its user")

    async def stop(self) -> None:
        """Take no more questions; if nobody else takes them, hand back those that wait."""
        self._closing = True
        if self._queue is None:
            return
        with contextlib.suppress(HeadwaterError, *self._connection_errors):
            await self._queue.cancel(self._tag, timeout=_RPC_TIMEOUT)
            left = await self._delete_queue()
            # Only now: a question that is asked again must not find the queue that nobody looks into.
            channel = await self._connection.open_channel(patience=1.0)
            for message in left:
                await self._send_reply(channel, message, await self._reply(message))

    async def _delete_queue(self) -> list[AbstractIncomingMessage]:
        """Remove the queue, unless others receive from it; the questions that were in it."""
        left: list[AbstractIncomingMessage] = []
        for _ in range(_MAX_TRIES):
            channel = await self._connection.open_channel(patience=1.0)
            try:
                queue = await channel.declare_queue(request_queue(self._subject), passive=True)
                if queue.declaration_result.consumer_count:
                    break
                while message := await queue.get(no_ack=True, fail=False, timeout=_RPC_TIMEOUT):
                    left.append(message)
                await queue.delete(if_unused=True, if_empty=True, timeout=_RPC_TIMEOUT)
                break
            except self._driver.exceptions.ChannelPreconditionFailed:
                continue  # another question has come, or somebody who answers
            except self._connection_errors:
                break  # others have removed it
        return left

    async def flush(self, timeout: float) -> None:
        """Wait until the replies to what was answered have gone out."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)

    async def _consume(self, channel: AbstractChannel) -> None:
        closed = self.channel_closed = asyncio.Event()
        channel.close_callbacks.add(lambda *_: closed.set())
        underlay: Any = await channel.get_underlay_channel()
        # RabbitMQ ends a consumer whose queue was deleted, or was on a machine that went; older drivers do not tell.
        cancel_callbacks: set[Any] = getattr(underlay, "on_consumer_cancel_callbacks", set())
        cancel_callbacks.add(lambda *_: closed.set())
        await channel.set_qos(self.dispatcher.answer.threads)
        arguments: dict[str, Any] = {
            "x-max-length": self.dispatcher.answer.limit,
            "x-overflow": "reject-publish",
            "x-expires": _QUEUE_EXPIRY,
        }
        # Durable, since RabbitMQ 4 warns of queues that several share and that are not; questions never are.
        queue = await channel.declare_queue(
            request_queue(self._subject), durable=True, passive=self._passive, arguments=arguments
        )
        cancelled = await channel.declare_queue(exclusive=True, auto_delete=True)
        await cancelled.bind(CANCEL_EXCHANGE, cancel_routing_key(self._subject))
        await cancelled.consume(self._on_cancel, no_ack=True)
        self._queue, self._tag = queue, await queue.consume(partial(self._on_request, channel))

    async def _on_cancel(self, message: AbstractIncomingMessage) -> None:
        self._cancelled[message.correlation_id or ""] = None
        if len(self._cancelled) > _MAX_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]

    async def _on_request(self, channel: AbstractChannel, message: AbstractIncomingMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            reply = await self._reply(message)
            with contextlib.suppress(
                *self._connection_errors
            ):  # then it comes again, here or elsewhere, and the asker is told
                await self._send_reply(channel, message, reply)
                await settle(message)
        finally:
            self._running.discard(task)

    async def _reply(self, message: AbstractIncomingMessage) -> Reply | None:
        try:
            request = msgspec.json.decode(message.body, type=Request)
        except msgspec.DecodeError as error:
            logger.warning('what came on "%s" is no question: %s', self._subject, error)
            return None
        if message.redelivered:
            what = f'whoever was to answer "{self._subject}" ended'
            lost = NoAnswerError(what, detail="the function may have run", subject=self._subject, sent=True)
            return Reply(request.number, problem=lost.problem())
        if self._closing:
            return decline(request)
        id_ = message.correlation_id or ""
        return await _run_in_thread(
            lambda: self.dispatcher.dispatch(request, is_wanted=lambda: id_ not in self._cancelled)
        )

    async def _send_reply(
        self, channel: AbstractChannel, message: AbstractIncomingMessage, reply: Reply | None
    ) -> None:
        if reply is not None and message.reply_to:
            try:
                body = encode_document(reply)
            except TooLargeError as error:
                body = encode_document(Reply(reply.number, problem=error.problem()))
            answer = self._driver.Message(body, content_type="application/json", correlation_id=message.correlation_id)
            await channel.default_exchange.publish(answer, message.reply_to, mandatory=False)


async def _run_in_thread(work: Callable[[], T]) -> T:
    """What work returns, from a thread that does not keep the process from ending, as those of an executor do."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(resolve, result, failed)

    threading.Thread(target=run, name="headwater-answer", daemon=True).start()
    return await future


_PAUSE: Final = 1.0  # seconds before another try, when RabbitMQ did not answer for longer than our patience
_FLUSH_TIMEOUT: Final = 2.0  # seconds for the last replies to go out


class RabbitResponder:
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

    def __init__(self, url: str, answers: Sequence[Answer], *, patience: timedelta = timedelta(seconds=30)) -> None:
        self._connection = RabbitConnection(url, "answering", patience)
        self._consumers = [RequestConsumer(self._connection, Dispatcher(answer)) for answer in answers]
        self._watchers: list[asyncio.Task[None]] = []
        self._loop = EventLoopThread("headwater-answers")
        try:
            self._loop.run(self._start())
        except BaseException:
            self.close(grace=0)
            raise

    def close(self, grace: float = 10.0) -> None:
        """Take no more questions; what is being answered may finish within `grace` seconds."""
        if self._loop.closed:
            return
        deadline = time.monotonic() + grace
        self._loop.run(self._stop())
        for consumer in self._consumers:
            consumer.dispatcher.close(deadline)
        self._loop.run(self._finish())
        self._loop.close()

    def __enter__(self) -> RabbitResponder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _start(self) -> None:
        for consumer in self._consumers:
            await consumer.open()
        self._watchers = [asyncio.create_task(_keep_open(consumer)) for consumer in self._consumers]

    async def _stop(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        for consumer in self._consumers:
            await consumer.stop()

    async def _finish(self) -> None:
        for consumer in self._consumers:
            await consumer.flush(_FLUSH_TIMEOUT)
        await self._connection.close()


async def _keep_open(consumer: RequestConsumer) -> None:
    """Open it again whenever its channel is gone."""
    while True:
        await consumer.channel_closed.wait()
        try:
            await consumer.open()
        except HeadwaterError as error:
            logger.warning("%s", error)
            await asyncio.sleep(_PAUSE)
