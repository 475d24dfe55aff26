"""Appends to one Kafka topic, through the same append buffer as the embedded log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, HeadwaterError, TooLargeError
from headwater.events import Clock, Receipt, partitions_of
from headwater.events.envelope import Receipts
from headwater.log.append_buffer import COUNTERS, AppendBuffer, PendingAppend
from headwater.log.kafka.brokers import Brokers
from headwater.log.kafka.producers import (
    IdempotentProducer,
    NamedProducerPool,
    OffsetArray,
    ProducedBatch,
    SequencedRecords,
)
from headwater.log.kafka.records import EncodedRecords, encode_records
from headwater.log.kafka.serializers import Serializer
from headwater.log.topic import Topic, check_producer, missing_key_error
from headwater.log.write_batch import EventTimes, PendingEvent, WriteBatch, coalesce

__all__ = ["KafkaTopicWriter", "WriteContext"]

_PARTITION_REFRESH: Final = 10.0  # seconds until the number of partitions is asked for again


@dataclass(frozen=True)
class WriteContext:
    """What a `KafkaTopicWriter` needs from the log."""

    brokers: Brokers
    producer: IdempotentProducer
    named_producers: NamedProducerPool
    serializer_for: Callable[[str, int], Serializer]
    partition_count: Callable[[str], int]
    clock: Clock


@dataclass(frozen=True)
class _RecordGroup:
    """Rows that are produced together, and the entries they came in."""

    rows: WriteBatch
    records: EncodedRecords
    partitions: OffsetArray
    appends: list[PendingAppend]


class KafkaTopicWriter:
    """Appends to one topic from all threads of this process.

    Args:
        topic: Its definition.
        context: The way to the brokers.
    """

    def __init__(self, topic: Topic, context: WriteContext) -> None:
        self.definition = topic
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._context = context
        self._times = EventTimes(context.clock)
        self._round_robin = count()
        self._partitions = topic.partitions
        self._refreshed_at = time.monotonic()
        self.buffer = AppendBuffer(self._commit, topic.overload, self.counts.update)

    def update_definition(self, topic: Topic) -> None:
        """A newer definition."""
        self.definition = topic
        self.buffer.overload = topic.overload
        self._partitions = topic.partitions

    def prepare(self, rows: PendingEvent | WriteBatch) -> PendingAppend:
        """Prepare rows for the append buffer; raises if they lack their key."""
        if rows.producer:
            check_producer(rows.producer)
        key = self.definition.key
        if isinstance(rows, PendingEvent):
            parts = self._serializer(rows.version).codec.field_values(rows.struct, key)
            for name, part in zip(key, parts, strict=True):
                if part is None:
                    raise missing_key_error(self.definition, name, 0)
            return PendingAppend(rows, 1)
        for name in key:
            column = rows.values.column(name)
            if column.null_count:
                raise missing_key_error(self.definition, name, column.is_null().index(True).as_py())
        return PendingAppend(rows, rows.values.num_rows)

    def receipts(self, entry: PendingAppend) -> Receipts:
        """Returns the receipts of an entry that is done."""
        name = self.definition.name
        if entry.dropped:
            nowhere = np.full(entry.row_count, -1, np.int64)
            return Receipts(name, nowhere, nowhere, np.zeros(entry.row_count, bool), entry.dropped)
        partitions, offsets, repeats = entry.outcome
        return Receipts(name, partitions, offsets, np.arange(entry.row_count) < repeats)

    def receipt(self, entry: PendingAppend) -> Receipt:
        """Returns the receipt of a single event that is done."""
        return self.receipts(entry)[0]

    def _serializer(self, version: int) -> Serializer:
        return self._context.serializer_for(self.definition.name, version)

    # -- behind the append buffer --------------------------------------------------------------------------------

    def _commit(self, entries: list[PendingAppend]) -> None:
        self._refresh_partitions()
        parts = [part for run in _group_appends(entries) for part in self._build_groups(run)]
        named: dict[str, list[_RecordGroup]] = {}
        delivery = ProducedBatch(self._context.brokers)
        plain = [part for part in parts if not part.rows.producer]
        for part in plain:
            delivery.produce(self._context.producer.get(), self.definition.name, part.records, part.partitions)
        for part in parts:
            if part.rows.producer:
                named.setdefault(part.rows.producer, []).append(part)
        for id, mine in named.items():
            self._append_named(id, mine)
        if plain:
            delivery.wait()
        for part, outcome in zip(plain, delivery.outcomes(), strict=True):
            _complete_group(part, outcome, 0)
        self._count(entries)

    def _append_named(self, id: str, parts: list[_RecordGroup]) -> None:
        numbered = [SequencedRecords(part.rows, part.records, int(part.partitions[0])) for part in parts]
        try:
            found = self._context.named_producers.get(self.definition.name, id).append(numbered)
        except HeadwaterError as error:
            for part in parts:
                _complete_group(part, error, 0)
            return
        for part, (offsets, repeats) in zip(parts, found, strict=True):
            _complete_group(part, offsets, repeats)

    def _refresh_partitions(self) -> None:
        if time.monotonic() - self._refreshed_at > _PARTITION_REFRESH:
            self._refreshed_at = time.monotonic()
            self._partitions = self._context.partition_count(self.definition.name) or self._partitions

    def _build_groups(self, run: list[PendingAppend]) -> Iterator[_RecordGroup]:
        """Entries as one part; if one of several does not fit, each by itself."""
        first = run[0].content
        try:
            rows = (
                first
                if isinstance(first, WriteBatch)
                else coalesce(self._serializer(first.version).codec, [entry.content for entry in run])
            )
            _, envelope = self._times.resolve(self.definition, rows)
            ready = encode_records(self.definition, self._serializer(rows.version), rows, envelope)
            if ready.values:
                yield _RecordGroup(rows, ready, self._assign_partitions(rows, ready), run)
            else:
                run[0].outcome = (np.empty(0, np.int64), np.empty(0, np.int64), 0)
        except (BadEventError, TooLargeError) as error:
            if len(run) == 1:
                run[0].error = error
                return
            for entry in run:
                yield from self._build_groups([entry])

    def _assign_partitions(self, rows: WriteBatch, ready: EncodedRecords) -> OffsetArray:
        """Returns the partition of each row: as given, by key as Kafka's clients do, or round robin."""
        number, size = self._partitions, len(ready.values)
        if rows.partition is not None or number == 1 or rows.producer:
            return np.full(size, rows.partition or 0, np.int64)
        column = pa.array(ready.keys, pa.binary())
        if column.null_count == size:
            return np.full(size, next(self._round_robin) % number, np.int64)
        if not column.null_count:
            return partitions_of(column, number)
        lacking = np.array(column.is_null().to_pylist(), bool)
        return np.where(lacking, next(self._round_robin) % number, partitions_of(column.fill_null(b""), number))

    def _count(self, entries: list[PendingAppend]) -> None:
        for entry in entries:
            self.counts["offered"] += entry.row_count
            if entry.outcome is None:
                self.counts["refused"] += entry.row_count
            else:
                self.counts["duplicate"] += entry.outcome[2]
                self.counts["appended"] += entry.row_count - entry.outcome[2]


def _group_appends(entries: list[PendingAppend]) -> Iterator[list[PendingAppend]]:
    """Entries that can be written as one part, in the order they came within each partition of a producer."""
    open_runs: dict[tuple[str, int | None], list[PendingAppend]] = {}
    for entry in entries:
        content = entry.content
        key = (content.producer, content.partition)
        run = open_runs.get(key)
        if run and not (
            isinstance(content, PendingEvent)
            and isinstance(run[-1].content, PendingEvent)
            and content.can_follow(run[-1].content)
        ):
            yield open_runs.pop(key)
            run = None
        if run is None:
            run = open_runs[key] = []
        run.append(entry)
    yield from open_runs.values()


def _complete_group(group: _RecordGroup, outcome: OffsetArray | HeadwaterError, repeats: int) -> None:
    at = 0
    for entry in group.appends:
        if isinstance(outcome, HeadwaterError):
            entry.error = outcome
        else:
            mine = slice(at, at + entry.row_count)
            again = max(0, min(entry.row_count, repeats - at))
            entry.outcome = (group.partitions[mine], outcome[mine], again)
        at += entry.row_count
