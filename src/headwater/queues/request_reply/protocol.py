"""The protocols of request/reply, and one outgoing request with its deadline.

`Requester` and `Responder` are implemented over sockets (sockets.py) and over RabbitMQ (queues/rabbitmq).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError
from headwater.events import from_row
from headwater.log.topic import check_name
from headwater.queues.request_reply.dispatcher import encode_json
from headwater.queues.request_reply.wire import Request

__all__ = ["OutgoingRequest", "PendingRequest", "Replies", "Requester", "Responder", "ask_all"]

_MAX_THREADS: Final = 64


class PendingRequest(Protocol):
    """One request; its timeout runs from its creation."""

    def answer(self) -> Any:
        """Send the request and wait for the answer.

        Raises:
            NoAnswerError: There was none in time.
            AnswerFailedError: The function that answers raised an error.
            OverloadedError: Too many questions wait.
            BadEventError: The value does not fit what the function takes.
            UnreachableError: What carries questions is away.
        """

    def cancel(self) -> None:
        """End the wait from another thread; the function is not called unless it was already."""


class Requester(Protocol):
    """Sends requests to responders; safe to share between threads."""

    def request(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> PendingRequest:
        """Returns a request that is not sent yet, with its timeout in seconds and the class of its answer."""

    def close(self) -> None:
        """Close all connections; pending requests are cancelled."""


class Responder(Protocol):
    """Answers requests from its creation until it is closed."""

    def close(self, grace: float = 10.0) -> None:
        """Accept no more requests; running ones may finish within `grace` seconds."""


@dataclass(frozen=True)
class Replies:
    """What came of several questions by the time limit, in the order in which they were asked.

    Args:
        answers: The answers; None where there is none.
        errors: Why there is none, by the number of the question, counted from 0.

    Example:
        >>> from headwater.errors import NoAnswerError
        >>> Replies([3, None], {1: NoAnswerError("too late")}).complete
        False
    """

    answers: list[Any]
    errors: dict[int, HeadwaterError]

    @property
    def complete(self) -> bool:
        """Whether every question was answered."""
        return not self.errors


def ask_all(
    requester: Requester, subject: str, values: Sequence[Any], timeout: float, as_: type | None = None
) -> Replies:
    """Returns the answers to several questions, asked at the same time; what is not there in time is left out."""
    pending = [requester.request(subject, value, timeout, as_) for value in values]
    answers: list[Any] = [None] * len(pending)
    errors: dict[int, HeadwaterError] = {}

    def ask_one(number: int) -> None:
        try:
            answers[number] = pending[number].answer()
        except HeadwaterError as error:
            errors[number] = error

    with ThreadPoolExecutor(max(1, min(_MAX_THREADS, len(pending)))) as threads:
        list(threads.map(ask_one, range(len(pending))))
    return Replies(answers, dict(sorted(errors.items())))


class OutgoingRequest:
    """One question, whichever way it goes.

    Args:
        subject: What it is about.
        value: What the function is called with.
        timeout: Seconds for the answer, from now.
        as_: The class to make of the answer.
        scope: What whoever answers must share with us, for the error that says that nobody does.

    Example:
        >>> request = OutgoingRequest("prices.quote", {"article": "tea"}, 5, None, scope="runs on the same data folder")
        >>> request.decode_answer(b'{"cents":990}')
        {'cents': 990}
        >>> request.no_answer_error("it took too long", sent=True).data
        {'subject': 'prices.quote', 'sent': True}
    """

    def __init__(self, subject: str, value: Any, timeout: float, as_: type | None, *, scope: str) -> None:
        self.subject = check_name(subject, what="subject")
        self.deadline = time.monotonic() + timeout
        self.cancelled = False
        self._value = encode_json(value)
        self._timeout = timeout
        self._as = as_
        self._scope = scope

    @property
    def time_left(self) -> float:
        """Seconds until its time is over."""
        return self.deadline - time.monotonic()

    def to_wire(self) -> Request:
        """As it goes to whoever answers."""
        return Request(1, self.subject, msgspec.Raw(self._value), self.time_left)

    def decode_answer(self, body: bytes) -> Any:
        """Returns the answer, as the asker wants it."""
        value = msgspec.json.decode(body)
        return value if self._as is None else from_row(self._as, value)

    def no_answer_error(self, why: str, *, sent: bool) -> NoAnswerError:
        """Returns the error for when there is no answer; `sent` says whether anybody may have got the question."""
        return NoAnswerError(
            f'no answer to "{self.subject}" within {self._timeout:g} seconds',
            detail="the question was cancelled" if self.cancelled else why,
            fix=None if sent else f'@app.answer("{self.subject}"), in an app that {self._scope}',
            subject=self.subject,
            sent=sent,
        )
