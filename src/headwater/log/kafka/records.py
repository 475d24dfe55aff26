"""Events as Kafka records: the value in the topic's format, the key as bytes, the envelope in headers.

A tombstone has a key and no value. The headers:

| header | content |
|---|---|
| `hw.version` | version of the topic's type that the event was written under |
| `hw.sent_at`, `hw.occurred_at` | times, RFC 3339 in UTC |
| `hw.id`, `hw.source` | id and source, if the sender gave them |
| `hw.producer`, `hw.sequence` | producer id and sequence number |
| `traceparent` | the W3C trace |
| `hw.values`, `hw.fingerprint` | the format of a value that is not JSON (serializers.py) |

All other headers belong to the sender.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, SchemaConflictError
from headwater.events import Codec, flags_column, keys_of, storage_schema, times_column, values_of
from headwater.events.values import format_moment, moments_of
from headwater.log.batch import LogBatch
from headwater.log.kafka.serializers import (
    FINGERPRINT_HEADER,
    VALUE_FORMAT_HEADER,
    AvroSerializer,
    Header,
    JsonSerializer,
    Serializer,
    UnknownSerializer,
    create_serializer,
)
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind
from headwater.log.topic import MAX_EVENT_BYTES, Topic, ValueFormat, too_large_error
from headwater.log.write.write_batch import WriteBatch

__all__ = ["EncodedRecords", "RecordCodec", "encode_records", "parse_headers"]

_TIMESTAMP = pa.timestamp("us", "UTC")
_RESERVED_PREFIX: Final = "hw."
_TRACEPARENT: Final = "traceparent"
# Envelope columns and their headers; those that end in `_at` are times.
_ENVELOPE_HEADERS: Final = {
    "_hw.id": "hw.id",
    "_hw.source": "hw.source",
    "_hw.traceparent": _TRACEPARENT,
    "_hw.occurred_at": "hw.occurred_at",
    "_hw.sent_at": "hw.sent_at",
}

DecodedRows = tuple[list[int], dict[str, pa.Array]]


def _build_headers(
    rows: WriteBatch, format_headers: list[Header], envelope: dict[str, pa.Array], count: int
) -> list[list[Header]]:
    """Returns one list of headers per row, or a single list that all rows share."""
    same: list[Header] = [("hw.version", b"%d" % rows.version), *format_headers]
    if "_hw.sent_at" not in envelope and rows.sent_at != LOWEST_TIME:
        same.append(("hw.sent_at", _encode_time(moments_of(np.array([rows.sent_at]))[0])))
    columns: list[list[Header | None]] = []
    if rows.producer:
        same.append(("hw.producer", rows.producer.encode()))
        numbers = range(rows.sequence, rows.sequence + count) if rows.per_row else [rows.sequence] * count
        columns.append([("hw.sequence", b"%d" % number) for number in numbers])
    for column, name in _ENVELOPE_HEADERS.items():
        if column in envelope:
            encode = _encode_time if column.endswith("_at") else str.encode
            columns.append([None if value is None else (name, encode(value)) for value in values_of(envelope[column])])
    own = values_of(envelope["_hw.headers"]) if "_hw.headers" in envelope else None
    if not columns and own is None:
        return [same]
    by_row = zip(*columns, strict=True) if columns else [()] * count
    lists = [same + [each for each in row if each is not None] for row in by_row]
    for row, given in enumerate(own or ()):
        lists[row] += [_encode_header(name, text) for name, text in (given or {}).items()]
    return lists


def _encode_header(name: str, text: str) -> Header:
    if _is_reserved(name):
        detail = f"names that start with {_RESERVED_PREFIX} are reserved in Kafka records"
        raise BadEventError(f"the header name {name!r} is reserved", detail=detail, field="headers")
    return name, text.encode()


def _encode_time(at: Any) -> bytes:
    return format_moment(at).encode()


def parse_headers(heads: list[list[Header] | None]) -> tuple[dict[str, pa.Array], int, int]:
    """Returns the envelope columns, the time that all were sent (or `LOWEST_TIME`), and the highest type version.

    Example:
        >>> parse_headers([[("hw.version", b"2")], None])
        ({}, -9223372036854775808, 2)
    """
    # Records of one batch often have the same headers: each run is parsed once.
    runs = [(dict(head or ()), sum(1 for _ in run)) for head, run in groupby(heads)]
    columns, sent, version = _parse_columns([head for head, _ in runs])
    if len(runs) < len(heads):
        lengths = [length for _, length in runs]
        indices = pa.array(np.repeat(np.arange(len(runs)), lengths).tolist(), pa.int64())
        columns = {name: column.take(indices) for name, column in columns.items()}
    return columns, sent, version


def _parse_columns(heads: list[dict[str, bytes]]) -> tuple[dict[str, pa.Array], int, int]:
    names = {name for head in heads for name in head}
    columns: dict[str, pa.Array] = {}
    for column, name in _ENVELOPE_HEADERS.items():
        if name in names:
            texts = [_decode_header(head.get(name)) for head in heads]
            columns[column] = _parse_times(texts) if column.endswith("_at") else pa.array(texts, pa.string())
    if not all(map(_is_reserved, names)):
        own = [[(n, _decode_header(v) or "") for n, v in head.items() if not _is_reserved(n)] for head in heads]
        columns["_hw.headers"] = pa.array(own, pa.map_(pa.string(), pa.string()))
    sent = LOWEST_TIME
    if "_hw.sent_at" in columns and len(set(columns["_hw.sent_at"].to_pylist())) == 1:
        moment = columns.pop("_hw.sent_at")[0]
        sent = moment.value if moment.is_valid else LOWEST_TIME
    versions = {head["hw.version"] for head in heads if "hw.version" in head}
    return columns, sent, max((int(text) for text in versions if text.isdigit()), default=0)


def _is_reserved(name: str) -> bool:
    return name.startswith(_RESERVED_PREFIX) or name == _TRACEPARENT


def _decode_header(value: bytes | None) -> str | None:
    """Returns a header's value as text; bytes that are not UTF-8 are replaced."""
    return None if value is None else value.decode(errors="replace")


