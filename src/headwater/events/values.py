"""Values of events as Python objects, canonical text and JSON.

Equal values have the same text everywhere (keys, JSON, CloudEvents), regardless of trailing zeros and time
zones.
"""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadEventError

__all__ = [
    "fields_of",
    "flags_column",
    "format_decimal",
    "format_moment",
    "format_value",
    "integers_of",
    "is_pydantic_model",
    "is_record",
    "moments_of",
    "preview",
    "times_column",
    "to_json_value",
    "to_row",
    "trim_zeros",
    "values_of",
]

# No decimal column has more digits. Writing out an exponent such as 1E+999999999 would exhaust memory.
_MAX_DIGITS = 76
_MAX_DEPTH = 64
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def values_of(column: pa.Array, *, decimal: Callable[[str], Any] = Decimal) -> list[Any]:
    """Returns the values of a column: aware UTC datetimes, Decimals, dates, bytes, dicts for structs and maps.

    Args:
        column: Any column of an event batch.
        decimal: Converts the text of a decimal.

    Example:
        >>> values_of(pa.array([1, None])), values_of(pa.array([{"a": 1}]))
        ([1, None], [{'a': 1}])
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        counts = column.cast(pa.timestamp("us", "UTC")).view(pa.int64())
        filled = counts.fill_null(0) if counts.null_count else counts
        return _apply_nulls(moments_of(integers_of(filled)), column)
    if pa.types.is_decimal(kind):
        texts = column.cast(pa.string())
        # Arrow trims a whole column at once, but cannot write out exponents.
        if decimal is trim_zeros and kind.scale > 0 and not pc.any(pc.match_substring(texts, "E")).as_py():
            short: list[Any] = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".").to_pylist()
            return short
        return [None if text is None else decimal(text) for text in texts.to_pylist()]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        members = [values_of(column.field(index), decimal=decimal) for index in range(len(names))]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]
        return _apply_nulls(rows, column)
    if pa.types.is_map(kind):
        pairs = list(zip(column.keys.to_pylist(), values_of(column.items, decimal=decimal), strict=True))
        return [None if row is None else dict(row) for row in _split(column, pairs)]
    if pa.types.is_list(kind):
        return _split(column, values_of(column.values, decimal=decimal))
    plain: list[Any] = column.to_pylist()
    return plain


def integers_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the 64-bit integers of a column, or the microseconds of a timestamp column, without a copy.

    The values of null rows are undefined. Arrow's own `to_numpy` would import pandas, which takes a second.

    Example:
        >>> integers_of(pa.array([1, 2, 3])[1:]).tolist()
        [2, 3]
    """
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column), np.int64)
    return np.frombuffer(data, np.int64, len(column), column.offset * 8)


def times_column(micros: npt.NDArray[np.int64]) -> pa.Array:
    """Returns a column of moments from microseconds since 1970, without a copy and without importing pandas.

    Example:
        >>> times_column(np.array([0]))[0].as_py().isoformat()
        '1970-01-01T00:00:00+00:00'
    """
    data = pa.py_buffer(np.ascontiguousarray(micros, np.int64))
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), len(micros), [None, data])


def flags_column(flags: npt.NDArray[np.bool_]) -> pa.Array:
    """Returns a column of booleans, without importing pandas.

    Example:
        >>> flags_column(np.array([True, False])).to_pylist()
        [True, False]
    """
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(np.packbits(flags, bitorder="little"))])


def moments_of(micros: npt.NDArray[np.int64]) -> list[datetime]:
    """Returns datetimes from microseconds since 1970; exact, and thirty times faster than through Arrow.

    Example:
        >>> moments_of(np.array([0]))[0].isoformat()
        '1970-01-01T00:00:00+00:00'
    """
    return list(map(_EPOCH.__add__, micros.view("timedelta64[us]").tolist()))


def _split(column: pa.Array, values: list[Any]) -> list[Any]:
    """Split the flat values of a list or map column into rows; `.values` and `.keys` ignore a slice's offset."""
    rows = [values[start:end] for start, end in pairwise(column.offsets.to_pylist())]
    return _apply_nulls(rows, column)


def _apply_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    if column.null_count == 0:
        return values
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[row] = None
    return values


def format_decimal(value: Decimal) -> str:
    """Returns a decimal as digits, without exponent and without trailing zeros.

    Example:
        >>> format_decimal(Decimal("10.50")), format_decimal(Decimal("1E+2")), format_decimal(Decimal("-0.0"))
        ('10.5', '100', '0')

    Raises:
        ValueError: The value is not finite, or has more digits than any decimal column.
    """
    if not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS:
        raise ValueError(f"{preview(value)} has no plain decimal form")
    return trim_zeros(format(value, "f"))


