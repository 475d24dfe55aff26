"""The envelope of an event as headers of a Kafka record, and back.

| header | what |
|---|---|
| `hw.version` | version of the topic's type the event was written under |
| `hw.sent_at`, `hw.occurred_at` | times, RFC 3339 in UTC |
| `hw.id`, `hw.source` | id and source, where the sender gave them |
| `hw.producer`, `hw.sequence` | who numbered the event, and its number |
| `traceparent` | the W3C trace |
| `hw.values`, `hw.fingerprint` | the form of a value that is not JSON (forms.py) |

All other headers are the sender's own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError
from headwater.events import times_column, values_of
from headwater.events.values import moment_text
from headwater.log.kafka.forms import Header
from headwater.log.rows import Rows
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["header_lists", "header_text", "read_headers"]

_ZONED = pa.timestamp("us", "UTC")
_OWN: Final = "hw."
_TRACE: Final = "traceparent"
_TEXTS: Final = {"_hw.id": "hw.id", "_hw.source": "hw.source", "_hw.traceparent": _TRACE}
_TIMES: Final = {"_hw.occurred_at": "hw.occurred_at", "_hw.sent_at": "hw.sent_at"}


def header_lists(
    rows: Rows, form: list[Header], envelope: dict[str, pa.Array], count: int
) -> list[list[Header]]:
    """One list of headers for each row, or one for all."""
    same: list[Header] = [("hw.version", b"%d" % rows.version), *form]
    if "_hw.sent_at" not in envelope and rows.sent_at != LOWEST_TIME:
        same.append(("hw.sent_at", _moment(times_column(np.array([rows.sent_at]))[0].as_py())))
    if rows.producer:
        same.append(("hw.producer", rows.producer.encode()))
    columns: list[list[Header | None]] = []
    if rows.producer:
        numbers = range(rows.sequence, rows.sequence + count) if rows.per_row else [rows.sequence] * count
        columns.append([("hw.sequence", b"%d" % number) for number in numbers])
    for column, name in _TEXTS.items():
        columns += _header_column(envelope, column, name, str.encode)
    for column, name in _TIMES.items():
        columns += _header_column(envelope, column, name, _moment)
    own = values_of(envelope["_hw.headers"]) if "_hw.headers" in envelope else None
    if not columns and own is None:
        return [same]
    lists = (
        [same + [each for each in row if each is not None] for row in zip(*columns, strict=True)]
        if (columns)
        else [list(same) for _ in range(count)]
    )
    for row, given in enumerate(own or ()):
        lists[row] += [(name, text.encode()) for name, text in _checked(given or {}).items()]
    return lists


def _header_column(
    envelope: dict[str, pa.Array], column: str, name: str, encode: Callable[[Any], bytes]
) -> list[list[Header | None]]:
    if column not in envelope:
        return []
    return [[None if value is None else (name, encode(value)) for value in values_of(envelope[column])]]


def _checked(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        if name.startswith(_OWN) or name == _TRACE:
            what = f"the header {name!r} is one of Headwater's own"
            raise BadEventError(what, detail=f"names do not start with {_OWN} in Kafka", field="headers")
    return headers


def _moment(at: Any) -> bytes:
    return moment_text(at).encode()


def read_headers(heads: list[list[Header] | None]) -> tuple[dict[str, pa.Array], int, int]:
    """Envelope columns, the moment all were sent (or `LOWEST_TIME`), and the highest version of the type.

    Example:
        >>> read_headers([[("hw.version", b"2")], None])
        ({}, -9223372036854775808, 2)
    """
    runs = [(dict(head or ()), sum(1 for _ in run)) for head, run in groupby(heads)]
    columns, sent, version = _columns([head for head, _ in runs])
    if len(runs) < len(heads):
        lengths = [length for _, length in runs]
        again = pa.array(np.repeat(np.arange(len(runs)), lengths).tolist(), pa.int64())
        columns = {name: column.take(again) for name, column in columns.items()}
    return columns, sent, version


def _columns(heads: list[dict[str, bytes]]) -> tuple[dict[str, pa.Array], int, int]:
    names = {name for head in heads for name in head}
    columns: dict[str, pa.Array] = {}
    for column, name in _TEXTS.items():
        if name in names:
            columns[column] = pa.array([header_text(head.get(name)) for head in heads], pa.string())
    for column, name in _TIMES.items():
        if name in names:
            columns[column] = _times([header_text(head.get(name)) for head in heads])
    if any(not name.startswith(_OWN) and name != _TRACE for name in names):
        own = [[(n, header_text(v) or "") for n, v in head.items() if not _ours(n)] for head in heads]
        columns["_hw.headers"] = pa.array(own, pa.map_(pa.string(), pa.string()))
    sent = LOWEST_TIME
    if "_hw.sent_at" in columns and len(set(columns["_hw.sent_at"].to_pylist())) == 1:
        moment = columns.pop("_hw.sent_at")[0]
        sent = moment.value if moment.is_valid else LOWEST_TIME
    versions = {head["hw.version"] for head in heads if "hw.version" in head}
    return columns, sent, max((int(text) for text in versions if text.isdigit()), default=0)


def _ours(name: str) -> bool:
    return name.startswith(_OWN) or name == _TRACE


def header_text(value: bytes | None) -> str | None:
    """A header as text, whatever its bytes."""
    return None if value is None else value.decode(errors="replace")


def _times(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string()).cast(_ZONED)
    except pa.ArrowInvalid:  # a header of others under our name
        return pa.concat_arrays([_times([text]) for text in texts]) if len(texts) > 1 else pa.nulls(1, _ZONED)
