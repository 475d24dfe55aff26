"""The side that answers: a socket, a thread for each connection, and a bound on what runs and waits."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import TooLargeError
from headwater.queues.asking.addresses import Addresses
from headwater.queues.asking.answer import Answer
from headwater.queues.asking.desk import Desk
from headwater.queues.asking.wire import Ask, Line, Reply, handed_back, hung_up

__all__ = ["SocketAnswering"]

logger = logging.getLogger("headwater.workers")
_WAITING: Final = 512  # connections that may wait to be taken


class SocketAnswering:
    """Answers questions until it is closed.

    Args:
        data: The data folder, where others find the address.
        answers: What to answer.

    Example:
        >>> from headwater.queues.asking.asker import SocketAsker
        >>> folder = Path(tempfile.mkdtemp())
        >>> def double(question): return question["n"] * 2
        >>> with SocketAnswering(folder, [Answer.of(double, "double")]), SocketAsker(folder) as asker:
        ...     asker.question("double", {"n": 21}, timeout=10).answer()
        42
    """

    def __init__(self, data: Path, answers: Sequence[Answer]) -> None:
        self._desks = {answer.subject: Desk(answer) for answer in answers}
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
                line.greet()
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
        if desk is None or self._closed:
            return handed_back(ask)
        return desk.reply(ask, wanted=lambda: not hung_up(line.connection))

    def __enter__(self) -> SocketAnswering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _send(line: Line, reply: Reply) -> None:
    try:
        line.send(reply)
    except TooLargeError as error:
        line.send(Reply(reply.number, problem=error.problem()))
