"""Periodic maintenance of a log: idle markers, retention, compaction."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from headwater.errors import HeadwaterError, LockedError
from headwater.log.event_log import EventLog
from headwater.log.maintenance.awaited_topics import InputTime, find_awaited_time, has_live_readers
from headwater.log.maintenance.compaction import CompactionResult, compact
from headwater.log.maintenance.idle_markers import MIN_STALL, IdleDetector
from headwater.log.maintenance.retention import RetentionResult, apply_retention, exceeds_limits
from headwater.log.open_topic import OpenTopic
from headwater.log.storage import AnchoredClock, PartitionState
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["Maintenance"]

logger = logging.getLogger("headwater.log")
_MICROSECOND = timedelta(microseconds=1)
_MARKER_INTERVAL = timedelta(seconds=1)
_EMPTY_INTERVAL = 5.0  # seconds between checks of a topic without events that no pipeline reads
_FRESH = 100_000_000  # nanoseconds; more than a tick of the kernel's clock
_CLEANUP_INTERVAL = timedelta(minutes=1)  # between two runs of retention and compaction


@dataclass(frozen=True)
class _Look:
    """What the last check of a topic for idle markers saw, and when the next one is due if nothing changes."""

    files: tuple[int, ...]  # of its files: size, inode and time of the last change
    due: float
    newest: int | None = None  # for a table: the max event time of all topics, for which joins may wait


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
        self._ran_at: int | None = None  # when the thread of idle markers last did something
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._looks: dict[str, _Look] = {}
        self._newest = LOWEST_TIME  # the max event time of all topics that are not tables, as far as they were checked
        self._pipeline_inputs: dict[str, list[str]] | None = None  # as this round read them
        self._untrusted: str | None = None  # why nothing is removed by age, as logged last

    def run_once(self) -> None:
        """Append idle markers, apply retention and compact all topics; failures are logged and retried."""
        self.for_each_topic(self.append_idle_markers)
        self.for_each_topic(self.apply_retention)
        self.for_each_topic(self.compact)

    def for_each_topic(self, work: Callable[[OpenTopic], object], names: Iterable[str] | None = None) -> None:
        """Call a function for these topics, or all; tables last. A failure in one topic does not affect the others."""
        self._log.release_deleted()
        opened = []
        for name in self._log.topics() if names is None else names:
            with self._log_errors(f"topic {name}"):
                topic = self._log.open_topic(name)
                topic.reload()  # another process may have changed its settings
                opened.append(topic)
        for topic in sorted(opened, key=lambda topic: topic.definition.is_table):
            with self._log_errors(f"topic {topic.definition.name}"):
                work(topic)

    @contextmanager
    def _log_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except LockedError:  # another process does this work now
            pass
        except (HeadwaterError, OSError):
            logger.exception("maintenance of %s failed", what)

    def append_idle_markers(self, topic: OpenTopic) -> None:
        """Append the idle markers that are due; skips topics with externally kept event time."""
        self._pipeline_inputs = None
        self._append(topic, self._due_markers(topic))

    def _append(self, topic: OpenTopic, markers: list[tuple[int, int]]) -> None:
        for number, reached in markers:
            topic.partitions[number].append_idle_marker(reached)
            if not topic.definition.is_table:
                self._newest = max(self._newest, reached)

    def _due_markers(self, topic: OpenTopic) -> list[tuple[int, int]]:
        """Returns the partitions whose marker is due, and the time that it carries."""
        definition = topic.definition
        if definition.external_time:
            return []
        ends = {partition.number: partition.state() for partition in topic.partitions}
        if not definition.is_table:
            self._newest = max(self._newest, *(end.max_event_time for end in ends.values()))
        if definition.is_table:
            lateness = definition.lateness // _MICROSECOND
            is_awaited = lambda known: self._max_event_time() > known - lateness  # noqa: E731
            is_complete = partial(self._is_complete, topic, ends)
            due = self._idle_detector.due_table_markers(definition, ends, is_awaited, is_complete)
        elif not any(end.appended_at for end in ends.values()):
            awaited = find_awaited_time(definition.name, self._read_pipeline_inputs(), self._input_time)
            due = self._idle_detector.due_raises(definition, ends, LOWEST_TIME if awaited is None else awaited)
        else:
            due = self._idle_detector.due_markers(definition, ends, partial(self._arrival, topic, ends))
        return list(due)

    def _read_pipeline_inputs(self) -> dict[str, list[str]]:
        """Returns the topics that each pipeline reads; looks at the groups once in a round."""
        found = self._pipeline_inputs  # another thread may begin a round meanwhile
        if found is None:
            found = self._pipeline_inputs = self._log.groups.pipeline_inputs()
        return found

    def _input_time(self, name: str) -> InputTime | None:
        """Returns the time of an input of a pipeline; None if it does not exist, or never had an event."""
        if name not in self._log.topics():
            return None
        topic = self._log.open_topic(name)
        ends = {partition.number: partition.state() for partition in topic.partitions}
        if not (
            topic.definition.is_table or topic.definition.external_time or any(end.appended_at for end in ends.values())
        ):
            return None

        return InputTime.of(topic.definition, ends.values(), partial(self._is_live, topic, ends))

    def _is_live(self, topic: OpenTopic, ends: Mapping[int, PartitionState]) -> bool:
        newest = max(ends, key=lambda number: ends[number].max_event_time)
        return topic.definition.is_live(ends[newest].max_event_time, self._arrival(topic, ends, newest))

    def _is_complete(self, topic: OpenTopic, ends: Mapping[int, PartitionState]) -> bool:
        """Returns whether no older version of a table may still come."""
        inputs = self._read_pipeline_inputs
        return self._is_live(topic, ends) or has_live_readers(topic.definition.name, inputs(), self._input_time)

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
            with self._log_errors(f"topic {name}"):
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
        # Groups are read and synced only if there is something to remove: most topics have nothing, most of the time.
        if not any(exceeds_limits(partition, retention, self._log.clock) for partition in topic.partitions):
            return []
        groups = self._log.groups.states(name)
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
            with self._log_errors("the clock"):
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
        while not self._stopped.wait(_MARKER_INTERVAL.total_seconds()):
            with self._log_errors("the log"):  # this thread must outlive every fault
                self.check_idle()

    def check_idle(self) -> None:
        """Append the idle markers of all topics that are due.

        After a long time without a check, silence is counted anew: this process or the machine was stopped, and events
        may have had to wait.
        """
        self._count_stall()
        self._pipeline_inputs = None
        now = self._log.clock.monotonic()
        files = {name: self._describe_files(name) for name in self._log.disk.names(self._log.folder / "topics")}
        self._looks = {name: look for name, look in self._looks.items() if name in files}

        def check(topic: OpenTopic) -> None:
            name = topic.definition.name
            self._looks.pop(name, None)  # if the check fails, the next one tries again
            looked = self._log.clock.monotonic()
            markers = self._due_markers(topic)
            # After the clock that measured the silence was read: a process can be stopped at any instruction.
            if not self._idle_detector.count_anew(topic.definition, self._count_stall()):
                self._append(topic, markers)
            self._looks[name] = self._remember(topic, files[name] or (), looked)

        due = [name for name, found in files.items() if found and self._is_due(name, found, now)]
        self.for_each_topic(check, due)
        checked = set(due)
        # What these checks found may be what a join over a table that has not changed waits for.
        rest = {name: found for name, found in files.items() if found and name not in checked}
        self.for_each_topic(check, [name for name, found in rest.items() if self._is_due(name, found, now)])

    def _count_stall(self) -> timedelta:
        """Returns the time since the last call; after a long one this process was stopped, and silence counts anew."""
        now = self._log.clock.micros()
        before, self._ran_at = self._ran_at or now, now
        stalled = (now - before) * _MICROSECOND
        if stalled > MIN_STALL:
            self._looks = {}
            self.for_each_topic(lambda topic: self._idle_detector.count_anew(topic.definition, stalled))
        return stalled

    def _is_due(self, name: str, files: tuple[int, ...], now: float) -> bool:
        """Whether a check of a topic can find something: its files changed, it is time, or a join may wait for it."""
        look = self._looks.get(name)
        return look is None or look.files != files or now >= look.due or look.newest not in (None, self._newest)

    def _remember(self, topic: OpenTopic, files: tuple[int, ...], looked: float) -> _Look:
        definition = topic.definition
        if definition.external_time:
            return _Look(files, math.inf)
        if definition.is_table:
            due = self._idle_detector.next_due(definition, looked)
            if not self._is_live(topic, {partition.number: partition.state() for partition in topic.partitions}):
                due = min(due, looked + _EMPTY_INTERVAL)  # other topics decide, and which pipelines read them
            return _Look(files, due, self._newest)
        if not any(partition.state().appended_at for partition in topic.partitions):
            # Other topics decide when it is raised, if a pipeline reads it.
            awaited = any(definition.name in inputs for inputs in self._read_pipeline_inputs().values())
            return _Look(files, looked if awaited else looked + _EMPTY_INTERVAL)
        return _Look(files, self._idle_detector.next_due(definition, looked))

    def _describe_files(self, name: str) -> tuple[int, ...] | None:
        """Returns what changes with each append and each change of a topic; None if there is no such topic.

        Two changes within a tick of the kernel's clock have one time, so a fresh change differs from an older one.
        """
        described: list[int] = []
        for file in ("topic.json", "ends"):
            try:
                found = os.stat(f"{self._log.folder}/topics/{name}/{file}")
            except OSError:
                return (0,) if described else None
            fresh = abs(time.time_ns() - found.st_mtime_ns) < _FRESH
            described += [found.st_mtime_ns, found.st_size, found.st_ino, time.time_ns() if fresh else 0]
        return tuple(described)

    def _run_cleanup(self) -> None:
        self.renew_clock()
        while not self._stopped.wait(_CLEANUP_INTERVAL.total_seconds()):
            self.renew_clock()
            with self._log_errors("deleted topics"):
                self._log.remove_leftovers()
            for work in (self.apply_retention, self.compact):
                with self._log_errors("the log"):
                    self.for_each_topic(work)

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=10)
