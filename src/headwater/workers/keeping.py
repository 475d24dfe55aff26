"""Keeps messages with the workers that work on them: their time is extended until they are settled."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from headwater.errors import HeadwaterError
from headwater.queues import Message

__all__ = ["Keeping"]

logger = logging.getLogger("headwater.workers")
_TIMES: Final = 3  # so often within the visibility time, so that one late extension harms nobody


class Keeping:
    """One thread that extends what is under way. It sleeps while nothing is, or nothing is due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Message, tuple[float, float]] = {}
        self._wakes_at = math.inf
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="headwater-keeping", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def kept(self, message: Message, visible: timedelta) -> Iterator[None]:
        """The message stays with its receiver until the block ends."""
        every = visible.total_seconds() / _TIMES
        with self._changed:
            due = time.monotonic() + every
            self._due[message] = (due, every)
            if due < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(message, None)

    def close(self) -> None:
        """Extend nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = min((at for at, _ in self._due.values()), default=math.inf)
                left = self._wakes_at - time.monotonic()
                if not self._closed and left > 0:
                    self._changed.wait(None if self._wakes_at == math.inf else left)
                if self._closed:
                    return
                now = time.monotonic()
                due = [message for message, (at, _) in self._due.items() if at <= now]
                for message in due:
                    self._due[message] = (now + self._due[message][1], self._due[message][1])
            for message in due:
                _extend(message)


def _extend(message: Message) -> None:
    try:
        if not message.settled and not message.extend() and not message.settled:
            logger.warning("%r was not kept: its time was over, and others may work on it too", message)
    except HeadwaterError as error:
        logger.warning("%r could not be kept: %s", message, error.what)
