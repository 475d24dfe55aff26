"""When a query plans its next batch: at once while there is work and room, never in a loop without either."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from headwater.log.protocol import TimedLog

__all__ = ["Pace"]

_LONGEST_WAIT = 1.0
_LONGEST_PAUSE = 5.0
_PRESSURE = Path("/proc/pressure/cpu")


class Pace:
    """Keeps the inputs of one query together: the first of them waits, for all of them.

    Spark asks each input in turn whether there is news, and again at once if there is none. So the first input waits
    until a topic of the query changes, then lets one round of questions pass, in whatever order they come. Each input
    notes in a file that all share whether it stopped short of its topic's end; as long as one did, nobody waits.

    After a batch with all there was, the first input pauses for as long as the batch took, times how short the machine
    is of processors: an idle machine gives the lowest latency, a busy one fewer and larger batches.

    Args:
        log: Where the topics are.
        topics: All topics of the query.
        number: Which input of the query this is; 0 is the one that waits.
        notes: A file with one byte per input.
        wait: The longest wait in seconds; Spark can end the query between two waits.
    """

    def __init__(
        self, log: TimedLog, topics: list[str], number: int, notes: str, wait: float = _LONGEST_WAIT
    ) -> None:
        self._number = number
        self._wait = wait
        self._wakeup = log.watch_times(topics) if number == 0 and wait else None
        self._file = os.open(notes, os.O_RDWR)
        self._notes = mmap.mmap(self._file, len(topics))
        self._planned_at: float | None = None
        self._woken = False

    def before_planning(self) -> None:
        """Pause after a batch, longer the busier the machine is."""
        if self._planned_at is None:
            return
        took = time.monotonic() - self._planned_at
        self._planned_at = None
        if self._number == 0 and self._wait:
            time.sleep(min(_LONGEST_PAUSE, took * _shortage()))

    def wait(self) -> None:
        """Wait for events of any input, unless one of them has more already."""
        if self._wakeup is None:
            return
        if self._woken or any(self._notes[:]):
            self._woken = False
        else:
            self._woken = self._wakeup.wait(self._wait)

    def planned(self, *, new: bool, more: bool) -> None:
        """Note what was planned."""
        self._notes[self._number] = more
        if new and not more:
            self._planned_at = time.monotonic()


def _shortage() -> float:
    """How much work waits for a processor: 0 when none does, 1 when some always does."""
    try:
        words = _PRESSURE.read_text().split()
        return float(words[1].removeprefix("avg10=")) / 100
    except (OSError, ValueError, IndexError):
        return min(1.0, max(0.0, os.getloadavg()[0] / (os.cpu_count() or 1) - 0.5))
