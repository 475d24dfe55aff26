"""Appends to a topic: chooses partitions, coalesces single events into batches, and returns receipts.

`TopicWriter` writes to the partitions of the embedded log. The functions group and coalesce single events
for every backend: Kafka and HTTP use them behind the same `AppendBuffer`, each with its own commit function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, HeadwaterError, TooLargeError
from headwater.events import Clock, Codec, Receipt, key_bytes, keys_of, partition_of, partitions_of
from headwater.events.envelope import Receipts
from headwater.log.storage import AppendResult, Partition
from headwater.log.topic import (
    MAX_EVENT_BYTES,
    Topic,
    check_producer,
    deleted_topic_error,
    too_large_error,
)
from headwater.log.write.append_buffer import AppendBuffer, AppendCounters, PendingAppend
from headwater.log.write.write_batch import EventTimes, PendingEvent, WriteBatch, check_key, coalesce

__all__ = ["Run", "TopicWriter", "group_by_producer", "group_runs", "write_run"]

_MAX_FRAME_BYTES: Final = 16 << 20  # a reader holds a whole frame in memory

Rows: TypeAlias = PendingEvent | WriteBatch
Run: TypeAlias = list[tuple[PendingAppend, Rows]]
"""Rows that are written together, each with the append it belongs to: one batch, or single events."""
RowIndexes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def group_runs(pending: Iterable[tuple[PendingAppend, Rows]]) -> Iterator[Run]:
    """Yields runs of neighbours that can be written as one batch, in order."""
    run: Run = []
    for append, rows in pending:
        if run and not rows.can_follow(run[-1][1]):
            yield run
            run = []
        run.append((append, rows))
    if run:
        yield run


def group_by_producer(appends: Iterable[PendingAppend]) -> Iterator[Run]:
    """Yields what can be written as one batch, in order within each partition of a producer.

    For backends without an order between producers: events of several producers that alternate do not
    break each other's runs.
    """
    lanes: dict[tuple[str, int | None], Run] = {}
    for append in appends:
        rows: Rows = append.content
        lanes.setdefault((rows.producer, rows.partition), []).append((append, rows))
    for lane in lanes.values():
        yield from group_runs(lane)


def write_run(run: Run, write: Callable[[Run], None]) -> None:
    """Call `write` with the run; if it refuses an event, call it with each half, so that the others are written."""
    try:
        write(run)
    except (BadEventError, BadKeyError, TooLargeError) as error:
        if len(run) == 1:
            run[0][0].error = error
            return
        write_run(run[: len(run) // 2], write)
        write_run(run[len(run) // 2 :], write)


class TopicWriter:
    """Appends to the partitions of one topic, from all threads of this process.

    Args:
        definition: The topic's definition.
        codec_of: The codec of the topic's type at a version.
        partitions: The partitions, by number.
        clock: The clock of arrival times.
        counters: Counts the outcomes of all appends.
    """

    def __init__(
        self,
        definition: Topic,
        codec_of: Callable[[int], Codec],
        partitions: Sequence[Partition],
        clock: Clock,
        counters: AppendCounters,
    ) -> None:
        self.definition = definition
        self.counters = counters
        self.buffer = AppendBuffer(self._commit, definition.overload, counters.add)
        self._codec_of = codec_of
        self._partitions = partitions
        self._event_times = EventTimes(clock)
        self._round_robin = count()

    def update_definition(self, topic: Topic) -> None:
        """Use a newer definition from the next append on."""
        self.definition = topic
        self.buffer.overload = topic.overload

    def append(self, batch: WriteBatch) -> Receipts:
        """Append a batch; returns when it is as safe as the topic's durability promises."""
        self._check_version(batch)
        if batch.producer:
            check_producer(batch.producer)
        content, order = self._assign_partitions(self._resolve(batch))
        append = self.buffer.append(PendingAppend(content, batch.row_count))
        partitions, offsets = np.full(append.row_count, -1, np.int64), np.full(append.row_count, -1, np.int64)
        repeated = np.zeros(append.row_count, bool)
        start = 0
        for partition, part in () if append.dropped else content:
            end = start + part.row_count
            rows = slice(start, end) if order is None else order[start:end]
            result: AppendResult = append.outcome[partition]
            new = np.arange(result.first_offset, result.first_offset + result.count)
            partitions[rows] = partition
            offsets[rows] = np.concatenate((self._offsets_of_repeats(partition, part, result.duplicates), new))
            repeated[rows] = np.arange(part.row_count) < result.duplicates
            start = end
        return Receipts(self.definition.name, partitions, offsets, repeated, append.dropped)

    def append_one(self, event: PendingEvent) -> Receipt:
        """Append one event; events that wait at the same time share a batch and a sync."""
        return self._receipt(self.buffer.append(self._prepare(event)))

    def begin_append(self, event: PendingEvent) -> PendingAppend:
        """Put one event into the append buffer and return at once; `await_append` waits for it."""
        return self.buffer.begin_append(self._prepare(event))

    def await_append(self, pending: PendingAppend) -> Receipt:
        """Wait for an event passed to `begin_append`."""
        self.buffer.await_append(pending)
        return self._receipt(pending)

    # -- before the append buffer --------------------------------------------------------------------------------

    def _check_version(self, rows: Rows) -> None:
        if 0 < rows.version < self.definition.first_version:  # by an encoder of a deleted topic
            raise deleted_topic_error(self.definition.name, replaced=True)

    def _prepare(self, event: PendingEvent) -> PendingAppend:
        self._check_version(event)
        if event.producer:
            check_producer(event.producer)
        partition = self._choose_partition(event) if event.partition is None else event.partition
        return PendingAppend([(partition, event)], 1)

    def _choose_partition(self, event: PendingEvent) -> int:
        number, key = len(self._partitions), event.envelope.get("_hw.key")
        # Before the shortcut for one partition: a missing key is always an error.
        fields = check_key(self.definition, self._codec_of, event) if self.definition.key else ()
        if number == 1:
            return 0
        if fields:
            key = key_bytes(fields[0] if len(fields) == 1 else fields)
        return next(self._round_robin) % number if key is None else partition_of(key, number)

    def check_sizes(self, batch: WriteBatch) -> None:
        """Check that every event of a batch is within the size limit; appends nothing.

        Raises:
            TooLargeError: One is not.
        """
        self._resolve(batch)

    def _resolve(self, batch: WriteBatch) -> WriteBatch:
        """Returns the batch with its event times; raises if one of its events is too large."""
        resolved = self._event_times.resolve(self.definition, batch)
        if resolved.nbytes > MAX_EVENT_BYTES:
            _check_event_sizes(resolved, 0)
        return resolved

    def _assign_partitions(self, batch: WriteBatch) -> tuple[list[tuple[int, WriteBatch]], RowIndexes | None]:
        """Returns the batch of each partition, and the row order of all of them if it is not that of `batch`."""
        number = len(self._partitions)
        columns = check_key(self.definition, self._codec_of, batch)
        if batch.partition is not None or number == 1:
            return [(batch.partition or 0, batch)], None
        keys = keys_of(columns) if columns else batch.envelope.get("_hw.key")
        if keys is None:
            return [(next(self._round_robin) % number, batch)], None
        owners = partitions_of(keys, number)
        order = np.argsort(owners, kind="stable")
        selection = pa.array(order)
        ordered = WriteBatch(  # without a producer: sequence numbers belong to one partition
            batch.values.take(selection),
            batch.version,
            {name: column.take(selection) for name, column in batch.envelope.items()},
            sent_at=batch.sent_at,
            times=None if batch.times is None else batch.times[order],
        )
        used, starts, counts = np.unique(owners[order], return_index=True, return_counts=True)
        cuts = zip(used.tolist(), starts.tolist(), counts.tolist(), strict=True)
        return [(partition, ordered.slice(start, rows)) for partition, start, rows in cuts], order

    # -- behind the append buffer --------------------------------------------------------------------------------

    def _commit(self, appends: list[PendingAppend]) -> None:
        by_partition: dict[int, Run] = {}
        for append in appends:
            append.outcome = {}
            for partition, rows in append.content:
                by_partition.setdefault(partition, []).append((append, rows))
        for partition, pending in by_partition.items():
            try:
                self._append_to(partition, pending)
            except (HeadwaterError, OSError) as error:  # other partitions are not affected
                for append, _ in pending:
                    append.error = error
        self._count(appends)

    def _append_to(self, partition: int, pending: Run) -> None:
        """Append to one partition with one lock and one sync."""
        written: list[tuple[Run, list[WriteBatch]]] = []

        def write(run: Run) -> None:
            rows = [rows for _, rows in run]
            batch = coalesce(self._codec_of, rows)
            # A batch was resolved before it entered the buffer; single events are resolved here, all at once.
            resolved = batch if batch is rows[0] else self._resolve(batch)
            if self.definition.overload.drops:
                resolved = replace(resolved, previous=None)
            written.append((run, resolved.split(_MAX_FRAME_BYTES)))

        for run in group_runs(pending):
            write_run(run, write)
        results = iter(self._partitions[partition].append([batch for _, batches in written for batch in batches]))
        for run, batches in written:
            mine = [next(results) for _ in batches]
            # The batches of a run are contiguous, and all its repeats come before its new rows.
            offset, repeats = mine[0].first_offset, sum(result.duplicates for result in mine)
            for append, rows in run:
                if mine[0].refused is not None:  # then the rest is, too: each batch of a run names the one before it
                    append.error = mine[0].refused
                    continue
                old = min(rows.row_count, repeats)
                append.outcome[partition] = AppendResult(offset, rows.row_count - old, old)
                repeats, offset = repeats - old, offset + rows.row_count - old

    def _count(self, appends: list[PendingAppend]) -> None:
        offered = sum(append.row_count for append in appends)
        results = [result for append in appends for result in append.outcome.values()]
        appended, duplicate = sum(result.count for result in results), sum(result.duplicates for result in results)
        refused = offered - appended - duplicate
        self.counters.add({"offered": offered, "appended": appended, "duplicate": duplicate, "refused": refused})

    # -- receipts ------------------------------------------------------------------------------------------------

    def _receipt(self, append: PendingAppend) -> Receipt:
        """Returns the receipt of a single event."""
        name = self.definition.name
        if append.dropped:
            return Receipt(name, -1, -1, dropped=append.dropped)
        ((partition, event),) = append.content
        result: AppendResult = append.outcome[partition]
        if not result.duplicates:
            return Receipt(name, partition, result.first_offset)
        offset = self._partitions[partition].offsets_of(event.producer, [event.sequence])[0]
        return Receipt(name, partition, offset, duplicate=True)

    def _offsets_of_repeats(self, partition: int, batch: WriteBatch, repeats: int) -> RowIndexes:
        """Returns the offsets at which repeated rows were appended the first time; -1 where they are not known."""
        if not repeats:
            return np.empty(0, np.int64)
        sequences = range(batch.sequence, batch.sequence + (repeats if batch.per_row else 1))
        offsets = np.array(self._partitions[partition].offsets_of(batch.producer, sequences), np.int64)
        if batch.per_row:
            return offsets
        return np.full(repeats, -1, np.int64) if offsets[0] < 0 else offsets[0] + np.arange(repeats)


def _check_event_sizes(batch: WriteBatch, first: int) -> None:
    """Raise for the first event over the size limit, found by bisection."""
    size, rows = batch.nbytes, batch.row_count
    if size <= MAX_EVENT_BYTES:
        return
    if rows == 1:
        raise too_large_error(size, first)
    _check_event_sizes(batch.slice(0, rows // 2), first)
    _check_event_sizes(batch.slice(rows // 2, rows), first + rows // 2)
