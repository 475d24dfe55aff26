"""What a log needs done from time to time: time marks for quiet partitions, retention, compaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from headwater.errors import HeadwaterError, LockedError
from headwater.log.event_log import EventLog
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.topic import OpenTopic
from headwater.log.upkeep.compaction import Compacted, compact
from headwater.log.upkeep.quiet import Quiet
from headwater.log.upkeep.retention import Removal, retain

__all__ = ["Upkeep"]

logger = logging.getLogger("headwater.log")
_TIDY_EVERY = timedelta(minutes=1)


class Upkeep:
    """Runs in the node; `once` does all of it now.

    Example:
        >>> import tempfile
        >>> log = EventLog(tempfile.mkdtemp())
        >>> Upkeep(log).once()
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._quiet = Quiet(log.clock)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def once(self) -> None:
        """Mark, retain and compact all topics now; what fails is logged and tried again next time."""
        self.each(self.mark)
        self.each(self.retain)
        self.each(self.compact)

    def each(self, work: Callable[[OpenTopic], object]) -> None:
        """Do something for every topic, tables last; a fault of one does not keep the others from it."""
        tables = []
        for name in self._log.topics():
            with self._bearing(name):
                topic = self._log.opened(name)
                topic.reload()  # another process may have changed its settings
                if topic.definition.lasting:
                    tables.append(topic)
                else:
                    work(topic)
        for topic in tables:
            with self._bearing(topic.definition.name):
                work(topic)

    @contextmanager
    def _bearing(self, name: str) -> Iterator[None]:
        try:
            yield
        except LockedError:
            pass
        except (HeadwaterError, OSError):
            logger.exception("upkeep of topic %s failed", name)

    def mark(self, topic: OpenTopic) -> None:
        """Write the time marks that are due; a clocked topic gets its own from whoever writes it."""
        definition = topic.definition
        if definition.clocked:
            return
        ends = {partition.number: partition.slot() for partition in topic.partitions}

        def waits(known: int) -> bool:
            return self._newest_event() > known - definition.lateness // timedelta(microseconds=1)

        table = waits if definition.lasting else None
        for number, time in self._quiet.due(definition.name, ends, definition.idle, table=table):
            topic.partitions[number].mark(time)

    def _newest_event(self) -> int:
        """The highest time of all topics that are no tables."""
        newest = LOWEST_TIME
        for name in self._log.topics():
            with self._bearing(name):
                topic = self._log.opened(name)
                if not topic.definition.lasting:
                    newest = max(newest, *(partition.slot().running_max for partition in topic.partitions))
        return newest

    def retain(self, topic: OpenTopic) -> list[Removal]:
        """Apply the topic's retention to each partition."""
        retention = topic.definition.retention
        if retention.time is None and retention.size is None:
            return []
        name = topic.definition.name
        groups = [state for state in self._log.groups.states() if state.topic == name]
        for state in groups:
            self._log.groups.settle(state.group, name)
        return [
            retain(
                partition,
                retention,
                self._log.clock,
                {s.group: s.committed[partition.number] for s in groups if partition.number in s.committed},
            )
            for partition in topic.partitions
        ]

    def compact(self, topic: OpenTopic, *, eager: bool = False) -> list[Compacted]:
        """Compact each partition of a compacted topic."""
        if not topic.definition.compact:
            return []
        now = self._log.clock.micros()
        return [compact(topic, number, now, eager=eager) for number in range(len(topic.partitions))]

    def start(self) -> None:
        """Go on in a thread: marks each second, the rest each minute."""
        self._thread = threading.Thread(target=self._run, name="headwater-upkeep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        tidied = self._log.clock.monotonic()
        while not self._stopped.wait(1.0):
            self.each(self.mark)
            if self._log.clock.monotonic() - tidied >= _TIDY_EVERY.total_seconds():
                tidied = self._log.clock.monotonic()
                self.each(self.retain)
                self.each(self.compact)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
