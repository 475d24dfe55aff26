"""The wire format between a client and a node: rows, frames and receipts as bytes.

A body is a sequence of records. Each is a partition (-1: the node chooses by key), a length, and frames as
`storage/frame.py` defines them, with checksums. An append is one record with one frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadEventError, DamagedError
from headwater.events import Codec, storage_schema
from headwater.events.dataframes import fit_dataframe
from headwater.events.envelope import Receipts
from headwater.events.validator import InvalidValueError, first_out_of_range
from headwater.log.storage.frame import (
    ENVELOPE,
    LOWEST_TIME,
    Frame,
    FrameKind,
    decode_columns,
    encode_frame,
    envelope_bits,
    parse_header,
    serialize_columns,
)
from headwater.log.write.write_batch import WriteBatch

__all__ = [
    "FRAMES_MEDIA_TYPE",
    "RECEIPTS_MEDIA_TYPE",
    "pack_batch",
    "pack_frames",
    "pack_receipts",
    "unpack_batch",
    "unpack_frames",
    "unpack_receipts",
]

FRAMES_MEDIA_TYPE: Final = "application/vnd.headwater.frames"
RECEIPTS_MEDIA_TYPE: Final = "application/vnd.headwater.receipts"

_RECORD = struct.Struct("<iI")
_COUNTS = struct.Struct("<II")
_ZONED = pa.timestamp("us", "UTC")
_SET_BY_LOG: Final = {"_hw.received_at", "_hw.offset", "_hw.running_max"}
_CLIENT_COLUMNS: Final = envelope_bits({field.name for field in ENVELOPE} - _SET_BY_LOG)
_MAX_SEQUENCE: Final = 2**62
_RECORD_BATCH: Final = 3  # message type in the Arrow IPC format


# -- append ----------------------------------------------------------------------------------------------------------


def pack_batch(batch: WriteBatch) -> bytes:
    """Returns rows as the body of an append request."""
    count = batch.values.num_rows
    frame = Frame(
        FrameKind.EVENTS,
        0,
        count,
        count=count,
        schema=batch.version,
        columns=envelope_bits(batch.envelope),
        sent_at=batch.sent_at,
        first_sequence=batch.sequence,
        last_sequence=batch.last_sequence,
        producer=batch.producer,
    )
    data = encode_frame(frame, serialize_columns(batch.values, batch.envelope))
    return _RECORD.pack(-1 if batch.partition is None else batch.partition, len(data)) + data


def unpack_batch(data: bytes, codec_of: Callable[[int], Codec]) -> WriteBatch:
    """Returns the rows of an append request, with everything in it checked.

    Args:
        data: The body of the request.
        codec_of: The codec of the topic's type at a version; raises for a version the topic does not have.

    Raises:
        BadEventError: The body is not one valid frame, or a row does not fit the type.
    """
    partition, frame, body = _parse_frame(memoryview(data))
    codec = codec_of(frame.schema)
    values, envelope = _decode_body(frame, body, codec.schema)
    if "_hw.deleted" in envelope:
        codec.encode_dataframe(values.filter(pc.invert(envelope["_hw.deleted"].fill_null(False))))
        _check_tombstones(values, storage_schema(codec.schema))
    else:
        values = codec.encode_dataframe(values)
    return WriteBatch(
        values,
        frame.schema,
        envelope,
        None if partition < 0 else partition,
        frame.producer,
        frame.first_sequence if frame.producer else -1,
        per_row=frame.count == 1 or frame.last_sequence > frame.first_sequence,
        sent_at=frame.sent_at,
    )


def _parse_frame(data: memoryview) -> tuple[int, Frame, memoryview]:
    if len(data) < _RECORD.size:
        raise _bad_frame_error("it is shorter than its own header")
    partition, length = _RECORD.unpack_from(data)
    whole = data[_RECORD.size :]
    try:
        frame = parse_header(whole)
    except KeyError:  # a kind that a newer version added
        frame = None
    if frame is None or not length == frame.length == len(whole):
        raise _bad_frame_error("its header is damaged, or it is not whole")
    body = frame.body(whole)
    if body is None:
        raise _bad_frame_error("its checksum does not match")
    if frame.kind is not FrameKind.EVENTS or frame.columns & ~_CLIENT_COLUMNS:
        raise _bad_frame_error("it has a kind or columns that only the log writes")
    rows = frame.last_sequence - frame.first_sequence + 1
    if frame.producer and not (0 <= frame.first_sequence <= _MAX_SEQUENCE and rows in (1, frame.count)):
        raise _bad_frame_error("the sequence numbers of a producer start at 0, one per row or one for all rows")
    return partition, frame, body


def _decode_body(frame: Frame, body: memoryview, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    try:
        if not _is_plain_batch(body):
            raise _bad_frame_error("its body is not an uncompressed Arrow record batch")
        batch = decode_columns(frame, body, storage_schema(schema))
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, struct.error, IndexError) as error:
        raise _bad_frame_error(f"its columns are not those of the type ({str(error)[:200]})") from None
    # Columns may share bytes in the body: a small request must not become a large frame on disk.
    if batch.num_rows != frame.count or not frame.count or batch.nbytes > len(body):
        raise _bad_frame_error(f"it says {frame.count} rows and has {batch.num_rows} in {batch.nbytes} bytes")
    width = len(schema)
    envelope = dict(zip(batch.schema.names[width:], batch.columns[width:], strict=True))
    sent = {} if frame.sent_at == LOWEST_TIME else {"_hw.sent_at": pa.array([frame.sent_at], _ZONED)}
    for name, column in (sent | envelope).items():
        row = first_out_of_range(column)
        if row is not None:
            raise _bad_frame_error(f"row {row} has a {name.removeprefix('_hw.')} that is not a valid time")
    return batch.select(range(width)), envelope


def _check_tombstones(values: pa.RecordBatch, schema: pa.Schema) -> None:
    """Check that tombstones fit the stored schema, in which all columns are nullable."""
    try:
        fit_dataframe(values, schema)
    except InvalidValueError as misfit:
        raise _bad_frame_error(f"{misfit.path}: {misfit.reason}") from None


def _is_plain_batch(body: memoryview) -> bool:
    """Whether an Arrow message is an uncompressed record batch.

    A few compressed bytes can expand to gigabytes, so compression is detected before Arrow decodes the body. The
    message is a flatbuffer: each table starts with the distance to its vtable, which holds the offsets of its fields.
    """

    def field(table: int, index: int) -> int:
        vtable = table - struct.unpack_from("<i", body, table)[0]
        vtable_size = struct.unpack_from("<H", body, vtable)[0]
        at = 4 + 2 * index
        return struct.unpack_from("<H", body, vtable + at)[0] if at < vtable_size else 0

    start = 8  # a continuation marker and the length precede the flatbuffer
    message = start + struct.unpack_from("<I", body, start)[0]
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header or body[message + kind] != _RECORD_BATCH:
        return False
    batch = message + header + struct.unpack_from("<I", body, message + header)[0]
    return field(batch, 3) == 0  # the field `compression` is absent


def _bad_frame_error(reason: str) -> BadEventError:
    return BadEventError(f"the frame is invalid: {reason}", detail="nothing of it was appended")


def pack_receipts(receipts: Receipts) -> bytes:
    """Returns receipts as the body of the response to an append."""
    why = (receipts.dropped or "").encode()
    return b"".join(
        (
            _COUNTS.pack(len(receipts), len(why)),
            receipts.partitions.astype("<i4").tobytes(),
            receipts.offsets.astype("<i8").tobytes(),
            receipts.repeated.astype("u1").tobytes(),
            why,
        )
    )


def unpack_receipts(topic: str, data: bytes) -> Receipts:
    """Returns the receipts in the response to an append.

    Example:
        >>> sent = Receipts("orders", np.array([0, 2]), np.array([7, 8]), np.array([True, False]))
        >>> unpack_receipts("orders", pack_receipts(sent))[0]
        Receipt(topic='orders', partition=0, offset=7, duplicate=True, dropped=None, diverted=None, refused=None)
    """
    rows, why = _COUNTS.unpack_from(data)
    partitions, offsets, repeated = (_COUNTS.size + rows * width for width in (0, 4, 12))
    return Receipts(
        topic,
        np.frombuffer(data, "<i4", rows, partitions).astype(np.int64),
        np.frombuffer(data, "<i8", rows, offsets).astype(np.int64),
        np.frombuffer(data, "u1", rows, repeated).astype(bool),
        data[repeated + rows :].decode() if why else None,
    )


# -- fetch -----------------------------------------------------------------------------------------------------------


def pack_frames(partition: int, frames: Iterable[tuple[Frame, memoryview]]) -> bytes:
    """Returns stored frames of one partition as one record of a fetch response."""
    data = b"".join(whole for _, whole in frames)
    return _RECORD.pack(partition, len(data)) + data


def unpack_frames(data: bytes) -> Iterator[tuple[int, Frame, memoryview]]:
    """Yields partition, header and bytes of each frame in a fetch response, in order.

    Raises:
        DamagedError: A checksum does not match.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        partition, length = _RECORD.unpack_from(view, at)
        at += _RECORD.size
        end = at + length
        while at < end:
            frame = parse_header(view, at)
            whole = view[at : at + frame.length] if frame else view[:0]
            if frame is None or len(whole) < frame.length or frame.body(whole) is None:
                what = f"a batch of partition {partition} was damaged in transit"
                raise DamagedError(what, fix="read again, and check the disk: headwater verify", partition=partition)
            yield partition, frame, whole
            at += frame.length
