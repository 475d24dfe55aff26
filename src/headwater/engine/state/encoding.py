r"""Encodes keys and rows as bytes.

`encode_keys` encodes the values of key columns so that equal values have equal bytes and bytes sort like values. Null
sorts below every value and equals itself. NaN sorts above every number and equals itself. -0.0 is encoded as 0.0.
Several columns sort by the first, then by the second.

Each value begins with one byte: 0 for null, 1 otherwise. Numbers follow as big-endian bytes with the sign bit inverted.
Text follows as UTF-8 and binary unchanged, with \x00 escaped as \x00\xff and \x00\x00 at the end. The members of a
struct follow one another. Each element of a list is preceded by \x01, and \x00 ends the list.

`encode_rows` encodes whole rows, which operators store in their state. It does not preserve order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "decode_columns",
    "decode_int64",
    "decode_keys",
    "decode_rows",
    "decode_time",
    "encode_int64",
    "encode_keys",
    "encode_rows",
    "encode_time",
    "hash_key",
    "hash_keys",
    "kinds_of",
    "normalize_zeros",
    "require_keys",
    "split_bytes",
]

_CHUNK_ROWS: Final = 500
_EMPTY_ROW: Final = b"\x90"
"""MessagePack's empty list."""


def encode_rows(schema: pa.Schema, rows: pa.Table) -> list[bytes]:
    r"""Returns each row as bytes, never empty; equal rows have equal bytes. Columns are selected by name.

    Example:
        >>> schema = pa.schema([("id", pa.int64()), ("price", pa.decimal128(10, 2))])
        >>> decode_rows(schema, encode_rows(schema, pa.table({"id": [7], "price": ["1.50"]}).cast(schema))).to_pylist()
        [{'id': 7, 'price': Decimal('1.50')}]
        >>> encode_rows(pa.schema([]), pa.table({"id": [7, 8]}))
        [b'\x90', b'\x90']
    """
    if not schema.names:
        return [_EMPTY_ROW] * len(rows)
    columns = _to_msgpack_columns([rows.column(name) for name in schema.names])
    return list(map(msgspec.msgpack.Encoder().encode, zip(*columns, strict=True)))


def decode_rows(schema: pa.Schema, rows: Sequence[bytes]) -> pa.Table:
    """Decodes the bytes of `encode_rows`."""
    return pa.Table.from_arrays(_from_msgpack_columns(decode_columns(rows, len(schema)), schema), schema=schema)


def decode_columns(rows: Sequence[bytes], width: int) -> list[list[Any]]:
    """Decodes MessagePack lists of one length, and returns their values column by column.

    Example:
        >>> decode_columns([msgspec.msgpack.encode([1, "a"]), msgspec.msgpack.encode([2, "b"])], 2)
        [[1, 2], ['a', 'b']]
    """
    columns: list[list[Any]] = [[] for _ in range(width)]
    decode = msgspec.msgpack.Decoder(list[Any]).decode
    # In small chunks: many lists at once would trigger garbage collections over the whole state repeatedly.
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = zip(*map(decode, rows[start : start + _CHUNK_ROWS]), strict=True)
        for column, values in zip(columns, chunk, strict=True):
            column.extend(values)
    return columns