def _parse_times(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string()).cast(_TIMESTAMP)
    except pa.ArrowInvalid:  # another program wrote something else into this header
        return pa.concat_arrays([_parse_times([text]) for text in texts]) if len(texts) > 1 else pa.nulls(1, _TIMESTAMP)


@dataclass(frozen=True)
class EncodedRecords:
    """Rows as Kafka records; `headers` has one list per row, or a single list that all rows share."""

    values: list[bytes | None]
    keys: Sequence[bytes | None]
    headers: list[list[Header]]

    def skip(self, count: int) -> EncodedRecords:
        """Returns the rows after the first `count`."""
        headers = self.headers[count:] if len(self.headers) > 1 else self.headers
        return EncodedRecords(self.values[count:], self.keys[count:], headers)


def encode_records(
    topic: Topic, serializer: Serializer, rows: WriteBatch, envelope: dict[str, pa.Array]
) -> EncodedRecords:
    """Encode rows as values, keys and headers.

    Args:
        topic: The topic's definition.
        serializer: The serializer of the rows' type version.
        rows: The rows.
        envelope: Their envelope columns, with event times.

    Raises:
        TooLargeError: An event is larger than `MAX_EVENT_BYTES`.
        BadEventError: A header of the sender has a reserved name.
    """
    values = _encode_values(serializer, rows.values, envelope.get("_hw.deleted"))
    keys: Sequence[bytes | None]
    if topic.key:
        keys = keys_of([rows.values.column(name) for name in topic.key]).to_pylist()
    else:
        given = envelope.get("_hw.key")
        keys = [None] * len(values) if given is None else given.to_pylist()
    # The longest key and the longest value bound every row; rows are only compared one by one above that bound.
    if sum(max(map(len, filter(None, part)), default=0) for part in (keys, values)) > MAX_EVENT_BYTES:
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            size = len(key or b"") + len(value or b"")
            if size > MAX_EVENT_BYTES:
                raise too_large_error(size, row)
    return EncodedRecords(values, keys, _build_headers(rows, serializer.headers, envelope, len(values)))


def _encode_values(serializer: Serializer, rows: pa.RecordBatch, deleted: pa.Array | None) -> list[bytes | None]:
    """Returns the value of each row; None for a tombstone."""
    if deleted is None:
        return list(serializer.encode(rows))
    gone = deleted.fill_null(False).to_pylist()
    live = iter(serializer.encode(rows.filter(flags_column(~np.array(gone, bool)))))
    return [None if dead else next(live) for dead in gone]