def trim_zeros(digits: str) -> str:
    """Returns the text of a decimal without exponent and trailing zeros.

    Example:
        >>> trim_zeros("12.500"), trim_zeros("-0.00"), trim_zeros("1.0E-7")
        ('12.5', '0', '0.0000001')
    """
    if "E" in digits or "e" in digits:
        digits = format(Decimal(digits), "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return "0" if digits in ("-0", "") else digits


def format_moment(value: datetime) -> str:
    """Returns a moment as RFC 3339 text in UTC.

    Example:
        >>> format_moment(datetime(2026, 1, 1, 12, tzinfo=UTC))
        '2026-01-01T12:00:00Z'

    Raises:
        ValueError: The value has no time zone.
    """
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} has no time zone")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def format_value(value: Any) -> str:
    """Returns a value as text: the form of terminals, pipes and messages, in which scalars are as in JSON.

    Nothing is rounded. A window is `start..end`, a list of scalars has commas, everything else that is nested is JSON.

    Example:
        >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        >>> format_value(Decimal("2328.2800")), format_value(noon), format_value(True), format_value(None)
        ('2328.28', '2026-01-01T12:00:00Z', 'true', '')
        >>> format_value({"start": noon, "end": noon + timedelta(minutes=1)})
        '2026-01-01T12:00:00Z..2026-01-01T12:01:00Z'
        >>> format_value(("a", 1)), format_value([{"a": Decimal("1.0")}])
        ('a,1', '[{"a":"1"}]')
    """
    match value:
        case None | "":
            return ""
        case str() | int() | float() | timedelta():
            return str(value).lower() if isinstance(value, bool) else str(value)
        case {"start": datetime() as start, "end": datetime() as end} if len(value) == 2:
            return f"{format_moment(start)}..{format_moment(end)}"
        case list() | tuple() if not any(isinstance(item, (Mapping, list, tuple)) for item in value):
            return ",".join(map(format_value, value))
    plain = to_json_value(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def to_json_value(value: Any) -> Any:
    """Returns a value of an event, nested or not, as a JSON value.

    Example:
        >>> to_json_value({"amount": Decimal("10.50"), "raw": b"hi", "day": date(2026, 1, 1)})
        {'amount': '10.5', 'raw': 'aGk=', 'day': '2026-01-01'}
    """
    if isinstance(value, Enum):  # before text and numbers, which a member may be as well
        return to_json_value(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return _scalar_to_json(value)


def _scalar_to_json(value: Any) -> Any:
    match value:
        case bytes():
            return b64encode(value).decode()
        case Decimal():
            return format_decimal(value)
        case datetime():
            return format_moment(value)
        case date():
            return value.isoformat()
    plain = _unwrap_scalar(value)
    if isinstance(plain, (str, int)):
        return plain
    raise ValueError(f"{type(value).__name__} has no JSON form")


def preview(value: Any, max_length: int = 60) -> str:
    """Returns a short text of any value, for error messages.

    Example:
        >>> preview("x" * 1000)
        "'xxxxxxxxxxxxxxxxxxxx…' (1000 long)"
        >>> preview(12), preview([1, 2])
        ('12', 'list (2 long)')
    """
    if isinstance(value, (str, bytes)) and len(value) > max_length:
        return f"{value[:20]!r}".rstrip("'\"") + f"…' ({len(value)} long)"
    if isinstance(value, (dict, list, tuple, set)):
        return f"{type(value).__name__} ({len(value)} long)"
    try:
        text = repr(value)
    except Exception:  # a user's __repr__ may raise anything
        return type(value).__name__
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def is_pydantic_model(cls: type) -> bool:
    """Returns whether a class is a pydantic model, without importing pydantic."""
    return hasattr(cls, "model_fields") and hasattr(cls, "model_validate")


def is_record(cls: type) -> bool:
    """Returns whether a class is a dataclass, a msgspec Struct or a pydantic model."""
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic_model(cls)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Returns the fields of an instance of a declared class, without converting nested ones; None for other values.

    Example:
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: int
        >>> fields_of(Point(3)), fields_of(7)
        ({'x': 3}, None)
    """
    cls = type(value)
    if issubclass(cls, msgspec.Struct):
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        pairs = ((shown_as, getattr(value, name)) for shown_as, name in names)
        return {name: item for name, item in pairs if item is not msgspec.UNSET}
    if is_pydantic_model(cls):
        return {name: getattr(value, name) for name in cls.model_fields}
    if dataclasses.is_dataclass(cls):
        return {name: getattr(value, name) for name in cls.__dataclass_fields__}
    return None


def to_row(value: Any) -> dict[str, Any]:
    """Returns an event as a dict of plain values; converts nested classes, enums, UUIDs and times.

    Example:
        >>> to_row({"id": UUID(int=1), "wait": timedelta(seconds=2)})
        {'id': '00000000-0000-0000-0000-000000000001', 'wait': 2000000}

    Raises:
        BadEventError: The value is not a dict or an instance of a class with fields, or is nested too deep.
    """
    members = value if isinstance(value, Mapping) else fields_of(value)
    if members is None:
        raise BadEventError(
            f"{preview(value)} is not an event", detail="an event is a dict, or an instance of the declared class"
        )
    return {name: _to_plain(item, 1) for name, item in members.items()}


def _to_plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise BadEventError(f"the event is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_plain(item, depth + 1) for item in value]
    members = value if isinstance(value, Mapping) else fields_of(value)
    if members is not None:
        return {name: _to_plain(item, depth + 1) for name, item in members.items()}
    return _unwrap_scalar(value)


def _unwrap_scalar(value: Any) -> Any:
    """Returns the plain value of an enum, UUID, time or timedelta; anything else as it is."""
    match value:
        case Enum():
            return _unwrap_scalar(value.value)
        case UUID():
            return str(value)
        case time():
            return value.isoformat()
        case timedelta():
            return value // _MICROSECOND
        case bytearray() | memoryview():
            return bytes(value)
        case np.generic():
            return value.item()
        case datetime():
            return _plain_datetime(value)
    return value


def _plain_datetime(value: datetime) -> datetime | None:
    """Convert a pandas timestamp to a datetime unless it has nanoseconds; None for NaT, which does not equal itself."""
    if value != value:  # noqa: PLR0124
        return None
    if type(value) is datetime or bool(getattr(value, "nanosecond", False)):
        return value
    return datetime.combine(value.date(), value.timetz())
