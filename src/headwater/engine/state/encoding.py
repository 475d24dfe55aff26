r"""Encodes keys and rows as bytes.

`encode_keys` encodes the values of key columns so that equal values have equal bytes and bytes sort like values. Null
sorts below every value and equals itself. NaN sorts above every number and equals itself. -0.0 is encoded as 0.0.
Several columns sort by the first, then by the second.

Each value begins with one byte: 0 for null, 1 otherwise. Numbers follow as big-endian bytes with the sign bit inverted.
Text follows as UTF-8 and binary unchanged, with \x00 escaped as \x00\xff and \x00\x00 at the end. The members of a
struct follow one another. Each element of a list is preceded by \x01, and \x00 ends the list.

`RowCodec` encodes whole rows, which operators store in their state.
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

__all__ = [
    "RowCodec",
    "decode_columns",
    "decode_keys",
    "encode_keys",
    "from_msgpack_columns",
    "hash_key",
    "hash_keys",
    "kinds_of",
    "require_keys",
    "to_msgpack_columns",
]

_CHUNK_ROWS: Final = 500


class RowCodec:
    """Encodes rows of one schema as bytes, one value per row, and decodes them; equal rows have equal bytes.

    Example:
        >>> codec = RowCodec(pa.schema([("id", pa.int64()), ("price", pa.decimal128(10, 2))]))
        >>> rows = codec.encode(pa.table({"id": [7], "price": ["1.50"]}).cast(codec.schema))
        >>> codec.decode(rows).to_pylist()
        [{'id': 7, 'price': Decimal('1.50')}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def encode(self, table: pa.Table) -> list[bytes]:
        """Returns each row as bytes; columns are selected by name."""
        columns = to_msgpack_columns([table.column(name) for name in self.schema.names])
        encode = msgspec.msgpack.Encoder().encode
        return [encode(row) for row in zip(*columns, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> pa.Table:
        """Returns the rows as columns."""
        columns = decode_columns(rows, len(self.schema))
        return pa.Table.from_arrays(from_msgpack_columns(columns, self.schema), schema=self.schema)


def decode_columns(rows: Sequence[bytes], width: int) -> list[list[Any]]:
    """Returns lists stored as MessagePack, column by column.

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


def to_msgpack_columns(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Iterator[list[Any]]:
    """Returns values that MessagePack supports: times as numbers, decimals as text."""
    for column in columns:
        kind = _msgpack_type(column.type)
        yield (column if kind == column.type else column.cast(kind)).to_pylist()


def from_msgpack_columns(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    """Restores the columns of `to_msgpack_columns`."""
    return [
        pa.array(_map_entries_as_tuples(values, field.type), _msgpack_type(field.type)).cast(field.type)
        for values, field in zip(columns, schema, strict=True)
    ]


def _map_entries_as_tuples(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Returns the values with entries of maps as pairs, as Arrow wants them; MessagePack knows only lists."""
    if pa.types.is_map(kind):
        return [value if value is None else [tuple(pair) for pair in value] for value in values]
    return values


def _msgpack_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.string()
    if (
        pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_date64(kind)
    ):
        return pa.int64()
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_msgpack_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_msgpack_type(kind.key_type), kind.item_field.with_type(_msgpack_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_msgpack_type(kind.value_type)))
    return kind


_SHIFT: Final = 1 << 63
_DECIMAL_SHIFT: Final = 1 << 127
_NAN: Final = b"\xff" * 8
_EXACT: Final = Context(prec=80)
_KINDS: Final = (
    ("s", pa.types.is_string), ("s", pa.types.is_large_string), ("i", pa.types.is_signed_integer),
    ("d", pa.types.is_date32), ("b", pa.types.is_boolean),
)  # fmt: skip
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]


def encode_keys(columns: Sequence[pa.ChunkedArray | pa.Array]) -> list[bytes]:
    r"""Returns the key of each row.

    Example:
        >>> encode_keys([pa.array(["a", None]), pa.array([1, -1], pa.int64())])[0]
        b'\x01a\x00\x00\x01\x80\x00\x00\x00\x00\x00\x00\x01'
    """
    if len(columns) == 1 and _is_integer_column(columns[0]):
        return _encode_integers(columns[0])
    encoders = map(_encoder_of, columns)
    parts = [
        [_encode_value(value, encode) for value in values]
        for values, encode in zip(to_msgpack_columns(columns), encoders, strict=True)
    ]
    return parts[0] if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def decode_keys(keys: Sequence[bytes], schema: pa.Schema) -> list[pa.Array]:
    """Restores the columns of `encode_keys`.

    Example:
        >>> schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
        >>> [column.to_pylist() for column in decode_keys(encode_keys([pa.array(["a"]), pa.array([7])]), schema)]
        [['a'], [7]]
    """
    decoders = [_decoder(field.type) for field in schema]
    rows = [list(_decode_values(key, decoders)) for key in keys]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    return from_msgpack_columns(columns, schema)


def kinds_of(columns: Sequence[pa.ChunkedArray | pa.Array]) -> str:
    """Returns one letter for the type of each key column, as in `StateWrite`; empty if one has no letter.

    Example:
        >>> kinds_of([pa.array(["a"]), pa.array([7])]), kinds_of([pa.array(["a"]), pa.array([0.5])])
        ('si', '')
    """
    kinds = [_kind_letter(column.type) for column in columns]
    return "".join(kinds) if all(kinds) else ""


def require_keys(schema: pa.Schema) -> None:
    """Refuse columns that cannot be keys, because their type has no order or no bounded encoding.

    Raises:
        TypeError: A column has such a type.
    """
    for field in schema:
        _encoder(field.type)


def _is_integer_column(column: pa.ChunkedArray | pa.Array) -> bool:
    return not column.null_count and _is_integer_type(column.type)


def _is_integer_type(kind: pa.DataType) -> bool:
    """Returns whether its values are integers underneath, with a sign."""
    of_time = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
    return pa.types.is_signed_integer(kind) or any(check(kind) for check in of_time)


def _kind_letter(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "t" if kind.unit == "us" else ""
    return next((letter for letter, check in _KINDS if check(kind)), "")


def _encode_integers(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """Returns keys of an integer column without nulls, vectorized."""
    bare = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_integer(bare.type):
        bare = bare.view(pa.int64() if bare.type.bit_width == 64 else pa.int32())
    numbers = bare.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) ^ np.uint64(_SHIFT)
    wide = np.ones((len(numbers), 9), np.uint8)
    wide[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    text = wide.tobytes()
    return [text[at : at + 9] for at in range(0, len(text), 9)]


def _encode_value(value: Any, encode: Encode) -> bytes:
    return b"\x00" if value is None else b"\x01" + encode(value)


def _encoder_of(column: pa.ChunkedArray | pa.Array) -> Encode:
    return _encoder(column.type)


def _encoder(kind: pa.DataType) -> Encode:  # noqa: C901, PLR0911 - one line for each kind of value
    if pa.types.is_boolean(kind):
        return lambda value: b"\x01" if value else b"\x00"
    if pa.types.is_unsigned_integer(kind):
        return lambda value: value.to_bytes(8, "big")
    if _is_integer_type(kind):
        return lambda value: (value + _SHIFT).to_bytes(8, "big")
    if pa.types.is_floating(kind):
        return _encode_float
    if pa.types.is_decimal(kind):
        return lambda value: (int(_EXACT.scaleb(Decimal(value), kind.scale)) + _DECIMAL_SHIFT).to_bytes(16, "big")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value: value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if pa.types.is_struct(kind):
        members = [(field.name, _encoder(field.type)) for field in kind]
        return lambda value: b"".join(_encode_value(value[name], encode) for name, encode in members)
    if pa.types.is_list(kind):
        one = _encoder(kind.value_type)
        return lambda value: b"".join(b"\x01" + _encode_value(part, one) for part in value) + b"\x00"
    message = f"a value of type {kind} cannot be a key"
    raise TypeError(message)


def _encode_float(value: float) -> bytes:
    if math.isnan(value):
        return _NAN
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))
    return int(bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else _SHIFT)).to_bytes(8, "big")


