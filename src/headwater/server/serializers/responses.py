"""Encodes responses: rows of views as JSON, NDJSON, CSV, Arrow or Parquet; events as JSON, CloudEvents or Arrow.

Also parses the offsets and partitions in queries.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import BadOffsetError, UsageError
from headwater.events import Event, values_of
from headwater.events.values import format_moment, to_json_value
from headwater.log import LogBatch, Start
from headwater.store.views.view_query import ViewResult, to_rows

__all__ = [
    "ARROW",
    "CLOUD_EVENTS",
    "CSV",
    "JSON",
    "MEDIA_TYPES",
    "NDJSON",
    "PARQUET",
    "arrow_stream",
    "csv_lines",
    "encode_events",
    "encode_rows",
    "escape_newlines",
    "format_micros",
    "parse_marks",
    "parse_partitions",
    "parse_positions",
    "parse_start",
]

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CLOUD_EVENTS: Final = "application/cloudevents-batch+json"
ARROW: Final = "application/vnd.apache.arrow.stream"
CSV: Final = "text/csv; charset=utf-8"
PARQUET: Final = "application/vnd.apache.parquet"
MEDIA_TYPES: Final = {"json": JSON, "ndjson": NDJSON, "csv": CSV, "arrow": ARROW, "parquet": PARQUET}
"""The media type of each file name extension."""

_CHUNK_ROWS: Final = 5_000  # rows of a view in one chunk of CSV or NDJSON
# Spreadsheets read a cell that begins with one of these as a formula or skip the character.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LINE_ENDS: Final = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")
_encode = msgspec.json.Encoder().encode


def parse_start(text: str) -> Start:
    """Returns the start in a query: "earliest", "latest", an offset or a time."""
    if not text.isdigit():
        return text
    if not text.isascii() or len(text) > 18:
        raise BadOffsetError(f"{text[:40]!r} is not an offset", offset=text[:40])
    return int(text)


def parse_partitions(text: str | None) -> list[int] | None:
    """Returns the partitions in a query such as "0,2"; None stands for all.

    Raises:
        UsageError: The text is not a list of numbers.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        what = f"{text[:40]!r} is not a list of partitions"
        raise UsageError(what, fix="partitions=0,2", parameter="partitions")
    return [int(part) for part in parts]


def encode_events(batch: LogBatch) -> list[tuple[Event, bytes]]:
    """Returns each event of a batch with its JSON document, which is a single line."""
    if not batch.values.num_rows:
        return []
    values = batch.codec.to_json(batch.values)
    return [
        (event, escape_newlines(_encode(_event_document(event, value))))
        for event, value in zip(batch.events(), values, strict=True)
    ]


def escape_newlines(document: bytes) -> bytes:
    """Escape characters that some readers treat as line ends (U+0085, U+2028, U+2029)."""
    if b"\xc2\x85" in document or b"\xe2\x80" in document:
        for raw, escaped in _LINE_ENDS:
            document = document.replace(raw, escaped)
    return document


def _event_document(event: Event, value: bytes) -> dict[str, Any]:
    return {
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "key": to_json_value(event.key) if not isinstance(event.key, tuple) else [to_json_value(k) for k in event.key],
        "value": None if event.value is None else msgspec.Raw(value),
        "id": event.id,
        "occurred_at": event.occurred_at,
        "sent_at": event.sent_at,
        "received_at": event.received_at,
        "headers": event.headers,
        "traceparent": event.traceparent,
        "source": event.source,
        "late": event.late,
    }


def arrow_stream(schema: pa.Schema, batches: Iterator[LogBatch]) -> Iterator[bytes]:
    """Yields the typed columns as an Arrow IPC stream; tombstones are left out."""
    sink = io.BytesIO()

    def drain() -> bytes:
        data = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return data

    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            living = batch.select(~batch.tombstones) if "_hw.deleted" in batch.envelope else batch
            if living.values.num_rows:
                writer.write_batch(living.values.cast(schema))
                yield drain()
    yield drain()


def parse_positions(text: str) -> Mapping[int, int]:
    """Returns the next offset per partition from an event id such as "0:13,1:7".

    Raises:
        BadOffsetError: The text is not such an id.
    """
    return {partition: offset for partition, offset, *_ in _parse_numbers(text)}


