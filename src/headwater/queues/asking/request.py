"""What is asked, by when, and what the asker is told in the end."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headwater.errors import NoAnswerError
from headwater.events import from_row
from headwater.log.definition import check_name
from headwater.queues.asking.answer import plain_json
from headwater.queues.asking.wire import Ask

__all__ = ["Request"]


class Request:
    """One question, whichever way it goes.

    Args:
        subject: What it is about.
        value: What the function is called with.
        timeout: Seconds for the answer, from now.
        as_: The class to make of the answer.
        where: What whoever answers must share with us, for the error that says that nobody does.

    Example:
        >>> request = Request("prices.quote", {"article": "tea"}, 5, None, where="runs on the same data folder")
        >>> request.result(b'{"cents":990}')
        {'cents': 990}
        >>> request.unanswered("it took too long", sent=True).data
        {'subject': 'prices.quote', 'sent': True}
    """

    def __init__(self, subject: str, value: Any, timeout: float, as_: type | None, *, where: str) -> None:
        self.subject = check_name(subject, what="subject")
        self.deadline = time.monotonic() + timeout
        self.cancelled = False
        self._value = plain_json(value)
        self._timeout = timeout
        self._as = as_
        self._where = where

    @property
    def left(self) -> float:
        """Seconds until its time is over."""
        return self.deadline - time.monotonic()

    def asked(self) -> Ask:
        """As it goes to whoever answers."""
        return Ask(1, self.subject, msgspec.Raw(self._value), self.left)

    def result(self, body: bytes) -> Any:
        """The answer, as the asker wants it."""
        value = msgspec.json.decode(body)
        return value if self._as is None else from_row(self._as, value)

    def unanswered(self, why: str, *, sent: bool) -> NoAnswerError:
        """The error for when there is no answer; `sent` says whether anybody may have got the question."""
        return NoAnswerError(
            f'no answer to "{self.subject}" within {self._timeout:g} seconds',
            detail="the question was cancelled" if self.cancelled else why,
            fix=None if sent else f'@app.answer("{self.subject}"), in an app that {self._where}',
            subject=self.subject,
            sent=sent,
        )
