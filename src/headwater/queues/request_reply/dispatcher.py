"""Answers requests on one subject, with bounds on running and waiting requests.

`Answer` is what the user declares: a subject and a function. `Dispatcher` calls the function for each
request of one process.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headwater.errors import (
    AnswerFailedError,
    BadEventError,
    BadWorkerError,
    HeadwaterError,
    NoAnswerError,
    OverloadedError,
    SourceLocation,
)
from headwater.events import to_row
from headwater.events.values import preview, to_json_value
from headwater.log.topic import check_name
from headwater.queues.declarations import WorkerArguments, inspect_arguments, location_of
from headwater.queues.event_loop import EventLoopThread
from headwater.queues.message import MessageCodec, format_traceback
from headwater.queues.request_reply.wire import Reply, Request

__all__ = ["Answer", "Dispatcher", "encode_json"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A function that answers requests on a subject. Made by `@app.answer`.

    Args:
        subject: The subject of the requests, such as "prices.quote".
        function: Called with the value of a request; its return value is the answer.
        arguments: The arguments of the function.
        threads: The number of requests answered at a time in each process.
        processes: The number of processes of its own; 0 shares one with the app's other workers.
        limit: The number of requests that may wait in a process, or on RabbitMQ in all; more are refused at once.
        location: Where the user wrote it.
    """

    subject: str
    function: Callable[..., Any] = field(compare=False)
    arguments: WorkerArguments
    threads: int = 4
    processes: int = 0
    limit: int = 1_000
    location: SourceLocation | None = field(default=None, compare=False)

    @classmethod
    def from_function(cls, function: Callable[..., Any], subject: str, **options: Any) -> Answer:
        """Returns the answer declared by a function.

        Raises:
            BadWorkerError: The function takes other arguments than a value, or a number is below one.

        Example:
            >>> def quote(question: dict) -> dict: ...
            >>> Answer.from_function(quote, "prices.quote").subject
            'prices.quote'
        """
        location = location_of(function)
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, int) or value < 1:
                what = f"an answer cannot have {value!r} {name}"
                raise BadWorkerError(what, fix=f"{name}=1", detail="use 1 or more", location=location)
        arguments = inspect_arguments(function, location=location)
        if arguments.parameters != ("value",):
            what = "a function that answers is called with the value of the request and nothing else"
            raise BadWorkerError(what, fix="def quote(question: Question) -> Quote: …", location=location)
        return cls(
            subject=check_name(subject, what="subject"),
            function=function,
            arguments=arguments,
            location=location,
            **given,
        )


def encode_json(value: Any) -> bytes:
    """Returns a value as JSON: a number, a text, a list, a dict, or an instance of a class with fields.

    Example:
        >>> from decimal import Decimal
        >>> encode_json({"price": Decimal("9.90")}), encode_json(None)
        (b'{"price":"9.9"}', b'null')

    Raises:
        BadEventError: The value has no JSON form.
    """
    try:
        return msgspec.json.encode(to_json_value(to_row({"": value})[""]))
    except ValueError as error:
        raise BadEventError(f"{preview(value)} has no JSON form: {error}") from None


class Dispatcher:
    """Answers requests on one subject in one process; each runs in the thread that calls `dispatch`.

    Args:
        answer: The declaration.

    Example:
        >>> dispatcher = Dispatcher(Answer.from_function(lambda question: question * 2, "double"))
        >>> bytes(dispatcher.dispatch(Request(1, "double", msgspec.Raw(b"21"), left=5), is_wanted=lambda: True).value)
        b'42'
        >>> dispatcher.close(deadline=0)
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._codec = MessageCodec(as_=answer.arguments.as_)
        self._slots = threading.Semaphore(answer.threads)
        self._lock = threading.Lock()
        self._pending = 0
        is_async = inspect.iscoroutinefunction(answer.function)
        self._loop = EventLoopThread("headwater-answers-loop") if is_async else None

    def dispatch(self, request: Request, is_wanted: Callable[[], bool]) -> Reply | None:
        """Returns the reply; None when the requester waits no longer, in which case the function is not called.

        Args:
            request: The request; its remaining time runs from now.
            is_wanted: Whether the requester still waits; asked right before the function is called.
        """
        try:
            return self._dispatch(request, is_wanted)
        except HeadwaterError as error:
            return Reply(request.number, problem=error.problem())

    def close(self, deadline: float) -> None:
        """Wait for running requests until the deadline on the monotonic clock, then cancel async ones."""
        for _ in range(self.answer.threads):
            self._slots.acquire(timeout=max(0.0, deadline - time.monotonic()))
        if self._loop is not None:
            self._loop.close()

    def _dispatch(self, request: Request, is_wanted: Callable[[], bool]) -> Reply | None:
        deadline = time.monotonic() + request.left
        with self._lock:
            if self._pending >= self.answer.limit + self.answer.threads:  # waiting and running ones
                raise OverloadedError(f'too many requests wait on "{request.subject}"', subject=request.subject)
            self._pending += 1
        try:
            if not self._slots.acquire(timeout=max(0.0, request.left)):
                return None
            try:
                if time.monotonic() >= deadline or not is_wanted():
                    return None
                return Reply(request.number, msgspec.Raw(self._call(request, deadline)))
            except _DeadlinePassed:
                return None
            finally:
                self._slots.release()
        finally:
            with self._lock:
                self._pending -= 1

    def _call(self, request: Request, deadline: float) -> bytes:
        value = self._codec.decode(bytes(request.value))
        try:
            result = self.answer.function(value)
            if self._loop is not None:
                result = self._loop.run(_await_until(deadline, result))
            return encode_json(result)
        except _DeadlinePassed:
            raise
        except CancelledError:  # by `close`, when the grace period was over
            what = f'the responder of "{request.subject}" ended'
            detail = "the function was interrupted"
            raise NoAnswerError(what, detail=detail, subject=request.subject, sent=True) from None
        except (Exception, SystemExit) as error:
            subject, kind, stack = request.subject, type(error).__name__, format_traceback(error)
            raise AnswerFailedError(
                f'the answer to "{subject}" failed: {kind}: {error}'.rstrip(": "),
                detail=stack.strip(),
                subject=subject,
                type=kind,
                message=str(error),
                stack=stack,
            ) from None


class _DeadlinePassed(Exception):
    """The requester waits no longer, so there is nobody to reply to."""


async def _await_until(deadline: float, answer: Coroutine[Any, Any, Any]) -> Any:
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())) as limit:
            return await answer
    except TimeoutError:
        # The user's function may raise a TimeoutError of its own: that is a failed answer.
        if limit.expired():
            raise _DeadlinePassed from None
        raise
