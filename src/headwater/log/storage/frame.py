"""One batch of events as bytes: a fixed header, the producer's id, an Arrow record batch.

    header (112 bytes) | producer id, padded to 8 | Arrow IPC record batch, padded to 8

The header has one checksum of itself and one of the rest, so that headers can be walked without reading
bodies. Offsets inside a batch run from `base_offset` without gaps, unless compaction rewrote the batch; then
the column `_hw.offset` holds them. An envelope column that repeats the header is left out; `columns` has a
bit for each column that is stored.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Final

import pyarrow as pa

__all__ = [
    "ENVELOPE",
    "HEADER_SIZE",
    "LOWEST_TIME",
    "Frame",
    "FrameKind",
    "decode_columns",
    "encode_frame",
    "envelope_bits",
    "parse_header",
    "serialize_columns",
    "with_envelope",
]

MAGIC: Final = b"HWB1"
LOWEST_TIME: Final = -(2**63)  # stands for no time
_ZONED = pa.timestamp("us", "UTC")

# The order is the order of the bits in `Frame.columns`: append only.
ENVELOPE: Final[tuple[pa.Field, ...]] = (
    pa.field("_hw.key", pa.binary()),
    pa.field("_hw.id", pa.string()),
    pa.field("_hw.occurred_at", _ZONED),
    pa.field("_hw.sent_at", _ZONED),
    pa.field("_hw.received_at", _ZONED),
    pa.field("_hw.headers", pa.map_(pa.string(), pa.string())),
    pa.field("_hw.traceparent", pa.string()),
    pa.field("_hw.source", pa.string()),
    pa.field("_hw.deleted", pa.bool_()),
    pa.field("_hw.offset", pa.int64()),
    pa.field("_hw.running_max", pa.int64()),
    pa.field("_hw.error", pa.string()),
    pa.field("_hw.raw", pa.binary()),
)
_BIT = {field.name: 1 << index for index, field in enumerate(ENVELOPE)}

# magic, two checksums, length | kind, flags, length of the producer's id | `_NUMBERS`
_LAYOUT = struct.Struct("<4sIII BBH IIIqqqqqqqqqq")
_NUMBERS = attrgetter(
    *("columns", "schema", "count", "base_offset", "next_offset", "appended_at", "lowest", "highest"),
    *("max_event_time_before", "max_event_time", "sent_at", "first_sequence", "last_sequence"),
)
HEADER_SIZE: Final = _LAYOUT.size
_CRC_FROM = 8  # the header's checksum covers what follows the magic number and the checksum itself
_FOLLOWS, _UNFINISHED = 1, 2


class FrameKind(IntEnum):
    """What a frame carries."""

    EVENTS = 1
    """Events."""
    IDLE_MARKER = 2
    """An idle marker: takes one offset and raises the max event time."""
    SEGMENT_HEADER = 3
    """First frame of a segment: what is known at its start; takes no offset."""


_KINDS = {int(kind): kind for kind in FrameKind}  # a lookup is ten times faster than FrameKind(number)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame's header and its position.

    `lowest` and `highest` are the event times of the batch. `max_event_time_before` and `max_event_time` are
    the highest event time of the partition before and after it, without times too far ahead. `sent_at` is
    the send time of all events, unless the column `_hw.sent_at` holds one for each. All times are
    microseconds since 1970. `follows` means that the frame was written together with the one before it, so
    neither was acknowledged without the other. `unfinished` means that the next frame continues the same
    send: recovery keeps both or neither.
    """

    kind: FrameKind
    base_offset: int
    next_offset: int
    count: int = 0
    schema: int = 0
    columns: int = 0
    appended_at: int = 0
    lowest: int = LOWEST_TIME
    highest: int = LOWEST_TIME
    max_event_time_before: int = LOWEST_TIME
    max_event_time: int = LOWEST_TIME
    sent_at: int = LOWEST_TIME
    first_sequence: int = -1
    last_sequence: int = -1
    producer: str = ""
    follows: bool = False
    unfinished: bool = False
    length: int = 0
    body_at: int = 0
    body_crc: int = 0
    position: int = 0

    def body(self, data: memoryview) -> memoryview | None:
        """Returns the body from the frame's bytes; None when the checksum does not match."""
        if zlib.crc32(data[HEADER_SIZE : self.length]) != self.body_crc:
            return None
        return data[self.body_at : self.length]


def encode_frame(frame: Frame, body: bytes | pa.Buffer) -> bytes:
    """Returns the bytes of a frame with this header and body."""
    producer = frame.producer.encode()
    rest = b"".join((producer, bytes(-len(producer) % 8), memoryview(body), bytes(-len(body) % 8)))
    flags = frame.follows * _FOLLOWS | frame.unfinished * _UNFINISHED
    fixed = (MAGIC, 0, zlib.crc32(rest), HEADER_SIZE + len(rest), frame.kind, flags, len(producer))
    packed = _LAYOUT.pack(*fixed, *_NUMBERS(frame))
    crc = zlib.crc32(packed[_CRC_FROM:]).to_bytes(4, "little")
    return b"".join((packed[:4], crc, packed[_CRC_FROM:], rest))


def parse_header(data: memoryview, at: int = 0, position: int = 0) -> Frame | None:
    """Returns the header at `data[at:]`, or None if it is incomplete or damaged.

    Args:
        data: Bytes of a segment.
        at: Start of the header in `data`.
        position: Start of the header in the segment; kept in the frame.
    """
    if len(data) - at < HEADER_SIZE:
        return None
    fields = _LAYOUT.unpack_from(data, at)
    magic, crc, body_crc, length, kind, flags, id_length, columns, schema, count, base_offset, next_offset = fields[:12]
    if magic != MAGIC or zlib.crc32(data[at + _CRC_FROM : at + HEADER_SIZE]) != crc:
        return None
    # In the order of the fields from `appended_at` to `last_sequence`.
    times_and_sequences: tuple[int, int, int, int, int, int, int, int] = fields[12:]
    start = at + HEADER_SIZE
    return Frame(
        _KINDS[kind],
        base_offset,
        next_offset,
        count,
        schema,
        columns,
        *times_and_sequences,
        producer=bytes(data[start : start + id_length]).decode(errors="replace") if id_length else "",
        follows=bool(flags & _FOLLOWS),
        unfinished=bool(flags & _UNFINISHED),
        length=length,
        body_at=HEADER_SIZE + id_length + (-id_length % 8),
        body_crc=body_crc,
        position=position,
    )


@lru_cache(maxsize=256)
def with_envelope(schema: pa.Schema, columns: int) -> pa.Schema:
    """Returns the schema of a stored batch: the type's columns and the envelope columns whose bit is set."""
    return pa.schema([*schema, *(field for index, field in enumerate(ENVELOPE) if columns & (1 << index))])


def envelope_bits(names: Iterable[str]) -> int:
    """Returns the bits of these envelope columns."""
    return sum(_BIT[name] for name in names)


def serialize_columns(values: pa.RecordBatch, envelope: dict[str, pa.Array]) -> pa.Buffer:
    """Returns the body of a frame: the type's columns, then the envelope columns in the order of their bits."""
    if not envelope:
        return values.serialize()
    names = sorted(envelope, key=_BIT.__getitem__)
    columns = [*values.columns, *(envelope[name] for name in names)]
    return pa.RecordBatch.from_arrays(columns, [*values.schema.names, *names]).serialize()


def decode_columns(frame: Frame, body: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the stored columns of a frame without copying; `schema` is the type's at the frame's version."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), with_envelope(schema, frame.columns))
