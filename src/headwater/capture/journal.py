"""The journal of a captured database: its records in commit order, in a topic of one partition.

The resume point of the source stands in the record itself, so one sync brings both to disk: after a crash the last
record says where the source continues. Nothing is removed from a journal by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.capture.source import ChangeBatch, Record, RecordKind, Resume, TableShape
from headwater.errors import DamagedError
from headwater.log import Topic, WriteBatch
from headwater.log.protocol import Log, TimedLog
from headwater.log.topic import MAX_EVENT_BYTES

__all__ = ["Journal", "JournalEntry", "journal_identity", "journal_topic", "quarantine_topic", "read_journal"]

_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("table", pa.string()),
        pa.field("resume", pa.string(), nullable=False),  # JSON
        pa.field("payload", pa.binary()),  # an Arrow IPC stream: changes, or no rows of a shape
        pa.field("at", pa.int64()),  # microseconds since 1970
        pa.field("detail", pa.string()),
        pa.field("open", pa.bool_()),
    ]
)
_SHAPE_KEY: Final = b"headwater.shape"
_MAX_PAYLOAD: Final = MAX_EVENT_BYTES - (256 << 10)  # the rest is for the resume point and the detail
_COMPRESS_ABOVE: Final = 4 << 10  # smaller payloads do not become smaller
_READ_BYTES: Final = 8 << 20  # about what one read takes from the log
_READ_TIMEOUT: Final = 2.0  # seconds; entries below the end are there, but Kafka may take a moment
_MAX_DETAIL: Final = 128 << 10


def journal_topic(name: str) -> str:
    """Returns the name of the journal of a capture.

    Example:
        >>> journal_topic("shop")
        '_hw.capture.shop'
    """
    return f"_hw.capture.{name}"


def quarantine_topic(name: str) -> str:
    """Returns the name of the topic with the changes of a capture that no table could take.

    Example:
        >>> quarantine_topic("shop")
        '_hw.capture.shop.quarantine'
    """
    return f"_hw.capture.{name}.quarantine"


def journal_identity(log: TimedLog, name: str) -> str:
    """Returns the name of a capture; after its journal was deleted, one that tells the later journal from it.

    Offsets of a later journal begin anew, so producers and event ids that are made of them need another name.
    """
    id_ = log.topic_id(journal_topic(name))
    return f"{name}@{id_}" if id_ else name


@dataclass(frozen=True)
class JournalEntry:
    """A record with its offset in the journal."""

    offset: int
    record: Record


class Journal:
    """Appends records to the journal of a capture and reads them.

    Only the owner of the capture's lease appends. A new journal fences the owner before: from then on the log refuses
    its appends, because their sequence numbers do not follow each other, on Kafka because its producer id is taken.

    Args:
        log: The log.
        name: The name of the capture.

    Example:
        >>> import tempfile
        >>> from headwater.log import EventLog
        >>> journal = Journal(EventLog(tempfile.mkdtemp()), "shop")
        >>> [entry.offset for entry in journal.append([Record(RecordKind.POSITION, {"lsn": 7}, at=1)])]
        [0]
        >>> journal.last_resume()
        {'lsn': 7}
    """

    def __init__(self, log: TimedLog, name: str) -> None:
        self.topic = journal_topic(name)
        self._log = log
        definition = Topic.declare(self.topic, _SCHEMA, durability="durable", external_time=True, value_format="arrow")
        self._version = log.create(definition).version
        self.identity = journal_identity(log, name)
        self.producer = f"capture/{self.identity}"
        # Before anything is read: what follows from the journal's end must not be appended behind another end.
        self._previous: int | None = log.last_sequences(self.topic, self.producer)[0]

    def append(self, records: Sequence[Record]) -> list[JournalEntry]:
        """Append records in one batch; returns when they are on disk, with their offsets.

        A record that is larger than an event may be becomes several entries. All of a call is kept or none.
        """
        parts = [part for record in records for part in _split(record)]
        if not parts:
            return []
        if self._previous is None:
            self._previous = self._log.last_sequences(self.topic, self.producer)[0]
        first = self._previous + 1
        columns = list(map(list, zip(*((_to_row(part, payload)) for part, payload in parts), strict=True)))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        values = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
        batch = WriteBatch(
            values, self._version, {}, 0, producer=self.producer, sequence=first, previous=self._previous
        )
        try:
            receipts = self._log.append(self.topic, batch)
        except BaseException:
            self._previous = None  # what of it is in the log is unknown
            raise
        self._previous = batch.last_sequence
        offsets = receipts.offsets.tolist()
        return [JournalEntry(offset, part) for offset, (part, _) in zip(offsets, parts, strict=True)]

    def end(self) -> int:
        """Returns the offset of the next entry."""
        return self._log.ends(self.topic)[0].end

    def last_resume(self) -> Resume | None:
        """Returns the resume point of the last record; None if there is no record."""
        ends = self._log.ends(self.topic)[0]
        back = 1
        while True:  # on Kafka, the last offsets may be marks of transactions, without a record
            start = max(ends.start, ends.end - back)
            last = None
            for entry in self.read(start, ends.end):
                last = entry.record.resume
            if last is not None or start <= ends.start:
                return last
            back *= 16

    def read(self, start: int, end: int | None = None) -> Iterator[JournalEntry]:
        """Yields the entries of offsets `[start, end)`; all that there are now without an end."""
        return read_journal(self._log, self.topic, start, end)


def read_journal(log: Log, topic: str, start: int, end: int | None = None) -> Iterator[JournalEntry]:
    """Yields the entries of a journal at offsets `[start, end)`; all that there are now without an end.

    Raises:
        UnknownTopicError: There is no such journal.
        DamagedError: An entry cannot be read.
    """
    ends = log.ends(topic)[0]
    until, offset = ends.end if end is None else end, max(start, ends.start)
    while offset < until:
        batches = log.fetch(topic, {0: offset}, max_bytes=_READ_BYTES, timeout=_READ_TIMEOUT, waiter=None)
        if not batches:
            return
        for batch in batches:
            for place, row in zip(batch.offsets.tolist(), batch.values.to_pylist(), strict=True):
                if place < until:
                    yield JournalEntry(place, _from_row(topic, place, row))
        offset = batches[-1].next_offset


def _from_row(topic: str, offset: int, row: dict[str, Any]) -> Record:
    batch = None
    try:
        kind, payload, resume = RecordKind(row["kind"]), row["payload"], _parse_resume(row["resume"])
        shape, changes = (None, None) if payload is None else _decode_payload(row["table"], payload)
    except (ValueError, KeyError, pa.ArrowException, msgspec.DecodeError) as error:
        what = f"record {offset} of {topic} cannot be read"
        raise DamagedError(what, detail=str(error), fix="headwater verify", topic=topic) from None
    if kind in (RecordKind.CHANGES, RecordKind.SNAPSHOT) and shape is not None and changes is not None:
        batch = ChangeBatch(shape, changes)
    return Record(
        kind,
        resume,
        table=row["table"] or "",
        shape=shape if kind is RecordKind.SHAPE else None,
        batch=batch,
        at=row["at"] or 0,
        detail=row["detail"] or "",
        open=bool(row["open"]),
    )


def _parse_resume(text: str) -> Resume:
    resume: Resume = msgspec.json.decode(text)
    return resume


def _split(record: Record) -> Iterator[tuple[Record, bytes | None]]:
    """Yields the record with its payload, in parts if one event cannot hold it.

    The transaction of all parts but the last is open. A single row that is too large goes into quarantine by its key.
    """
    payload = _encode_payload(record)
    if payload is None or len(payload) <= _MAX_PAYLOAD or record.batch is None:
        yield record, payload
        return
    changes, shape = record.batch.changes, record.batch.shape
    if changes.num_rows == 1:
        what = f"a change of {changes.nbytes:,} bytes is larger than an event may be, {MAX_EVENT_BYTES:,}"
        yield replace(record, kind=RecordKind.QUARANTINE, batch=None, detail=f"{what}: {_key_text(record.batch)}"), None
        return
    half = changes.num_rows // 2
    first, rest = changes.slice(0, half), changes.slice(half)
    yield from _split(replace(record, batch=ChangeBatch(shape, first), open=record.kind is RecordKind.CHANGES))
    yield from _split(replace(record, batch=ChangeBatch(shape, rest)))


def _key_text(batch: ChangeBatch) -> str:
    change = batch.changes
    for side in ("after", "before"):
        row = change.column(side)
        if row[0].is_valid:
            keys = {name: row.field(name)[0].as_py() for name in batch.shape.key}
            return f"{batch.shape.table}, {keys}"[:1000]
    return batch.shape.table


def _encode_payload(record: Record) -> bytes | None:
    """Returns the changes or the shape of a record as an Arrow IPC stream; the schema's metadata has the shape."""
    if record.batch is not None:
        shape, batches = record.batch.shape, [record.batch.changes]
        schema, types = batches[0].schema, {}
    elif record.shape is not None:
        shape, batches = record.shape, []
        schema, types = shape.schema, shape.types
    else:
        return None
    facts = {"version": shape.version, "key": shape.key, "types": types}
    marked = schema.with_metadata({_SHAPE_KEY: msgspec.json.encode(facts)})
    compression = "lz4" if sum(batch.nbytes for batch in batches) > _COMPRESS_ABOVE else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, marked, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(marked.metadata))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _decode_payload(table: str, payload: bytes) -> tuple[TableShape, pa.RecordBatch | None]:
    with pa.ipc.open_stream(payload) as reader:
        batches = list(reader)
        schema = reader.schema
    facts = msgspec.json.decode(schema.metadata[_SHAPE_KEY])
    plain = schema.remove_metadata()
    row = pa.schema(list(plain.field("after").type)) if batches else plain
    shape = TableShape(table, facts["version"], row, tuple(facts["key"]), facts["types"])
    return shape, batches[0].replace_schema_metadata(None) if batches else None


def _to_row(record: Record, payload: bytes | None) -> tuple[Any, ...]:
    resume = msgspec.json.encode(record.resume).decode()
    detail = record.detail[:_MAX_DETAIL] or None
    return str(record.kind), record.table or None, resume, payload, record.at or None, detail, record.open or None
