"""Decodes many row messages of one table at once: columns of text instead of rows.

Two decoders give the same result: one works on all rows of a column at a time, the other goes through the rows with
`decode_row` and is faster for a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.capture.postgres.pgoutput import HEADER, UNCHANGED, decode_row

__all__ = ["Packets", "RowColumns", "decode_columns"]

_VECTOR_FROM: Final = 100  # rows; below, decoding row by row takes less time
_KIND, _RELATION_AT, _PART = HEADER, HEADER + 1, HEADER + 5  # where in a packet the parts of a row message begin
_TEXT, _OLD_KEY, _OLD_ROW, _DELETE = 116, 75, 79, 68

Numbers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowColumns:
    """Rows of one table as columns.

    Attributes:
        kinds: I, U or D of each row, as a number.
        old_kinds: K, O or 0 of each row.
        old: The texts of each column of the old rows; empty if no row has an old one.
        new: The texts of each column of the new rows; NULL and absent values are null.
        unchanged: For each column whether its value was not sent, by row; None if all were.
    """

    kinds: Octets
    old_kinds: Octets
    old: list[pa.Array]
    new: list[pa.Array]
    unchanged: list[Flags | None]


@dataclass(frozen=True)
class Packets:
    """Replication packets with row messages, in one piece of memory.

    Attributes:
        joined: All packets.
        data: The same as numbers.
        starts: Where each begins.
        ends: Where each ends.
    """

    joined: bytes
    data: Octets
    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, packets: Sequence[bytes | memoryview]) -> Packets:
        """Returns these packets."""
        joined = b"".join(packets)
        lengths = np.fromiter(map(len, packets), np.int64, len(packets))
        ends = np.cumsum(lengths)
        return cls(joined, np.frombuffer(joined, np.uint8), ends - lengths, ends)

    def relations(self) -> Numbers:
        """Returns the table of each row message."""
        return _read_numbers(self.data, self.starts + _RELATION_AT)


def decode_columns(packets: Packets, rows: Numbers, width: int, *, vector: bool | None = None) -> RowColumns:
    """Returns the columns of row messages that all have `width` columns.

    Args:
        packets: Packets with inserts, updates and deletes.
        rows: Which of them, all of one table, in order.
        width: The number of columns.
        vector: Which decoder; by default the number of rows decides.

    Raises:
        ValueError: A message does not have that form.
    """
    if vector is None:
        vector = len(rows) >= _VECTOR_FROM
    return _decode_vector(packets, rows, width) if vector else _decode_rows(packets, rows, width)


def _decode_rows(packets: Packets, chosen: Numbers, width: int) -> RowColumns:
    places = zip(packets.starts[chosen].tolist(), packets.ends[chosen].tolist(), strict=True)
    rows = [decode_row(packets.joined[start:end]) for start, end in places]
    empty = [None] * width
    new = [row.new or empty for row in rows]
    old = [row.old or empty for row in rows]
    if any(len(row) != width for row in (*new, *old)):
        raise ValueError("a row has another number of columns than its table")
    flags = [np.zeros(len(rows), np.bool_) for _ in range(width)]
    for number, row in enumerate(rows):
        for column in row.unchanged:
            flags[column][number] = True
    old_kinds = np.array([ord(row.old_kind) if row.old_kind else 0 for row in rows], np.uint8)
    return RowColumns(
        np.array([ord(row.kind) for row in rows], np.uint8),
        old_kinds,
        [pa.array(column, pa.binary()) for column in zip(*old, strict=True)] if old_kinds.any() else [],
        [pa.array(column, pa.binary()) for column in zip(*new, strict=True)],
        [one if one.any() else None for one in flags],
    )


def _decode_vector(packets: Packets, chosen: Numbers, width: int) -> RowColumns:
    data, starts, count = packets.data, packets.starts[chosen], len(chosen)
    kinds = data[starts + _KIND]
    parts = data[starts + _PART]
    old_kinds = np.where((parts == _OLD_KEY) | (parts == _OLD_ROW), parts, 0).astype(np.uint8)
    at = starts + _PART + 1
    old: list[pa.Array] = []
    with_old = np.flatnonzero(old_kinds)
    if len(with_old):
        old, _, behind = _read_tuples(packets, at[with_old], with_old, count, width)
        at[with_old] = behind + 1
    rows = np.flatnonzero(kinds != _DELETE)
    new, unchanged, _ = _read_tuples(packets, at[rows], rows, count, width)
    return RowColumns(kinds, old_kinds, old, new, unchanged)


def _read_tuples(
    packets: Packets, at: Numbers, rows: Numbers, count: int, width: int
) -> tuple[list[pa.Array], list[Flags | None], Numbers]:
    """Read one tuple from each of these positions: its columns as text, and where it ends.

    Args:
        packets: The packets.
        at: Where the tuples begin.
        rows: The row of each tuple; the others are null.
        count: The number of rows in the result.
        width: The number of columns.
    """
    if not len(rows):
        return [pa.nulls(count, pa.binary()) for _ in range(width)], [None] * width, at
    data = packets.data
    found = (data[at].astype(np.int64) << 8) | data[at + 1]
    if (found != width).any():
        raise ValueError("a row has another number of columns than its table")
    at = at + 2
    columns: list[pa.Array] = []
    unchanged: list[Flags | None] = []
    buffer = pa.py_buffer(packets.joined)
    for _ in range(width):
        kinds = data[at]
        texts = kinds == _TEXT
        # A column without text is followed by others or by the end: the four bytes behind it may not be there.
        lengths = _read_lengths(data, at, texts)
        begins = np.where(texts, at + 5, at + 1)
        at = begins + lengths
        columns.append(_take_texts(buffer, begins, at, texts, rows, count))
        absent = kinds == UNCHANGED
        unchanged.append(_spread(absent, rows, count) if absent.any() else None)
    return columns, unchanged, at


def _read_lengths(data: Octets, at: Numbers, texts: Flags) -> Numbers:
    if texts.all():
        return _read_numbers(data, at + 1)
    lengths = np.zeros(len(at), np.int64)
    lengths[texts] = _read_numbers(data, at[texts] + 1)
    return lengths


def _read_numbers(data: Octets, at: Numbers) -> Numbers:
    """Returns the numbers of four bytes at these positions."""
    found = data[at].astype(np.int64) << 24
    for number, shift in ((1, 16), (2, 8), (3, 0)):
        found |= data[at + number].astype(np.int64) << shift
    return found


def _take_texts(buffer: pa.Buffer, begins: Numbers, ends: Numbers, texts: Flags, rows: Numbers, count: int) -> pa.Array:
    """Returns the bytes between these positions as a column.

    The packets are one array of texts and gaps in turn, of which the texts are taken: Arrow copies them one by one,
    numpy would index each byte.
    """
    offsets = np.empty(2 * len(begins), np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    pieces = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer])
    if len(rows) == count and texts.all():
        return pieces.take(pa.array(np.arange(0, 2 * count, 2)))
    indexes = np.zeros(count, np.int64)
    indexes[rows] = np.arange(0, 2 * len(rows), 2)
    absent = np.ones(count, np.bool_)
    absent[rows] = ~texts
    return pieces.take(pa.array(indexes, mask=absent))


def _spread(flags: Flags, rows: Numbers, count: int) -> Flags:
    if len(rows) == count:
        return flags
    spread = np.zeros(count, np.bool_)
    spread[rows] = flags
    return spread
