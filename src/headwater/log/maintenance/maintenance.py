"""Periodic maintenance of a log: idle markers, retention, compaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from headwater.errors import HeadwaterError, LockedError
from headwater.log.event_log import EventLog
from headwater.log.maintenance.compaction import CompactionResult, compact
from headwater.log.maintenance.idle_markers import IdleDetector
from headwater.log.maintenance.retention import RetentionResult, apply_retention
from headwater.log.open_topic import OpenTopic
from headwater.log.storage import PartitionState
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["Maintenance"]

logger = logging.getLogger("headwater.log")
_CLEANUP_INTERVAL = timedelta(minutes=1)  # between two runs of retention and compaction


class Maintenance:
    """The maintenance thread of a node; `run_once` does all of it now.

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
        self._thread: threading.Thread | None = None

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
            lateness = definition.lateness // timedelta(microseconds=1)
            is_awaited = lambda known: self._max_event_time() > known - lateness  # noqa: E731
            due = self._idle_detector.due_table_markers(definition, ends, is_awaited)
        else:
            due = self._idle_detector.due_markers(definition, ends, partial(self._arrival, topic, ends))
        for number, time in due:
            topic.partitions[number].append_idle_marker(time)

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
        now = self._log.clock.micros()
        return [compact(topic, number, now, eager=eager) for number in range(len(topic.partitions))]

    def start(self) -> None:
        """Start a thread: idle markers each second, the rest each minute."""
        self._thread = threading.Thread(target=self._run, name="headwater-maintenance", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last_cleanup = self._log.clock.monotonic()
        while not self._stopped.wait(1.0):
            self.for_each_topic(self.append_idle_markers)
            if self._log.clock.monotonic() - last_cleanup >= _CLEANUP_INTERVAL.total_seconds():
                last_cleanup = self._log.clock.monotonic()
                self.for_each_topic(self.apply_retention)
                self.for_each_topic(self.compact)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
