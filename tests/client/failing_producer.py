"""A log whose appends fail at chosen events, and a program that sends again what was not acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headwater import errors
from headwater.client.producer import Producer
from headwater.events import Receipt, SystemClock
from headwater.log import PendingEvent, Topic
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import EventEncoder


class FailingAppends:
    """A log of which some appends fail in the background, as on a full disk.

    Args:
        log: The log that gets the others.
        failing: Whether the append of this number, counted from 0, fails.
        at_once: Whether the failure is known to the next send; if not, only to a flush.
    """

    def __init__(self, log: Any, failing: Callable[[int], bool], *, at_once: bool = True) -> None:
        self._log = log
        self._failing = failing
        self._at_once = at_once
        self._appends = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def begin_append(self, name: str, event: PendingEvent) -> Any:
        """Append an event, or fail."""
        self._appends += 1
        if not self._failing(self._appends):
            return self._log.begin_append(name, event)
        return PendingAppend(event, 1, error=errors.DiskFullError("the disk is full"), done=self._at_once)

    def await_append(self, name: str, pending: PendingAppend) -> Any:
        """Wait for an event."""
        if isinstance(pending.error, errors.DiskFullError):
            raise pending.error
        return self._log.await_append(name, pending)


def retry_until_acknowledged(log: Any, topic: Topic, chance: random.Random, events: int) -> list[tuple[int, Receipt]]:
    """Send numbers as a program does that keeps what it sends until `flush` has returned, and sometimes restarts.

    The number is the event's sequence number. Returns every receipt of a flush that returned, with its number.
    """
    told: list[tuple[int, Receipt]] = []
    done, producer = 0, None
    for _ in range(50 * events):
        if done == events:
            return told
        if producer is None or chance.random() < 0.1:  # a restart: what was sent and not acknowledged is sent again
            producer = Producer(log, SystemClock(), EventEncoder(topic), "till-7")
        end = min(events, done + chance.randint(1, 12))
        try:
            for number in range(done, end):
                producer.send({"n": number}, sequence=number)
            receipts = producer.flush()
        except errors.RefusedError:
            abandon(producer)
        except errors.DiskFullError:
            pass
        else:
            told += zip(range(done, end), receipts, strict=True)
            done = end
    raise AssertionError(f"no progress after event {done}")


def abandon(producer: Producer) -> None:
    """Take the error of the events that were not acknowledged."""
    try:
        producer.flush()
    except (errors.DiskFullError, errors.SequenceGapError):
        return
    raise AssertionError("flush has not raised")
