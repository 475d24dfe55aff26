"""The side that asks: finds who answers, waits on a connection of its own, and gives up when the time is over."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, OverloadedError
from headwater.queues.asking.addresses import Addresses
from headwater.queues.asking.request import Request
from headwater.queues.asking.wire import Line, Reply, hung_up

__all__ = ["SocketAsker", "SocketQuestion"]

logger = logging.getLogger("headwater.asking")
_WHERE: Final = "runs on the same data folder"


class SocketAsker:
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

    def question(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> SocketQuestion:
        """A question that is not asked yet."""
        return SocketQuestion(self, Request(subject, value, timeout, as_, where=_WHERE))

    def close(self) -> None:
        """End all connections; questions under way are cancelled."""
        with self._lock:
            lines = list(self._lines)
            self._idle = {}
        for line in lines:
            line.close()

    def __enter__(self) -> SocketAsker:
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
        except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
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
            if line.receive(deadline) is None:
                raise ConnectionResetError("nobody took the connection")
        except OSError:
            line.close()
            raise
        with self._lock:
            self._lines.add(line)
        return line


class SocketQuestion:
    """One question under way; `cancel` ends the wait from another thread."""

    def __init__(self, asker: SocketAsker, request: Request) -> None:
        self._asker = asker
        self._request = request
        self._line: Line | None = None

    def cancel(self) -> None:
        """Nobody waits for the answer any more: the function is not called, unless it was already."""
        self._request.cancelled = True
        if self._line is not None:
            self._line.close()

    def answer(self) -> Any:
        """Ask, and wait for the answer."""
        request = self._request
        tried: list[str] = []
        error: HeadwaterError | None = None
        while not request.cancelled:
            places = self._asker.found(request.subject, tried, request.deadline)
            if not places:
                break
            address, line = self._asker.connected(places, request.deadline)
            tried.append(address)
            if line is None:
                continue
            reply = self._replied(address, line)
            if reply.problem is None:
                return request.result(bytes(reply.value))
            error = HeadwaterError.from_problem(reply.problem)
            if not isinstance(error, OverloadedError | NoAnswerError):
                break  # others would say the same
        raise error or request.unanswered("nobody answers on it", sent=False)

    def _replied(self, address: str, line: Line) -> Reply:
        """What came back. A connection on which something is still to come is not used again."""
        self._line, usable, request = line, False, self._request
        try:
            line.limit(request.deadline)
            line.send(request.asked())
            document = line.receive(request.deadline)
            if document is None:
                raise request.unanswered(
                    "whoever was to answer ended, or did not come to it in time", sent=True
                )
            usable = True
            return msgspec.json.decode(document, type=Reply)
        except TimeoutError:
            raise request.unanswered("it took too long", sent=True) from None
        except OSError:
            raise request.unanswered("whoever was to answer ended", sent=True) from None
        finally:
            self._line = None
            self._asker.released(address, line, usable=usable)
            if not usable:
                line.close()
