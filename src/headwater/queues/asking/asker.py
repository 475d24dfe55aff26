"""The side that asks: finds who answers, waits on a connection of its own, and gives up when the time is over."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, OverloadedError
from headwater.events import from_row
from headwater.queues.asking.addresses import Addresses
from headwater.queues.asking.answer import plain_json
from headwater.queues.asking.wire import Ask, Line, Reply, hung_up

__all__ = ["Asker", "Gathered", "Question"]

logger = logging.getLogger("headwater.asking")
_AT_ONCE: Final = 64


@dataclass(frozen=True)
class Gathered:
    """What came of several questions by the time limit, in the order in which they were asked.

    Args:
        answers: The answers; None where there is none.
        errors: Why there is none, by the number of the question, counted from 0.

    Example:
        >>> Gathered([3, None], {1: NoAnswerError("too late")}).complete
        False
    """

    answers: list[Any]
    errors: dict[int, HeadwaterError]

    @property
    def complete(self) -> bool:
        """Whether every question was answered."""
        return not self.errors


class Asker:
    """Asks questions of whoever answers in a data folder; safe to share between threads.

    Args:
        data: The data folder.
    """

    def __init__(self, data: Path) -> None:
        self._addresses = Addresses(data)
        self._idle: dict[str, list[Line]] = {}
        self._lines: set[Line] = set()
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()

    def ask(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> Any:
        """The answer to a question.

        Raises:
            NoAnswerError: There was none in time.
            AnswerFailedError: The function that answers raised an error.
            OverloadedError: Too many questions wait.
            BadEventError: The value does not fit what the function takes.
        """
        return Question(self, subject, value, timeout, as_).answer()

    def ask_all(
        self, subject: str, values: Sequence[Any], timeout: float, as_: type | None = None
    ) -> Gathered:
        """The answers to several questions, asked at the same time; what is not there in time is left out."""
        questions = [Question(self, subject, value, timeout, as_) for value in values]
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

    def close(self) -> None:
        """End all connections; questions under way are cancelled."""
        with self._lock:
            lines = list(self._lines)
            self._idle = {}
        for line in lines:
            line.close()

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- connections ---------------------------------------------------------------------------------------------

    def found(self, subject: str, tried: Collection[str], deadline: float) -> dict[Path, str]:
        """Where a subject is answered and was not asked yet; if nobody answers at all, waits for somebody who will."""
        found = self._addresses.of(subject)
        if not found:
            with contextlib.closing(self._addresses.watch(subject)) as coming:
                while not (found := self._addresses.of(subject)) and time.monotonic() < deadline:
                    coming.wait(deadline - time.monotonic())
        return {file: address for file, address in found.items() if address not in tried}

    def connected(self, places: dict[Path, str], deadline: float) -> tuple[str, Line | None]:
        """A connection to the one of these places that has least to do for us; None when nobody is there."""
        with self._lock:
            file, address = min(places.items(), key=lambda at: (self._busy.get(at[1], 0), random.random()))
            self._busy[address] = self._busy.get(address, 0) + 1
        try:
            return address, self._line(address, deadline)
        except (ConnectionRefusedError, FileNotFoundError):
            self._addresses.remove(file)  # whoever left it there has died
        except OSError as error:
            logger.warning("cannot ask at %s: %s", address, error)
        self.released(address, None)
        return address, None

    def released(self, address: str, line: Line | None, *, usable: bool = False) -> None:
        """A question is over; its connection can be used again, unless something may still come on it."""
        with self._lock:
            self._busy[address] -= 1
            if line is not None and usable:
                self._idle.setdefault(address, []).append(line)
            elif line is not None:
                self._lines.discard(line)

    def _line(self, address: str, deadline: float) -> Line:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                line = idle.pop() if idle else None
            if line is None:
                break
            if not hung_up(line.connection):
                return line
            with self._lock:
                self._lines.discard(line)
            line.close()
        line = Line(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            line.limit(deadline)
            line.connection.connect(address)
        except OSError:
            line.close()
            raise
        with self._lock:
            self._lines.add(line)
        return line


class Question:
    """One question under way; `cancel` ends the wait from another thread."""

    def __init__(
        self, asker: Asker, subject: str, value: Any, timeout: float, as_: type | None = None
    ) -> None:
        self._asker = asker
        self._subject = subject
        self._value = plain_json(value)
        self._as = as_
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._line: Line | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Nobody waits for the answer any more: the function is not called, unless it was already."""
        self._cancelled = True
        if self._line is not None:
            self._line.close()

    def answer(self) -> Any:
        """Ask, and wait for the answer."""
        tried: list[str] = []
        error: HeadwaterError | None = None
        while not self._cancelled:
            places = self._asker.found(self._subject, tried, self._deadline)
            if not places:
                break
            address, line = self._asker.connected(places, self._deadline)
            tried.append(address)
            if line is None:
                continue
            reply = self._replied(address, line)
            if reply.problem is None:
                return self._result(bytes(reply.value))
            error = HeadwaterError.from_problem(reply.problem)
            if not isinstance(error, OverloadedError | NoAnswerError):
                break  # others would say the same
        raise error or self._unanswered("nobody answers on it", sent=False)

    def _replied(self, address: str, line: Line) -> Reply:
        """What came back. A connection on which something is still to come is not used again."""
        self._line, usable = line, False
        try:
            line.limit(self._deadline)
            line.send(Ask(1, self._subject, msgspec.Raw(self._value), self._deadline - time.monotonic()))
            document = line.receive(self._deadline)
            if document is None:
                raise self._unanswered(
                    "whoever was to answer ended, or did not come to it in time", sent=True
                )
            usable = True
            return msgspec.json.decode(document, type=Reply)
        except TimeoutError:
            raise self._unanswered("it took too long", sent=True) from None
        except OSError:
            raise self._unanswered("whoever was to answer ended", sent=True) from None
        finally:
            self._line = None
            self._asker.released(address, line, usable=usable)
            if not usable:
                line.close()

    def _result(self, body: bytes) -> Any:
        value = msgspec.json.decode(body)
        return value if self._as is None else from_row(self._as, value)

    def _unanswered(self, why: str, *, sent: bool) -> NoAnswerError:
        return NoAnswerError(
            f'no answer to "{self._subject}" within {self._timeout:g} seconds',
            detail="the question was cancelled" if self._cancelled else why,
            fix=None
            if sent
            else f'@app.answer("{self._subject}"), in an app that runs on the same data folder',
            subject=self._subject,
            sent=sent,
        )
