"""Values of records in each form a topic can have: JSON, Avro, Arrow.

A record of ours says in its headers which form it has, unless it is JSON. What others write without headers is read
in the form of the topic.

| form | value | headers |
|---|---|---|
| JSON | an object | |
| Avro | one datum in binary form, nothing before it | `hw.values`, `hw.fingerprint`: CRC-64-AVRO of the schema |
| Arrow | an IPC stream of one row | `hw.values` |
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from headwater.errors import BadEventError, MissingPackageError
from headwater.events import Codec, JsonLimits
from headwater.events.schema_export import to_avro
from headwater.log.topic import ValueFormat

__all__ = [
    "FINGERPRINT_HEADER",
    "VALUE_FORMAT_HEADER",
    "ArrowSerializer",
    "AvroSerializer",
    "Header",
    "JsonSerializer",
    "Serializer",
    "UnknownSerializer",
    "create_serializer",
]

Header = tuple[str, bytes]
VALUE_FORMAT_HEADER: Final = "hw.values"
FINGERPRINT_HEADER: Final = "hw.fingerprint"
_NO_LIMIT: Final = JsonLimits(max_line=1 << 30)
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"


class Serializer(Protocol):
    """How values are written and read, under one type."""

    @property
    def codec(self) -> Codec:
        """The type."""

    @property
    def headers(self) -> list[Header]:
        """What a record says about it."""

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """One value for each row."""

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these values, under the codec's type.

        Raises:
            BadEventError: One of them cannot be read.
        """


def create_serializer(values: ValueFormat, codec: Codec, name: str) -> Serializer:
    """Returns the form of a topic's values, under one type.

    Example:
        >>> codec = Codec(pa.schema([pa.field("id", pa.int64())]))
        >>> form = create_serializer(ValueFormat.ARROW, codec, "orders")
        >>> form.decode(form.encode(codec.encode([{"id": 7}]))).to_pylist()
        [{'id': 7}]
    """
    if values is ValueFormat.AVRO:
        return AvroSerializer(codec, name)
    return ArrowSerializer(codec) if values is ValueFormat.ARROW else JsonSerializer(codec)


class JsonSerializer:
    """JSON objects."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.headers: list[Header] = []

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """One object for each row."""
        return self.codec.to_json(rows)

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these objects."""
        return self.codec.decode_json(values, limits=_NO_LIMIT)


class AvroSerializer:
    """Avro in binary form. The schema is not in the record: it is with the definition, by its fingerprint.

    Args:
        codec: What rows are read into.
        name: The topic.
        writer_schema: The type that values have; the codec's own, if left out.
    """

    def __init__(self, codec: Codec, name: str, writer_schema: pa.Schema | None = None) -> None:
        avro = _load_fastavro()
        self.codec = codec
        self.schema = to_avro(codec.schema if writer_schema is None else writer_schema, name)
        self._parsed_schema = avro.parse_schema(self.schema)
        self._write, self._read = avro.schemaless_writer, avro.schemaless_reader
        canonical = avro.schema.to_parsing_canonical_form(self.schema)
        self.fingerprint = str(avro.schema.fingerprint(canonical, "CRC-64-AVRO"))
        self.headers: list[Header] = [(VALUE_FORMAT_HEADER, b"avro"), (FINGERPRINT_HEADER, self.fingerprint.encode())]

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """One datum for each row."""
        return [self._encode_row(row) for row in self.codec.rows(rows)]

    def _encode_row(self, row: dict[str, Any]) -> bytes:
        sink = io.BytesIO()
        self._write(sink, self._parsed_schema, row)
        return sink.getvalue()

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these data."""
        return self.codec.encode([self._decode_value(value) for value in values])

    def _decode_value(self, value: bytes) -> Any:
        source = io.BytesIO(value)
        try:
            found = self._read(source, self._parsed_schema, None)
        except Exception as error:  # any bytes can stand here, and the reader raises whatever they lead to
            what = f"it is not Avro of this schema: {type(error).__name__}: {str(error)[:200]}"
            raise BadEventError(what, detail=f"fingerprint {self.fingerprint}") from None
        if source.tell() != len(value):
            what = f"it is not Avro of this schema: {len(value) - source.tell()} bytes are left over"
            raise BadEventError(what, detail=f"fingerprint {self.fingerprint}")
        return found


class ArrowSerializer:
    """Arrow IPC streams of one row each, schema included: dear, but any Arrow library reads a record by itself."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.headers: list[Header] = [(VALUE_FORMAT_HEADER, b"arrow")]

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """One stream for each row."""
        plain = rows.replace_schema_metadata(None)
        head = plain.schema.serialize().to_pybytes()
        return [b"".join((head, plain.slice(row, 1).serialize(), _END_OF_STREAM)) for row in range(plain.num_rows)]

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns the rows of these streams."""
        tables = [_read_row(value) for value in values]
        if all(table.schema.equals(tables[0].schema) for table in tables):
            return self.codec.encode_dataframe(pa.concat_tables(tables))
        return pa.concat_batches([self.codec.encode_dataframe(table) for table in tables])


class UnknownSerializer:
    """What a record cannot be read by: it names a form or a schema that is not known here."""

    def __init__(self, codec: Codec, reason: str) -> None:
        self.codec = codec
        self.headers: list[Header] = []
        self._reason = reason

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Nothing is written in it."""
        raise NotImplementedError

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Nothing is read in it."""
        raise BadEventError(self._reason)


def _read_row(value: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(value) as reader:
            table = reader.read_all()
        table.validate(full=True)  # bytes of others: offsets may lead anywhere, and text may be none
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadEventError(f"it is no stream of Arrow: {str(error)[:200]}") from None
    if table.num_rows != 1:
        raise BadEventError(f"it has {table.num_rows} rows, and a record is one event")
    return table


def _load_fastavro() -> Any:
    try:
        import fastavro
        import fastavro.schema
    except ImportError as error:
        raise MissingPackageError.of('value_format="avro"', "fastavro", "avro", error) from None
    return fastavro
