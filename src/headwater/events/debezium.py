"""Debezium's envelope, read as an event of a topic of changes and written from one.

Debezium sends a row change as a JSON object with `before`, `after`, `op`, `source` and `ts_ms`, with or without the
schema that Kafka Connect puts around it. A value whose meaning stands only in that schema, such as a number that may
count milliseconds or microseconds, is refused without it: no value is guessed.

| Debezium | column type | read |
|---|---|---|
| number or text | decimal | as written; base64 of `Decimal` only with the schema, which names the scale |
| `ZonedTimestamp`, ISO text | timestamp | in UTC; without a zone as UTC |
| `Timestamp`, `MicroTimestamp`, `NanoTimestamp` | timestamp | with the schema, which names the unit |
| days since 1970, ISO text | date | |
| base64 text | binary | |
| the placeholder for a value that was not sent | any | named in `unchanged` |
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError
from headwater.events.change import AFTER, AT, BEFORE, OP, UNCHANGED, Row
from headwater.events.values import preview, to_json_value

__all__ = ["UNAVAILABLE", "EnvelopeReader", "write_envelope"]

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's default placeholder for a value that the source did not send."""

_OPS: Final = {"r": "read", "c": "insert", "u": "update", "d": "delete", "t": "truncate"}
_CODES: Final = {op: code for code, op in _OPS.items()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND: Final = {"ts_ns": 10**9, "ts_us": 10**6, "ts_ms": 10**3}  # the most exact first
_UNITS: Final = {
    "io.debezium.time.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
    "org.apache.kafka.connect.data.Timestamp": 10**3,
}
_DAYS: Final = frozenset({"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"})
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_PLACEHOLDERS: Final = frozenset({UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode()})

_Field = Mapping[str, Any]


class EnvelopeReader:
    """Reads envelopes of one table as events of a topic of changes.

    Args:
        row: The row type of the topic; columns that it lacks are refused.

    Example:
        >>> reader = EnvelopeReader(pa.schema([("id", pa.int32()), ("price", pa.decimal128(10, 2))]))
        >>> event = reader.read(b'{"op": "c", "after": {"id": 7, "price": "2.50"}, "source": {"ts_ms": 1000}}')
        >>> event["op"], event["after"], event["at"].isoformat()
        ('insert', {'id': 7, 'price': Decimal('2.50')}, '1970-01-01T00:00:01+00:00')
    """

    def __init__(self, row: pa.Schema) -> None:
        self._types = {field.name: field.type for field in row}

    def read(self, text: bytes) -> Row:
        """Returns the event of one envelope.

        Raises:
            BadEventError: The text is not an envelope, or a value cannot be read without guessing.
        """
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadEventError(f"the value is not JSON: {error}") from None
        fields: Mapping[str, _Field] = {}
        if isinstance(document, dict) and isinstance(document.get("payload"), dict) and "schema" in document:
            fields = _fields_by_name(document["schema"])
            document = document["payload"]
        if not isinstance(document, dict) or document.get(OP) not in _OPS:
            op = document.get(OP) if isinstance(document, dict) else None
            what = "the value is not a Debezium envelope of a row change"
            detail = f"op is {op!r}; it can be {', '.join(_OPS)}"
            raise BadEventError(what, detail=detail, field=OP)
        before, _ = self._read_row(document.get(BEFORE), fields.get(BEFORE), BEFORE)
        after, unchanged = self._read_row(document.get(AFTER), fields.get(AFTER), AFTER)
        return {OP: _OPS[document[OP]], BEFORE: before, AFTER: after, UNCHANGED: unchanged, AT: _commit_time(document)}

    def _read_row(self, row: Any, field: _Field | None, side: str) -> tuple[Row | None, list[str]]:
        """Returns the values that were sent, and the names of those that were not."""
        if row is None:
            return None, []
        if not isinstance(row, dict):
            raise BadEventError(f"{side} is not an object: {preview(row)}", field=side)
        known = _fields_by_name(field)
        values, missing = {}, []
        for name, value in row.items():
            if _is_placeholder(value):
                missing.append(name)
            elif name not in self._types:
                what = f'the row type has no column "{name}"'
                raise BadEventError(what, detail=f"columns: {', '.join(self._types)}", field=f"{side}.{name}")
            elif value is not None:
                values[name] = _read_value(value, self._types[name], known.get(name, {}), f"{side}.{name}")
            else:
                values[name] = None
        return values, missing


def write_envelope(event: Mapping[str, Any], source: str) -> bytes:
    """Returns an event of a topic of changes as an envelope without a schema.

    Decimals and times are text, dates are days since 1970, bytes are base64: what Debezium writes with
    `decimal.handling.mode=string` and `time.precision.mode=isostring`, except that it writes dates as text then.

    Args:
        event: The event.
        source: The name of the source in `source.name`, such as the topic.

    Example:
        >>> change = {"op": "delete", "before": {"id": 7}, "after": None, "unchanged": [], "at": None}
        >>> write_envelope(change, "products")[:42]
        b'{"before":{"id":7},"after":null,"source":{'
    """
    at = event.get(AT)
    micros = 0 if at is None else (at - _EPOCH) // timedelta(microseconds=1)
    after = event.get(AFTER)
    if after is not None and event.get(UNCHANGED):
        after = dict(after) | dict.fromkeys(event[UNCHANGED], UNAVAILABLE)
    document = {
        BEFORE: _write_row(event.get(BEFORE)),
        AFTER: _write_row(after),
        "source": {
            "version": "1",
            "connector": "headwater",
            "name": source,
            "ts_ms": micros // 1000,
            "ts_us": micros,
            "snapshot": "true" if event[OP] == "read" else "false",
            "db": "",
            "table": source,
        },
        OP: _CODES[event[OP]],
        "ts_ms": micros // 1000,
        "ts_us": micros,
    }
    return msgspec.json.encode(document)


def _write_row(row: Mapping[str, Any] | None) -> Row | None:
    if row is None:
        return None
    return {name: _write_value(value) for name, value in row.items()}


def _write_value(value: Any) -> Any:
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH.date()).days
    if isinstance(value, list):
        return [_write_value(item) for item in value]
    return f"{value:f}" if isinstance(value, Decimal) else to_json_value(value)


