"""Compares a simulated log with the model, and turns the model's events into rows of the log."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from headwater.log import EventLog, PartitionRange, WriteBatch
from headwater.log.open_topic import OpenTopic
from headwater.log.storage import Frame, FrameKind
from tests.faults.model import LOWEST, Allowed, ModelPartition, Record

LATENESS = 10_000_000
ALL = 1 << 30
_TYPE = pa.schema(
    [("producer", pa.string()), ("number", pa.int64()), ("key", pa.string()), ("at", pa.timestamp("us", "UTC"))]
)


class Seen(NamedTuple):
    """An event as it was read; an idle marker has no record."""

    offset: int
    record: Record | None
    received: int
    late: bool


class Comparison:
    """Reads partitions and raises `AssertionError` where they differ from the model."""

    def __init__(self, partitions: list[ModelPartition]) -> None:
        self.partitions = partitions
        self._decoded: dict[tuple[int, ...], list[Seen]] = {}
        self._lateness = LATENESS

    def change_lateness(self, micros: int) -> None:
        """Judge all events by another lateness from now on."""
        self._lateness = micros
        self._decoded.clear()

    def settle(self, log: EventLog, held: PartitionRange, allowed: Allowed, now: int, *, tail: bool) -> None:
        """Compare a partition up to its end; the model learns the outcome of sends that were not acknowledged."""
        model = self.partitions[held.partition]
        assert model.start <= held.start <= max(model.start, allowed.gone_until), (held, model.start, allowed)
        model.remove_below(held.start)
        first = max(held.start, model.end - 10) if tail else held.start
        found = self._read(log, held.partition, first, 1 << 20, ALL)
        if held.end < model.end:
            assert allowed.shorter, f"{held} ends before {model.end}, which was acknowledged"
            model.cut(held.end, held.max_event_time)
        self._accept(model, [seen for seen in found if seen.offset >= model.end], allowed, held, now)
        there = {seen.offset for seen in found}
        for offset in [offset for offset in model.events if offset in allowed.superseded - there]:
            del model.events[offset]
        self._same(model, found, first)

    def some(self, log: EventLog, partition: int, offset: int, max_bytes: int, reads: int) -> None:
        """Compare the results of some reads from an offset on."""
        self._same(self.partitions[partition], self._read(log, partition, offset, max_bytes, reads), offset, reads)

    def _same(self, model: ModelPartition, found: list[Seen], offset: int, reads: int = ALL) -> None:
        last = found[-1].offset if found else offset - 1
        until = model.end - 1 if reads == ALL else last
        expected = [at for at in sorted(model.events) if offset <= at <= until]
        assert [seen.offset for seen in found] == expected
        for seen in found:
            stored = model.events[seen.offset]
            assert seen.record == stored.record, (seen, stored)
            if seen.record is not None:
                assert seen.received == stored.received, (seen, stored)
                assert seen.late == model.late(seen.offset, self._lateness), (seen, stored)

    def _accept(
        self, model: ModelPartition, more: list[Seen], allowed: Allowed, held: PartitionRange, now: int
    ) -> None:
        """Accept events that were not acknowledged, if they were sent and are complete."""
        records = [seen.record for seen in more]
        if allowed.mark and records == [None]:
            model.add_mark(held.max_event_time, now)
        elif more:
            assert records in list(accumulate(allowed.maybe)), (records, allowed)
            sent = [record for record in records if record is not None]
            model.add(sent, more[0].received, idempotent=sent[0].producer in "xy")
        assert model.end == held.end, (model.end, held)

    def _read(self, log: EventLog, partition: int, offset: int, max_bytes: int, reads: int) -> list[Seen]:
        topic = log.open_topic("t")
        found: list[Seen] = []
        at = offset
        for _ in range(reads):
            frames = topic.partitions[partition].fetch(at, max_bytes)
            if not frames:
                break
            for frame, data in frames:
                found.extend(self._decode(topic, partition, frame, data))
            at = frames[-1][0].next_offset
        return [seen for seen in found if seen.offset >= offset]

    def _decode(self, topic: OpenTopic, partition: int, frame: Frame, data: memoryview) -> list[Seen]:
        """Returns the rows of a frame; caches them by checksum and position."""
        name = (frame.body_crc, frame.base_offset, frame.max_event_time_before, frame.appended_at)
        if name not in self._decoded:
            self._decoded[name] = _rows_in(topic, partition, frame, data)
        return self._decoded[name]


def _rows_in(topic: OpenTopic, partition: int, frame: Frame, data: memoryview) -> list[Seen]:
    if frame.kind is FrameKind.IDLE_MARKER:
        return [Seen(frame.base_offset, None, frame.appended_at, late=False)]
    batch = topic.decode(partition, frame, data)
    columns = batch.values.to_pydict()
    times = batch.values.column("at").cast(pa.int64()).to_pylist()
    records = map(Record, columns["producer"], columns["number"], columns["key"], times, batch.tombstones.tolist())
    return list(map(Seen, batch.offsets.tolist(), records, batch.arrival_times.tolist(), batch.late().tolist()))


def rows_of(records: list[Record], partition: int, *, producer: str = "", sequence: int = -1) -> WriteBatch:
    """Records as columns, for one partition."""
    columns = list(zip(*records, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _TYPE, strict=False)]
    envelope = {"_hw.deleted": pa.array(columns[4])} if any(columns[4]) else {}
    values = pa.RecordBatch.from_arrays(arrays, schema=_TYPE)
    return WriteBatch(values, 1, envelope, partition, producer, sequence)


def part_of(rows: WriteBatch) -> WriteBatch:
    """Columns as the storage takes them."""
    times = rows.values.column("at").cast(pa.int64()).fill_null(LOWEST).to_numpy()
    return WriteBatch(rows.values, rows.version, rows.envelope, times=times)
