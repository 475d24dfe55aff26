"""Request/reply on RabbitMQ, the answering side: a consumer per subject, reopened when its channel is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import aio_pika
import msgspec
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

from headwater.errors import HeadwaterError, NoAnswerError, RefusedError
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.rabbitmq.channel import settle
from headwater.queues.rabbitmq.connection import LOST_ERRORS, RabbitConnection
from headwater.queues.rabbitmq.requester import CANCEL_EXCHANGE
from headwater.queues.rabbitmq.topology import cancel_routing_key, request_queue
from headwater.queues.request_reply.dispatcher import Answer, Dispatcher
from headwater.queues.request_reply.wire import Reply, Request, decline, encode_reply

__all__ = ["RabbitResponder", "RequestConsumer"]

logger = logging.getLogger("headwater.workers")
T = TypeVar("T")
_MAX_TRIES: Final = 10  # another responder may delete or change the queue at any time
_RPC_TIMEOUT: Final = 5.0  # seconds for RabbitMQ to answer while stopping
_MAX_CANCELLED: Final = 10_000  # remembered ids of cancelled requests
# Milliseconds for which requests wait without a responder: about as long as a process takes to restart.
_QUEUE_EXPIRY: Final = 15_000


class RequestConsumer:
    """Consumes the requests on one subject; all calls come from one event loop.

    A request is acknowledged after its reply was sent. If this process dies before that, RabbitMQ redelivers the
    request to another responder, which does not call the function again but replies with an error.

    Args:
        connection: The connection for consuming and replying.
        dispatcher: Calls the function that answers.
    """

    def __init__(self, connection: RabbitConnection, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.channel_closed = asyncio.Event()
        self._connection = connection
        self._subject = dispatcher.answer.subject
        self._queue: AbstractQueue | None = None
        self._tag = ""
        self._passive = False
        self._closing = False
        self._cancelled: dict[str, None] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Start consuming over a new channel.

        Raises:
            UnreachableError: RabbitMQ does not answer.
            RefusedError: RabbitMQ does not allow it.
        """
        error: Exception | None = None
        for _ in range(_MAX_TRIES):
            channel = await self._connection.open_channel()
            try:
                await self._consume(channel)
                return
            except ChannelPreconditionFailed:
                logger.warning('the limit that another responder of "%s" declared is used', self._subject)
                self._passive = True
            except ChannelNotFoundEntity:  # the responder that declared it has just deleted it
                self._passive = False
            except LOST_ERRORS as failed:
                error = failed
        what = f'requests on "{self._subject}" cannot be consumed from RabbitMQ'
        raise RefusedError(what, detail=str(error) if error else None, fix="check the permissions of the user")

    async def stop(self) -> None:
        """Stop consuming; if no other responder consumes, decline the waiting requests."""
        self._closing = True
        if self._queue is None:
            return
        with contextlib.suppress(HeadwaterError, *LOST_ERRORS):
            await self._queue.cancel(self._tag, timeout=_RPC_TIMEOUT)
            left = await self._delete_queue()
            # Only after the deletion: a requester that sends its request again must not reach this queue.
            channel = await self._connection.open_channel(patience=1.0)
            for message in left:
                await self._send_reply(channel, message, await self._reply(message))

    async def _delete_queue(self) -> list[AbstractIncomingMessage]:
        """Delete the queue unless others consume it; returns the requests that waited in it."""
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
            except ChannelPreconditionFailed:
                continue  # a request or another consumer has arrived
            except LOST_ERRORS:
                break  # another responder has deleted it
        return left

    async def flush(self, timeout: float) -> None:
        """Wait until the replies of finished requests are sent."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)

    async def _consume(self, channel: AbstractChannel) -> None:
        closed = self.channel_closed = asyncio.Event()
        channel.close_callbacks.add(lambda *_: closed.set())
        underlay: Any = await channel.get_underlay_channel()
        # RabbitMQ cancels a consumer whose queue was deleted or lost its node; older drivers have no callback for it.
        cancel_callbacks: set[Any] = getattr(underlay, "on_consumer_cancel_callbacks", set())
        cancel_callbacks.add(lambda *_: closed.set())
        await channel.set_qos(self.dispatcher.answer.threads)
        arguments: dict[str, Any] = {
            "x-max-length": self.dispatcher.answer.limit,
            "x-overflow": "reject-publish",
            "x-expires": _QUEUE_EXPIRY,
        }
        # Durable, because RabbitMQ 4 deprecates shared queues that are not; the requests in it are transient.
        queue = await channel.declare_queue(
            request_queue(self._subject), durable=True, passive=self._passive, arguments=arguments
        )
        # Consumed before the requests, so that no cancellation of a request is missed.
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
            with contextlib.suppress(*LOST_ERRORS):  # RabbitMQ redelivers it, and the requester gets an error
                await self._send_reply(channel, message, reply)
                await settle(message)
        finally:
            self._running.discard(task)

    async def _reply(self, message: AbstractIncomingMessage) -> Reply | None:
        try:
            request = msgspec.json.decode(message.body, type=Request)
        except msgspec.DecodeError as error:
            logger.warning('a message on "%s" is not a request: %s', self._subject, error)
            return None
        if message.redelivered:
            what = f'the responder of "{self._subject}" ended'
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
            answer = aio_pika.Message(
                encode_reply(reply), content_type="application/json", correlation_id=message.correlation_id
            )
            await channel.default_exchange.publish(answer, message.reply_to, mandatory=False)


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Returns the result of `work` in a daemon thread; threads of an executor would keep the process alive."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from now on, a cancelled wait does not cancel the future

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="headwater-answer", daemon=True).start()
    return await asyncio.wrap_future(future)


_PAUSE: Final = 1.0  # seconds between attempts to reopen a consumer, each of which lasts for the patience
_FLUSH_TIMEOUT: Final = 2.0  # seconds to send the last replies


class RabbitResponder:
    """Answers requests that arrive through RabbitMQ, until it is closed.

    Args:
        url: `amqp://[user:password@]host[:port][,host…][/vhost]`.
        answers: The functions that answer, with their subjects.
        patience: How long the start waits for RabbitMQ; later losses are retried without a limit.

    Raises:
        UnreachableError: RabbitMQ does not answer.
        BadSettingError: The URL has another form.
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
        """Accept no more requests; running ones may finish within `grace` seconds."""
        if self._loop.closed:
            return
        deadline = time.monotonic() + grace
        self._loop.run(self._stop())
        for consumer in self._consumers:
            consumer.dispatcher.close(deadline)
        self._loop.run(self._finish())
        self._loop.close()

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
    """Reopen a consumer whenever its channel is lost."""
    while True:
        await consumer.channel_closed.wait()
        try:
            await consumer.open()
        except HeadwaterError as error:
            logger.warning("%s", error)
            await asyncio.sleep(_PAUSE)
