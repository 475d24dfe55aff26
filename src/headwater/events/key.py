"""Event keys: their canonical bytes and their partition.

A key has the same bytes whether it comes from a Python value, JSON or a typed column. Its partition is the one
of Kafka's default partitioner (murmur2 of the bytes), so a topic can move to Kafka and back with the same
partitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadKeyError
from headwater.events.values import preview, to_json_value, values_of

__all__ = ["key_bytes", "keys_of", "murmur2", "partition_of", "partitions_of"]

_ALLOWED = "a key is text, a number, bytes, true or false, a date or time, a UUID, or a tuple of those"
# The constants of murmur2 in Kafka's clients.
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
# Keys longer than this are hashed one by one: the vectorised loop runs once per four bytes of the longest key.
_LONG_KEY = 256


def key_bytes(value: Any) -> bytes:
    """Returns the canonical bytes of a key; equal values have equal bytes.

    Example:
        >>> key_bytes("ada"), key_bytes(7), key_bytes(Decimal("1.50")), key_bytes(("de", 7))
        (b'ada', b'7', b'1.5', b'["de",7]')

    Raises:
        BadKeyError: The value is None, not finite, or of a type that cannot be a key.
    """
    if isinstance(value, Enum):
        return key_bytes(value.value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    plain = [_json_scalar(part) for part in value] if isinstance(value, tuple) else _json_scalar(value)
    try:
        return plain.encode() if isinstance(plain, str) else msgspec.json.encode(plain)
    except UnicodeEncodeError:
        raise BadKeyError(f"the key {preview(value)} is not valid Unicode", detail=_ALLOWED) from None


def _json_scalar(value: Any) -> str | int | float | bool | bytes:
    """Returns a part of a key as a JSON scalar; bytes, which occur in tuples only, are encoded in base64."""
    match value:
        case Enum():
            return _json_scalar(value.value)
        case bool() | bytes():
            return value
        case int() if -(2**63) <= value < 2**64:
            return int(value)
        case float() if math.isfinite(value):
            return float(value) + 0.0  # turns -0.0 into 0.0: equal values have equal keys
        case str() | UUID() | Decimal() | date() | time():
            try:
                return str(to_json_value(value))
            except (ValueError, OverflowError) as error:
                raise BadKeyError(f"invalid key: {error}", detail=_ALLOWED) from None
    raise BadKeyError(f"{preview(value)} ({type(value).__name__}) cannot be a key", detail=_ALLOWED)


def keys_of(columns: Sequence[pa.Array]) -> pa.Array:
    """Returns the key of each row of typed key columns, as a binary column: `key_bytes` of the value.

    With several columns, the key is that of the tuple of their values.

    Example:
        >>> keys_of([pa.array([7, 12])]).to_pylist()
        [b'7', b'12']
        >>> keys_of([pa.array(["de", "fr"]), pa.array([7, 12])]).to_pylist()
        [b'["de",7]', b'["fr",12]']

    Raises:
        BadKeyError: A key is null, or the type of a column cannot be a key; `data` has the `row` of a null.
    """
    for column in columns:
        if column.null_count:
            row = int(pc.index(column.is_null(), True).as_py())
            raise BadKeyError(f"the key of row {row} is null", detail=_ALLOWED, row=row)
    if len(columns) == 1:
        text = _text_column(columns[0])
        return pa.array(map(key_bytes, values_of(columns[0])), pa.binary()) if text is None else text
    parts = [_json_column(column) for column in columns]
    if all(part is not None for part in parts):
        joined = pc.binary_join_element_wise(*parts, ",")
        return pc.binary_join_element_wise("[", joined, "]", "").cast(pa.binary())
    rows = zip(*map(values_of, columns), strict=True)
    return pa.array(map(key_bytes, rows), pa.binary())


def _text_column(column: pa.Array) -> pa.Array | None:
    """Returns the canonical bytes of a column whose values Arrow can format; None for other types."""
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).view(pa.binary())
    return None


def _json_column(column: pa.Array) -> pa.Array | None:
    """Returns a column as JSON text; None if a value needs escaping or Arrow cannot format the type."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind) and not pc.any(pc.match_substring_regex(column, r'["\\\x00-\x1f]')).as_py():
        return pc.binary_join_element_wise('"', column, '"', "")
    return None


def murmur2(key: bytes) -> int:
    """Returns Kafka's 32-bit hash of a key, as an unsigned number.

    Example:
        >>> murmur2(b"21")
        3321034988
    """
    value = _SEED ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of a key, as Kafka's default partitioner does.

    Example:
        >>> partition_of(b"ada", 3)
        2
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: pa.Array | Iterable[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """Returns the partitions of many keys: a binary, text or integer column, or an iterable of bytes.

    Example:
        >>> partitions_of([b"ada", b"bob"], 3).tolist() == [partition_of(b"ada", 3), partition_of(b"bob", 3)]
        True
        >>> partitions_of(pa.array([7]), 3).tolist() == [partition_of(b"7", 3)]
        True

    Raises:
        BadKeyError: A key is null.
    """
    column = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
    hashes = _murmur2_column(keys_of([column]))
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def _murmur2_column(keys: pa.Array) -> npt.NDArray[np.uint32]:
    _, offset_buffer, data_buffer = keys.buffers()
    if len(keys) == 0 or data_buffer is None:
        return np.full(len(keys), murmur2(b""), np.uint32)
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    # Padded, so that the last partial word of the last key can be read as a whole word.
    data = np.zeros(last - first + 4, np.uint8)
    data[:-4] = np.frombuffer(data_buffer, np.uint8)[first:last]
    starts = (offsets[:-1] - first).astype(np.int64)
    lengths = np.diff(offsets)
    hashes = _murmur2_words(data, starts, np.minimum(lengths, _LONG_KEY))
    for row in np.flatnonzero(lengths > _LONG_KEY):
        hashes[row] = murmur2(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return hashes


def _murmur2_words(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint32]:
    """Hash all keys at once, four bytes of each per step; uint32 arithmetic wraps as Java's int does."""
    words = np.ndarray((len(data) - 3,), "<u4", buffer=data, strides=(1,))
    multiplier = np.uint32(_MULTIPLIER)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    counts = lengths >> 2
    for step in range(int(counts.max())):
        active: Any = slice(None) if step < counts.min() else np.flatnonzero(counts > step)
        word = words[starts[active] + 4 * step] * multiplier
        word ^= word >> np.uint32(24)
        word *= multiplier
        hashes[active] = hashes[active] * multiplier ^ word
    rest = lengths & 3
    kept = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)[rest]
    mixed = (hashes ^ (words[starts + 4 * counts] & kept)) * multiplier
    hashes = np.where(rest > 0, mixed, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= multiplier
    hashes ^= hashes >> np.uint32(15)
    return hashes
