"""The offset of the last event of each key, in bounded memory.

`KeyOffsets` is a hash table in arrays, without the keys themselves: 24 bytes a slot, a hash of 128 bits and an offset.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["KeyHash", "KeyOffsets"]

Hashes = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
_SLOT_BYTES: Final = 24
_FIRST_SLOTS: Final = 1 << 12
_LOAD: Final = 0.6  # the share of slots that may be used
_LONG_KEY: Final = 64  # bytes; a longer key is replaced by a digest before it is hashed
_WORDS: Final = _LONG_KEY // 4 + 2  # of 32 bits: the length, the key, and one to make the number even
_ROWS: Final = 16_384  # hashed at a time


class KeyHash:
    """Hashes keys to 128 bits.

    Four strongly universal hashes of 32 bits (Thorup, "High Speed Hashing for Integers and Strings", section 3.5), with
    multipliers drawn anew for each instance. Any two keys have the same hash with a probability of 2**-128, also if
    somebody chose them to collide: for 10 million keys, 2**-82 for any pair of them.

    Example:
        >>> first, second = KeyHash().hash(pa.array([b"a", b"b", b"a"], pa.binary()))
        >>> bool(first[0] == first[2] and second[0] == second[2]), bool(first[0] == first[1])
        (True, False)
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        drawn = np.frombuffer(secrets.token_bytes(8 * 4 * _WORDS), np.uint64)
        self._even, self._odd = drawn.reshape(2, 4, _WORDS // 2)
        self._products = self._even * self._odd

    def hash(self, keys: pa.Array) -> tuple[Hashes, Hashes]:
        """Returns the two halves of the hash of each key, an array of bytes."""
        pieces = [self._hash_rows(keys.slice(at, _ROWS)) for at in range(0, len(keys), _ROWS)]
        empty = np.empty(0, np.uint64)
        return (
            np.concatenate([piece[0] for piece in pieces] or [empty]),
            np.concatenate([piece[1] for piece in pieces] or [empty]),
        )

    def _hash_rows(self, keys: pa.Array) -> tuple[Hashes, Hashes]:
        words = self._to_words(keys)
        even, odd = words[:, 0::2], words[:, 1::2]
        sums = np.zeros((4, len(words)), np.uint64)
        for at in range(4):
            for i in range(even.shape[1]):
                # Less the product of the multipliers: a word of zeros then adds nothing, so padding does not count.
                sums[at] += (self._even[at, i] + odd[:, i]) * (self._odd[at, i] + even[:, i]) - self._products[at, i]
        high = sums >> np.uint64(32)
        return (high[0] << np.uint64(32)) | high[1], (high[2] << np.uint64(32)) | high[3]

    def _to_words(self, keys: pa.Array) -> Hashes:
        """Returns keys as rows of 32-bit words: the length, then the bytes, padded with zeros."""
        lengths = np.asarray(pc.binary_length(keys), np.int64)
        if len(lengths) and int(lengths.max()) > _LONG_KEY:
            long = [k if len(k) <= _LONG_KEY else self._digest(k) for k in keys.to_pylist()]
            keys = pa.array(long, pa.binary())
        binary = keys.cast(pa.large_binary())
        starts = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
        data = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
        width = np.diff(starts)
        size = 8 * (-(-(int(width.max(initial=0)) + 4) // 8))
        padded = np.zeros((len(binary), size), np.uint8)
        padded[:, :4] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
        columns = np.arange(size - 4)
        inside = columns < width[:, None]
        padded[:, 4:][inside] = data[starts[0] : starts[-1]] if len(binary) else data[:0]
        return padded.view("<u4").astype(np.uint64)

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=_LONG_KEY, key=self._secret).digest()


class KeyOffsets:
    """The last offset of each key, by its hash.

    Args:
        memory: Bytes that the table may use, apart from the moment at which it grows.

    Example:
        >>> offsets, keys = KeyOffsets(1 << 20), pa.array([b"a", b"b", b"a"], pa.binary())
        >>> offsets.put(keys, np.array([5, 6, 7])); offsets.get(pa.array([b"a", b"b", b"c"], pa.binary())).tolist()
        [7, 6, -1]
    """

    def __init__(self, memory: int) -> None:
        slots = max(_FIRST_SLOTS, 1 << max(0, (memory // _SLOT_BYTES).bit_length() - 1))  # tables are powers of two
        self._most = int(_LOAD * slots)
        self._hash = KeyHash()
        self._count = 0
        self._allocate(_FIRST_SLOTS)

    def _allocate(self, slots: int) -> None:
        self._first, self._second = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        self._offsets = np.full(slots, -1, np.int64)

    def has_room(self, keys: int) -> bool:
        """Whether so many more keys fit into the memory, even if all of them are new."""
        return self._count + keys <= self._most

    def put(self, keys: pa.Array, offsets: Offsets) -> None:
        """Record the offsets of keys; of a key that is there twice, the later one counts."""
        first, second = self._hash.hash(keys)
        order = np.lexsort((np.arange(len(first)), second, first))
        first, second, offsets = first[order], second[order], np.asarray(offsets, np.int64)[order]
        last = np.ones(len(first), bool)
        last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._insert(first[last], second[last], offsets[last])

    def _insert(self, first: Hashes, second: Hashes, offsets: Offsets) -> None:
        """Insert different keys."""
        while self._count + len(first) > _LOAD * len(self._first):
            self._grow()
        mask = np.uint64(len(self._first) - 1)
        slots = (first & mask).astype(np.intp)
        while len(slots):
            free = self._offsets[slots] < 0
            # Several keys may want the same free slot: the last one to write has it, and the others go on.
            claimed = slots[free]
            self._first[claimed], self._second[claimed] = first[free], second[free]
            mine = (self._first[slots] == first) & (self._second[slots] == second)
            self._count += int((mine & free).sum())
            self._offsets[slots[mine]] = offsets[mine]
            rest = ~mine
            first, second, offsets = first[rest], second[rest], offsets[rest]
            slots = (slots[rest] + 1) & int(mask)

    def _grow(self) -> None:
        first, second, offsets = self._first, self._second, self._offsets
        self._allocate(2 * len(first))
        self._count = 0
        for at in range(0, len(first), 1 << 16):
            used = np.flatnonzero(offsets[at : at + (1 << 16)] >= 0) + at
            self._insert(first[used], second[used], offsets[used])

    def get(self, keys: pa.Array) -> Offsets:
        """Returns the last offset of each key; -1 if there is none."""
        first, second = self._hash.hash(keys)
        found = np.full(len(first), -1, np.int64)
        slots, rows = (first & np.uint64(len(self._first) - 1)).astype(np.intp), np.arange(len(first))
        while len(rows):
            mine = (self._first[slots] == first[rows]) & (self._second[slots] == second[rows])
            offsets = self._offsets[slots]
            found[rows[mine]] = offsets[mine]
            rest = ~mine & (offsets >= 0)
            rows, slots = rows[rest], (slots[rest] + 1) & (len(self._first) - 1)
        return found
