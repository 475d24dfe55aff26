"""Request/reply on RabbitMQ, the requesting side.

RabbitMQ returns replies to the channel on which the request was sent, and to no other. A `ReplyQueue` is
one such channel with its pending requests; `RabbitRequester` opens it again after a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

import aio_pika
import msgspec
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError

from headwater.errors import HeadwaterError, NoAnswerError, OverloadedError, UnreachableError
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.rabbitmq.connection import LOST_ERRORS, RabbitConnection
from headwater.queues.rabbitmq.topology import MAX_DELAY, cancel_routing_key, request_queue
from headwater.queues.request_reply.protocol import OutgoingRequest
from headwater.queues.request_reply.wire import Reply, encode_request

__all__ = ["CANCEL_EXCHANGE", "NoReply", "RabbitPendingRequest", "RabbitRequester", "ReplyQueue"]

CANCEL_EXCHANGE: Final = "amq.direct"
"""RabbitMQ's own direct exchange, which carries cancellations to responders."""
_REPLY_TO: Final = "amq.rabbitmq.reply-to"
_CANCEL_TIMEOUT: Final = 1.0  # seconds to publish a cancellation


class NoReply(StrEnum):
    """Why a request has no reply."""

    NO_RESPONDER = "nobody"
    """The subject has no queue: RabbitMQ returned the request."""
    FULL = "full"
    """The queue of the subject is full."""
    CANCELLED = "cancelled"
    """The requester cancelled it."""
    LOST = "lost"
    """The channel was lost; direct reply-to sends replies to no other."""


