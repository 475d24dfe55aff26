"""What a client does with queues and questions: create, publish, receive; ask."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack

from headwater.client.queue import OpenQueue, seconds_of
from headwater.errors import BadSettingError, HeadwaterError, Place
from headwater.events import Clock
from headwater.queues import Broker, Queue, QueueOptions, open_broker
from headwater.queues.asking import Asker, Gathered, Question
from headwater.units import duration

__all__ = ["QueueCalls"]


class QueueCalls:
    """The part of a client that has to do with queues; the broker is opened when it is first used.

    Args:
        folder: The data folder; None for a client that has none.
        queues: The broker's URL; None for queues in the data folder.
        clock: What time it is.
    """

    def __init__(self, folder: Path | None, queues: str | None, clock: Clock) -> None:
        self._folder = folder
        self._queues = queues
        self._clock = clock
        self._broker: Broker | None = None
        self._asker: Asker | None = None
        self._lock = threading.Lock()

    def create_queue(self, name: str, type_: object = None, /, **options: Unpack[QueueOptions]) -> Queue:
        """Create a queue, or bring an existing one up to this type and these options.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: The type of its values; without one, any dict that JSON can hold is taken.
            options: See `QueueOptions`.

        Example:
            >>> import headwater as hw, tempfile
            >>> with hw.connect(tempfile.mkdtemp()) as client:
            ...     _ = client.create_queue("emails", "to string", retry=hw.retry(3, backoff="1s"))
            ...     client.queues()
            ['emails']
        """
        place = Place.of_caller()
        try:
            return self.broker.declare(Queue.declare(name, type_, place=place, **options))
        except HeadwaterError as error:
            error.place = error.place or place
            raise

    def queues(self) -> list[str]:
        """Names of all queues."""
        return self.broker.queues()

    def queue(
        self,
        name: str,
        *,
        group: str | None = None,
        as_: type | None = None,
        prefetch: int = 10,
        timeout: str | timedelta | None = None,
    ) -> OpenQueue:
        """A queue, for publishing and receiving.

        Args:
            name: Which one.
            group: For which group to receive; the first, if left out.
            as_: The class to make of each value; dicts if left out.
            prefetch: How many messages may be received and not yet settled at a time.
            timeout: Iteration ends after this long without messages; it waits for ever if left out.

        Raises:
            UnknownQueueError: There is no such queue.
        """
        wait = None if timeout is None else duration(timeout)
        return OpenQueue(self.broker, name, group=group, as_=as_, prefetch=prefetch, timeout=wait)

    # -- questions -----------------------------------------------------------------------------------------------

    def ask(
        self,
        subject: str,
        value: Any = None,
        *,
        timeout: float | str | timedelta = 5,
        as_: type | None = None,
    ) -> Any:
        """Ask a question and wait for the answer; `@app.answer(subject)` declares who answers.

        Nothing is kept: the function is called at most once, and not at all when the time is over before its turn.

        Args:
            subject: What the question is about, such as "prices.quote".
            value: What the function is called with.
            timeout: How long to wait, in seconds if it is a number.
            as_: The class to make of the answer.

        Raises:
            NoAnswerError: There was no answer in time.
            AnswerFailedError: The function that answers raised an error; `data` has its type, message and stack.
            OverloadedError: Too many questions wait.

        Example:
            >>> import headwater as hw, tempfile
            >>> with hw.connect(tempfile.mkdtemp()) as client:
            ...     client.ask("prices.quote", {"article": "tea"}, timeout=0.01)
            Traceback (most recent call last):
            headwater.errors.NoAnswerError: NO_ANSWER: no answer to "prices.quote" within 0.01 seconds
            ...
        """
        return self.question(subject, value, timeout=timeout, as_=as_).answer()

    def ask_all(
        self,
        subject: str,
        values: Iterable[Any],
        *,
        timeout: float | str | timedelta = 5,
        as_: type | None = None,
    ) -> Gathered:
        """Ask several questions at the same time, for instance one for each partition, and gather the answers.

        Args:
            subject: What the questions are about.
            values: What the function is called with, for each question.
            timeout: How long to wait for all of them, in seconds if it is a number.
            as_: The class to make of each answer.
        """
        return self._asked().ask_all(subject, list(values), seconds_of(timeout) or 0.0, as_)

    def question(
        self, subject: str, value: Any, *, timeout: float | str | timedelta = 5, as_: type | None = None
    ) -> Question:
        """A question that another thread can cancel."""
        return Question(self._asked(), subject, value, seconds_of(timeout) or 0.0, as_)

    def _asked(self) -> Asker:
        with self._lock:
            if self._asker is None:
                self._asker = Asker(self._require_folder())
            return self._asker

    @property
    def broker(self) -> Broker:
        """What keeps the queues: the folder, or the broker of the profile."""
        with self._lock:
            if self._broker is None:
                self._broker = open_broker(self._queues or str(self._require_folder()), self._clock)
            return self._broker

    def _require_folder(self) -> Path:
        if self._folder is None:
            what = "queues and questions are not served over this connection"
            detail = (
                "a node serves topics and views; queues are in the data folder, or at the broker of a profile"
            )
            raise BadSettingError(what, detail=detail, fix='hw.connect(".headwater"), with the data folder')
        return self._folder

    def close_queues(self) -> None:
        """Let go of the broker and of those who answer, if they were used."""
        with self._lock:
            if self._asker is not None:
                self._asker.close()
                self._asker = None
            if self._broker is not None:
                self._broker.close()
                self._broker = None
