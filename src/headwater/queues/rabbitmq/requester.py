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
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, OverloadedError, UnreachableError
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.rabbitmq.connection import CONNECTION_ERRORS, RabbitConnection, driver
from headwater.queues.rabbitmq.topology import MAX_DELAY, cancel_routing_key, request_queue
from headwater.queues.request_reply.protocol import OutgoingRequest
from headwater.queues.request_reply.wire import Reply, encode_document

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

__all__ = ["CANCEL_EXCHANGE", "NoReply", "RabbitPendingRequest", "RabbitRequester", "ReplyQueue"]

CANCEL_EXCHANGE: Final = "amq.direct"
"""The exchange, one of RabbitMQ's own, over which whoever answers hears of cancelled questions."""
_REPLY_TO: Final = "amq.rabbitmq.reply-to"
_CANCEL_TIMEOUT: Final = 1.0  # seconds for word of a cancelled question to go out


class NoReply(StrEnum):
    """Why there is no reply to a question."""

    NO_RESPONDER = "nobody"
    """Nobody answers on the subject, and RabbitMQ gave it back."""
    FULL = "full"
    """As many wait as may."""
    CANCELLED = "cancelled"
    """Nobody waits for it any more."""
    LOST = "lost"
    """The channel is gone, and with it the way back."""