class ReplyQueue:
    """Pending requests of one channel; all calls come from one event loop.

    Args:
        channel: A channel with publisher confirms, used only here.
    """

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._id_prefix = uuid.uuid4().hex
        self._count = 0
        self._pending: dict[str, asyncio.Future[bytes | NoReply]] = {}
        channel.close_callbacks.add(lambda *_: self._on_channel_closed())

    @classmethod
    async def open(cls, channel: AbstractChannel) -> ReplyQueue:
        """Returns a reply queue that consumes replies."""
        reply_queue = cls(channel)
        replies = await channel.get_queue(_REPLY_TO, ensure=False)
        await replies.consume(reply_queue._on_reply, no_ack=True)
        return reply_queue

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent and replies received."""
        return not self._channel.is_closed

    def new_id(self) -> str:
        """Returns a unique id for a request."""
        self._count += 1
        return f"{self._id_prefix}-{self._count}"

    async def send(self, request: OutgoingRequest, id_: str) -> bytes | NoReply:
        """Send a request and return the encoded reply; RabbitMQ drops the request when its timeout has passed."""
        future: asyncio.Future[bytes | NoReply] = asyncio.get_running_loop().create_future()
        self._pending[id_] = future  # before the publish: the reply may arrive before the confirm
        message = aio_pika.Message(
            encode_request(request.to_wire()),
            content_type="application/json",
            correlation_id=id_,
            reply_to=_REPLY_TO,
            expiration=min(timedelta(seconds=max(0.001, request.time_left)), MAX_DELAY),
        )
        try:
            answer: Any = await self._channel.default_exchange.publish(
                message, request_queue(request.subject), mandatory=True
            )
            if hasattr(answer, "body"):  # the returned message, not a confirm
                return NoReply.NO_RESPONDER
            return await future
        except DeliveryError:
            return NoReply.FULL
        finally:
            del self._pending[id_]

    async def cancel(self, subject: str, id_: str) -> None:
        """Tell responders that a reply is not needed, then end the wait for it."""
        future = self._pending.get(id_)
        if future is None or future.done():
            return
        # In this order, RabbitMQ has the cancellation before the wait ends.
        try:
            exchange = await self._channel.get_exchange(CANCEL_EXCHANGE, ensure=False)
            message = aio_pika.Message(b"", correlation_id=id_)
            await exchange.publish(message, cancel_routing_key(subject), mandatory=False, timeout=_CANCEL_TIMEOUT)
        finally:
            if not future.done():
                future.set_result(NoReply.CANCELLED)

    async def _on_reply(self, message: AbstractIncomingMessage) -> None:
        future = self._pending.get(message.correlation_id or "")
        if future is not None and not future.done():  # else the reply is too late
            future.set_result(message.body)

    def _on_channel_closed(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_result(NoReply.LOST)


_SCOPE: Final = "runs with the same RabbitMQ"


class RabbitRequester:
    """Sends requests through RabbitMQ; safe to share between threads; connects on first use.

    Args:
        url: `amqp://[user:password@]host[:port][,host…][/vhost]`.
        patience: How long to retry while RabbitMQ does not answer; the timeout of a request limits it further.

    Raises:
        BadSettingError: The URL has another form.
    """

    def __init__(self, url: str, *, patience: timedelta = timedelta(seconds=30)) -> None:
        self._connection = RabbitConnection(url, "asking", patience)
        self._lock = asyncio.Lock()
        self._reply_queue: ReplyQueue | None = None
        self._pending: set[RabbitPendingRequest] = set()
        self.loop = EventLoopThread("headwater-requests")
        """Runs all coroutines of the requester."""

    def request(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> RabbitPendingRequest:
        """Returns a request that is not sent yet."""
        return RabbitPendingRequest(self, OutgoingRequest(subject, value, timeout, as_, scope=_SCOPE))

    def close(self) -> None:
        """Close the connection; pending requests are cancelled."""
        if not self.loop.closed:
            self.loop.run(self._close())
            self.loop.close()

    async def wait_for_answer(self, pending: RabbitPendingRequest) -> bytes:
        """Send a request and wait for the answer."""
        self._pending.add(pending)
        try:
            while True:
                reply = await self._send_request(pending)
                if reply.problem is None:
                    return bytes(reply.value)
                error = HeadwaterError.from_problem(reply.problem)
                if not isinstance(error, NoAnswerError) or error.data.get("sent", True):
                    raise error
                # A stopping responder declined it before it called the function: send it again, to another one.
        except asyncio.CancelledError:
            if pending.request.cancelled:
                raise pending.request.no_answer_error("the request was cancelled", sent=False) from None
            raise
        finally:
            self._pending.discard(pending)

    async def _send_request(self, pending: RabbitPendingRequest) -> Reply:
        request = pending.request
        try:
            async with asyncio.timeout_at(request.deadline) as limit:
                reply_queue = await self._open_reply_queue(request)
                pending.id = reply_queue.new_id()
                document = await reply_queue.send(request, pending.id)
        except TimeoutError:
            if limit.expired():
                raise await self._timeout_error(request) from None
            raise self._connection_error("it does not answer") from None
        except LOST_ERRORS as error:
            raise self._connection_error(str(error) or type(error).__name__) from None
        if document is NoReply.NO_RESPONDER:
            raise request.no_answer_error("the subject has no responder", sent=False)
        if document is NoReply.CANCELLED:
            raise request.no_answer_error("the request was cancelled", sent=True)
        if document is NoReply.FULL:
            raise OverloadedError(f'too many requests wait on "{request.subject}"', subject=request.subject)
        if document is NoReply.LOST:
            raise self._connection_error("the connection was lost before the answer came")
        return msgspec.json.decode(document, type=Reply)

    async def _open_reply_queue(self, request: OutgoingRequest) -> ReplyQueue:
        async with self._lock:
            if self._reply_queue is None or not self._reply_queue.is_open:
                patience = min(max(0.0, request.time_left), self._connection.patience)
                self._reply_queue = await ReplyQueue.open(await self._connection.open_channel(patience=patience))
        if request.cancelled:
            raise request.no_answer_error("the request was cancelled", sent=False)
        return self._reply_queue

    async def _timeout_error(self, request: OutgoingRequest) -> HeadwaterError:
        if self._reply_queue is None or not self._reply_queue.is_open:
            return self._connection_error("there was no connection in time")
        if await self._connection.is_blocked():
            what = f"RabbitMQ at {self._connection.redacted_url} accepts no requests: it is low on memory or disk"
            return OverloadedError(what, fix="rabbitmqctl status shows the alarm", subject=request.subject)
        return request.no_answer_error("the answer took too long, or the responder ended", sent=True)

    def _connection_error(self, detail: str) -> UnreachableError:
        what = f"RabbitMQ at {self._connection.redacted_url} is unreachable; the function may have been called or not"
        return UnreachableError(what, detail=detail, fix="check that it runs, and ask again")

    async def cancel(self, pending: RabbitPendingRequest) -> None:
        """Cancel a request; returns when responders are told."""
        if self._reply_queue is not None and pending.id is not None:
            with contextlib.suppress(*LOST_ERRORS):  # the request is lost with its channel, or times out
                await self._reply_queue.cancel(pending.request.subject, pending.id)

    async def _close(self) -> None:
        for pending in self._pending:
            pending.request.cancelled = True
        await asyncio.gather(*(self.cancel(pending) for pending in self._pending))
        await asyncio.sleep(0)  # waiters are released before the connection closes
        await self._connection.close()


class RabbitPendingRequest:
    """One pending request; `cancel` ends the wait from another thread."""

    def __init__(self, requester: RabbitRequester, request: OutgoingRequest) -> None:
        self._requester = requester
        self.request = request
        self.id: str | None = None

    def cancel(self) -> None:
        """Cancel the request; the function is not called unless it is running already."""
        self.request.cancelled = True
        if not self._requester.loop.closed:
            self._requester.loop.run(self._requester.cancel(self))

    def answer(self) -> Any:
        """Send the request and wait for the answer."""
        body = self._requester.loop.run(self._requester.wait_for_answer(self))
        return self.request.decode_answer(body)
