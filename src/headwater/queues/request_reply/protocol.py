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
            NoAnswerError: No answer came in time.
            AnswerFailedError: The function that answers raised an error.
            OverloadedError: Too many requests wait.
            BadEventError: The value does not match the type of the function's parameter.
            UnreachableError: The broker does not answer.
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
    """The answers to several requests, in the order of the requests.

    Args:
        answers: The answers; None for a request without one.
        errors: The errors of requests without an answer, by the index of the request.

    Example:
        >>> from headwater.errors import NoAnswerError
        >>> Replies([3, None], {1: NoAnswerError("too late")}).complete
        False
    """

    answers: list[Any]
    errors: dict[int, HeadwaterError]

    @property
    def complete(self) -> bool:
        """Whether every request was answered."""
        return not self.errors


def ask_all(
    requester: Requester, subject: str, values: Sequence[Any], timeout: float, as_: type | None = None
) -> Replies:
    """Send several requests at the same time; returns the answers that come within `timeout` seconds."""
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
    """One request with its deadline, on any transport.

    Args:
        subject: The subject.
        value: The argument of the function that answers.
        timeout: Seconds for the answer, from now.
        as_: The class of the answer.
        scope: What a responder must share with the requester, for the error without one.

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
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def to_wire(self) -> Request:
        """Returns the request as it is sent."""
        return Request(1, self.subject, msgspec.Raw(self._value), self.time_left)

    def decode_answer(self, body: bytes) -> Any:
        """Returns the answer as an instance of the requested class."""
        value = msgspec.json.decode(body)
        return value if self._as is None else from_row(self._as, value)

    def no_answer_error(self, why: str, *, sent: bool) -> NoAnswerError:
        """Returns the error for a missing answer; `sent` says whether a responder may have got the request."""
        return NoAnswerError(
            f'no answer to "{self.subject}" within {self._timeout:g} seconds',
            detail="the request was cancelled" if self.cancelled else why,
            fix=None if sent else f'@app.answer("{self.subject}"), in an app that {self._scope}',
            subject=self.subject,
            sent=sent,
        )
