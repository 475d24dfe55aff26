"""The side that asks: a channel on which questions go out and answers to them come back."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, Final

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, OverloadedError, UnreachableError
from headwater.queues.asking.request import Request
from headwater.queues.asking.wire import Reply
from headwater.queues.rabbitmq.asking.mailbox import Mailbox, Unheard
from headwater.queues.rabbitmq.link import LOST, Link, driver
from headwater.queues.rabbitmq.loop_thread import LoopThread

__all__ = ["RabbitAsker", "RabbitQuestion"]

_WHERE: Final = "runs with the same RabbitMQ"


class RabbitAsker:
    """Asks questions through one RabbitMQ; safe to share between threads. Nothing is connected before it is needed.

    Args:
        url: `amqp://[user:password@]host[:port][,host…][/vhost]`.
        patience: How long to look for a RabbitMQ that answers, if the question has that much time.

    Raises:
        MissingPackageError: The package aio-pika is not installed.
        BadSettingError: The URL cannot be one.
    """

    def __init__(self, url: str, *, patience: timedelta = timedelta(seconds=30)) -> None:
        self._link = Link(url, "asking", patience)
        self._lost = (*LOST, driver().exceptions.AMQPError)
        self._lock = asyncio.Lock()
        self._mailbox: Mailbox | None = None
        self._open: set[RabbitQuestion] = set()
        self._loop = LoopThread("headwater-asking")

    def question(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> RabbitQuestion:
        """A question that is not asked yet."""
        return RabbitQuestion(self, Request(subject, value, timeout, as_, where=_WHERE))

    def close(self) -> None:
        """End the connection; questions under way are cancelled."""
        if not self._loop.closed:
            self._loop.run(self._close())
            self._loop.close()

    def __enter__(self) -> RabbitAsker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answered(self, question: RabbitQuestion) -> bytes:
        """What was answered; called by the question."""
        return self._loop.run(self._answered(question))

    def cancel(self, question: RabbitQuestion) -> None:
        """Tell whoever waits, and whoever might answer; called by the question."""
        self._loop.begin(self._cancel(question))

    async def _answered(self, question: RabbitQuestion) -> bytes:
        self._open.add(question)
        try:
            while True:
                reply = await self._replied(question)
                if reply.problem is None:
                    return bytes(reply.value)
                error = HeadwaterError.from_problem(reply.problem)
                if not isinstance(error, NoAnswerError) or error.data.get("sent", True):
                    raise error
                # Whoever had it ends and has not put it to the function: others may.
        except asyncio.CancelledError:
            if question.request.cancelled:  # by `close`, before it was sent
                raise question.request.unanswered("the question was cancelled", sent=False) from None
            raise
        finally:
            self._open.discard(question)

    async def _replied(self, question: RabbitQuestion) -> Reply:
        request = question.request
        try:
            async with asyncio.timeout_at(request.deadline) as limit:
                mailbox = await self._opened(request)
                question.id = mailbox.new_id()
                document = await mailbox.ask(request, question.id)
        except TimeoutError:
            if limit.expired():
                raise await self._too_late(request) from None
            raise self._cut_off("it does not answer") from None
        except self._lost as error:
            raise self._cut_off(str(error) or type(error).__name__) from None
        if document is Unheard.NOBODY:
            raise request.unanswered("nobody answers on it", sent=False)
        if document is Unheard.CANCELLED:
            raise request.unanswered("the question was cancelled", sent=True)
        if document is Unheard.FULL:
            what = f'too many questions wait at "{request.subject}"'
            raise OverloadedError(what, subject=request.subject)
        if document is Unheard.LOST:
            raise self._cut_off("the connection was lost while the question was under way")
        return msgspec.json.decode(document, type=Reply)

    async def _opened(self, request: Request) -> Mailbox:
        async with self._lock:
            if self._mailbox is None or not self._mailbox.live:
                patience = min(max(0.0, request.left), self._link.patience)
                self._mailbox = await Mailbox.opened(await self._link.channel(patience=patience))
        if request.cancelled:
            raise request.unanswered("the question was cancelled", sent=False)
        return self._mailbox

    async def _too_late(self, request: Request) -> HeadwaterError:
        if self._mailbox is None or not self._mailbox.live:
            return self._cut_off("there was no connection in time")
        if await self._link.blocked():
            what = f"RabbitMQ at {self._link.shown} takes no questions: it is low on memory or disk"
            return OverloadedError(
                what, fix="rabbitmqctl status tells which alarm it is", subject=request.subject
            )
        return request.unanswered("it took too long, or whoever was to answer ended", sent=True)

    def _cut_off(self, detail: str) -> UnreachableError:
        what = f"RabbitMQ at {self._link.shown} is not reached, and the question may have been put or not"
        return UnreachableError(what, detail=detail, fix="look whether it runs, and ask again")

    async def _cancel(self, question: RabbitQuestion) -> None:
        if self._mailbox is not None and question.id is not None:
            with contextlib.suppress(*self._lost):  # then the question is lost, too, or its time will be over
                await self._mailbox.cancel(question.request.subject, question.id)

    async def _close(self) -> None:
        for question in self._open:
            question.request.cancelled = True
        await asyncio.gather(*(self._cancel(question) for question in self._open))
        await asyncio.sleep(0)  # whoever waited hears of it before the connection ends
        await self._link.close()


class RabbitQuestion:
    """One question under way; `cancel` ends the wait from another thread."""

    def __init__(self, asker: RabbitAsker, request: Request) -> None:
        self._asker = asker
        self.request = request
        self.id: str | None = None

    def cancel(self) -> None:
        """Nobody waits for the answer any more: the function is not called, unless it was already."""
        self.request.cancelled = True
        self._asker.cancel(self)

    def answer(self) -> Any:
        """Ask, and wait for the answer."""
        return self.request.result(self._asker.answered(self))
