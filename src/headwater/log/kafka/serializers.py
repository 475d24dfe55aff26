"""Serializers for the value formats of a topic: JSON, Avro, Arrow, Debezium.

The headers of our records name the format, unless it is JSON. Records of other programs, without our headers, are
read in the topic's format.

| format | value | headers |
|---|---|---|
| JSON | an object | |
| Avro | one datum in binary encoding, without a prefix | `hw.values`, `hw.fingerprint`: CRC-64-AVRO of the schema |
| Arrow | an IPC stream of one row | `hw.values` |
| Debezium | a JSON envelope of a row change, without a schema; read with or without one | `hw.values` |
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from headwater.errors import BadEventError, MissingPackageError
from headwater.events import Codec, change_row_schema
from headwater.events.debezium import EnvelopeReader, write_envelope
from headwater.events.schema_export import to_avro
from headwater.log.topic import ValueFormat

__all__ = [
    "FINGERPRINT_HEADER",
    "VALUE_FORMAT_HEADER",
    "ArrowSerializer",
    "AvroSerializer",
    "DebeziumSerializer",
    "Header",
    "JsonSerializer",
    "Serializer",
    "UnknownSerializer",
    "create_serializer",
]

Header = tuple[str, bytes]
VALUE_FORMAT_HEADER: Final = "hw.values"
FINGERPRINT_HEADER: Final = "hw.fingerprint"
_NO_LIMIT: Final = 1 << 30  # bytes; the brokers limit records
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow IPC stream


class Serializer(Protocol):
    """Writes and reads values of one type in one format."""

    @property
    def codec(self) -> Codec:
        """The codec of the type."""

    @property
    def headers(self) -> list[Header]:
        """The headers that name the format."""

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns one value per row."""

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these values, under the codec's type.

        Raises:
            BadEventError: A value cannot be read.
        """


def create_serializer(values: ValueFormat, codec: Codec, name: str) -> Serializer:
    """Returns the serializer of a value format, for one type of a topic.

    Example:
        >>> codec = Codec(pa.schema([pa.field("id", pa.int64())]))
        >>> serializer = create_serializer(ValueFormat.ARROW, codec, "orders")
        >>> serializer.decode(serializer.encode(codec.encode([{"id": 7}]))).to_pylist()
        [{'id': 7}]
    """
    if values is ValueFormat.AVRO:
        return AvroSerializer(codec, name)
    if values is ValueFormat.DEBEZIUM:
        return DebeziumSerializer(codec, name)
    return ArrowSerializer(codec) if values is ValueFormat.ARROW else JsonSerializer(codec)


class JsonSerializer:
    """Values as JSON objects."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.headers: list[Header] = []

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns one object per row."""
        return self.codec.to_json(rows)

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these objects."""
        return self.codec.decode_json(values, max_line=_NO_LIMIT)


class AvroSerializer:
    """Values as Avro in binary encoding. The topic's definition holds the schemas by fingerprint.

    Args:
        codec: The codec of the type that rows are read into.
        name: The topic.
        writer_schema: The type of the values; the codec's own if left out.
    """

    def __init__(self, codec: Codec, name: str, writer_schema: pa.Schema | None = None) -> None:
        try:
            import fastavro as avro
            import fastavro.schema
        except ImportError as error:
            raise MissingPackageError.of('value_format="avro"', "fastavro", "avro", error) from None
        self.codec = codec
        self.schema = to_avro(codec.schema if writer_schema is None else writer_schema, name)
        self._parsed_schema = avro.parse_schema(self.schema)
        self._write, self._read = avro.schemaless_writer, avro.schemaless_reader
        canonical = avro.schema.to_parsing_canonical_form(self.schema)
        self.fingerprint = str(avro.schema.fingerprint(canonical, "CRC-64-AVRO"))
        self.headers: list[Header] = [(VALUE_FORMAT_HEADER, b"avro"), (FINGERPRINT_HEADER, self.fingerprint.encode())]

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns one datum per row."""
        values = []
        for row in self.codec.rows(rows):
            sink = io.BytesIO()
            self._write(sink, self._parsed_schema, row)
            values.append(sink.getvalue())
        return values

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these values."""
        return self.codec.encode([self._decode_value(value) for value in values])

    def _decode_value(self, value: bytes) -> Any:
        source = io.BytesIO(value)
        try:
            found = self._read(source, self._parsed_schema, None)
        except Exception as error:  # the bytes are foreign, and the reader raises errors of many classes
            reason = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            if source.tell() == len(value):
                return found
            reason = f"{len(value) - source.tell()} bytes are left over"
        what = f"the value is not Avro of this schema: {reason}"
        raise BadEventError(what, detail=f"fingerprint {self.fingerprint}")


class ArrowSerializer:
    """Values as Arrow IPC streams of one row with its schema: large, but self-describing for any Arrow library."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.headers: list[Header] = [(VALUE_FORMAT_HEADER, b"arrow")]

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns one stream per row."""
        plain = rows.replace_schema_metadata(None)
        head = plain.schema.serialize().to_pybytes()
        return [b"".join((head, plain.slice(row, 1).serialize(), _END_OF_STREAM)) for row in range(plain.num_rows)]

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these streams."""
        tables = [_read_row(value) for value in values]
        if all(table.schema.equals(tables[0].schema) for table in tables):
            return self.codec.encode_dataframe(pa.concat_tables(tables))
        return pa.concat_batches([self.codec.encode_dataframe(table) for table in tables])


class DebeziumSerializer:
    """Values as Debezium's envelopes, of a topic of changes.

    Args:
        codec: The codec of a type of changes (`hw.changes`).
        name: The topic, which is the name of the source in the envelopes.
    """

    def __init__(self, codec: Codec, name: str) -> None:
        row = change_row_schema(codec.schema)
        assert row is not None, "Topic.declare checks the type"
        self.codec = codec
        self.headers: list[Header] = [(VALUE_FORMAT_HEADER, b"debezium")]
        self._name = name
        self._reader = EnvelopeReader(row)

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns one envelope per change."""
        return [write_envelope(row, self._name) for row in self.codec.rows(rows)]

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the changes of these envelopes."""
        return self.codec.encode([self._reader.read(value) for value in values])


class UnknownSerializer:
    """Refuses every value: the record names a format or schema that this topic does not know."""

    def __init__(self, codec: Codec, reason: str) -> None:
        self.codec = codec
        self.headers: list[Header] = []
        self._reason = reason

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Raise: nothing is written in an unknown format."""
        raise NotImplementedError

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Raise `BadEventError` with the reason."""
        raise BadEventError(self._reason)


def _read_row(value: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(value) as reader:
            table = reader.read_all()
        table.validate(full=True)  # foreign bytes: offsets may be out of bounds, text may not be UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadEventError(f"the value is not an Arrow stream: {str(error)[:200]}") from None
    if table.num_rows != 1:
        raise BadEventError(f"the value has {table.num_rows} rows; a record is one event")
    return table
