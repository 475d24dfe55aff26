"""A topic that is open in this process: its definition and schema history, partitions and append buffer.

The definition is `topic.json` in the topic's folder; each version of the type has a schema file beside it.
`OpenTopic` assigns rows to partitions, appends a group of entries with one lock and one sync per partition,
and decodes frames under the current type.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, DamagedError, HeadwaterError, TooLargeError
from headwater.events import (
    Clock,
    Codec,
    Receipt,
    key_bytes,
    keys_of,
    partition_of,
    partitions_of,
    storage_schema,
    upgrade,
)
from headwater.events.envelope import Receipts
from headwater.log.append_buffer import AppendBuffer, AppendCounters, PendingAppend
from headwater.log.batch import LogBatch
from headwater.log.storage import (
    Disk,
    Frame,
    FrameKind,
    Partition,
    PartitionBatch,
    StateFile,
    WriteOptions,
    decode_columns,
)
from headwater.log.storage.frame_builder import AppendResult
from headwater.log.topic import MAX_EVENT_BYTES, Durability, Topic, check_producer, missing_key_error, too_large_error
from headwater.log.write_batch import EventTimes, PendingEvent, WriteBatch, coalesce

__all__ = ["OpenTopic", "latest_schema_version", "load_schema", "load_topic", "parse_definition", "schema_file_name"]


def schema_file_name(version: int) -> str:
    """Returns the file name of a version of the type."""
    return f"schema-{version:04d}.arrow"


def latest_schema_version(disk: Disk, folder: Path) -> int:
    """Returns the newest version that is there; 0 when there is none."""
    numbers = [name.removeprefix("schema-").removesuffix(".arrow") for name in disk.names(folder)]
    return max((int(number) for number in numbers if number.isdigit() and len(number) == 4), default=0)


def parse_definition(path: Path, data: bytes) -> Topic:
    """Returns the settings out of a `topic.json`; the schema is kept apart.

    Raises:
        DamagedError: It is not one.
    """
    try:
        return Topic.from_json(data, pa.schema([]))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable_error(path, error) from None


def load_topic(disk: Disk, folder: Path) -> Topic | None:
    """A topic's definition under its newest type; None when there is none in this folder.

    Raises:
        DamagedError: It cannot be read.
    """
    data = disk.read_file(folder / "topic.json")
    if data is None:
        return None
    bare = parse_definition(folder / "topic.json", data)
    return bare.with_schema(load_schema(disk, folder, bare.version), bare.version)


def load_schema(disk: Disk, folder: Path, version: int) -> pa.Schema:
    """Returns a version of a topic's type.

    Raises:
        DamagedError: It is not there, or not a schema.
    """
    path = folder / schema_file_name(version)
    data = disk.read_file(path)
    if data is None:
        raise _unreadable_error(path, "it is missing")
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable_error(path, error) from None


def _unreadable_error(path: Path, why: object) -> DamagedError:
    what = f"{path.name} of topic {path.parent.name!r} cannot be read"
    fix = "put it back from a copy of the folder"
    return DamagedError(what, detail=f"{path}: {why}", fix=fix, topic=path.parent.name)


RowIndexes = np.ndarray[Any, np.dtype[np.int64]]
_MAX_FRAME_BYTES = 16 << 20
_MAX_READ_BYTES = 8 << 20
_FIRST_READ_BYTES = 64 << 10
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class _PartitionAppend:
    """What of an entry goes to one partition, and the places of its rows in the entry."""

    partition: int
    payload: PartitionBatch | PendingEvent
    indexes: RowIndexes | None = None

    @property
    def row_count(self) -> int:
        return 1 if isinstance(self.payload, PendingEvent) else self.payload.values.num_rows


class OpenTopic:
    """The state that one process keeps for a topic."""

    def __init__(self, disk: Disk, clock: Clock, folder: Path, memory_folder: Path) -> None:
        self.folder = folder
        self._disk = disk
        self._event_times = EventTimes(clock)
        self._lock = threading.Lock()
        self._schemas: dict[int, pa.Schema] = {}
        self._codecs: dict[int, Codec] = {}
        self._round_robin = count()
        self._definition_json: bytes | None = None
        self.partitions: list[Partition] = []
        self.definition = self.reload()
        self.state_file = StateFile(disk, folder / "ends")
        self.counters = AppendCounters(disk, folder / "counts")
        in_memory = self.definition.durability is Durability.MEMORY
        partitions_folder = memory_folder / folder.name if in_memory else folder
        self.partitions = [
            Partition(
                disk, clock, partitions_folder / str(number), self.state_file, number, _write_options(self.definition)
            )
            for number in range(self.definition.partitions)
        ]
        self.append_buffer = AppendBuffer(self._commit, self.definition.overload, self.counters.add)

    # -- definition ----------------------------------------------------------------------------------------------

    def reload(self) -> Topic:
        """Read the definition again: another process may have evolved it."""
        data = self._disk.read_file(self.folder / "topic.json")
        if data is None:
            raise FileNotFoundError(self.folder / "topic.json")
        if data == self._definition_json:
            return self.definition
        bare = parse_definition(self.folder / "topic.json", data)
        new = bare.with_schema(self._load_schema(bare.version), bare.version)
        # At once: a thread that decodes meanwhile must not see half of the old type and half of the new one.
        self._current_type = (new, Codec(new.schema), storage_schema(new.schema))
        self.definition, self._definition_json = new, data
        for partition in self.partitions:
            partition.options = _write_options(new)
            self.append_buffer.overload = new.overload
        return new

    def codec_of(self, version: int) -> Codec:
        """Returns the codec of the topic's type at this version."""
        definition, codec, _ = self._current_type
        if version == definition.version:
            return codec
        found = self._codecs.get(version)
        if found is None:
            found = self._codecs[version] = Codec(self._load_schema(version))
        return found

    def _load_schema(self, version: int) -> pa.Schema:
        with self._lock:
            if version not in self._schemas:
                self._schemas[version] = load_schema(self._disk, self.folder, version)
            return self._schemas[version]

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, events: PendingEvent | WriteBatch) -> PendingAppend:
        """Pass rows through the append buffer and wait until they are appended or dropped."""
        return self.append_buffer.append(self._new_append(events))

    def begin_append(self, events: PendingEvent | WriteBatch) -> PendingAppend:
        """Put rows into the append buffer; `append_buffer.await_append` waits for them."""
        return self.append_buffer.begin_append(self._new_append(events))

    def _new_append(self, events: PendingEvent | WriteBatch) -> PendingAppend:
        if events.producer:
            check_producer(events.producer)
        if isinstance(events, PendingEvent):
            return PendingAppend([_PartitionAppend(self._choose_partition(events), events)], 1)
        return PendingAppend(self._split_by_partition(events), events.values.num_rows)

    def receipt(self, entry: PendingAppend) -> Receipt:
        """Returns the receipt of a single event that is done."""
        name = self.definition.name
        if entry.dropped:
            return Receipt(name, -1, -1, dropped=entry.dropped)
        target, result = entry.content[0], entry.outcome[0]
        if not result.duplicates:
            return Receipt(name, target.partition, result.first_offset)
        offset = self.partitions[target.partition].offsets_of(target.payload.producer, [target.payload.sequence])[0]
        return Receipt(name, target.partition, offset, duplicate=True)

    def receipts(self, entry: PendingAppend) -> Receipts:
        """Returns the receipts of an entry that is done."""
        partitions = np.full(entry.row_count, -1, np.int64)
        offsets = np.full(entry.row_count, -1, np.int64)
        repeated = np.zeros(entry.row_count, bool)
        for target, result in zip(entry.content, entry.outcome or (), strict=False):
            if result is None:
                continue
            indexes = target.indexes
            partitions[indexes] = target.partition
            fresh = np.arange(result.first_offset, result.first_offset + result.count)
            old = self._duplicate_offsets(target, result)
            offsets[indexes] = np.concatenate((old, fresh))
            repeated[indexes] = np.arange(len(old) + len(fresh)) < len(old)
        return Receipts(self.definition.name, partitions, offsets, repeated, entry.dropped)

    def _duplicate_offsets(self, target: _PartitionAppend, result: AppendResult) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not result.duplicates:
            return np.empty(0, np.int64)
        partition, payload = self.partitions[target.partition], target.payload
        if isinstance(payload, PartitionBatch) and not payload.per_row:
            found = partition.offsets_of(payload.producer, [payload.sequence])[0]
            return np.full(result.duplicates, -1) if found < 0 else found + np.arange(result.duplicates)
        sequences = range(payload.sequence, payload.sequence + result.duplicates)
        return np.array(partition.offsets_of(payload.producer, sequences), np.int64)

    def _split_by_partition(self, batch: WriteBatch) -> list[_PartitionAppend]:
        whole = self._partition_batch(batch)
        keys = self._key_column(batch)
        number = len(self.partitions)
        if batch.partition is not None or number == 1 or keys is None:
            partition = next(self._round_robin) % number if batch.partition is None else batch.partition
            slices = _split_by_size(whole, np.arange(whole.values.num_rows))
            return [_PartitionAppend(partition, *chunk) for chunk in slices]
        owners = partitions_of(keys, number)
        appends: list[_PartitionAppend] = []
        for partition in np.unique(owners).tolist():
            indexes = np.flatnonzero(owners == partition)
            selection = pa.array(indexes)
            mine = PartitionBatch(
                whole.values.take(selection),
                whole.schema,
                {name: column.take(selection) for name, column in whole.envelope.items()},
                None if whole.times is None else whole.times[indexes],
                sent_at=whole.sent_at,
            )
            appends.extend(_PartitionAppend(partition, *slice_) for slice_ in _split_by_size(mine, indexes))
        return appends

    def _partition_batch(self, batch: WriteBatch) -> PartitionBatch:
        times, envelope = self._event_times.resolve(self.definition, batch)
        return PartitionBatch(
            batch.values, batch.version, envelope, times, batch.producer, batch.sequence, batch.per_row, batch.sent_at
        )

    def _choose_partition(self, event: PendingEvent) -> int:
        number = len(self.partitions)
        if event.partition is not None:
            return event.partition
        key = event.envelope.get("_hw.key")
        if self.definition.key:
            parts = self.codec_of(event.version).field_values(event.struct, self.definition.key)
            missing = [name for name, part in zip(self.definition.key, parts, strict=True) if part is None]
            if missing:
                raise missing_key_error(self.definition, missing[0], 0)
            if number > 1:
                key = key_bytes(parts[0] if len(parts) == 1 else parts)
        if number == 1:
            return 0
        return next(self._round_robin) % number if key is None else partition_of(key, number)

    def _key_column(self, batch: WriteBatch) -> pa.Array | None:
        if not self.definition.key:
            return batch.envelope.get("_hw.key")
        columns = [batch.values.column(name) for name in self.definition.key]
        for name, column in zip(self.definition.key, columns, strict=True):
            if column.null_count:
                raise missing_key_error(self.definition, name, column.is_null().index(True).as_py())
        return keys_of(columns) if len(self.partitions) > 1 and batch.partition is None else None

    def _commit(self, entries: list[PendingAppend]) -> None:
        by_partition: dict[int, list[tuple[PendingAppend, int]]] = {}
        for entry in entries:
            entry.outcome = [None] * len(entry.content)
            for index, target in enumerate(entry.content):
                by_partition.setdefault(target.partition, []).append((entry, index))
        for partition, waiting in by_partition.items():
            try:
                self._append_group(partition, waiting)
            except (HeadwaterError, OSError) as error:
                for entry, _ in waiting:
                    entry.error = error
        self._count_appends(entries)

    def _append_group(self, partition: int, waiting: list[tuple[PendingAppend, int]]) -> None:
        """Append entries with one lock and one sync; single events that wait together share a frame."""
        groups = list(self._coalesce(waiting))
        results = self.partitions[partition].append([part for part, _ in groups])
        for (_, members), result in zip(groups, results, strict=True):
            repeats, offset = result.duplicates, result.first_offset
            for entry, index in members:
                rows = entry.content[index].row_count
                old = min(rows, repeats)
                entry.outcome[index] = AppendResult(offset, rows - old, old)
                repeats, offset = repeats - old, offset + rows - old

    def _coalesce(
        self, waiting: list[tuple[PendingAppend, int]]
    ) -> Iterator[tuple[PartitionBatch, list[tuple[PendingAppend, int]]]]:
        run: list[tuple[PendingAppend, int]] = []
        for entry, index in waiting:
            payload = entry.content[index].payload
            if run and not (isinstance(payload, PendingEvent) and payload.can_follow(_event_at(run[-1]))):
                yield from self._coalesce_run(run)
                run = []
            if isinstance(payload, PendingEvent):
                run.append((entry, index))
            else:
                yield payload, [(entry, index)]
        if run:
            yield from self._coalesce_run(run)

    def _coalesce_run(
        self, run: list[tuple[PendingAppend, int]]
    ) -> Iterator[tuple[PartitionBatch, list[tuple[PendingAppend, int]]]]:
        """Single events as one part; if one of them does not fit its columns, each by itself."""
        events = [_event_at(member) for member in run]
        try:
            batch = self._partition_batch(coalesce(self.codec_of(events[0].version), events))
            for chunk, indexes in _split_by_size(batch, np.arange(len(run))):
                yield chunk, [run[place] for place in indexes]
        except (BadEventError, TooLargeError) as error:
            if len(run) == 1:
                run[0][0].error = error
                return
            for place in run:
                yield from self._coalesce_run([place])

    def _count_appends(self, entries: list[PendingAppend]) -> None:
        counts = {"offered": 0, "appended": 0, "duplicate": 0, "refused": 0}
        for entry in entries:
            counts["offered"] += entry.row_count
            results = [result for result in entry.outcome if result is not None]
            counts["appended"] += sum(appended.count for appended in results)
            counts["duplicate"] += sum(appended.duplicates for appended in results)
            counts["refused"] += entry.row_count - sum(a.count + a.duplicates for a in results)
        self.counters.add(counts)

    # -- out -----------------------------------------------------------------------------------------------------

    def fetch(self, partition: int, offset: int, max_bytes: int) -> list[tuple[Frame, memoryview]]:
        """Frames of a partition from an offset on, as stored."""
        return self.partitions[partition].fetch(offset, max_bytes)

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """Yields the events of offsets `[start, end)` as stored, without idle markers."""
        # How many bytes the range has is not known; of one frame, millions behind it need not be looked at.
        most = _FIRST_READ_BYTES
        while start < end:
            found = self.partitions[partition].fetch(start, most)
            if not found:
                return
            most = min(2 * most, _MAX_READ_BYTES)
            for frame, data in found:
                if frame.base_offset >= end:
                    return
                if frame.count:
                    batch = self.decode(partition, frame, data)
                    whole = start <= frame.base_offset and frame.next_offset <= end
                    mine = None if whole else (batch.offsets >= start) & (batch.offsets < end)
                    yield batch if mine is None else batch.select(mine)
                start = frame.next_offset

    def decode(self, partition: int, frame: Frame, data: memoryview) -> LogBatch:
        """Returns a frame as a batch of the topic's current type; its checksum was compared before."""
        if frame.schema > self.definition.version:
            self.reload()
        definition, codec, stored = self._current_type
        if frame.kind is not FrameKind.EVENTS:
            empty = pa.RecordBatch.from_pylist([], stored)
            return LogBatch(definition, partition, frame, empty, {}, codec)
        old = frame.schema != definition.version
        schema = storage_schema(self._load_schema(frame.schema)) if old else stored
        columns = decode_columns(frame, data[frame.body_at :], schema)
        width = len(schema)
        values = pa.RecordBatch.from_arrays(columns.columns[:width], schema=schema)
        if old:
            values = upgrade(values, stored)
        names = columns.schema.names[width:]
        envelope = dict(zip(names, columns.columns[width:], strict=True))
        return LogBatch(definition, partition, frame, values, envelope, codec)

    def close(self) -> None:
        """Append what waits in the append buffer and close the files."""
        self.append_buffer.close()
        self.close_files()

    def close_files(self) -> None:
        """Close only the files: in a forked child, the append buffer and its entries belong to the parent."""
        for partition in self.partitions:
            partition.close()
        with contextlib.suppress(OSError):
            self.state_file.close()
            self.counters.close()