class ReplyQueue:
    """Pending requests of one channel; all calls come from one event loop.

    Args:
        channel: A channel with confirms, for this alone.
    """

    def __init__(self, channel: AbstractChannel) -> None:
        self._driver = driver()
        self._channel = channel
        self._id_prefix = uuid.uuid4().hex
        self._count = 0
        self._pending: dict[str, asyncio.Future[bytes | NoReply]] = {}
        channel.close_callbacks.add(lambda *_: self._on_channel_closed())

    @classmethod
    async def open(cls, channel: AbstractChannel) -> ReplyQueue:
        """One that receives replies."""
        reply_queue = cls(channel)
        replies = await channel.get_queue(_REPLY_TO, ensure=False)
        await replies.consume(reply_queue._on_reply, no_ack=True)
        return reply_queue

    @property
    def is_open(self) -> bool:
        """Whether a question can go out and its reply come back."""
        return not self._channel.is_closed

    def new_id(self) -> str:
        """Returns a name for a question that no other has."""
        self._count += 1
        return f"{self._id_prefix}-{self._count}"

    async def send(self, request: OutgoingRequest, id_: str) -> bytes | NoReply:
        """Returns the reply to a question, as it came.

        RabbitMQ drops a question that is still in line when its time is over.
        """
        future: asyncio.Future[bytes | NoReply] = asyncio.get_running_loop().create_future()
        self._pending[id_] = future
        message = self._driver.Message(
            encode_document(request.to_wire()),
            content_type="application/json",
            correlation_id=id_,
            reply_to=_REPLY_TO,
            expiration=min(timedelta(seconds=max(0.001, request.time_left)), MAX_DELAY),
        )
        try:
            answer: Any = await self._channel.default_exchange.publish(
                message, request_queue(request.subject), mandatory=True
            )
            if hasattr(answer, "body"):  # the message itself, in place of a confirmation
                return NoReply.NO_RESPONDER
            return await future
        except self._driver.exceptions.DeliveryError:
            return NoReply.FULL
        finally:
            del self._pending[id_]

    async def cancel(self, subject: str, id_: str) -> None:
        """End the wait for a reply, and tell responders that it is not needed."""
        future = self._pending.get(id_)
        if future is None or future.done():
            return
        # Responders first: whoever sees the wait end may rely on it that they know.
        try:
            exchange = await self._channel.get_exchange(CANCEL_EXCHANGE, ensure=False)
            message = self._driver.Message(b"", correlation_id=id_)
            await exchange.publish(message, cancel_routing_key(subject), mandatory=False, timeout=_CANCEL_TIMEOUT)
        finally:
            if not future.done():
                future.set_result(NoReply.CANCELLED)

    async def _on_reply(self, message: AbstractIncomingMessage) -> None:
        future = self._pending.get(message.correlation_id or "")
        if future is not None and not future.done():  # else its time was over
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
        patience: How long to look for a RabbitMQ that answers, if the question has that much time.

    Raises:
        MissingPackageError: The package aio-pika is not installed.
        BadSettingError: The URL cannot be one.
    """

    def __init__(self, url: str, *, patience: timedelta = timedelta(seconds=30)) -> None:
        self._connection = RabbitConnection(url, "asking", patience)
        self._connection_errors = (*CONNECTION_ERRORS, driver().exceptions.AMQPError)
        self._lock = asyncio.Lock()
        self._reply_queue: ReplyQueue | None = None
        self._pending: set[RabbitPendingRequest] = set()
        self._loop = EventLoopThread("headwater-asking")

    def request(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> RabbitPendingRequest:
        """Returns a question that is not asked yet."""
        return RabbitPendingRequest(self, OutgoingRequest(subject, value, timeout, as_, scope=_SCOPE))

    def close(self) -> None:
        """Close the connection; pending requests are cancelled."""
        if not self._loop.closed:
            self._loop.run(self._close())
            self._loop.close()

    def __enter__(self) -> RabbitRequester:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for_answer(self, pending: RabbitPendingRequest) -> bytes:
        """Returns what was answered; called by the question."""
        return self._loop.run(self._wait_for_answer(pending))

    def cancel(self, pending: RabbitPendingRequest) -> None:
        """Release the waiter and tell responders; called by the request."""
        if not self._loop.closed:
            self._loop.run(self._cancel(pending))

    async def _wait_for_answer(self, pending: RabbitPendingRequest) -> bytes:
        self._pending.add(pending)
        try:
            while True:
                reply = await self._send_request(pending)
                if reply.problem is None:
                    return bytes(reply.value)
                error = HeadwaterError.from_problem(reply.problem)
                if not isinstance(error, NoAnswerError) or error.data.get("sent", True):
                    raise error
                # Whoever had it ends and has not put it to the function: others may.
        except asyncio.CancelledError:
            if pending.request.cancelled:  # by `close`, before it was sent
                raise pending.request.no_answer_error("the question was cancelled", sent=False) from None
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
        except self._connection_errors as error:
            raise self._connection_error(str(error) or type(error).__name__) from None
        if document is NoReply.NO_RESPONDER:
            raise request.no_answer_error("nobody answers on it", sent=False)
        if document is NoReply.CANCELLED:
            raise request.no_answer_error("the question was cancelled", sent=True)
        if document is NoReply.FULL:
            what = f'too many questions wait at "{request.subject}"'
            raise OverloadedError(what, subject=request.subject)
        if document is NoReply.LOST:
            raise self._connection_error("the connection was lost while the question was under way")
        return msgspec.json.decode(document, type=Reply)

    async def _open_reply_queue(self, request: OutgoingRequest) -> ReplyQueue:
        async with self._lock:
            if self._reply_queue is None or not self._reply_queue.is_open:
                patience = min(max(0.0, request.time_left), self._connection.patience)
                self._reply_queue = await ReplyQueue.open(await self._connection.open_channel(patience=patience))
        if request.cancelled:
            raise request.no_answer_error("the question was cancelled", sent=False)
        return self._reply_queue

    async def _timeout_error(self, request: OutgoingRequest) -> HeadwaterError:
        if self._reply_queue is None or not self._reply_queue.is_open:
            return self._connection_error("there was no connection in time")
        if await self._connection.is_blocked():
            what = f"RabbitMQ at {self._connection.redacted_url} takes no questions: it is low on memory or disk"
            return OverloadedError(what, fix="rabbitmqctl status tells which alarm it is", subject=request.subject)
        return request.no_answer_error("it took too long, or whoever was to answer ended", sent=True)

    def _connection_error(self, detail: str) -> UnreachableError:
        what = f"RabbitMQ at {self._connection.redacted_url} is not reached, and the question may have been put or not"
        return UnreachableError(what, detail=detail, fix="look whether it runs, and ask again")

    async def _cancel(self, pending: RabbitPendingRequest) -> None:
        if self._reply_queue is not None and pending.id is not None:
            with contextlib.suppress(
                *self._connection_errors
            ):  # then the question is lost, too, or its time will be over
                await self._reply_queue.cancel(pending.request.subject, pending.id)

    async def _close(self) -> None:
        for question in self._pending:
            question.request.cancelled = True
        await asyncio.gather(*(self._cancel(question) for question in self._pending))
        await asyncio.sleep(0)  # whoever waited hears of it before the connection ends
        await self._connection.close()


class RabbitPendingRequest:
    """One pending request; `cancel` ends the wait from another thread."""

    def __init__(self, requester: RabbitRequester, request: OutgoingRequest) -> None:
        self._requester = requester
        self.request = request
        self.id: str | None = None

    def cancel(self) -> None:
        """Cancel the request; the function is not called unless it was already."""
        self.request.cancelled = True
        self._requester.cancel(self)

    def answer(self) -> Any:
        """Send the request and wait for the answer."""
        return self.request.decode_answer(self._requester.wait_for_answer(self))
