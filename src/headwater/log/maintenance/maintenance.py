"""Periodic maintenance of a log: idle markers, retention, compaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from headwater.errors import HeadwaterError, LockedError
from headwater.log.consumer_groups import PIPELINE_GROUP_PREFIX
from headwater.log.event_log import EventLog
from headwater.log.maintenance.awaited_topics import InputTime, find_awaited_time
from headwater.log.maintenance.compaction import CompactionResult, compact
from headwater.log.maintenance.idle_markers import IdleDetector
from headwater.log.maintenance.retention import RetentionResult, apply_retention
from headwater.log.open_topic import OpenTopic
from headwater.log.storage import AnchoredClock, PartitionState
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["Maintenance"]

logger = logging.getLogger("headwater.log")
_MICROSECOND = timedelta(microseconds=1)
_MARKER_INTERVAL = timedelta(seconds=1)
_CLEANUP_INTERVAL = timedelta(minutes=1)  # between two runs of retention and compaction


class Maintenance:
    """The maintenance of a node, in two threads; `run_once` does all of it now.

    Args:
        log: The log.
        assume_live: Take every topic as live, whatever its event times; for tests of apps.

    Example:
        >>> import tempfile
        >>> log = EventLog(tempfile.mkdtemp())
        >>> Maintenance(log).run_once()
    """

    def __init__(self, log: EventLog, *, assume_live: bool = False) -> None:
        self._log = log
        self._assume_live = assume_live
        self._idle_detector = IdleDetector(log.clock)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._untrusted: str | None = None  # why nothing is removed by age, as logged last

    def run_once(self) -> None:
        """Append idle markers, apply retention and compact all topics; failures are logged and retried."""
        self.for_each_topic(self.append_idle_markers)
        self.for_each_topic(self.apply_retention)
        self.for_each_topic(self.compact)

    def for_each_topic(self, work: Callable[[OpenTopic], object]) -> None:
        """Call a function for every topic, tables last; a failure in one topic does not affect the others."""
        opened = []
        for name in self._log.topics():
            with self._log_errors(name):
                topic = self._log.open_topic(name)
                topic.reload()  # another process may have changed its settings
                opened.append(topic)
        for topic in sorted(opened, key=lambda topic: topic.definition.is_table):
            with self._log_errors(topic.definition.name):
                work(topic)

    @contextmanager
    def _log_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except LockedError:  # another process does this work now
            pass
        except (HeadwaterError, OSError):
            logger.exception("maintenance of topic %s failed", name)

    def append_idle_markers(self, topic: OpenTopic) -> None:
        """Append the idle markers that are due; skips topics with externally kept event time."""
        definition = topic.definition
        if definition.external_time:
            return
        ends = {partition.number: partition.state() for partition in topic.partitions}
        if definition.is_table:
            lateness = definition.lateness // _MICROSECOND
            is_awaited = lambda known: self._max_event_time() > known - lateness  # noqa: E731
            due = self._idle_detector.due_table_markers(definition, ends, is_awaited)
        elif not any(end.appended_at for end in ends.values()):
            pipelines = self._log.groups.topics_by_group(PIPELINE_GROUP_PREFIX)
            time = find_awaited_time(definition.name, pipelines, self._input_time)
            due = self._idle_detector.due_raises(definition, ends, LOWEST_TIME if time is None else time)
        else:
            due = self._idle_detector.due_markers(definition, ends, partial(self._arrival, topic, ends))
        for number, time in due:
            topic.partitions[number].append_idle_marker(time)

    def _input_time(self, name: str) -> InputTime | None:
        if name not in self._log.topics():
            return None
        topic = self._log.open_topic(name)
        ends = {partition.number: partition.state() for partition in topic.partitions}

        def is_live() -> bool:
            newest = max(ends, key=lambda number: ends[number].max_event_time)
            return topic.definition.is_live(ends[newest].max_event_time, self._arrival(topic, ends, newest))

        return InputTime.of(topic.definition, ends.values(), is_live)

    def _arrival(self, topic: OpenTopic, ends: Mapping[int, PartitionState], number: int) -> int:
        """Returns when the record arrived that set the max event time of a partition."""
        end = ends[number]
        if self._assume_live:
            return end.max_event_time
        # It arrived no later than the last event. The exact moment is searched only if it makes a difference.
        if topic.definition.is_live(end.max_event_time, end.appended_at):
            return end.appended_at
        return topic.partitions[number].max_event_time_arrival()

    def _max_event_time(self) -> int:
        """Returns the max event time of all topics that are not tables."""
        newest = LOWEST_TIME
        for name in self._log.topics():
            with self._log_errors(name):
                topic = self._log.open_topic(name)
                if not topic.definition.is_table:
                    newest = max(newest, *(partition.state().max_event_time for partition in topic.partitions))
        return newest

    def apply_retention(self, topic: OpenTopic) -> list[RetentionResult]:
        """Apply the topic's retention to each partition."""
        retention = topic.definition.retention
        if retention.time is not None and self._waits_for_trusted_time():
            retention = replace(retention, time=None)
        if retention.time is None and retention.size is None:
            return []
        name = topic.definition.name
        groups = [state for state in self._log.groups.states() if state.topic == name]
        # Durable first: after a power cut no group may be at an offset that retention has removed.
        for state in groups:
            self._log.groups.sync_offsets(state.group, name)
        return [
            apply_retention(
                partition,
                retention,
                self._log.clock,
                {s.group: s.committed[partition.number] for s in groups if partition.number in s.committed},
            )
            for partition in topic.partitions
        ]

    def compact(self, topic: OpenTopic, *, eager: bool = False) -> list[CompactionResult]:
        """Compact each partition of a compacted topic."""
        if not topic.definition.compact:
            return []
        # Tombstones are removed by age, too; at time 0 none is old.
        now = self._log.clock.micros() if self._explain_untrusted_time() is None else 0
        return [compact(topic, number, now, eager=eager) for number in range(len(topic.partitions))]

    def _explain_untrusted_time(self) -> str | None:
        """Returns why nothing may be removed by its age now; None if the time can be trusted."""
        clock = self._log.clock
        if not isinstance(clock, AnchoredClock):
            return None
        if clock.jump:
            return "the wall clock jumped by more than a minute; if it is right now: headwater doctor --accept-clock"
        return "the machine or this log started less than an hour ago" if clock.unsettled_for else None

    def renew_clock(self) -> None:
        """Renew the anchor of the folder's clock."""
        if isinstance(self._log.clock, AnchoredClock):
            with self._log_errors("clock"):
                self._log.clock.renew()

    def _waits_for_trusted_time(self) -> bool:
        """Returns whether nothing may be removed by age now; logs the reason when it changes."""
        reason = self._explain_untrusted_time()
        if reason != self._untrusted:
            logger.warning("retention by time %s", "continues" if reason is None else f"waits: {reason}")
        self._untrusted = reason
        return reason is not None

    def start(self) -> None:
        """Start two threads: one checks for idle markers each second, the other does the rest each minute."""
        for name, work in (("markers", self._run_markers), ("cleanup", self._run_cleanup)):
            thread = threading.Thread(target=work, name=f"headwater-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run_markers(self) -> None:
        # Nothing slow runs in this thread: a long gap means that the process or the machine was stopped.
        checked_at = self._log.clock.micros()
        while not self._stopped.wait(_MARKER_INTERVAL.total_seconds()):
            before, checked_at = checked_at, self._log.clock.micros()
            self.check_idle((checked_at - before) * _MICROSECOND)

    def check_idle(self, stalled: timedelta) -> None:
        """Append the idle markers of all topics that are due.

        Args:
            stalled: The time since the previous check; after a long one, silence is counted anew.
        """

        def check(topic: OpenTopic) -> None:
            self._idle_detector.count_anew(topic.definition, stalled)
            self.append_idle_markers(topic)

        self.for_each_topic(check)

    def _run_cleanup(self) -> None:
        self.renew_clock()
        while not self._stopped.wait(_CLEANUP_INTERVAL.total_seconds()):
            self.renew_clock()
            self.for_each_topic(self.apply_retention)
            self.for_each_topic(self.compact)

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=10)