def parse_marks(text: str) -> Mapping[int, int]:
    """Returns the tombstone mark per partition from an event id such as "0:13:9,1:7"."""
    return {numbers[0]: numbers[2] for numbers in _parse_numbers(text) if len(numbers) > 2}


def _parse_numbers(text: str) -> list[list[int]]:
    try:
        parts = [part.split(":") for part in text.split(",")]
        if not all(number.isascii() and number.isdigit() and len(number) < 19 for part in parts for number in part):
            raise ValueError
        if not all(2 <= len(part) <= 3 for part in parts):
            raise ValueError
        return [[int(number) for number in part] for part in parts]
    except ValueError:
        raise BadOffsetError(
            f"{text[:80]!r} is not the id of an event of this stream",
            detail="an id looks like 0:13,1:7 (partition:next offset)",
            offset=text[:80],
        ) from None


def format_micros(micros: int | None) -> str | None:
    """Returns microseconds since 1970 as RFC 3339 text; None for a time after the year 9999.

    Example:
        >>> format_micros(0), format_micros(None)
        ('1970-01-01T00:00:00Z', None)
    """
    try:
        return None if micros is None else format_moment(_EPOCH + timedelta(microseconds=micros))
    except OverflowError:
        return None


def encode_rows(result: ViewResult, form: str) -> Iterator[bytes]:
    """Yields the rows in a format of `MEDIA_TYPES`, in chunks."""
    return _ENCODERS[form](result)


def _encode_json(result: ViewResult) -> Iterator[bytes]:
    document = {
        "name": result.definition.name,
        "columns": result.table.column_names,
        "rows": [to_json_value(row) for row in result.rows()],
        "open": result.open,
        "watermark": format_micros(result.watermark),
        "position": result.position,
    }
    yield msgspec.json.encode(document)


def _encode_ndjson(result: ViewResult) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode_lines
    for start in range(0, result.table.num_rows, _CHUNK_ROWS):
        yield encode([to_json_value(row) for row in to_rows(result.table.slice(start, _CHUNK_ROWS))])


def csv_lines(table: pa.Table, window: str | None = None) -> Iterator[str]:
    r"""Yields a table as CSV text. Text that a spreadsheet would read as a formula gets an apostrophe in front.

    Example:
        >>> "".join(csv_lines(pa.table({"name": ["=1+1", "ink"], "n": [-1, 2]})))
        "name,n\r\n'=1+1,-1\r\nink,2\r\n"
    """
    flat = _flatten_window(table, window)
    yield _format_csv([[_escape_formula(name) for name in flat.column_names]])
    for start in range(0, flat.num_rows, _CHUNK_ROWS):
        part = flat.slice(start, _CHUNK_ROWS)
        yield _format_csv(zip(*(_csv_cells(column.combine_chunks()) for column in part.columns), strict=True))


def _flatten_window(table: pa.Table, window: str | None) -> pa.Table:
    """Returns the table with the window as two columns: start and end."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if name == window:
            members = column.flatten()
            columns |= {f"{name}.{field.name}": members[at] for at, field in enumerate(column.type)}
        else:
            columns[name] = column
    return pa.table(columns)


def _format_csv(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def _csv_cells(column: pa.Array) -> list[Any]:
    plain = [to_json_value(value) for value in values_of(column)]
    if pa.types.is_nested(column.type):
        plain = [None if value is None else msgspec.json.encode(value).decode() for value in plain]
    if pa.types.is_decimal(column.type):  # text here, but a number in the file: -1.5 is no formula
        return plain
    return [_escape_formula(value) if isinstance(value, str) else value for value in plain]


def _escape_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _encode_csv(result: ViewResult) -> Iterator[bytes]:
    for text in csv_lines(result.table, result.definition.window):
        yield text.encode(errors="replace")


def _encode_arrow(result: ViewResult) -> Iterator[bytes]:
    sink, table = pa.BufferOutputStream(), result.to_annotated_table()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    yield sink.getvalue().to_pybytes()


def _encode_parquet(result: ViewResult) -> Iterator[bytes]:
    sink = pa.BufferOutputStream()
    pq.write_table(result.to_annotated_table(), sink, compression="zstd")
    yield sink.getvalue().to_pybytes()


_ENCODERS: Final[dict[str, Callable[[ViewResult], Iterator[bytes]]]] = {
    "json": _encode_json,
    "ndjson": _encode_ndjson,
    "csv": _encode_csv,
    "arrow": _encode_arrow,
    "parquet": _encode_parquet,
}
