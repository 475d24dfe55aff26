"""Detects idle partitions whose event time must advance without events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial

from headwater.events import Clock
from headwater.log.protocol import PartitionEnd
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["IdleDetector"]

_MAX_PAUSE = timedelta(hours=1)


class IdleDetector:
    """Determines which idle markers are due.

    An idle partition gets one after the topic's idle time, then at growing intervals of up to an hour.
    Event time advances as fast as the wall clock, so that windows close. Idle time is measured on the
    monotonic clock, so that a jump of the wall clock does not advance event time.

    The rows of a table are valid until they change, so an idle table is complete up to the present. Its
    markers carry the clock's time. They come at steady intervals while a join waits for them, and otherwise
    at growing ones, because each is a batch for all readers of the table.

    Args:
        clock: The wall clock and the monotonic clock.

    Example:
        >>> from headwater.events import ManualClock
        >>> from headwater.log.storage import PartitionState
        >>> clock = ManualClock("2026-01-01T00:00:00Z")
        >>> detector, ends = IdleDetector(clock), {0: PartitionState(next_offset=7, max_event_time=1_000)}
        >>> list(detector.due_markers("orders", ends, timedelta(seconds=30)))
        []
        >>> clock.advance("40 seconds")
        >>> list(detector.due_markers("orders", ends, timedelta(seconds=30)))
        [(0, 40001000)]
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # End offset, the moment since which it has not changed, and seconds from then until the next marker.
        self._last_seen: dict[tuple[str, int], tuple[int, float, float]] = {}

    def due_markers(
        self,
        topic: str,
        ends: Mapping[int, PartitionEnd],
        idle: timedelta,
        width: int = 1,
        *,
        table_awaited: Callable[[int], bool] | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Yields the partitions whose marker is due, and the time that it carries.

        Args:
            topic: The topic's name.
            ends: End and max event time of its partitions.
            idle: The topic's idle time.
            width: Number of offsets that a marker takes.
            table_awaited: For a table: whether a join waits for it, given the time up to which it is complete.
        """
        furthest = max((end.max_event_time for end in ends.values()), default=LOWEST_TIME)
        for number, end in ends.items():
            # `bool()` is False. The function is called only when its result matters: it may read all topics.
            is_awaited = bool if table_awaited is None else partial(table_awaited, end.max_event_time)
            idle_seconds = self._idle_seconds((topic, number), end.next_offset, idle, width, is_awaited)
            if idle_seconds is not None and table_awaited is not None:
                yield number, max(self._clock.micros(), end.max_event_time)
                continue
            if idle_seconds is None or furthest == LOWEST_TIME:
                continue
            known = end.max_event_time > LOWEST_TIME
            yield number, end.max_event_time + int(idle_seconds * 1e6) if known else furthest

    def _idle_seconds(
        self, key: tuple[str, int], end_offset: int, idle: timedelta, width: int, is_awaited: Callable[[], bool]
    ) -> float | None:
        """Returns the seconds since the last marker or event if a marker is due; None if not."""
        now = self._clock.monotonic()
        end, since, pause = self._last_seen.get(key, (-1, now, 0.0))
        if end != end_offset:
            self._last_seen[key] = (end_offset, now, idle.total_seconds())
            return None
        if now - since < pause and (now - since < idle.total_seconds() or not is_awaited()):
            return None
        longer = min(2 * pause, max(idle, _MAX_PAUSE).total_seconds())
        self._last_seen[key] = (end_offset + width, now, longer)
        return now - since