def _split_by_size(batch: PartitionBatch, indexes: RowIndexes) -> list[tuple[PartitionBatch, RowIndexes]]:
    """Returns a part in frames that a reader can hold in memory; one sequence number is always one frame."""
    rows = batch.values.num_rows
    nbytes = batch.values.nbytes + sum(column.nbytes for column in batch.envelope.values())
    if nbytes > MAX_EVENT_BYTES:
        columns = [*batch.values.columns, *batch.envelope.values()]
        _check_event_sizes(pa.RecordBatch.from_arrays(columns, list(map(str, range(len(columns))))), indexes)
    if nbytes <= _MAX_FRAME_BYTES or not batch.per_row:
        return [(batch, indexes)]
    step = max(1, rows * _MAX_FRAME_BYTES // nbytes)
    return [
        (batch.slice(start, min(step, rows - start)), indexes[start : start + step]) for start in range(0, rows, step)
    ]


def _check_event_sizes(values: pa.RecordBatch, indexes: RowIndexes) -> None:
    """Finds an event over the limit by halves: batches that are small as a whole cost one look."""
    rows, first = values.num_rows, int(indexes[0])
    if values.nbytes <= MAX_EVENT_BYTES:
        return
    if rows == 1:
        raise too_large_error(values.nbytes, first)
    _check_event_sizes(values.slice(0, rows // 2), indexes[: rows // 2])
    _check_event_sizes(values.slice(rows // 2), indexes[rows // 2 :])


def _event_at(member: tuple[PendingAppend, int]) -> PendingEvent:
    entry, index = member
    payload = entry.content[index].payload
    assert isinstance(payload, PendingEvent)
    return payload


def _write_options(topic: Topic) -> WriteOptions:
    return WriteOptions(
        durable=topic.durability is Durability.DURABLE,
        segment_size=topic.segment_size,
        ahead=topic.ahead // _MICROSECOND,
        external_time=topic.external_time,
    )
