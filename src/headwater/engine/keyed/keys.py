r"""Values of key columns as bytes, and back: equal values have equal bytes, and bytes are in the order of values.

Null is below every value, and equal to itself; NaN is above every number, and equal to itself; -0.0 is 0.0. Several
columns are in order of the first, then of the second.

Each value begins with a byte: 0 for null, 1 otherwise. Numbers follow as big-endian bytes with the sign turned over,
text as UTF-8 and bytes as they are, with \x00 written as \x00\xff and \x00\x00 at the end, members of a struct one
after the other, elements of a list each behind a \x01, with \x00 at the end.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.keyed.rows import plain_columns, restored

__all__ = ["decode_keys", "encode_keys", "hash_of", "hashes_of", "kinds_of", "require_keys"]

_SHIFT: Final = 1 << 63
_WIDE: Final = 1 << 127
_NAN: Final = b"\xff" * 8
_EXACT: Final = Context(prec=80)
_KINDS: Final = (
    ("s", pa.types.is_string), ("s", pa.types.is_large_string), ("i", pa.types.is_signed_integer),
    ("d", pa.types.is_date32), ("b", pa.types.is_boolean),
)  # fmt: skip
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]


def encode_keys(columns: Sequence[pa.ChunkedArray | pa.Array]) -> list[bytes]:
    r"""The key of each row.

    Example:
        >>> encode_keys([pa.array(["a", None]), pa.array([1, -1], pa.int64())])[0]
        b'\x01a\x00\x00\x01\x80\x00\x00\x00\x00\x00\x00\x01'
    """
    if len(columns) == 1 and _whole(columns[0]):
        return _numbers(columns[0])
    parts = [[_encoded(value, encode) for value in values]
             for values, encode in zip(plain_columns(columns), map(_encoder_of, columns), strict=True)]  # fmt: skip
    return parts[0] if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def decode_keys(keys: Sequence[bytes], schema: pa.Schema) -> list[pa.Array]:
    """The columns that `encode_keys` made the keys of.

    Example:
        >>> schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
        >>> [column.to_pylist() for column in decode_keys(encode_keys([pa.array(["a"]), pa.array([7])]), schema)]
        [['a'], [7]]
    """
    decoders = [_decoder(field.type) for field in schema]
    rows = [list(_values(key, decoders)) for key in keys]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    return restored(columns, schema)


def kinds_of(columns: Sequence[pa.ChunkedArray | pa.Array]) -> str:
    """What the columns of a key are, a letter each, as `StateWrite` has it; empty when there is none for one of them.

    Example:
        >>> kinds_of([pa.array(["a"]), pa.array([7])]), kinds_of([pa.array(["a"]), pa.array([0.5])])
        ('si', '')
    """
    kinds = [_kind(column.type) for column in columns]
    return "".join(kinds) if all(kinds) else ""


def require_keys(schema: pa.Schema) -> None:
    """Refuse columns that cannot be keys: their values have no order, or no end.

    Raises:
        TypeError: A column has such a type.
    """
    for field in schema:
        _encoder(field.type)


def _whole(column: pa.ChunkedArray | pa.Array) -> bool:
    return not column.null_count and _counted(column.type)


def _counted(kind: pa.DataType) -> bool:
    """Whether its values are whole numbers underneath, with a sign."""
    of_time = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
    return pa.types.is_signed_integer(kind) or any(check(kind) for check in of_time)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "t" if kind.unit == "us" else ""
    return next((letter for letter, check in _KINDS if check(kind)), "")


def _numbers(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """Keys of a column of whole numbers without nulls, made at once."""
    bare = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_integer(bare.type):
        bare = bare.view(pa.int64() if bare.type.bit_width == 64 else pa.int32())
    numbers = bare.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) ^ np.uint64(_SHIFT)
    wide = np.ones((len(numbers), 9), np.uint8)
    wide[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    text = wide.tobytes()
    return [text[at : at + 9] for at in range(0, len(text), 9)]


def _encoded(value: Any, encode: Encode) -> bytes:
    return b"\x00" if value is None else b"\x01" + encode(value)


def _encoder_of(column: pa.ChunkedArray | pa.Array) -> Encode:
    return _encoder(column.type)


def _encoder(kind: pa.DataType) -> Encode:  # noqa: C901, PLR0911 - one line for each kind of value
    if pa.types.is_boolean(kind):
        return lambda value: b"\x01" if value else b"\x00"
    if pa.types.is_unsigned_integer(kind):
        return lambda value: value.to_bytes(8, "big")
    if _counted(kind):
        return lambda value: (value + _SHIFT).to_bytes(8, "big")
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: (int(_EXACT.scaleb(Decimal(value), kind.scale)) + _WIDE).to_bytes(16, "big")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value: value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if pa.types.is_struct(kind):
        members = [(field.name, _encoder(field.type)) for field in kind]
        return lambda value: b"".join(_encoded(value[name], encode) for name, encode in members)
    if pa.types.is_list(kind):
        one = _encoder(kind.value_type)
        return lambda value: b"".join(b"\x01" + _encoded(part, one) for part in value) + b"\x00"
    message = f"a value of type {kind} cannot be a key"
    raise TypeError(message)


def _float(value: float) -> bytes:
    if math.isnan(value):
        return _NAN
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))
    return int(bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else _SHIFT)).to_bytes(8, "big")


def _values(key: bytes, decoders: list[Decode]) -> Iterator[Any]:
    at = 0
    for decode in decoders:
        value, at = _decoded(key, at, decode)
        yield value


def _decoded(key: bytes, at: int, decode: Decode) -> tuple[Any, int]:
    return decode(key, at + 1) if key[at] else (None, at + 1)


def _decoder(kind: pa.DataType) -> Decode:  # noqa: C901, PLR0911 - one line for each kind of value
    if pa.types.is_boolean(kind):
        return lambda key, at: (bool(key[at]), at + 1)
    if pa.types.is_floating(kind):
        return _float_at
    if pa.types.is_decimal(kind):
        return lambda key, at: (_decimal(key[at : at + 16], kind.scale), at + 16)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _string_at
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _text_at
    if pa.types.is_struct(kind):
        return _struct_at([(field.name, _decoder(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return _list_at(_decoder(kind.value_type))
    if pa.types.is_unsigned_integer(kind):
        return lambda key, at: (int.from_bytes(key[at : at + 8], "big"), at + 8)
    return lambda key, at: (int.from_bytes(key[at : at + 8], "big") - _SHIFT, at + 8)


def _decimal(number: bytes, scale: int) -> str:
    return str(_EXACT.scaleb(Decimal(int.from_bytes(number, "big") - _WIDE), -scale))


def _string_at(key: bytes, at: int) -> tuple[str, int]:
    text, end = _text_at(key, at)
    return text.decode(), end


def _float_at(key: bytes, at: int) -> tuple[float, int]:
    bits = int.from_bytes(key[at : at + 8], "big")
    bits ^= _SHIFT if bits >> 63 else 0xFFFFFFFFFFFFFFFF
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    return value, at + 8


def _text_at(key: bytes, at: int) -> tuple[bytes, int]:
    end = key.index(b"\x00", at)
    while key[end + 1] == 0xFF:
        end = key.index(b"\x00", end + 2)
    return key[at:end].replace(b"\x00\xff", b"\x00"), end + 2


def _struct_at(members: list[tuple[str, Decode]]) -> Decode:
    def decode(key: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        for name, member in members:
            found[name], at = _decoded(key, at, member)
        return found, at

    return decode


def _list_at(one: Decode) -> Decode:
    def decode(key: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while key[at]:
            value, at = _decoded(key, at + 1, one)
            found.append(value)
        return found, at + 1

    return decode


def hash_of(key: bytes) -> int:
    """A number of 32 bits by which keys are spread: the same in every process and in every version."""
    return crc32(key)


def hashes_of(keys: Iterable[bytes]) -> npt.NDArray[np.uint32]:
    """The number of each key.

    Example:
        >>> hashes_of([b"a", b"b"]).tolist() == [hash_of(b"a"), hash_of(b"b")]
        True
    """
    return np.fromiter(map(crc32, keys), np.uint32)
