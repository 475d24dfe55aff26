"""Rows of views in the forms in which they leave by HTTP: JSON, NDJSON, CSV, Arrow, Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.client.views.found import Found, rows_of
from headwater.events import values_of
from headwater.events.values import json_form, moment_text
from headwater.server.forms.formats import ARROW, JSON, NDJSON

__all__ = ["CSV", "FORMS", "PARQUET", "csv_lines", "time_text", "written"]

CSV: Final = "text/csv; charset=utf-8"
PARQUET: Final = "application/vnd.apache.parquet"
FORMS: Final = {"json": JSON, "ndjson": NDJSON, "csv": CSV, "arrow": ARROW, "parquet": PARQUET}
"""The media type of each ending."""

_AT_ONCE: Final = 5_000  # rows
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_text(micros: int | None) -> str | None:
    """Microseconds since 1970 as RFC 3339 text; None for a time beyond what can be written.

    Example:
        >>> time_text(0), time_text(None)
        ('1970-01-01T00:00:00Z', None)
    """
    try:
        return None if micros is None else moment_text(_EPOCH + timedelta(microseconds=micros))
    except OverflowError:
        return None


def written(found: Found, form: str) -> Iterator[bytes]:
    """The rows as the bytes of a form, in pieces."""
    return _WRITERS[form](found)


def _json(found: Found) -> Iterator[bytes]:
    document = {
        "name": found.definition.name,
        "columns": found.table.column_names,
        "rows": [json_form(row) for row in found.rows()],
        "open": found.open,
        "watermark": time_text(found.watermark),
        "position": found.position,
    }
    yield msgspec.json.encode(document)


def _ndjson(found: Found) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode_lines
    for start in range(0, found.table.num_rows, _AT_ONCE):
        yield encode([json_form(row) for row in rows_of(found.table.slice(start, _AT_ONCE))])


def csv_lines(table: pa.Table, window: str | None = None) -> Iterator[str]:
    r"""A table as CSV text; no text of it is taken for a formula by a program that opens it.

    Example:
        >>> "".join(csv_lines(pa.table({"name": ["=1+1", "ink"], "n": [-1, 2]})))
        "name,n\r\n'=1+1,-1\r\nink,2\r\n"
    """
    flat = _flat(table, window)
    yield _csv([[_harmless(name) for name in flat.column_names]])
    for start in range(0, flat.num_rows, _AT_ONCE):
        part = flat.slice(start, _AT_ONCE)
        yield _csv(zip(*(_cells(column.combine_chunks()) for column in part.columns), strict=True))


def _flat(table: pa.Table, window: str | None) -> pa.Table:
    """A window as two columns of their own."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if name == window:
            members = column.flatten()
            columns |= {f"{name}.{field.name}": members[at] for at, field in enumerate(column.type)}
        else:
            columns[name] = column
    return pa.table(columns)


def _csv(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def _cells(column: pa.Array) -> list[Any]:
    plain = [json_form(value) for value in values_of(column)]
    if pa.types.is_nested(column.type):
        plain = [None if value is None else msgspec.json.encode(value).decode() for value in plain]
    if _is_number(column.type):
        return plain
    return [_harmless(value) if isinstance(value, str) else value for value in plain]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _csv_bytes(found: Found) -> Iterator[bytes]:
    for text in csv_lines(found.table, found.definition.window):
        yield text.encode(errors="replace")


def _arrow(found: Found) -> Iterator[bytes]:
    sink, table = pa.BufferOutputStream(), found.noted()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    yield sink.getvalue().to_pybytes()


def _parquet(found: Found) -> Iterator[bytes]:
    sink = pa.BufferOutputStream()
    pq.write_table(found.noted(), sink, compression="zstd")
    yield sink.getvalue().to_pybytes()


_WRITERS: Final[dict[str, Callable[[Found], Iterator[bytes]]]] = {
    "json": _json,
    "ndjson": _ndjson,
    "csv": _csv_bytes,
    "arrow": _arrow,
    "parquet": _parquet,
}
