"""From the bytes of rows to Arrow columns, one column of many rows at a time.

A row image has the values of its columns one after another, without their places. `ColumnReader.advance` finds where
the value of each row lies and where the next column begins; `ColumnReader.decode` makes the column of those values.
Both work on all rows at once with numpy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.capture.mariadb.binlog.binlog_events import BinlogColumn
from headwater.capture.mariadb.binlog.column_types import MAX_DECIMAL, arrow_type

__all__ = ["PADDING", "ColumnReader", "Decoded", "UnknownColumnError", "Values", "binary_array", "fixed_array"]

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Data: TypeAlias = npt.NDArray[np.uint8]

PADDING: Final = 1100
"""Bytes that must follow the last row, because values are gathered in windows: the longest BINARY column has 255."""

_DECIMAL_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_FIXED: Final = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 7: 4, 8: 8, 9: 3, 10: 3, 11: 3, 12: 8, 13: 1}


class UnknownColumnError(ValueError):
    """A column of a type that cannot be decoded."""


@dataclass(frozen=True)
class Values:
    """Where the values of one column lie: in `data`, at `at`, `length` bytes each, where `valid`."""

    data: Data
    at: Ints
    length: Ints | None
    valid: Flags | None

    def windows(self, width: int) -> Data:
        """Returns the first `width` bytes of each value, one row each."""
        view: Data = np.ndarray((len(self.data) - width + 1, width), np.uint8, self.data, strides=(1, 1))
        return view[self.at]

    def raw(self, row: int, width: int) -> bytes:
        """Returns the bytes of one value."""
        size = width if self.length is None else int(self.length[row])
        return self.data[self.at[row] : self.at[row] + size].tobytes()


@dataclass(frozen=True)
class Decoded:
    """A column, and the rows whose value its type cannot hold, with the text that MariaDB prints for them."""

    column: pa.Array
    bad: dict[int, str] | None = None


Decoder: TypeAlias = Callable[[Values], Decoded]
Transcoder: TypeAlias = Callable[[int, list[bytes]], list[str]]


def fixed_array(kind: pa.DataType, values: npt.NDArray[Any], valid: Flags | None) -> pa.Array:
    """Returns a column of values of a fixed width, null where not valid.

    Example:
        >>> fixed_array(pa.int64(), np.array([1, 2]), np.array([True, False])).to_pylist()
        [1, None]
    """
    data = np.packbits(values, bitorder="little") if kind == pa.bool_() else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), pa.py_buffer(data)])


def _bitmap(valid: Flags | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def binary_array(kind: pa.DataType, data: Data, at: Ints, length: Ints, valid: Flags | None) -> pa.Array:
    """Returns a column of the byte strings, or texts, that lie in `data`.

    Arrow gathers them: a column of views into `data`, cast to the compact type.

    Example:
        >>> data = np.frombuffer(b"-abc" + bytes(12), np.uint8)
        >>> binary_array(pa.string(), data, np.array([1, 2]), np.array([3, 1]), None).to_pylist()
        ['abc', 'b']
    """
    count = len(at)
    if not count:
        return pa.array([], kind)
    view = pa.string_view() if kind == pa.string() else pa.binary_view()
    parts = []
    # A view has a position of 31 bits.
    if int(at.max()) + int(length.max()) >= 1 << 31:
        return pa.array(_slices(data, at, length, valid), kind)
    heads = np.zeros((count, 16), np.uint8)
    head = heads.view(np.int32)
    sizes = length if valid is None else np.where(valid, length, 0)
    head[:, 0] = sizes
    first: Data = np.ndarray((len(data) - 11, 12), np.uint8, data, strides=(1, 1))[at]
    short = sizes <= 12
    heads[:, 4:8] = first[:, :4]
    head[:, 3] = at
    inline = np.where(np.arange(12) < sizes[:, None], first, 0).astype(np.uint8)
    heads[short, 4:] = inline[short]
    parts = [_bitmap(valid), pa.py_buffer(heads), pa.py_buffer(data)]
    return pa.Array.from_buffers(view, count, parts).cast(kind)


def _slices(data: Data, at: Ints, length: Ints, valid: Flags | None) -> list[bytes | None]:
    whole = data.tobytes()
    keep = np.ones(len(at), bool) if valid is None else valid
    return [
        whole[start : start + size] if one else None
        for start, size, one in zip(at.tolist(), length.tolist(), keep.tolist(), strict=True)
    ]


class ColumnReader:
    """Reads one column of row images.

    Args:
        column: The column, as the table map declares it.
        type_text: Its type; for a UUID more than the table map says.
        charset: The name of the charset of a text, or of the values of an ENUM or SET.
        transcode: Decodes texts of a charset that is not Unicode.
    """

    def __init__(self, column: BinlogColumn, type_text: str, charset: str, transcode: Transcoder) -> None:
        self.name = column.name
        self.nullable = column.nullable
        self.type_text = type_text
        self.arrow = arrow_type(type_text)
        self._column = column
        self._charset = charset
        self._transcode = transcode
        self.width, self.prefix = _layout(column)
        self._decode = self._decoder()

    def advance(self, data: Data, cursor: Ints, valid: Flags | None) -> tuple[Ints, Ints | None, Ints]:
        """Returns where the values lie, their lengths unless they are fixed, and where the next column begins."""
        if not self.prefix:
            step = self.width if valid is None else self.width * valid
            return cursor, None, cursor + step
        length = data[cursor].astype(np.int64)
        for one in range(1, self.prefix):
            length |= data[cursor + one].astype(np.int64) << (8 * one)
        end = cursor + self.prefix + length
        return cursor + self.prefix, length, end if valid is None else np.where(valid, end, cursor)

    def skip(self, data: bytes, cursor: int) -> int:
        """Returns where the next column begins, for one row whose value is not NULL."""
        if not self.prefix:
            return cursor + self.width
        return cursor + self.prefix + int.from_bytes(data[cursor : cursor + self.prefix], "little")

    def decode(self, values: Values) -> Decoded:
        """Returns the column of these values."""
        return self._decode(values)

    def _decoder(self) -> Decoder:
        code, text = self._column.code, self.type_text
        if code in (1, 2, 3, 8, 9):
            return self._integers
        plain: dict[int, Decoder] = {
            4: self._floats, 5: self._floats, 13: self._years, 10: self._dates, 246: self._decimals, 16: self._bits,
            17: self._timestamps, 7: self._timestamps, 18: self._datetimes, 12: self._datetimes, 19: self._times,
            11: self._times, 247: self._enums, 248: self._sets, 140: self._compressed, 141: self._compressed,
        }  # fmt: skip
        if code in plain:
            return plain[code]
        if text in ("uuid", "inet6", "inet4"):
            return self._addresses
        if text.startswith("binary("):
            return self._padded
        return self._texts

    def _integers(self, values: Values) -> Decoded:
        width, unsigned = self.width, self._column.unsigned
        if width == 3:
            numbers = values.windows(4).view("<u4")[:, 0] << 8
            numbers = numbers >> 8 if unsigned else numbers.view("<i4") >> 8
        else:
            numbers = values.windows(width).view(f"<{'u' if unsigned else 'i'}{width}")[:, 0]
        if unsigned and width == 8:
            return Decoded(_decimal_array(self.arrow, numbers, None, values.valid))
        return Decoded(fixed_array(self.arrow, numbers.astype(self.arrow.to_pandas_dtype()), values.valid))

    def _floats(self, values: Values) -> Decoded:
        return Decoded(fixed_array(self.arrow, values.windows(self.width).view(f"<f{self.width}")[:, 0], values.valid))

    def _years(self, values: Values) -> Decoded:
        years = values.windows(1)[:, 0].astype(np.int16)
        return Decoded(fixed_array(self.arrow, np.where(years == 0, 0, years + 1900).astype(np.int16), values.valid))

    def _bits(self, values: Values) -> Decoded:
        numbers = _big_endian(values.windows(self.width))
        if self.arrow == pa.bool_():
            return Decoded(fixed_array(self.arrow, numbers != 0, values.valid))
        if self.arrow == pa.int64():
            return Decoded(fixed_array(self.arrow, numbers, values.valid))
        return Decoded(_decimal_array(self.arrow, numbers.view(np.uint64), None, values.valid))

    def _dates(self, values: Values) -> Decoded:
        number = (values.windows(4).view("<u4")[:, 0] & 0xFFFFFF).astype(np.int64)
        year, month, day = number >> 9, number >> 5 & 15, number & 31
        days, good = _days(year, month, day)
        wrong = ~good if values.valid is None else ~good & values.valid
        column = fixed_array(self.arrow, days.astype(np.int32), values.valid)
        return Decoded(
            column, {int(one): f"{year[one]:04}-{month[one]:02}-{day[one]:02}" for one in wrong.nonzero()[0]}
        )

    def _timestamps(self, values: Values) -> Decoded:
        if self._column.code == 7:
            seconds = values.windows(4).view("<u4")[:, 0].astype(np.int64)
            fraction = np.zeros(len(seconds), np.int64)
        else:
            seconds = _big_endian(values.windows(4))
            fraction = _fraction(values, 4, self._column.meta[0])
        micros = seconds * 1_000_000 + fraction
        wrong = micros == 0 if values.valid is None else (micros == 0) & values.valid
        column = fixed_array(self.arrow, micros, values.valid)
        return Decoded(column, {int(one): "0000-00-00 00:00:00" for one in wrong.nonzero()[0]})

    def _datetimes(self, values: Values) -> Decoded:
        digits = 0 if self._column.code == 12 else self._column.meta[0]
        if self._column.code == 12:
            number = values.windows(8).view("<i8")[:, 0]
            parts = [number // 10**power % (10000 if power == 10 else 100) for power in (10, 8, 6, 4, 2, 0)]
        else:
            number = _big_endian(values.windows(5)) - (1 << 39)
            month = number >> 22
            clock = number & 0x1FFFF
            parts = [month // 13, month % 13, number >> 17 & 31, clock >> 12, clock >> 6 & 63, clock & 63]
        columns = _digits(parts[0], 4)
        for part, mark in zip(parts[1:], "-- ::", strict=True):
            columns += [ord(mark), *_digits(part, 2)]
        if digits:
            columns += [ord("."), *_digits(_fraction(values, 5, digits) // 10 ** (6 - digits), digits)]
        return Decoded(_fixed_text(columns, values.valid, len(values.at)))

    def _times(self, values: Values) -> Decoded:
        digits = 0 if self._column.code == 11 else self._column.meta[0]
        valid = np.ones(len(values.at), bool) if values.valid is None else values.valid
        if self._column.code == 11:
            number = (values.windows(4).view("<u4")[:, 0] << 8).view("<i4") >> 8
            texts = [
                _old_time(one) if keep else None for one, keep in zip(number.tolist(), valid.tolist(), strict=True)
            ]
            return Decoded(pa.array(texts, pa.string()))
        extra = (digits + 1) // 2
        packed = _big_endian(values.windows(3 + extra)) - (0x800000 << 8 * extra)
        rows = zip(packed.tolist(), valid.tolist(), strict=True)
        return Decoded(pa.array([_time_text(one, extra, digits) if keep else None for one, keep in rows], pa.string()))

    def _decimals(self, values: Values) -> Decoded:
        precision, scale = self._column.meta[0], self._column.meta[1]
        raw = values.windows(self.width)
        negative = raw[:, 0] < 128
        raw[:, 0] ^= 0x80
        raw[negative] ^= 0xFF
        groups, at = [], 0
        for size in _decimal_groups(precision, scale):
            width = _DECIMAL_BYTES[size]
            groups.append((_big_endian(raw[:, at : at + width]), size))
            at += width
        kind = np.int64 if precision <= 18 else object
        number = np.zeros(len(raw), kind)
        for group, size in groups:
            number = number * 10**size + group.astype(kind)
        if precision <= MAX_DECIMAL:
            return Decoded(_decimal_array(self.arrow, number, negative, values.valid))
        valid = np.ones(len(raw), bool) if values.valid is None else values.valid
        rows = zip(number.tolist(), negative.tolist(), valid.tolist(), strict=True)
        return Decoded(
            pa.array([_decimal_text(n, minus, scale) if keep else None for n, minus, keep in rows], pa.string())
        )

    def _texts(self, values: Values) -> Decoded:
        assert values.length is not None
        column = binary_array(pa.binary(), values.data, values.at, values.length, values.valid)
        if self.arrow == pa.binary():
            return Decoded(column)
        return self._to_text(column)

    def _to_text(self, column: pa.Array) -> Decoded:
        if self._charset in ("utf8mb4", "utf8mb3", "utf8", "ascii"):
            try:
                return Decoded(column.cast(pa.string()))
            except pa.ArrowInvalid:
                return _bad_texts(column)
        kept = [value for value in column.to_pylist() if value is not None]
        texts = iter(self._transcode(self._column.collation, kept))
        return Decoded(pa.array([None if value is None else next(texts) for value in column.to_pylist()], pa.string()))

    def _padded_bytes(self, values: Values) -> Data:
        assert values.length is not None
        size = self._column.length
        raw = values.windows(size)
        raw[np.arange(size) >= values.length[:, None]] = 0
        return raw

    def _padded(self, values: Values) -> Decoded:
        size = self._column.length
        data = self._padded_bytes(values).reshape(-1)
        data = np.concatenate([data, np.zeros(16, np.uint8)])
        count = len(values.at)
        at, length = np.arange(count, dtype=np.int64) * size, np.full(count, size, np.int64)
        return Decoded(binary_array(pa.binary(), data, at, length, values.valid))

    def _addresses(self, values: Values) -> Decoded:
        to_text = _ADDRESS_TEXTS[self.type_text]
        raw = self._padded_bytes(values).tobytes()
        size = self._column.length
        valid = np.ones(len(values.at), bool) if values.valid is None else values.valid
        texts = [to_text(raw[n * size : n * size + size]) if keep else None for n, keep in enumerate(valid.tolist())]
        return Decoded(pa.array(texts, pa.string()))

    def _enum_texts(self) -> list[str]:
        if self._charset in ("utf8mb4", "utf8mb3", "utf8", "ascii"):
            return [value.decode() for value in self._column.values]
        return self._transcode(self._column.collation, list(self._column.values))

    def _enums(self, values: Values) -> Decoded:
        names = pa.array(["", *self._enum_texts()], pa.string())
        index = _little_endian(values.windows(self.width))
        return Decoded(names.take(fixed_array(pa.int64(), index, values.valid)))

    def _sets(self, values: Values) -> Decoded:
        names = self._enum_texts()
        valid = np.ones(len(values.at), bool) if values.valid is None else values.valid
        members = _little_endian(values.windows(self.width)).tolist()
        texts = [
            ",".join(name for n, name in enumerate(names) if one >> n & 1) if keep else None
            for one, keep in zip(members, valid.tolist(), strict=True)
        ]
        return Decoded(pa.array(texts, pa.string()))

    def _compressed(self, values: Values) -> Decoded:
        assert values.length is not None
        raw = _slices(values.data, values.at, values.length, values.valid)
        column = pa.array([None if one is None else _inflate_value(one) for one in raw], pa.binary())
        return Decoded(column) if self.arrow == pa.binary() else self._to_text(column)


def _layout(column: BinlogColumn) -> tuple[int, int]:
    """Returns the width of a value, or 0 and the bytes of the length before it."""
    code, meta = column.code, column.meta
    if code in _FIXED:
        return _FIXED[code], 0
    if code in (17, 18, 19):
        return {17: 4, 18: 5, 19: 3}[code] + (meta[0] + 1) // 2, 0
    if code == 246:
        return sum(_DECIMAL_BYTES[size] for size in _decimal_groups(meta[0], meta[1])), 0
    if code == 16:
        return meta[1] + (meta[0] > 0), 0
    if code in (247, 248):
        return meta[1], 0
    if code in (15, 141, 254):
        return 0, 1 if column.length < 256 else 2
    if code in (140, 252, 255):
        return 0, meta[0]
    raise UnknownColumnError(f"column {column.name} has the unknown type {code}")


def _decimal_groups(precision: int, scale: int) -> list[int]:
    """Returns the digits of each group of a decimal, from the left."""
    whole = precision - scale
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    return [size for size in groups if size]


def _big_endian(raw: Data) -> Ints:
    number = np.zeros(len(raw), np.int64)
    for one in range(raw.shape[1]):
        number = number << 8 | raw[:, one]
    return number


def _little_endian(raw: Data) -> Ints:
    return _big_endian(raw[:, ::-1])


def _fraction(values: Values, skip: int, digits: int) -> Ints:
    """Returns the microseconds of a time with fractional digits."""
    size = (digits + 1) // 2
    if not size:
        return np.zeros(len(values.at), np.int64)
    scale: int = 10 ** (6 - 2 * size)
    return _big_endian(values.windows(skip + size)[:, skip:]) * scale


def _days(year: Ints, month: Ints, day: Ints) -> tuple[Ints, Flags]:
    """Returns days since 1970, and which dates exist."""
    lengths = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0])
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= lengths[month] + (leap & (month == 2)))
    # Years that begin in March put the leap day last.
    march = (month + 9) % 12
    of_year = year - (march > 9)
    days = 365 * of_year + of_year // 4 - of_year // 100 + of_year // 400 + (153 * march + 2) // 5 + day - 719469
    return days, good


def _digits(number: Ints, count: int) -> list[Any]:
    return [number // 10**power % 10 + 48 for power in range(count - 1, -1, -1)]


def _fixed_text(columns: list[Any], valid: Flags | None, count: int) -> pa.Array:
    data = np.empty((count, len(columns)), np.uint8)
    for one, column in enumerate(columns):
        data[:, one] = column
    offsets = np.arange(count + 1, dtype=np.int32) * len(columns)
    parts = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), count, parts)


def _decimal_array(
    kind: pa.DataType, number: npt.NDArray[Any], negative: Flags | None, valid: Flags | None
) -> pa.Array:
    """Returns a column of decimals of 128 bits; `number` is without sign where `negative` is given."""
    if negative is not None:
        number = np.where(negative, -number, number)
    halves = np.zeros((len(number), 2), np.int64)
    if number.dtype == object:
        number = number if valid is None else np.where(valid, number, 0)  # where null there are any bytes
        halves[:, 0] = (number & 0xFFFFFFFFFFFFFFFF).astype(np.uint64).view(np.int64)
        halves[:, 1] = (number >> 64).astype(np.int64)
    elif number.dtype == np.uint64:
        halves[:, 0] = number.view(np.int64)
    else:
        halves[:, 0] = number
        halves[:, 1] = number >> 63
    return pa.Array.from_buffers(kind, len(number), [_bitmap(valid), pa.py_buffer(halves)])


def _decimal_text(number: int, minus: bool, scale: int) -> str:
    digits = str(number).rjust(scale + 1, "0")
    whole, part = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    return f"{'-' if minus and number else ''}{whole}{'.' if part else ''}{part}"


def _time_text(packed: int, extra: int, digits: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    clock = packed >> 8 * extra
    text = f"{sign}{clock >> 12 & 0x3FF:02}:{clock >> 6 & 63:02}:{clock & 63:02}"
    if not digits:
        return text
    fraction = packed & (1 << 8 * extra) - 1
    return f"{text}.{str(fraction).rjust(2 * extra, '0')[:digits]}"


def _old_time(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 10000:02}:{number // 100 % 100:02}:{number % 100:02}"


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _inet4_text(raw: bytes) -> str:
    return ".".join(map(str, raw))


def _inet6_text(raw: bytes) -> str:
    """Returns an IPv6 address as MariaDB prints it: the first of the longest runs of zeros is left out."""
    groups = [int.from_bytes(raw[one : one + 2], "big") for one in range(0, 16, 2)]
    start, size = -1, 0
    one = 0
    while one < 8:
        end = one
        while end < 8 and not groups[end]:
            end += 1
        if end - one > size:
            start, size = one, end - one
        one = end + 1
    if start == 0 and (size == 6 or (size == 5 and groups[5] == 0xFFFF)):
        return f"::{'ffff:' if size == 5 else ''}{_inet4_text(raw[12:])}"
    words = [f"{group:x}" for group in groups]
    if size < 1:
        return ":".join(words)
    return f"{':'.join(words[:start])}::{':'.join(words[start + size :])}"


_ADDRESS_TEXTS: Final[dict[str, Callable[[bytes], str]]] = {
    "uuid": _uuid_text,
    "inet4": _inet4_text,
    "inet6": _inet6_text,
}


def _inflate_value(raw: bytes) -> bytes:
    """Returns the value of a COMPRESSED column: a byte that says how, the length of the value, and the data."""
    if not raw or not raw[0]:
        return raw[1:]
    return zlib.decompress(raw[1 + (raw[0] & 7) :], wbits=-15 if raw[0] & 8 else 15)


def _bad_texts(column: pa.Array) -> Decoded:
    texts: list[str | None] = []
    bad = {}
    for row, value in enumerate(column.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(None)
            bad[row] = f"0x{value.hex()}"
    return Decoded(pa.array(texts, pa.string()), bad)
