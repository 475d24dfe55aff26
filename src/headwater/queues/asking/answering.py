"""The side that answers: a socket, a thread for each connection, and a bound on what runs and waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import AnswerFailedError, HeadwaterError, NoAnswerError, OverloadedError, TooLargeError
from headwater.queues.asking.addresses import Addresses
from headwater.queues.asking.answer import Answer, plain_json
from headwater.queues.asking.wire import Ask, Line, Reply, hung_up
from headwater.queues.body import Bodies
from headwater.queues.message import failure

__all__ = ["Answering"]

logger = logging.getLogger("headwater.workers")
_WAITING: Final = 512  # connections that may wait to be taken


class Answering:
    """Answers questions until it is closed.

    Args:
        data: The data folder, where others find the address.
        answers: What to answer.

    Example:
        >>> from headwater.queues.asking.asker import Asker
        >>> folder = Path(tempfile.mkdtemp())
        >>> def double(question): return question["n"] * 2
        >>> with Answering(folder, [Answer.of(double, "double")]), Asker(folder) as asker:
        ...     asker.ask("double", {"n": 21}, timeout=10)
        42
    """

    def __init__(self, data: Path, answers: Sequence[Answer]) -> None:
        self._desks = {answer.subject: _Desk(answer) for answer in answers}
        self._home = tempfile.mkdtemp(prefix="headwater-")
        self._addresses = Addresses(data)
        self._lines: set[Line] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = f"{self._home}/s"
        self._listening.bind(address)
        self._listening.listen(_WAITING)
        self._thread = threading.Thread(target=self._accept, name="headwater-answers", daemon=True)
        self._thread.start()
        self._files = [self._addresses.add(subject, address) for subject in self._desks]

    def close(self, grace: float = 10.0) -> None:
        """Take no more questions; what is being answered may finish within `grace` seconds."""
        self._closed = True
        for file in self._files:
            self._addresses.remove(file)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        deadline = time.monotonic() + grace
        for desk in self._desks.values():
            desk.close(deadline)
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed, or out of descriptors: those who ask then find nobody here
                if not self._closed:
                    time.sleep(0.1)
                continue
            line = Line(connection)
            with self._lock:
                self._lines.add(line)
            threading.Thread(target=self._serve, args=[line], name="headwater-answer", daemon=True).start()

    def _serve(self, line: Line) -> None:
        try:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                while (document := line.receive()) is not None:
                    ask = msgspec.json.decode(document, type=Ask)
                    reply = self._replied(ask, line)
                    if reply is not None:
                        _send(line, reply)
        finally:
            line.close()
            with self._lock:
                self._lines.discard(line)

    def _replied(self, ask: Ask, line: Line) -> Reply | None:
        desk = self._desks.get(ask.subject)
        try:
            if desk is None or self._closed:
                raise NoAnswerError(
                    f'"{ask.subject}" is not answered here any more', subject=ask.subject, sent=False
                )
            return desk.answered(ask, line)
        except HeadwaterError as error:
            return Reply(ask.number, problem=error.problem())

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Desk:
    """One subject: how many questions are answered at a time, how many wait."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._bodies = Bodies(as_=answer.takes.as_)
        self._free = threading.Semaphore(answer.threads)
        self._lock = threading.Lock()
        self._here = 0
        self._loop = _Loop() if answer.asynchronous else None

    def answered(self, ask: Ask, line: Line) -> Reply | None:
        """The reply; None when nobody waits for it any more, in which case the function was not called."""
        deadline = time.monotonic() + ask.left
        with self._lock:
            if self._here >= self._answer.limit + self._answer.threads:
                raise OverloadedError(f'too many questions wait at "{ask.subject}"', subject=ask.subject)
            self._here += 1
        try:
            if not self._free.acquire(timeout=max(0.0, ask.left)):
                return None
            try:
                if time.monotonic() >= deadline or hung_up(line.connection):
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
            result = self._answer.function(value)
            if self._loop is not None:
                result = self._loop.run(result, deadline)
            return plain_json(result)
        except (Exception, SystemExit) as error:
            raise _carried(ask.subject, error) from None

    def close(self, deadline: float) -> None:
        """Wait for what runs, until the deadline."""
        for _ in range(self._answer.threads):
            self._free.acquire(timeout=max(0.0, deadline - time.monotonic()))
        if self._loop is not None:
            self._loop.close()


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


def _send(line: Line, reply: Reply) -> None:
    try:
        line.send(reply)
    except TooLargeError as error:
        line.send(Reply(reply.number, problem=error.problem()))


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
