"""Decides which idle markers are due: event time that must advance without events.

A topic is *live* if the record that set its max event time arrived at most lateness + idle after that time. Event time
of a live topic advances while it is idle. History, such as a file of last year that is loaded in pieces, is not live:
its event time advances with its events alone, until someone says that it is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headwater.events import Clock
from headwater.log.protocol import PartitionEnd
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.topic import Topic

__all__ = ["MIN_STALL", "IdleDetector"]

_MAX_PAUSE: Final = timedelta(hours=1)
MIN_STALL: Final = timedelta(seconds=5)
"""After a longer time without a check, a process may have been stopped."""

Ends = Mapping[int, PartitionEnd]


@dataclass
class _Silence:
    """The silence of a partition or a topic, in seconds of the monotonic clock.

    `since` is the check that first saw the present end, `covered_to` the last marker, and `pause` the time from there
    to the next one.
    """

    end: int
    since: float
    covered_to: float
    pause: float

    def cover(self, now: float, width: int) -> float:
        """Record a marker and return the seconds that it covers."""
        seconds, self.covered_to = now - self.covered_to, now
        self.end += width
        return seconds

    def lengthen_pause(self, idle: timedelta) -> None:
        """Wait twice as long for the next marker, up to an hour."""
        self.pause = min(2 * self.pause, max(idle, _MAX_PAUSE).total_seconds())


@dataclass
class _TopicSilence:
    """What the checks have seen of a topic: the silence of each partition, and of the topic as a whole."""

    whole: _Silence
    partitions: dict[int, _Silence]
    first_event_at: float | None = None

    def observe(self, ends: Ends, now: float, idle: timedelta) -> None:
        """Start the silence of each partition anew whose end has changed."""
        for number, end in ends.items():
            known = self.partitions.get(number)
            if known is None or known.end != end.next_offset:
                self.partitions[number] = _Silence(end.next_offset, now, now, idle.total_seconds())
                self.whole = _Silence(0, now, now, idle.total_seconds())
        if self.first_event_at is None and any(end.max_event_time > LOWEST_TIME for end in ends.values()):
            self.first_event_at = now


class IdleDetector:
    """Determines which idle markers are due.

    Silence is measured on the monotonic clock, from the check that first saw the present end of a partition.

    - An idle partition of a live topic is raised to the lowest max event time of the partitions that move.
    - A live topic that is idle as a whole is raised by the length of its silence: first after the topic's idle time,
      then at growing intervals of up to an hour, because each marker is a batch for all readers.
    - The rows of a table are valid until they change, so an idle table is complete up to the present. Its markers carry
      the clock's time. They come at steady intervals while a join waits for them, and otherwise at growing ones. A
      table that is not live, or never had a version, gets them only while what it is joined with is live.

    Args:
        clock: The clock.
        width: The number of offsets that a marker takes.

    Example:
        >>> from headwater.events import ManualClock
        >>> from headwater.log.storage import PartitionState
        >>> clock = ManualClock("2026-01-01T00:00:00Z")
        >>> topic, now = Topic.declare("orders", "id int", idle="30 s"), clock.micros()
        >>> detector, ends = IdleDetector(clock), {0: PartitionState(next_offset=7, max_event_time=now)}
        >>> list(detector.due_markers(topic, ends, lambda partition: now))
        []
        >>> clock.advance("40 seconds")
        >>> [(partition, time - now) for partition, time in detector.due_markers(topic, ends, lambda partition: now)]
        [(0, 40000000)]
    """

    def __init__(self, clock: Clock, width: int = 1) -> None:
        self._clock = clock
        self._width = width
        self._topics: dict[str, _TopicSilence] = {}

    def count_anew(self, topic: Topic, stalled: timedelta) -> bool:
        """Forget the silence of a topic if no check ran for too long: its events may have had to wait, too.

        Args:
            topic: The topic.
            stalled: The time since the previous check, measured after this one.

        Returns:
            Whether no check ran for too long: the markers that this one found due must not be appended.
        """
        if stalled <= max(MIN_STALL, topic.idle / 2):
            return False
        self._topics.pop(topic.name, None)
        return True

    def next_due(self, topic: Topic, looked: float) -> float:
        """Returns the monotonic time of the next check that can find something, if no event arrives until then.

        Args:
            topic: The topic.
            looked: A time before the last check: what came due since then may not have been seen.
        """
        seen, idle = self._topics.get(topic.name), topic.idle.total_seconds()
        if seen is None:
            return looked
        times = [seen.whole.covered_to + seen.whole.pause]
        if seen.first_event_at is not None:
            times.append(seen.first_event_at + idle)
        for silence in seen.partitions.values():
            times += [silence.since + idle, silence.covered_to + idle, silence.covered_to + silence.pause]
        return min((time for time in times if time > looked), default=math.inf)

    def _observe(self, topic: Topic, ends: Ends, now: float) -> _TopicSilence:
        new = _TopicSilence(_Silence(0, now, now, topic.idle.total_seconds()), {})
        seen = self._topics.setdefault(topic.name, new)
        seen.observe(ends, now, topic.idle)
        return seen

    def due_markers(self, topic: Topic, ends: Ends, arrived_at: Callable[[int], int]) -> Iterator[tuple[int, int]]:
        """Yields the partitions of a topic of events whose marker is due, and the time that it carries.

        Args:
            topic: The topic.
            ends: End and max event time of its partitions.
            arrived_at: Returns when the record arrived that set the max event time of a partition.
        """
        now = self._clock.monotonic()
        seen = self._observe(topic, ends, now)
        times = {number: end.max_event_time for number, end in ends.items() if end.max_event_time > LOWEST_TIME}
        if not times or seen.first_event_at is None:
            return
        # A partition without events is idle if it has had none since the topic's first one.
        since = {n: each.since if n in times else seen.first_event_at for n, each in seen.partitions.items()}
        idle = [number for number in ends if now - since[number] >= topic.idle.total_seconds()]
        newest = max(times, key=times.__getitem__)
        if not idle or not topic.is_live(times[newest], arrived_at(newest)):
            return
        moving = [times[number] for number in times if number not in idle]
        if moving:
            yield from self._raise_partitions(seen, {n: times.get(n, LOWEST_TIME) for n in idle}, min(moving), topic)
        elif now - seen.whole.covered_to >= seen.whole.pause:
            silence = round(seen.whole.cover(now, 0) * 1e6)
            seen.whole.lengthen_pause(topic.idle)
            for number, each in seen.partitions.items():
                each.cover(now, self._width)
                yield number, times.get(number, min(times.values())) + silence

    def _raise_partitions(
        self, seen: _TopicSilence, idle: Mapping[int, int], time: int, topic: Topic
    ) -> Iterator[tuple[int, int]]:
        now = self._clock.monotonic()
        for number, reached in idle.items():
            silence = seen.partitions[number]
            if reached < time and now - silence.covered_to >= topic.idle.total_seconds():
                silence.cover(now, self._width)
                yield number, time

    def due_raises(self, topic: Topic, ends: Ends, time: int) -> Iterator[tuple[int, int]]:
        """Yields the partitions of a topic without events that are raised to a time now.

        Args:
            topic: The topic.
            ends: End and max event time of its partitions.
            time: The time.
        """
        seen = self._observe(topic, ends, self._clock.monotonic())
        reached = {number: end.max_event_time for number, end in ends.items()}
        yield from self._raise_partitions(seen, reached, time, topic)

    def due_table_markers(
        self, topic: Topic, ends: Ends, is_awaited: Callable[[int], bool], is_complete: Callable[[], bool]
    ) -> Iterator[tuple[int, int]]:
        """Yields the partitions of a table whose marker is due, and the time that it carries.

        Args:
            topic: The table's topic.
            ends: End and max event time of its partitions.
            is_awaited: Returns whether a join waits for the table, given the time up to which it is complete; called
                only if it matters, because it may read all topics.
            is_complete: Returns whether no older version may still come: the table is live, or what it is joined with
                is; called only if it matters.
        """
        now, idle = self._clock.monotonic(), topic.idle.total_seconds()

        def is_due(number: int, silence: _Silence) -> bool:
            waited = now - silence.covered_to
            return waited >= silence.pause or (waited >= idle and is_awaited(ends[number].max_event_time))

        silences = self._observe(topic, ends, now).partitions
        due = [number for number, silence in silences.items() if is_due(number, silence)]
        for number in due if due and is_complete() else ():
            silences[number].cover(now, self._width)
            silences[number].lengthen_pause(topic.idle)
            yield number, max(self._clock.micros(), ends[number].max_event_time)
