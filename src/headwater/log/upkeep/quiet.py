"""Which partitions have been quiet for so long that their time must go on without events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial

from headwater.events import Clock
from headwater.log.protocol import PartitionEnd
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["Quiet"]

_LONGEST_PAUSE = timedelta(hours=1)


class Quiet:
    """Tells which time marks are due.

    A quiet partition gets one after the topic's idle time, then at growing intervals of up to an hour: event time goes
    on as fast as the clock on the wall, so that windows close. How long it has been quiet is measured on the monotonic
    clock, so that a jump of the wall clock moves no event time.

    A table holds until it is changed: as long as it is quiet, it is known up to the present, whatever its newest row
    says about since when it holds. So its marks say what the clock says. They come at steady intervals while somebody
    waits for them, who joins events with it, and else at growing ones: each is a batch for all who read the table.

    Args:
        clock: What time it is.

    Example:
        >>> from headwater.events import ManualClock
        >>> from headwater.log.storage import Slot
        >>> clock = ManualClock("2026-01-01T00:00:00Z")
        >>> quiet, ends = Quiet(clock), {0: Slot(next_offset=7, running_max=1_000)}
        >>> list(quiet.due("orders", ends, timedelta(seconds=30)))
        []
        >>> clock.advance("40 seconds")
        >>> list(quiet.due("orders", ends, timedelta(seconds=30)))
        [(0, 40001000)]
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, int], tuple[int, float, float]] = {}  # end, since when, next mark after

    def due(
        self,
        topic: str,
        ends: Mapping[int, PartitionEnd],
        idle: timedelta,
        width: int = 1,
        *,
        table: Callable[[int], bool] | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Partitions whose mark is due, and the time it says.

        Args:
            topic: The topic's name.
            ends: Where its partitions end.
            idle: The topic's idle time.
            width: How many offsets a mark takes.
            table: Given for a table: whether somebody waits, if it is known up to a time.
        """
        furthest = max((end.running_max for end in ends.values()), default=LOWEST_TIME)
        for number, end in ends.items():
            waits = table is not None and partial(table, end.running_max)
            quiet = self._quiet_for((topic, number), end.next_offset, idle, width, waits or _nobody_waits)
            if quiet is not None and table is not None:
                yield number, max(self._clock.micros(), end.running_max)
                continue
            if quiet is None or furthest == LOWEST_TIME:
                continue
            known = end.running_max > LOWEST_TIME
            yield number, end.running_max + int(quiet * 1e6) if known else furthest

    def _quiet_for(
        self, place: tuple[str, int], at: int, idle: timedelta, width: int, waits: Callable[[], bool]
    ) -> float | None:
        """Seconds of silence to account for, when a mark is due."""
        now = self._clock.monotonic()
        end, since, pause = self._seen.get(place, (-1, now, 0.0))
        if end != at:
            self._seen[place] = (at, now, idle.total_seconds())
            return None
        if now - since < pause and (now - since < idle.total_seconds() or not waits()):
            return None
        longer = min(2 * pause, max(idle, _LONGEST_PAUSE).total_seconds())
        self._seen[place] = (at + width, now, longer)
        return now - since


def _nobody_waits() -> bool:
    return False