class RecordCodec:
    """Decodes Kafka records into batches of a topic's type, and creates serializers; one per definition.

    Args:
        topic: The definition, under its newest type.
        schemas: The schemas of the topic's type, by version.
    """

    def __init__(self, topic: Topic, schemas: Mapping[int, pa.Schema]) -> None:
        self.topic = topic
        self.codec = Codec(topic.schema)
        self.stored_schema = storage_schema(topic.schema)
        key_schema = pa.schema([topic.schema.field(name) for name in topic.key])
        self._key_serializer = JsonSerializer(Codec(key_schema)) if topic.key else None
        self._schemas = schemas
        self._serializers = {topic.version: create_serializer(topic.value_format, self.codec, topic.name)}
        self._record_serializers: dict[tuple[str, str], Serializer] = {}

    def serializer(self, version: int) -> Serializer:
        """Returns the serializer of a version of the type.

        Raises:
            SchemaConflictError: There is no such version.
        """
        if version not in self._serializers:
            if version not in self._schemas:
                what = f'topic "{self.topic.name}" has no version {version} of its type'
                raise SchemaConflictError(what, topic=self.topic.name)
            self._serializers[version] = create_serializer(
                self.topic.value_format, Codec(self._schemas[version]), self.topic.name
            )
        return self._serializers[version]

    def _record_serializer(self, head: dict[str, bytes]) -> Serializer:
        """Returns the serializer that a record's headers name; the topic's own for a record without our headers."""
        format_name = _decode_header(head.get(VALUE_FORMAT_HEADER)) or ""
        if not format_name and "hw.version" not in head:
            return self._serializers[self.topic.version]
        which = (format_name or ValueFormat.JSON.value, _decode_header(head.get(FINGERPRINT_HEADER)) or "")
        if which not in self._record_serializers:
            self._record_serializers[which] = self._find_serializer(*which)
        return self._record_serializers[which]

    def _find_serializer(self, format_name: str, fingerprint: str) -> Serializer:
        if format_name not in list(ValueFormat):
            return UnknownSerializer(self.codec, f"unknown value format {format_name!r}")
        if format_name != ValueFormat.AVRO or not fingerprint:
            return create_serializer(ValueFormat(format_name), self.codec, self.topic.name)
        for schema in self._schemas.values():
            serializer = AvroSerializer(self.codec, self.topic.name, schema)
            if serializer.fingerprint == fingerprint:
                return serializer
        return UnknownSerializer(self.codec, f"unknown Avro schema {fingerprint}")

    def decode(self, partition: int, messages: list[Any], *, envelope: bool = True) -> LogBatch:
        """Decode messages of one partition, in order, into one batch.

        Without `envelope`, headers are read only if they may hold the event time or the value format: reading them
        takes as long as all the rest.
        """
        lines = [message.value() for message in messages]
        keys = [message.key() for message in messages]
        offsets = np.array([message.offset() for message in messages], np.int64)
        received = np.array([message.timestamp()[1] for message in messages], np.int64) * 1000
        plain = None if envelope else self._decode_without_headers(lines)
        if plain is not None:
            reasons: dict[int, str] = {}
            own: dict[str, pa.Array] = {}
            values, sent_at, version = plain, LOWEST_TIME, 0
        else:
            heads = [message.headers() for message in messages]
            runs = ((self._record_serializer(dict(head or ())), sum(1 for _ in run)) for head, run in groupby(heads))
            serializers = [serializer for serializer, length in runs for _ in range(length)]
            values, reasons = self._decode_values(lines, keys, serializers)
            own, sent_at, version = parse_headers(heads)
        if not self.topic.key and any(key is not None for key in keys):
            own["_hw.key"] = pa.array(keys, pa.binary())
        if None in lines:
            own["_hw.deleted"] = pa.array([line is None for line in lines])
        if reasons:
            own |= _error_columns(lines, keys, reasons)
        if offsets[-1] - offsets[0] != len(offsets) - 1:
            own["_hw.offset"] = pa.array(offsets.tolist(), pa.int64())
        if (received != received[-1]).any():
            own["_hw.received_at"] = times_column(received)
        frame = Frame(
            FrameKind.EVENTS,
            int(offsets[0]),
            int(offsets[-1]) + 1,
            count=len(offsets),
            schema=version or self.topic.version,
            appended_at=int(received[-1]),
            sent_at=sent_at,
        )
        return LogBatch(self.topic, partition, frame, values, own, self.codec)

    def _decode_without_headers(self, lines: list[bytes | None]) -> pa.RecordBatch | None:
        """Returns the columns of rows that need no headers: all are JSON, and a column holds the event time."""
        time = self.topic.time
        if self.topic.value_format is not ValueFormat.JSON or self.topic.external_time or time is None:
            return None
        found = self._decode_all(self._serializers[self.topic.version], lines)
        return None if found is None or found.column(time).null_count else found

    def _decode_all(self, serializer: Serializer, lines: list[bytes | None]) -> pa.RecordBatch | None:
        """Returns the columns of all rows; None if one is a tombstone or cannot be read."""
        if None in lines:
            return None
        try:
            found = serializer.decode(lines)  # type: ignore[arg-type]
        except BadEventError:
            return None
        return pa.RecordBatch.from_arrays(found.columns, schema=self.stored_schema)

    def _decode_values(
        self, lines: list[bytes | None], keys: list[bytes | None], serializers: list[Serializer]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Returns the columns, and the reason for each row that cannot be read; such rows are null."""
        by_serializer: dict[Serializer, list[int]] = {}
        for row, serializer in enumerate(serializers):
            by_serializer.setdefault(serializer, []).append(row)
        found = self._decode_all(serializers[0], lines) if len(by_serializer) == 1 else None
        if found is not None:
            return found, {}
        # Tombstones have no value; their key columns are decoded from the record's key.
        gone = [row for row, line in enumerate(lines) if line is None]
        reasons: dict[int, str] = {}
        parts: list[DecodedRows] = []
        for serializer, rows in by_serializer.items():
            parts += _decode_readable(serializer, [row for row in rows if lines[row] is not None], lines, reasons)
        if self._key_serializer is None:
            parts += [(gone, {})] if gone else []
        else:
            texts = {row: self._key_to_json(keys[row]) for row in gone}
            parts += _decode_readable(self._key_serializer, gone, texts, reasons)
        return _assemble(parts, self.stored_schema, len(lines)), reasons

    def _key_to_json(self, key: bytes | None) -> bytes:
        """Returns the key's bytes as a JSON object of the key's columns; a key that is not valid stays as it is."""
        names = self.topic.key
        if key is None:
            return b"a tombstone without a key"
        try:
            if len(names) > 1:
                parts = msgspec.json.decode(key, type=list[msgspec.Raw])
                return msgspec.json.encode(dict(zip(names, parts, strict=True)))
            # The bytes of a single key are its plain text, which is JSON for numbers and booleans.
            kind = self.topic.schema.field(names[0]).type
            is_json = any(test(kind) for test in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating))
            value = key if pa.types.is_binary(kind) else msgspec.Raw(key) if is_json else key.decode()
            return msgspec.json.encode({names[0]: value})
        except (msgspec.DecodeError, ValueError):
            return key


def _error_columns(lines: list[bytes | None], keys: list[bytes | None], reasons: dict[int, str]) -> dict[str, pa.Array]:
    """Returns the envelope columns for rows that cannot be read: the reason and the raw bytes."""
    raws = {row: keys[row] if lines[row] is None else lines[row] for row in reasons}
    count = range(len(lines))
    return {
        "_hw.error": pa.array([reasons.get(row) for row in count], pa.string()),
        "_hw.raw": pa.array([raws.get(row) for row in count], pa.binary()),
        "_hw.deleted": pa.array([lines[row] is None and row not in reasons for row in count]),
    }


def _decode_readable(
    serializer: Serializer, rows: list[int], lines: Any, reasons: dict[int, str]
) -> Iterable[DecodedRows]:
    """Yields the rows that can be read, as columns; bisects the batch to isolate the others."""
    if not rows:
        return
    try:
        found = serializer.decode([lines[row] for row in rows])
        yield rows, dict(zip(found.schema.names, found.columns, strict=True))
    except (BadEventError, BadKeyError) as error:
        if len(rows) == 1:
            reasons[rows[0]] = f"{error.code}: {error.what}"
            return
        yield from _decode_readable(serializer, rows[: len(rows) // 2], lines, reasons)
        yield from _decode_readable(serializer, rows[len(rows) // 2 :], lines, reasons)


def _assemble(parts: list[DecodedRows], schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Combine parts into one batch in row order; rows that are in no part are null."""
    positions: list[int | None] = [None] * count
    taken = 0
    batches = []
    for rows, columns in parts:
        for row in rows:
            positions[row] = taken
            taken += 1
        arrays = [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in schema]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    table = pa.Table.from_batches(batches, schema).combine_chunks().take(pa.array(positions, pa.int64()))
    whole = table.combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema)


def event_times(batch: LogBatch) -> npt.NDArray[np.int64]:
    """Returns the event time of each row; `LOWEST_TIME` for rows that cannot be read and so do not advance it."""
    return np.where(batch.bad, LOWEST_TIME, batch.event_times)
