"""Appends to one Kafka topic, behind the same append buffer as in the embedded log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headwater.errors import HeadwaterError, TooLargeError
from headwater.events import Codec, Receipt, Receipts, partitions_of
from headwater.log.kafka.producers import OffsetArray, ProducedBatch, RecordGroup
from headwater.log.kafka.records import EncodedRecords, encode_records
from headwater.log.topic import Topic, check_producer
from headwater.log.write.append_buffer import COUNTERS, AppendBuffer, PendingAppend
from headwater.log.write.topic_writer import Run, group_by_producer, write_run
from headwater.log.write.write_batch import EventTimes, PendingEvent, WriteBatch, check_key, coalesce

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["KafkaTopicWriter"]

_PARTITION_REFRESH: Final = 10.0  # seconds between two requests for the number of partitions


class KafkaTopicWriter:
    """Appends to one topic, from all threads of this process.

    Args:
        log: The log, for producers, serializers and the number of partitions.
        topic: The topic's definition.
    """

    def __init__(self, log: KafkaLog, topic: Topic) -> None:
        self.definition = topic
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._log = log
        self._times = EventTimes(log.clock)
        self._round_robin = count()
        self._partitions = topic.partitions
        self._refreshed_at = time.monotonic()
        self.buffer = AppendBuffer(self._commit, topic.overload, self.counts.update)

    def update_definition(self, topic: Topic) -> None:
        """Use a newer definition from the next append on."""
        self.definition = topic
        self.buffer.overload = topic.overload
        self._partitions = topic.partitions

    def append(self, batch: WriteBatch) -> Receipts:
        """Append a batch; return when all in-sync replicas have it."""
        return self._receipts(self.buffer.append(self._prepare(batch)))

    def append_one(self, event: PendingEvent) -> Receipt:
        """Append one event; events that wait at the same time share a request."""
        return self._receipts(self.buffer.append(self._prepare(event)))[0]

    def begin_append(self, event: PendingEvent) -> PendingAppend:
        """Put one event into the append buffer and return at once; `await_append` waits for it."""
        return self.buffer.begin_append(self._prepare(event))

    def await_append(self, pending: PendingAppend) -> Receipt:
        """Wait for an event passed to `begin_append`."""
        self.buffer.await_append(pending)
        return self._receipts(pending)[0]

    def _prepare(self, rows: PendingEvent | WriteBatch) -> PendingAppend:
        if rows.producer:
            check_producer(rows.producer)
        check_key(self.definition, self._codec_of, rows)
        return PendingAppend(rows, rows.row_count)

    def _receipts(self, append: PendingAppend) -> Receipts:
        name = self.definition.name
        if append.dropped:
            nowhere = np.full(append.row_count, -1, np.int64)
            return Receipts(name, nowhere, nowhere, np.zeros(append.row_count, bool), append.dropped)
        partitions, offsets, repeats = append.outcome
        return Receipts(name, partitions, offsets, np.arange(append.row_count) < repeats)

    def _codec_of(self, version: int) -> Codec:
        return self._log.serializer(self.definition.name, version).codec

    # -- behind the append buffer --------------------------------------------------------------------------------

    def _commit(self, appends: list[PendingAppend]) -> None:
        if time.monotonic() - self._refreshed_at > _PARTITION_REFRESH:
            self._refreshed_at = time.monotonic()
            self._partitions = self._log.kafka_topics.partition_count(self.definition.name) or self._partitions
        groups: list[RecordGroup] = []
        for run in group_by_producer(appends):
            write_run(run, lambda run: groups.extend(self._encode(run)))
        by_producer: dict[str, list[RecordGroup]] = {}
        for group in groups:
            by_producer.setdefault(group.batch.producer, []).append(group)
        # Rows without a producer id are only queued here, so that they travel while the transactions below commit.
        plain = by_producer.pop("", [])
        produced = ProducedBatch(self._log.brokers)
        for group in plain:
            produced.produce(self._log.producer.get(), self.definition.name, group.records, group.partitions)
        for id, mine in by_producer.items():
            self._append_named(id, mine)
        produced.wait()
        for group, outcome in zip(plain, produced.outcomes(), strict=True):
            group.complete(outcome)
        self._count(appends)

    def _append_named(self, id: str, groups: list[RecordGroup]) -> None:
        """Append the rows of a producer with an id in one transaction.

        If a row is refused, the transaction is aborted. Each group is then appended in one of its own, and halved until
        the refused row is alone, so that its sender gets the error and the others do not.
        """
        try:
            self._append_groups(id, groups)
        except TooLargeError:
            for group in groups:
                self._append_apart(id, group)
        except HeadwaterError as error:
            for group in groups:
                group.complete(error)

    def _append_apart(self, id: str, group: RecordGroup) -> None:
        try:
            write_run(group.run, lambda run: self._append_groups(id, list(self._encode(run))))
        except HeadwaterError as error:
            for append, _ in group.run:
                if append.outcome is None and append.error is None:
                    append.error = error

    def _append_groups(self, id: str, groups: list[RecordGroup]) -> None:
        found = self._log.named_producers.get(self.definition.name, id).append(groups)
        for group, (offsets, repeats) in zip(groups, found, strict=True):
            group.complete(offsets, repeats)

    def check_sizes(self, batch: WriteBatch) -> None:
        """Check that every record of a batch is within the size limit; appends nothing.

        Raises:
            TooLargeError: One is not.
        """
        self._to_records(batch)

    def _to_records(self, batch: WriteBatch) -> EncodedRecords:
        envelope = self._times.resolve(self.definition, batch).envelope
        serializer = self._log.serializer(self.definition.name, batch.version)
        return encode_records(self.definition, serializer, batch, envelope)

    def _encode(self, run: Run) -> Iterator[RecordGroup]:
        batch = coalesce(self._codec_of, [rows for _, rows in run])
        if self.definition.overload.drops:
            batch = replace(batch, previous=None)
        records = self._to_records(batch)
        if records.values:
            yield RecordGroup(batch, records, self._assign_partitions(batch, records), run)
        else:
            run[0][0].outcome = (np.empty(0, np.int64), np.empty(0, np.int64), 0)

    def _assign_partitions(self, batch: WriteBatch, records: EncodedRecords) -> OffsetArray:
        """Returns the partition of each row: as given, by key as Kafka's clients do, or round robin."""
        number, size = self._partitions, len(records.values)
        # Sequence numbers count per partition, so a client with a producer id has chosen the partition.
        if batch.partition is not None or number == 1 or batch.producer:
            return np.full(size, batch.partition or 0, np.int64)
        keys = pa.array(records.keys, pa.binary())
        if keys.null_count == size:  # one partition for the whole batch: fewer requests, and its rows stay in order
            return np.full(size, next(self._round_robin) % number, np.int64)
        if not keys.null_count:
            return partitions_of(keys, number)
        lacking = np.array(keys.is_null().to_pylist(), bool)
        return np.where(lacking, next(self._round_robin) % number, partitions_of(keys.fill_null(b""), number))

    def _count(self, appends: list[PendingAppend]) -> None:
        for append in appends:
            self.counts["offered"] += append.row_count
            if append.outcome is None:
                self.counts["refused"] += append.row_count
            else:
                self.counts["duplicate"] += append.outcome[2]
                self.counts["appended"] += append.row_count - append.outcome[2]
