"""What every way to ask and answer does, whichever way questions go."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headwater.errors import HeadwaterError

__all__ = ["Answering", "Asker", "Gathered", "Question", "ask_all"]

_AT_ONCE: Final = 64


class Question(Protocol):
    """One question; its time runs from the moment when it is made."""

    def answer(self) -> Any:
        """Ask, and wait for the answer.

        Raises:
            NoAnswerError: There was none in time.
            AnswerFailedError: The function that answers raised an error.
            OverloadedError: Too many questions wait.
            BadEventError: The value does not fit what the function takes.
            UnreachableError: What carries questions is away.
        """

    def cancel(self) -> None:
        """End the wait from another thread: the function is not called, unless it was already."""


class Asker(Protocol):
    """Asks questions of whoever answers; safe to share between threads."""

    def question(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> Question:
        """A question that is not asked yet, with seconds for its answer and the class to make of it."""

    def close(self) -> None:
        """End all connections; questions under way are cancelled."""


class Answering(Protocol):
    """Answers questions, from when it is made until it is closed."""

    def close(self, grace: float = 10.0) -> None:
        """Take no more questions; what is being answered may finish within `grace` seconds."""


@dataclass(frozen=True)
class Gathered:
    """What came of several questions by the time limit, in the order in which they were asked.

    Args:
        answers: The answers; None where there is none.
        errors: Why there is none, by the number of the question, counted from 0.

    Example:
        >>> from headwater.errors import NoAnswerError
        >>> Gathered([3, None], {1: NoAnswerError("too late")}).complete
        False
    """

    answers: list[Any]
    errors: dict[int, HeadwaterError]

    @property
    def complete(self) -> bool:
        """Whether every question was answered."""
        return not self.errors


def ask_all(
    asker: Asker, subject: str, values: Sequence[Any], timeout: float, as_: type | None = None
) -> Gathered:
    """The answers to several questions, asked at the same time; what is not there in time is left out."""
    questions = [asker.question(subject, value, timeout, as_) for value in values]
    answers: list[Any] = [None] * len(questions)
    errors: dict[int, HeadwaterError] = {}

    def one(number: int) -> None:
        try:
            answers[number] = questions[number].answer()
        except HeadwaterError as error:
            errors[number] = error

    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(questions)))) as threads:
        list(threads.map(one, range(len(questions))))
    return Gathered(answers, dict(sorted(errors.items())))