def _fields_by_name(schema: Any) -> dict[str, _Field]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, list):
        return {}
    return {field["field"]: field for field in fields if isinstance(field, Mapping) and "field" in field}


def _is_placeholder(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 1 and _is_placeholder(value[0])
    return isinstance(value, str) and value in _PLACEHOLDERS


def _commit_time(document: Mapping[str, Any]) -> datetime | None:
    """Returns when the change was committed; else when Debezium read it."""
    source = document.get("source")
    for times in (source if isinstance(source, Mapping) else {}, document):
        for name, per_second in _PER_SECOND.items():
            if isinstance(times.get(name), int) and times[name]:
                return _moment(times[name], per_second, name)
    return None


def _moment(count: int, per_second: int, field: str) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=count * 10**6 // per_second)
    except OverflowError:
        raise BadEventError(f"{count} is out of the range of a time", field=field) from None


def _read_value(value: Any, kind: pa.DataType, field: _Field, path: str) -> Any:
    """Returns a value of the envelope as a value of a column; values of other types are checked by the codec."""
    for matches, read in _READERS:
        if matches(kind):
            try:
                return read(value, kind, field, path)
            except (ValueError, InvalidOperation, OverflowError, binascii.Error) as error:
                if isinstance(error, BadEventError):
                    raise
                raise BadEventError(f"{preview(value)} is not a value of type {kind}", field=path) from None
    if isinstance(value, str) and (pa.types.is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)):
        raise BadEventError(f"{preview(value)} is not a value of type {kind}", field=path)
    return value


def _needs_schema(value: Any, kind: pa.DataType, path: str, fix: str) -> BadEventError:
    what = f"{preview(value)} can be a {kind} in several ways"
    detail = "the schema says which, and this record has none"
    return BadEventError(what, detail=detail, fix=fix, field=path)


def _read_decimal(value: Any, kind: pa.DataType, field: _Field, path: str) -> Decimal:
    if field.get("name") == _DECIMAL and isinstance(value, str):
        scale = int((field.get("parameters") or {}).get("scale", 0))
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return Decimal(unscaled).scaleb(-scale)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    number = Decimal(str(value)) if not isinstance(value, str) or _is_number(value) else None
    # As text, Debezium writes all digits of the scale; "1234" without a point may be base64.
    if number is None or (isinstance(value, str) and not field and kind.scale > 0 and value.isalnum()):
        fix = "decimal.handling.mode=string, or value.converter.schemas.enable=true"
        raise _needs_schema(value, kind, path, fix)
    return number


def _is_number(text: str) -> bool:
    try:
        Decimal(text)
    except InvalidOperation:
        return False
    return True


def _read_timestamp(value: Any, kind: pa.DataType, field: _Field, path: str) -> datetime:
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    per_second = _UNITS.get(str(field.get("name")))
    if per_second is None:
        fix = "time.precision.mode=isostring, or value.converter.schemas.enable=true"
        raise _needs_schema(value, kind, path, fix)
    return _moment(value, per_second, path)


def _read_date(value: Any, kind: pa.DataType, field: _Field, path: str) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value.removesuffix("Z"))
    if isinstance(value, bool) or not isinstance(value, int) or field.get("name", next(iter(_DAYS))) not in _DAYS:
        raise ValueError
    return _EPOCH.date() + timedelta(days=value)


def _read_binary(value: Any, kind: pa.DataType, field: _Field, path: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError
    return base64.b64decode(value, validate=True)


_READERS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType, _Field, str], Any]]]] = (
    (pa.types.is_decimal, _read_decimal),
    (pa.types.is_timestamp, _read_timestamp),
    (pa.types.is_date, _read_date),
    (pa.types.is_binary, _read_binary),
)
