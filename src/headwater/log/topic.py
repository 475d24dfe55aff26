"""A topic that is open in this process: its definition and schema history on disk, its partitions, its door."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, HeadwaterError, TooLargeError
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
from headwater.log.batch import LogBatch
from headwater.log.definition import LARGEST_EVENT, Durability, Topic, check_producer, keyless, too_large
from headwater.log.door import Door, Entry
from headwater.log.door.counts import Counts
from headwater.log.event_time import EventTimes
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows, together
from headwater.log.schemas import read_definition, read_schema
from headwater.log.storage import Disk, Ends, Frame, Kind, Part, Partition, Written, decode_columns
from headwater.log.storage.layout import Appended

__all__ = ["OpenTopic"]

Places = np.ndarray[Any, np.dtype[np.int64]]
_LARGEST_FRAME = 16 << 20
_READ_BYTES = 8 << 20
_FIRST_READ_BYTES = 64 << 10
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class _Piece:
    """What of an entry goes to one partition, and the places of its rows in the entry."""

    partition: int
    part: Part | Row
    places: Places | None = None

    @property
    def rows(self) -> int:
        return 1 if isinstance(self.part, Row) else self.part.values.num_rows


class OpenTopic:
    """Everything one process needs of a topic."""

    def __init__(self, disk: Disk, clock: Clock, folder: Path, memory: Path) -> None:
        self.folder = folder
        self._disk = disk
        self._event_times = EventTimes(clock)
        self._lock = threading.Lock()
        self._schemas: dict[int, pa.Schema] = {}
        self._codecs: dict[int, Codec] = {}
        self._turn = count()
        self._settings: bytes | None = None
        self.partitions: list[Partition] = []
        self.definition = self.reload()
        self.ends = Ends(disk, folder / "ends")
        self.counts = Counts(disk, folder / "counts")
        in_memory = self.definition.durability is Durability.MEMORY
        home = memory / folder.name if in_memory else folder
        self.partitions = [
            Partition(disk, clock, home / str(number), self.ends, number, _written(self.definition))
            for number in range(self.definition.partitions)
        ]
        self.door = Door(self._commit, self.definition.overload, self.counts.add)

    # -- definition ----------------------------------------------------------------------------------------------

    def reload(self) -> Topic:
        """Read the definition again: another process may have evolved it."""
        data = self._disk.read_file(self.folder / "topic.json")
        if data is None:
            raise FileNotFoundError(self.folder / "topic.json")
        if data == self._settings:
            return self.definition
        bare = read_definition(self.folder / "topic.json", data)
        new = bare.with_schema(self._schema(bare.version), bare.version)
        # At once: a thread that decodes meanwhile must not see half of the old type and half of the new one.
        self._typed = (new, Codec(new.schema), storage_schema(new.schema))
        self.definition, self._settings = new, data
        for partition in self.partitions:
            partition.written = _written(new)
            self.door.overload = new.overload
        return new

    def codec_of(self, version: int) -> Codec:
        """The codec of the topic's type at this version."""
        definition, codec, _ = self._typed
        if version == definition.version:
            return codec
        found = self._codecs.get(version)
        if found is None:
            found = self._codecs[version] = Codec(self._schema(version))
        return found

    def _schema(self, version: int) -> pa.Schema:
        with self._lock:
            if version not in self._schemas:
                self._schemas[version] = read_schema(self._disk, self.folder, version)
            return self._schemas[version]

    # -- in ------------------------------------------------------------------------------------------------------

    def pass_through(self, rows: Row | Rows) -> Entry:
        """Send rows through the door and wait until they are appended or dropped."""
        return self.door.pass_through(self._entry(rows))

    def put(self, rows: Row | Rows) -> Entry:
        """Hand rows to the door; `door.finish` waits for them."""
        return self.door.put(self._entry(rows))

    def _entry(self, rows: Row | Rows) -> Entry:
        if rows.producer:
            check_producer(rows.producer)
        if isinstance(rows, Row):
            return Entry([_Piece(self._partition(rows), rows)], 1)
        return Entry(self._pieces(rows), rows.values.num_rows)

    def receipt(self, entry: Entry) -> Receipt:
        """The receipt of a single event that is done."""
        name = self.definition.name
        if entry.dropped:
            return Receipt(name, -1, -1, dropped=entry.dropped)
        piece, appended = entry.content[0], entry.outcome[0]
        if not appended.duplicates:
            return Receipt(name, piece.partition, appended.first_offset)
        old = self.partitions[piece.partition].offsets_of(piece.part.producer, [piece.part.sequence])[0]
        return Receipt(name, piece.partition, old, duplicate=True)

    def receipts(self, entry: Entry) -> Receipts:
        """The receipts of an entry that is done."""
        partitions = np.full(entry.rows, -1, np.int64)
        offsets = np.full(entry.rows, -1, np.int64)
        repeated = np.zeros(entry.rows, bool)
        for piece, appended in zip(entry.content, entry.outcome or (), strict=False):
            if appended is None:
                continue
            places = piece.places
            partitions[places] = piece.partition
            fresh = np.arange(appended.first_offset, appended.first_offset + appended.count)
            old = self._old_offsets(piece, appended)
            offsets[places] = np.concatenate((old, fresh))
            repeated[places] = np.arange(len(old) + len(fresh)) < len(old)
        return Receipts(self.definition.name, partitions, offsets, repeated, entry.dropped)

    def _old_offsets(self, piece: _Piece, appended: Appended) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not appended.duplicates:
            return np.empty(0, np.int64)
        partition, part = self.partitions[piece.partition], piece.part
        if isinstance(part, Part) and not part.per_row:
            found = partition.offsets_of(part.producer, [part.sequence])[0]
            return np.full(appended.duplicates, -1) if found < 0 else found + np.arange(appended.duplicates)
        sequences = range(part.sequence, part.sequence + appended.duplicates)
        return np.array(partition.offsets_of(part.producer, sequences), np.int64)

    def _pieces(self, rows: Rows) -> list[_Piece]:
        part = self._part(rows)
        keys = self._keys(rows)
        number = len(self.partitions)
        if rows.partition is not None or number == 1 or keys is None:
            partition = next(self._turn) % number if rows.partition is None else rows.partition
            slices = _sized(part, np.arange(part.values.num_rows))
            return [_Piece(partition, *slice_) for slice_ in slices]
        owners = partitions_of(keys, number)
        pieces: list[_Piece] = []
        for partition in np.unique(owners).tolist():
            places = np.flatnonzero(owners == partition)
            taken = pa.array(places)
            mine = Part(
                part.values.take(taken),
                part.schema,
                {name: column.take(taken) for name, column in part.envelope.items()},
                None if part.times is None else part.times[places],
                sent_at=part.sent_at,
            )
            pieces.extend(_Piece(partition, *slice_) for slice_ in _sized(mine, places))
        return pieces

    def _part(self, rows: Rows) -> Part:
        times, envelope = self._event_times.of(self.definition, rows)
        return Part(
            rows.values,
            rows.version,
            envelope,
            times,
            rows.producer,
            rows.sequence,
            rows.per_row,
            rows.sent_at,
        )

    def _partition(self, row: Row) -> int:
        number = len(self.partitions)
        if row.partition is not None:
            return row.partition
        key = row.about.get("_hw.key")
        if self.definition.key:
            parts = self.codec_of(row.version).members(row.struct, self.definition.key)
            missing = [name for name, part in zip(self.definition.key, parts, strict=True) if part is None]
            if missing:
                raise keyless(self.definition, missing[0], 0)
            if number > 1:
                key = key_bytes(parts[0] if len(parts) == 1 else parts)
        if number == 1:
            return 0
        return next(self._turn) % number if key is None else partition_of(key, number)

    def _keys(self, rows: Rows) -> pa.Array | None:
        if not self.definition.key:
            return rows.envelope.get("_hw.key")
        columns = [rows.values.column(name) for name in self.definition.key]
        for name, column in zip(self.definition.key, columns, strict=True):
            if column.null_count:
                raise keyless(self.definition, name, column.is_null().index(True).as_py())
        return keys_of(columns) if len(self.partitions) > 1 and rows.partition is None else None

    def _commit(self, entries: list[Entry]) -> None:
        by_partition: dict[int, list[tuple[Entry, int]]] = {}
        for entry in entries:
            entry.outcome = [None] * len(entry.content)
            for index, piece in enumerate(entry.content):
                by_partition.setdefault(piece.partition, []).append((entry, index))
        for partition, places in by_partition.items():
            try:
                self._append_group(partition, places)
            except (HeadwaterError, OSError) as error:
                for entry, _ in places:
                    entry.error = error
        self._count(entries)

    def _append_group(self, partition: int, places: list[tuple[Entry, int]]) -> None:
        """One lock and one sync for all; single events that wait together share a frame."""
        groups = list(self._groups(places))
        done = self.partitions[partition].append([part for part, _ in groups])
        for (_, members), appended in zip(groups, done, strict=True):
            repeats, offset = appended.duplicates, appended.first_offset
            for entry, index in members:
                rows = entry.content[index].rows
                old = min(rows, repeats)
                entry.outcome[index] = Appended(offset, rows - old, old)
                repeats, offset = repeats - old, offset + rows - old

    def _groups(self, places: list[tuple[Entry, int]]) -> Iterator[tuple[Part, list[tuple[Entry, int]]]]:
        run: list[tuple[Entry, int]] = []
        for entry, index in places:
            part = entry.content[index].part
            if run and not (isinstance(part, Row) and part.follows(_row(run[-1]))):
                yield from self._built(run)
                run = []
            if isinstance(part, Row):
                run.append((entry, index))
            else:
                yield part, [(entry, index)]
        if run:
            yield from self._built(run)

    def _built(self, run: list[tuple[Entry, int]]) -> Iterator[tuple[Part, list[tuple[Entry, int]]]]:
        """Single events as one part; if one of them does not fit its columns, each by itself."""
        rows = [_row(place) for place in run]
        try:
            part = self._part(together(self.codec_of(rows[0].version), rows))
            for slice_, places in _sized(part, np.arange(len(run))):
                yield slice_, [run[place] for place in places]
        except (BadEventError, TooLargeError) as error:
            if len(run) == 1:
                run[0][0].error = error
                return
            for place in run:
                yield from self._built([place])

    def _count(self, entries: list[Entry]) -> None:
        decided = {"offered": 0, "appended": 0, "duplicate": 0, "refused": 0}
        for entry in entries:
            decided["offered"] += entry.rows
            done = [appended for appended in entry.outcome if appended is not None]
            decided["appended"] += sum(appended.count for appended in done)
            decided["duplicate"] += sum(appended.duplicates for appended in done)
            decided["refused"] += entry.rows - sum(a.count + a.duplicates for a in done)
        self.counts.add(decided)

    # -- out -----------------------------------------------------------------------------------------------------

    def fetch(self, partition: int, offset: int, max_bytes: int) -> list[tuple[Frame, memoryview]]:
        """Frames of a partition from an offset on, as stored."""
        return self.partitions[partition].fetch(offset, max_bytes)

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """The events of offsets `[start, end)`, batch by batch, as they are stored; time marks are left out."""
        # How many bytes the range has is not known; of one frame, millions behind it need not be looked at.
        most = _FIRST_READ_BYTES
        while start < end:
            found = self.partitions[partition].fetch(start, most)
            if not found:
                return
            most = min(2 * most, _READ_BYTES)
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
        """A frame as a batch of the topic's current type; its checksum has been compared."""
        if frame.schema > self.definition.version:
            self.reload()
        definition, codec, stored = self._typed
        if frame.kind is not Kind.EVENTS:
            empty = pa.RecordBatch.from_pylist([], stored)
            return LogBatch(definition, partition, frame, empty, {}, codec)
        old = frame.schema != definition.version
        schema = storage_schema(self._schema(frame.schema)) if old else stored
        columns = decode_columns(frame, data[frame.body_at :], schema)
        width = len(schema)
        values = pa.RecordBatch.from_arrays(columns.columns[:width], schema=schema)
        if old:
            values = upgrade(values, stored)
        names = columns.schema.names[width:]
        envelope = dict(zip(names, columns.columns[width:], strict=True))
        return LogBatch(definition, partition, frame, values, envelope, codec)

    def close(self) -> None:
        """Append what waits at the door and close the files."""
        self.door.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the files and nothing else: in a forked child, the door and its entries belong to the parent."""
        for partition in self.partitions:
            partition.close()
        with contextlib.suppress(OSError):
            self.ends.close()
            self.counts.close()


def _sized(part: Part, places: Places) -> list[tuple[Part, Places]]:
    """A part in frames that a reader can hold in memory; one sequence number is always one frame."""
    rows = part.values.num_rows
    nbytes = part.values.nbytes + sum(column.nbytes for column in part.envelope.values())
    if nbytes > LARGEST_EVENT:
        columns = [*part.values.columns, *part.envelope.values()]
        _refuse_large(pa.RecordBatch.from_arrays(columns, list(map(str, range(len(columns))))), places)
    if nbytes <= _LARGEST_FRAME or not part.per_row:
        return [(part, places)]
    step = max(1, rows * _LARGEST_FRAME // nbytes)
    return [
        (part.slice(start, min(step, rows - start)), places[start : start + step])
        for start in range(0, rows, step)
    ]


def _refuse_large(values: pa.RecordBatch, places: Places) -> None:
    """Finds an event over the limit by halves: batches that are small as a whole cost one look."""
    rows, first = values.num_rows, int(places[0])
    if values.nbytes <= LARGEST_EVENT:
        return
    if rows == 1:
        raise too_large(values.nbytes, first)
    _refuse_large(values.slice(0, rows // 2), places[: rows // 2])
    _refuse_large(values.slice(rows // 2), places[rows // 2 :])


def _row(place: tuple[Entry, int]) -> Row:
    entry, index = place
    part = entry.content[index].part
    assert isinstance(part, Row)
    return part


def _written(topic: Topic) -> Written:
    return Written(
        durable=topic.durability is Durability.DURABLE,
        segment_size=topic.segment_size,
        ahead=topic.ahead // _MICROSECOND,
        clocked=topic.clocked,
    )
