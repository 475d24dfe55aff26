"""Indexes the event time of a Kafka topic: reads new records once and writes offset ranges.

One process indexes a topic, under a transactional id that fences its predecessor. Others stand by and take
over when the index does not advance although there are new events. The ranges and the indexer's progress
commit in one transaction, so every event is in exactly one range after any crash.

A partition that is added later starts with an idle marker at the lowest event time of the other partitions.
Its on-time events are therefore never behind a watermark that was reached without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from headwater.errors import DataGoneError, FencedError, HeadwaterError, UnknownTopicError, UnreachableError
from headwater.log.kafka.event_time_index import INDEX_CONFIG, EventTimeEnd, EventTimeWalk, OffsetRange
from headwater.log.kafka.producers import TransactionalProducer
from headwater.log.maintenance.awaited_topics import find_awaited_time, has_live_readers
from headwater.log.maintenance.idle_markers import IdleDetector
from headwater.log.storage.anchored_clock import MachineClock
from headwater.log.storage.frame import LOWEST_TIME

if TYPE_CHECKING:
    from headwater.log.batch import LogBatch
    from headwater.log.kafka.kafka_log import KafkaLog
    from headwater.log.kafka.marker_requests import MarkerRequest

__all__ = ["EventTimeIndexer"]

logger = logging.getLogger("headwater.kafka")
_READ_BYTES: Final = 8 << 20  # bytes of one read
_UNREAD_RANGE: Final = 20_000  # offsets of a range whose rows were not read
_ROW_BYTES: Final = 250  # assumed size of such a row
_POLL_INTERVAL: Final = 0.25  # seconds between polls of an idle topic
_TAKEOVER_TIMEOUT: Final = 5.0  # seconds without progress, then another process takes over
_CHECK_INTERVAL: Final = 1.0  # seconds between checks of the topic's id and number of partitions
_STALL: Final = timedelta(seconds=5)  # a longer gap between two reads: this process was stopped, or the brokers were
_IDLE_TIMEOUT: Final = 10.0  # seconds without events, then commit markers at the end are indexed


class EventTimeIndexer:
    """Indexes the event time of one topic, in a thread of its own.

    Args:
        log: The log.
        name: The topic.
        index: The side topic.
    """

    def __init__(self, log: KafkaLog, name: str, index: str) -> None:
        self._log = log
        self._name = name
        self._index = index
        self._idle_detector = IdleDetector(log.clock, width=0)
        self._producer = self._create_producer()
        self._changed = threading.Condition(threading.RLock())  # guards the three fields below
        self._progress: dict[int, EventTimeEnd] = {}  # what the side topic has committed
        # Offset per partition up to which event time is known; beyond `_progress` if only commit markers follow it.
        self._indexed_to: dict[int, int] = {}
        self._is_leader = False
        self._stopped = threading.Event()
        self._failure: HeadwaterError | None = None
        self._requested = threading.Event()
        self._checked_at = self._last_event_at = 0.0
        self._machine = MachineClock()
        self._looped_at = self._machine.boottime()
        self._completed = 0  # the event time of the last request to complete the topic
        # What the other inputs of pipelines say, for a topic that has no live events itself; see awaited_topics.py.
        self._awaited_time = LOWEST_TIME
        self._has_live_readers = False
        topic = log.topic(name)
        self._external_time = topic.external_time
        self._compacted = topic.compact
        log.kafka_topics.create(index, topic.partitions, INDEX_CONFIG)
        self._thread = threading.Thread(target=self._run, name=f"headwater-time-{name}", daemon=True)
        self._thread.start()

    def _create_producer(self) -> TransactionalProducer:
        return TransactionalProducer(self._log.kafka_topics, self._index)

    # -- callers' threads ----------------------------------------------------------------------------------------

    def await_event_time(self, timeout: float = 60.0) -> None:
        """Wait until the event time of all present events is known.

        Raises:
            UnreachableError: The brokers do not answer, or the active indexer does not advance within `timeout`.
        """
        ends = {part.partition: part.end for part in self._log.ends(self._name)}
        self._requested.set()
        with self._changed:
            done = self._changed.wait_for(
                lambda: all(self._indexed_to.get(p, -1) >= end for p, end in ends.items() if end), timeout
            )
        if not done:
            raise self._failure or UnreachableError(f'the event time of topic "{self._name}" does not advance')

    def append_idle_marker(self, partition: int, time_: int) -> None:
        """Append an idle marker after all present events of a partition; asks the leader if this process stands by."""
        self.await_event_time()
        with self._changed:
            if self._is_leader and partition in self._progress:
                self._write([self._idle_marker(partition, time_)])
                return
        offsets = self._log.kafka_topics.end_offsets(self._name, [partition])
        self._log.marker_requests.send(self._index, offsets, time_)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(timeout=10)
        self._producer.close()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        run = self._run_as_leader
        while not self._stopped.is_set():
            try:
                run()
                run = self._run_as_leader
            except FencedError:
                logger.info("%s: another process indexes event time; standing by", self._name)
                self._producer.close()
                self._producer = self._create_producer()
                run = self._stand_by  # also after errors: an outage does not make this process the leader
            except UnknownTopicError:
                if self._is_deleted():
                    return
            except DataGoneError as error:
                logger.warning("%s: event time continues from the remaining events: %s", self._name, error.what)
            except HeadwaterError as error:
                self._failure = error
                logger.warning("%s: event time is not indexed: %s", self._name, error.what)
                self._producer.close()
                self._stopped.wait(1.0)
            finally:
                self._is_leader = False

    def _is_deleted(self) -> bool:
        """Returns whether the topic was deleted; the driver raises the same for a partition it does not know yet."""
        try:
            self._check_topic()
        except UnknownTopicError as error:
            self._failure = error
            logger.warning("%s: %s", self._name, error.what)
            return True
        except HeadwaterError:
            logger.debug("%s: no broker answers", self._name, exc_info=True)
        self._stopped.wait(0.2)
        return False

    def _run_as_leader(self) -> None:
        self._check_topic()
        with self._changed:
            committed = self._producer.state.get("reached", {})
            starts = {part.partition: part.start for part in self._log.ends(self._name)}
            # The index skips events that retention removed. Pipelines that have not read them fail by themselves.
            self._progress = {
                int(number): EventTimeEnd(max(next_offset, starts[int(number)]), *times)
                for number, (next_offset, *times) in committed.items()
            }
            self._add_partitions(starts)
            self._is_leader = True
            self._failure = None
        # A previous leader on this machine may have cached ranges that it did not commit.
        if self._log.batch_cache is not None:
            self._log.batch_cache.clear(self._name)
        self._checked_at = self._last_event_at = time.monotonic()
        self._completed = self._log.completions.newest(self._index)
        while not self._stopped.is_set():
            self._count_silence_anew()
            if self._external_time:
                self._index_ends()
            else:
                self._index_new_events()
            if time.monotonic() - self._checked_at > _CHECK_INTERVAL:
                self._check_topic()
                self._complete()
                self._check_other_inputs()
                self._log.renew_clock()

    def _count_silence_anew(self) -> None:
        """Forget the silence so far if this process did not run, or did not reach the brokers, for some time."""
        stalled = self._measure_stall()
        self._looped_at = self._machine.boottime()
        if stalled > _STALL:
            self._idle_detector.count_anew(self._log.topic(self._name), stalled)

    def _measure_stall(self) -> timedelta:
        return timedelta(microseconds=self._machine.boottime() - self._looped_at)

    def _complete(self) -> None:
        """Write the markers of a new request to complete the topic, after all its present events."""
        wanted = self._log.completions.newest(self._index)
        if wanted > self._completed and not self._external_time:
            self._completed = wanted
            ends = self._log.kafka_topics.end_offsets(self._name, list(self._progress))
            # Not until there are no events: they may arrive without a pause.
            while any(self._progress[number].next_offset < end for number, end in ends.items()):
                if self._stopped.is_set() or not self._index_new_events():
                    break
            with self._changed:
                self._write([self._idle_marker(number, wanted) for number in self._progress])

    @property
    def _has_events(self) -> bool:
        return any(progress.next_offset for progress in self._progress.values())

    def _is_live(self) -> bool:
        newest = max(self._progress.values(), key=lambda progress: progress.max_event_time)
        return self._log.topic(self._name).is_live(newest.max_event_time, newest.arrived_at)

    def _check_other_inputs(self) -> None:
        """Look at what the topic is read with if silence alone must not advance it; asks the brokers only then."""
        self._awaited_time, self._has_live_readers = LOWEST_TIME, False
        is_table = self._log.topic(self._name).is_table
        if self._external_time or (self._is_live() if is_table else self._has_events):
            return
        try:
            inputs = self._log.groups.pipeline_inputs()
            if is_table:
                self._has_live_readers = has_live_readers(self._name, inputs, self._log.input_time)
            else:
                time_ = find_awaited_time(self._name, inputs, self._log.input_time)
                self._awaited_time = LOWEST_TIME if time_ is None else time_
        except HeadwaterError:
            logger.debug("%s: the inputs of pipelines are unknown", self._name, exc_info=True)

    def _index_ends(self) -> None:
        """Index end offsets without reading rows: only idle markers advance externally kept event time."""
        waiter = self._requested.wait(_POLL_INTERVAL)
        self._requested.clear()
        wanted = self._log.marker_requests.newest(self._index, fresh=waiter)  # before the ends, which then cover them
        ends = self._log.kafka_topics.end_offsets(self._name, list(self._progress))
        with self._changed:
            self._write([(number, each) for number, end in ends.items() for each in self._unread_ranges(number, end)])
            self._write([self._idle_marker(number, time_) for number, time_ in self._due_requests(wanted)])
            self._indexed_to = ends
            self._changed.notify_all()

    def _due_requests(self, wanted: Mapping[int, MarkerRequest]) -> Iterator[tuple[int, int]]:
        """Yields the partitions that other processes want to advance, and to which time."""
        for number, request in wanted.items():
            progress = self._progress.get(number)
            if progress and request.offset <= progress.next_offset and request.event_time > progress.max_event_time:
                yield number, request.event_time

    def _unread_ranges(self, partition: int, end: int) -> Iterator[OffsetRange]:
        """Yields ranges without the event times of their rows; `needs_read` makes readers count the rows."""
        progress = self._progress[partition]
        time_, unknown = progress.max_event_time, LOWEST_TIME
        for base in range(progress.next_offset, end, _UNREAD_RANGE):
            count = min(_UNREAD_RANGE, end - base)
            size = count * _ROW_BYTES
            yield OffsetRange(base, base + count, count, size, True, unknown, unknown, time_, time_)

    def _index_new_events(self) -> bool:
        """Index one read of new events, or else the idle markers that are due; returns whether there were events."""
        positions = {number: progress.next_offset for number, progress in self._progress.items()}
        found = self._log.fetch(self._name, positions, max_bytes=_READ_BYTES, timeout=_POLL_INTERVAL, envelope=False)
        if found:
            self._last_event_at = time.monotonic()
            with self._changed:
                self._write([self._index_batch(batch) for batch in found])
            return True
        # If a second read finds nothing after the ends were taken, only commit markers lie below them.
        ends = self._log.kafka_topics.end_offsets(self._name, list(positions))
        if self._log.fetch(self._name, positions, max_bytes=1, timeout=0):
            return True
        with self._changed:
            self._indexed_to = ends
            self._changed.notify_all()
            self._write([*self._commit_marker_ranges(ends), *self._idle_markers()])
        return False

    def _index_batch(self, batch: LogBatch) -> tuple[int, OffsetRange]:
        progress = self._progress[batch.partition]
        annotated = EventTimeWalk(progress.max_event_time).annotate(batch)
        found = OffsetRange.describe(progress.next_offset, annotated)
        if self._compacted:  # also if compaction is switched off later: some records may be gone by then
            found = replace(found, needs_read=True)
        elif self._log.batch_cache is not None:
            self._log.batch_cache.put(progress.next_offset, annotated)
        lower = np.flatnonzero(annotated.max_event_times < annotated.frame.max_event_time)
        # The last row before which max event time was lower is the one that set it.
        arrived_at = int(batch.arrival_times[lower[-1]]) if len(lower) else progress.arrived_at
        return batch.partition, replace(found, arrived_at=arrived_at)

    def _idle_marker(self, partition: int, time_: int) -> tuple[int, OffsetRange]:
        progress = self._progress[partition]
        at, before = progress.next_offset, progress.max_event_time
        times = (LOWEST_TIME, LOWEST_TIME, before, max(before, time_))
        arrived_at = self._log.clock.micros() if time_ > before else progress.arrived_at
        return partition, OffsetRange(at, at, 0, 0, False, *times, arrived_at=arrived_at)

    def _commit_marker_ranges(self, ends: dict[int, int]) -> list[tuple[int, OffsetRange]]:
        """Returns commit markers after the last events as empty ranges, so that retention may remove them."""
        if time.monotonic() - self._last_event_at < _IDLE_TIMEOUT:
            return []
        return [
            (number, replace(self._idle_marker(number, LOWEST_TIME)[1], next_offset=end))
            for number, end in ends.items()
            if end > self._progress[number].next_offset
        ]

    def _idle_markers(self) -> list[tuple[int, OffsetRange]]:
        topic = self._log.topic(self._name)
        if topic.is_table:
            # A join in any process may wait for this table: its markers always come at steady intervals.
            is_complete = lambda: self._has_live_readers or self._is_live()  # noqa: E731
            due = self._idle_detector.due_table_markers(topic, self._progress, lambda _: True, is_complete)
        elif not self._has_events:
            due = self._idle_detector.due_raises(topic, self._progress, self._awaited_time)
        else:
            due = self._idle_detector.due_markers(topic, self._progress, lambda n: self._progress[n].arrived_at)
        found = [self._idle_marker(number, at) for number, at in due]
        # Measured after the silence: a process can be stopped at any instruction, most often while it waits for events.
        return [] if self._idle_detector.count_anew(topic, self._measure_stall()) else found

    def _write(self, ranges: list[tuple[int, OffsetRange]]) -> None:
        """Write ranges and progress in one transaction; the caller holds `_changed`."""
        if not ranges:
            return
        after = dict(self._progress)
        for number, offset_range in ranges:
            after[number] = EventTimeEnd(offset_range.next_offset, offset_range.max_event_time, offset_range.arrived_at)
        newest: dict[int, int] = {}

        def on_delivery(_: Any, message: Any) -> None:
            newest[message.partition()] = message.offset()

        def write(producer: Any) -> None:
            for number, each in ranges:
                value = msgspec.json.encode(replace(each, partitions=len(after)))
                producer.produce(
                    self._index, value, partition=number, timestamp=each.next_offset, on_delivery=on_delivery
                )

        state = {"reached": {str(number): list(astuple(end)) for number, end in sorted(after.items())}}
        self._producer.commit(write, state)
        # Readers of the index must see the ranges before waiters learn that they are indexed.
        self._log.kafka_topics.wait_until_visible(self._index, newest)
        self._progress = after
        for number, offset_range in ranges:
            self._indexed_to[number] = max(self._indexed_to.get(number, 0), offset_range.next_offset)
        self._changed.notify_all()

    def _check_topic(self) -> None:
        self._checked_at = time.monotonic()
        id, number = self._log.kafka_topics.describe(self._name)
        self._compacted = self._log.kafka_topics.is_compacted(self._name)
        if not self._index.endswith(f".{id}"):
            raise UnknownTopicError(f'topic "{self._name}" was deleted and created again', topic=self._name)
        if self._is_leader and number > len(self._progress):
            with self._changed:
                self._add_partitions(self._log.kafka_topics.start_offsets(self._name, list(range(number))))

    def _add_partitions(self, starts: dict[int, int]) -> None:
        """Add new partitions, from their start and with the lowest max event time of the others."""
        if self._log.kafka_topics.partition_count(self._index) < len(starts):
            self._log.kafka_topics.add_partitions(self._index, len(starts))
        lowest = min((progress.max_event_time for progress in self._progress.values()), default=LOWEST_TIME)
        new = {number: EventTimeEnd(start) for number, start in starts.items() if number not in self._progress}
        self._progress |= new
        if lowest > LOWEST_TIME:
            self._write([self._idle_marker(number, lowest) for number in new])

    def _stand_by(self) -> None:
        """Watch the active indexer; return when it does not advance although there are new events."""
        index = self._log.open_topic(self._name).index
        moved_at = time.monotonic()
        seen: dict[int, EventTimeEnd] = {}
        while not self._stopped.wait(0.2):
            index.refresh()
            ends = self._log.kafka_topics.end_offsets(self._name, list(self._progress))
            now = {number: index.end(number) for number in ends}
            if now != seen:
                moved_at, seen = time.monotonic(), now
            with self._changed:
                self._failure = None
                self._indexed_to = {number: end.next_offset for number, end in now.items()}
                self._changed.notify_all()
            behind = any(now[number].next_offset < end for number, end in ends.items())
            if behind and time.monotonic() - moved_at > _TAKEOVER_TIMEOUT:
                return