def _decode_values(key: bytes, decoders: list[Decode]) -> Iterator[Any]:
    at = 0
    for decode in decoders:
        value, at = _decode_value(key, at, decode)
        yield value


def _decode_value(key: bytes, at: int, decode: Decode) -> tuple[Any, int]:
    return decode(key, at + 1) if key[at] else (None, at + 1)


def _decoder(kind: pa.DataType) -> Decode:  # noqa: C901, PLR0911 - one line for each kind of value
    if pa.types.is_boolean(kind):
        return lambda key, at: (bool(key[at]), at + 1)
    if pa.types.is_floating(kind):
        return _decode_float
    if pa.types.is_decimal(kind):
        return lambda key, at: (_decode_decimal(key[at : at + 16], kind.scale), at + 16)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _decode_string
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _decode_bytes
    if pa.types.is_struct(kind):
        return _struct_decoder([(field.name, _decoder(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return _list_decoder(_decoder(kind.value_type))
    if pa.types.is_unsigned_integer(kind):
        return lambda key, at: (int.from_bytes(key[at : at + 8], "big"), at + 8)
    return lambda key, at: (int.from_bytes(key[at : at + 8], "big") - _SHIFT, at + 8)


def _decode_decimal(number: bytes, scale: int) -> str:
    return str(_EXACT.scaleb(Decimal(int.from_bytes(number, "big") - _DECIMAL_SHIFT), -scale))


def _decode_string(key: bytes, at: int) -> tuple[str, int]:
    text, end = _decode_bytes(key, at)
    return text.decode(), end


def _decode_float(key: bytes, at: int) -> tuple[float, int]:
    bits = int.from_bytes(key[at : at + 8], "big")
    bits ^= _SHIFT if bits >> 63 else 0xFFFFFFFFFFFFFFFF
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    return value, at + 8


def _decode_bytes(key: bytes, at: int) -> tuple[bytes, int]:
    end = key.index(b"\x00", at)
    while key[end + 1] == 0xFF:
        end = key.index(b"\x00", end + 2)
    return key[at:end].replace(b"\x00\xff", b"\x00"), end + 2


def _struct_decoder(members: list[tuple[str, Decode]]) -> Decode:
    def decode(key: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        for name, member in members:
            found[name], at = _decode_value(key, at, member)
        return found, at

    return decode


def _list_decoder(one: Decode) -> Decode:
    def decode(key: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while key[at]:
            value, at = _decode_value(key, at + 1, one)
            found.append(value)
        return found, at + 1

    return decode


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
