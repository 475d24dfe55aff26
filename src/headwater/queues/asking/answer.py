"""An answer as the user declares it: a subject, and the function that answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headwater.errors import BadEventError, BadWorkerError, Place
from headwater.events import to_row
from headwater.events.values import json_form, shown
from headwater.log.definition import check_name
from headwater.queues.worker import Takes, place_of, takes_of

__all__ = ["Answer", "plain_json"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A function that answers questions on a subject. Made by `@app.answer`.

    Args:
        subject: What the questions are about, such as "prices.quote".
        function: Called with the question's value; what it returns is the answer.
        takes: What it is called with.
        threads: How many questions are answered at a time in each process.
        processes: How many processes there are for it alone; 0 shares one with the app's other workers.
        limit: How many questions may wait in a process; more are refused at once.
        place: Where the user wrote it.
    """

    subject: str
    function: Callable[..., Any] = field(compare=False)
    takes: Takes
    threads: int = 4
    processes: int = 0
    limit: int = 1_000
    place: Place | None = field(default=None, compare=False)

    @classmethod
    def of(cls, function: Callable[..., Any], subject: str, **options: Any) -> Answer:
        """Check what the user wrote.

        Raises:
            BadWorkerError: The function cannot answer, or a number is below one.

        Example:
            >>> def quote(question: dict) -> dict: ...
            >>> Answer.of(quote, "prices.quote").subject
            'prices.quote'
        """
        place = place_of(function)
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, int) or value < 1:
                raise BadWorkerError(f"{value!r} {name} of an answer", fix=f"{name}=1 or more", place=place)
        takes = takes_of(function, place=place)
        if takes.order != ("value",):
            what = "a function that answers is called with the question's value and nothing else"
            raise BadWorkerError(what, fix="def quote(question: Question) -> Quote: …", place=place)
        return cls(
            subject=check_name(subject, what="subject"), function=function, takes=takes, place=place, **given
        )

    @property
    def asynchronous(self) -> bool:
        """Whether its function is to be awaited."""
        return inspect.iscoroutinefunction(self.function)


def plain_json(value: Any) -> bytes:
    """Any value that JSON can hold: a number, a text, a list, a dict, an instance of a class with fields.

    Example:
        >>> from decimal import Decimal
        >>> plain_json({"price": Decimal("9.90")}), plain_json(None)
        (b'{"price":"9.9"}', b'null')

    Raises:
        BadEventError: It holds what JSON cannot.
    """
    try:
        return msgspec.json.encode(json_form(to_row({"": value})[""]))
    except ValueError as error:
        raise BadEventError(f"{shown(value)} has no JSON form: {error}") from None
