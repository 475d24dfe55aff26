"""Frames: what is written is read, and no changed byte goes unnoticed."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.storage.frame import (
    ENVELOPE,
    HEADER_SIZE,
    Frame,
    FrameKind,
    decode_columns,
    encode_frame,
    envelope_bits,
    parse_header,
    serialize_columns,
    with_envelope,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
FRAME = Frame(FrameKind.EVENTS, 10, 12, count=2, schema=3, producer="till-7", first_sequence=4, last_sequence=5)


def parsed(data: bytes, at: int = 0, position: int = 0) -> Frame:
    frame = parse_header(memoryview(data), at, position)
    assert frame is not None
    return frame


@given(
    st.sampled_from(FrameKind),
    st.lists(NUMBERS, min_size=10, max_size=10),
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.binary(max_size=60),
    st.booleans(),
)
def test_every_field_comes_back(kind, numbers, producer, body, follows):
    names = ["base_offset", "next_offset", "appended_at", "lowest", "highest"]
    names += ["max_event_time_before", "max_event_time", "sent_at", "first_sequence", "last_sequence"]
    frame = Frame(kind, **dict(zip(names, numbers, strict=True)), producer=producer, follows=follows)
    data = encode_frame(frame, body)
    found = parsed(data)
    where = {"length": len(data), "body_at": found.body_at, "body_crc": found.body_crc}
    assert found == replace(frame, **where)
    content = found.body(memoryview(data))
    assert content is not None
    assert bytes(content).rstrip(b"\0") == body.rstrip(b"\0")


def test_header_lies_as_the_format_page_says():
    data = encode_frame(FRAME, b"body")
    magic, crc, body_crc, length = struct.unpack_from("<4sIII", data)
    assert (magic, length, len(data) % 8, HEADER_SIZE) == (b"HWB1", len(data), 0, 112)
    assert crc == zlib.crc32(data[8:112])
    assert body_crc == zlib.crc32(data[112:])
    assert data[112:120] == b"till-7\0\0"


def test_any_changed_byte_is_noticed():
    data = encode_frame(FRAME, bytes(range(50)))
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        frame = parse_header(memoryview(bytes(changed)))
        assert frame is None or frame.body(memoryview(bytes(changed))) is None, position


def test_part_of_a_header_is_none():
    data = memoryview(encode_frame(FRAME, b"body"))
    assert all(parse_header(data[:length]) is None for length in range(HEADER_SIZE))
    assert parse_header(data, len(data) - 8) is None


def test_frame_in_the_middle_knows_its_position():
    data = b"\0" * 16 + encode_frame(FRAME, b"body")
    frame = parsed(data, at=16, position=4096)
    assert (frame.position, frame.producer, frame.base_offset) == (4096, "till-7", 10)


def test_body_cut_short_fails_its_checksum():
    data = encode_frame(FRAME, b"a body of some length")
    assert parsed(data).body(memoryview(data[:-8])) is None


def test_envelope_columns_are_named_by_their_bits():
    chosen = [ENVELOPE[index] for index in (1, 3, 8)]
    arrays = {field.name: pa.nulls(1, field.type) for field in chosen}
    assert envelope_bits(arrays) == 0b1_0000_1010
    schema = with_envelope(pa.schema([("n", pa.int64())]), envelope_bits(arrays))
    assert schema.names == ["n", "_hw.id", "_hw.sent_at", "_hw.deleted"]


def test_columns_come_back_with_their_envelope():
    schema = pa.schema([("n", pa.int64()), ("_hw.id", pa.string())])
    batch = pa.RecordBatch.from_pydict({"n": [1, None], "_hw.id": ["a", None]}, schema)
    data = memoryview(encode_frame(replace(FRAME, columns=0b10), batch.serialize()))
    frame = parsed(bytes(data))
    found = decode_columns(frame, data[frame.body_at :], schema.remove(1))
    assert found.to_pydict() == {"n": [1, None], "_hw.id": ["a", None]}


def test_envelope_columns_are_stored_in_the_order_of_their_bits():
    values = pa.RecordBatch.from_pydict({"n": [1]})
    envelope = {"_hw.source": pa.array(["/till"]), "_hw.id": pa.array(["a"])}
    body = memoryview(serialize_columns(values, envelope))
    found = decode_columns(replace(FRAME, columns=envelope_bits(envelope)), body, values.schema)
    assert found.to_pydict() == {"n": [1], "_hw.id": ["a"], "_hw.source": ["/till"]}


def test_order_of_envelope_columns_never_changes():
    names = "key id occurred_at sent_at received_at headers traceparent source deleted offset running_max error raw"
    assert [field.name for field in ENVELOPE] == [f"_hw.{name}" for name in names.split()]