def _to_msgpack_columns(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Iterator[list[Any]]:
    """Yields the values of each column as MessagePack can hold them: times as numbers, decimals as text."""
    for column in columns:
        kind = _msgpack_type(column.type)
        yield (column if kind == column.type else column.cast(kind)).to_pylist()


def _from_msgpack_columns(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    """Restores the columns of `_to_msgpack_columns`."""
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        if pa.types.is_map(field.type):  # Arrow takes the entries of a map as tuples; MessagePack has only lists
            values = [value if value is None else [tuple(pair) for pair in value] for value in values]  # noqa: PLW2901
        arrays.append(pa.array(values, _msgpack_type(field.type)).cast(field.type))
    return arrays


def _msgpack_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.string()
    if _is_time_type(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_msgpack_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_msgpack_type(kind.key_type), kind.item_field.with_type(_msgpack_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_msgpack_type(kind.value_type)))
    return kind


def normalize_zeros(column: Any) -> Any:
    """Returns the column with -0.0 as 0.0, so that equal floats have equal bytes; other types unchanged.

    Example:
        >>> str(normalize_zeros(pa.array([-0.0]))[0])
        '0.0'
    """
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


_SIGN: Final = 1 << 63
_DECIMAL_SIGN: Final = 1 << 127
_ALL_BITS: Final = (1 << 64) - 1
_NAN: Final = b"\xff" * 8
_EXACT: Final = Context(prec=80)  # the default context would round to 28 digits
_KINDS: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("s", pa.types.is_string), ("s", pa.types.is_large_string), ("i", pa.types.is_signed_integer),
    ("d", pa.types.is_date32), ("b", pa.types.is_boolean),
    ("t", lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us"),
)  # fmt: skip
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at an offset of a key; returns it with the offset after it."""


def encode_int64(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns int64 numbers as rows of eight bytes that sort like the numbers."""
    unsigned = np.ascontiguousarray(numbers, np.int64).view(np.uint64) ^ np.uint64(_SIGN)
    return unsigned.astype(">u8").view(np.uint8).reshape(-1, 8)


def decode_int64(wide: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Decodes the rows of `encode_int64`.

    Example:
        >>> decode_int64(encode_int64(np.array([5, -7]))).tolist()
        [5, -7]
    """
    unsigned = np.ascontiguousarray(wide).view(">u8").reshape(-1).astype(np.uint64)
    return (unsigned ^ np.uint64(_SIGN)).view(np.int64)


def split_bytes(data: bytes, width: int) -> list[bytes]:
    """Splits bytes into pieces of one width.

    Example:
        >>> split_bytes(b"abcd", 2)
        [b'ab', b'cd']
    """
    return [data[at : at + width] for at in range(0, len(data), width)]


def encode_time(time: int) -> bytes:
    """Returns a time as eight bytes that sort like times; a time outside of 64 bits is clamped.

    Example:
        >>> encode_time(-1) < encode_time(0) < encode_time(1), decode_time(encode_time(-1))
        (True, -1)
    """
    return (min(max(time, -_SIGN), _SIGN - 1) + _SIGN).to_bytes(8, "big")


def decode_time(encoded: bytes) -> int:
    """Returns the time in the first eight bytes."""
    return int.from_bytes(encoded[:8], "big") - _SIGN


def encode_keys(columns: Sequence[pa.ChunkedArray | pa.Array]) -> list[bytes]:
    r"""Returns the key of each row.

    Example:
        >>> encode_keys([pa.array(["a", None]), pa.array([1, -1], pa.int64())])[0]
        b'\x01a\x00\x00\x01\x80\x00\x00\x00\x00\x00\x00\x01'
    """
    if len(columns) == 1 and not columns[0].null_count and _is_integer_type(columns[0].type):
        return _encode_integers(columns[0])
    parts = []
    for values, column in zip(_to_msgpack_columns(columns), columns, strict=True):
        encode, _ = _value_codec(column.type)
        parts.append([b"\x00" if value is None else b"\x01" + encode(value) for value in values])
    return parts[0] if len(parts) == 1 else list(map(b"".join, zip(*parts, strict=True)))


def decode_keys(keys: Sequence[bytes], schema: pa.Schema) -> list[pa.Array]:
    """Restores the columns of `encode_keys`.

    Example:
        >>> schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
        >>> [column.to_pylist() for column in decode_keys(encode_keys([pa.array(["a"]), pa.array([7])]), schema)]
        [['a'], [7]]
    """
    decoders = [_value_codec(field.type)[1] for field in schema]
    columns: list[list[Any]] = [[] for _ in schema]
    for key in keys:
        at = 0
        for column, decode in zip(columns, decoders, strict=True):
            value, at = _decode_nullable(key, at, decode)
            column.append(value)
    return _from_msgpack_columns(columns, schema)


def kinds_of(columns: Sequence[pa.ChunkedArray | pa.Array]) -> str:
    """Returns one letter for the type of each key column, as in `StateWrite`; empty if a type has no letter.

    Example:
        >>> kinds_of([pa.array(["a"]), pa.array([7])]), kinds_of([pa.array(["a"]), pa.array([0.5])])
        ('si', '')
    """
    kinds = [next((letter for letter, check in _KINDS if check(column.type)), "") for column in columns]
    return "".join(kinds) if all(kinds) else ""


def require_keys(schema: pa.Schema) -> None:
    """Refuse columns that cannot be keys, because their type has no encoding that preserves order.

    Raises:
        TypeError: A column has such a type.
    """
    for field in schema:
        _value_codec(field.type)


def _is_integer_type(kind: pa.DataType) -> bool:
    """Returns whether Arrow stores the values as signed integers."""
    return pa.types.is_signed_integer(kind) or _is_time_type(kind)


def _is_time_type(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def _encode_integers(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """Returns the keys of an integer column without nulls, vectorized."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_integer(array.type):
        array = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    wide = np.ones((len(array), 9), np.uint8)
    wide[:, 1:] = encode_int64(array.to_numpy(zero_copy_only=False))
    return split_bytes(wide.tobytes(), 9)


def _value_codec(kind: pa.DataType) -> tuple[Encode, Decode]:  # noqa: C901, PLR0911 - one branch for each kind of value
    """Returns the functions that encode and decode values of a type, nulls apart."""
    if pa.types.is_boolean(kind):
        return lambda value: b"\x01" if value else b"\x00", lambda key, at: (bool(key[at]), at + 1)
    if pa.types.is_unsigned_integer(kind):
        return lambda value: value.to_bytes(8, "big"), lambda key, at: (int.from_bytes(key[at : at + 8], "big"), at + 8)
    if _is_integer_type(kind):
        return lambda value: (value + _SIGN).to_bytes(8, "big"), lambda key, at: (decode_time(key[at : at + 8]), at + 8)
    if pa.types.is_floating(kind):
        return _encode_float, _decode_float
    if pa.types.is_decimal(kind):
        return _decimal_codec(kind.scale)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value: value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00", _decode_string
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: value.replace(b"\x00", b"\x00\xff") + b"\x00\x00", _decode_bytes
    if pa.types.is_struct(kind):
        return _struct_codec(kind)
    if pa.types.is_list(kind):
        return _list_codec(kind)
    message = f"a value of type {kind} cannot be a key"
    raise TypeError(message)


def _encode_nullable(value: Any, encode: Encode) -> bytes:
    return b"\x00" if value is None else b"\x01" + encode(value)


def _decode_nullable(key: bytes, at: int, decode: Decode) -> tuple[Any, int]:
    return decode(key, at + 1) if key[at] else (None, at + 1)


def _encode_float(value: float) -> bytes:
    if math.isnan(value):
        return _NAN
    # IEEE 754: positive numbers sort by their bits, negative numbers the other way round.
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))
    return int(bits ^ (_ALL_BITS if bits >> 63 else _SIGN)).to_bytes(8, "big")


def _decode_float(key: bytes, at: int) -> tuple[float, int]:
    bits = int.from_bytes(key[at : at + 8], "big")
    bits ^= _SIGN if bits >> 63 else _ALL_BITS
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    return value, at + 8


def _decode_bytes(key: bytes, at: int) -> tuple[bytes, int]:
    end = key.index(b"\x00", at)
    while key[end + 1] == 0xFF:
        end = key.index(b"\x00", end + 2)
    return key[at:end].replace(b"\x00\xff", b"\x00"), end + 2


def _decode_string(key: bytes, at: int) -> tuple[str, int]:
    text, end = _decode_bytes(key, at)
    return text.decode(), end


def _decimal_codec(scale: int) -> tuple[Encode, Decode]:
    def encode(value: str) -> bytes:
        return (int(_EXACT.scaleb(Decimal(value), scale)) + _DECIMAL_SIGN).to_bytes(16, "big")

    def decode(key: bytes, at: int) -> tuple[str, int]:
        unscaled = int.from_bytes(key[at : at + 16], "big") - _DECIMAL_SIGN
        return str(_EXACT.scaleb(Decimal(unscaled), -scale)), at + 16

    return encode, decode


def _struct_codec(kind: pa.StructType) -> tuple[Encode, Decode]:
    members = [(field.name, *_value_codec(field.type)) for field in kind]

    def decode(key: bytes, at: int) -> tuple[dict[str, Any], int]:
        value: dict[str, Any] = {}
        for name, _, member in members:
            value[name], at = _decode_nullable(key, at, member)
        return value, at

    return lambda value: b"".join(_encode_nullable(value[name], encode) for name, encode, _ in members), decode


def _list_codec(kind: pa.ListType) -> tuple[Encode, Decode]:
    encode_element, decode_element = _value_codec(kind.value_type)

    def decode(key: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while key[at]:
            value, at = _decode_nullable(key, at + 1, decode_element)
            values.append(value)
        return values, at + 1

    return lambda value: b"".join(b"\x01" + _encode_nullable(part, encode_element) for part in value) + b"\x00", decode


def hash_key(key: bytes) -> int:
    """Returns a 32-bit hash that distributes keys: the same in every process and version."""
    return crc32(key)


def hash_keys(keys: Iterable[bytes]) -> npt.NDArray[np.uint32]:
    """Returns the hash of each key.

    Example:
        >>> hash_keys([b"a", b"b"]).tolist() == [hash_key(b"a"), hash_key(b"b")]
        True
    """
    return np.fromiter(map(crc32, keys), np.uint32)
