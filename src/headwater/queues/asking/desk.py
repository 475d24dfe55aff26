"""Where questions on one subject are answered: so many at a time, while so many wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headwater.errors import AnswerFailedError, HeadwaterError, OverloadedError
from headwater.queues.asking.answer import Answer, plain_json
from headwater.queues.asking.wire import Ask, Reply
from headwater.queues.body import Bodies
from headwater.queues.message import failure

__all__ = ["Desk"]


class Desk:
    """One subject in one process; each question is answered in the thread that brings it.

    Args:
        answer: What the user declared.

    Example:
        >>> desk = Desk(Answer.of(lambda question: question * 2, "double"))
        >>> bytes(desk.reply(Ask(1, "double", msgspec.Raw(b"21"), left=5), wanted=lambda: True).value)
        b'42'
        >>> desk.close(deadline=0)
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._bodies = Bodies(as_=answer.takes.as_)
        self._free = threading.Semaphore(answer.threads)
        self._lock = threading.Lock()
        self._here = 0
        self._loop = _Loop() if answer.asynchronous else None

    def reply(self, ask: Ask, wanted: Callable[[], bool]) -> Reply | None:
        """The reply; None when nobody waits for it any more, in which case the function was not called.

        Args:
            ask: The question; the time that is left for it runs from now.
            wanted: Whether somebody still waits for the answer; asked when it is the question's turn.
        """
        try:
            return self._reply(ask, wanted)
        except HeadwaterError as error:
            return Reply(ask.number, problem=error.problem())

    def close(self, deadline: float) -> None:
        """Wait for what runs, until the deadline on the monotonic clock."""
        for _ in range(self.answer.threads):
            self._free.acquire(timeout=max(0.0, deadline - time.monotonic()))
        if self._loop is not None:
            self._loop.close()

    def _reply(self, ask: Ask, wanted: Callable[[], bool]) -> Reply | None:
        deadline = time.monotonic() + ask.left
        with self._lock:
            if self._here >= self.answer.limit + self.answer.threads:
                raise OverloadedError(f'too many questions wait at "{ask.subject}"', subject=ask.subject)
            self._here += 1
        try:
            if not self._free.acquire(timeout=max(0.0, ask.left)):
                return None
            try:
                if time.monotonic() >= deadline or not wanted():
                    return None
                return Reply(ask.number, msgspec.Raw(self._called(ask, deadline)))
            finally:
                self._free.release()
        finally:
            with self._lock:
                self._here -= 1

    def _called(self, ask: Ask, deadline: float) -> bytes:
        value = self._bodies.decode(bytes(ask.value))
        try:
            result = self.answer.function(value)
            if self._loop is not None:
                result = self._loop.run(result, deadline)
            return plain_json(result)
        except (Exception, SystemExit) as error:
            raise _carried(ask.subject, error) from None


class _Loop:
    """An event loop in a thread, for async functions."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headwater-answers-loop", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Any, deadline: float) -> Any:
        """What it returns; it is cancelled when nobody waits for it any more."""

        async def limited() -> Any:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await coroutine

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _carried(subject: str, error: BaseException) -> AnswerFailedError:
    kind, message = type(error).__name__, str(error)
    return AnswerFailedError(
        f'the answer to "{subject}" failed: {kind}: {message}'.rstrip(": "),
        detail=failure(error).strip(),
        subject=subject,
        type=kind,
        message=message,
        stack=failure(error),
    )
