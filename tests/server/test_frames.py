"""The bytes our own clients send: whatever a stranger puts there is refused, and nothing is written."""

from __future__ import annotations

import struct
import threading
import zlib
from dataclasses import replace
from typing import Any

import httpx
import pyarrow as pa
import pytest

import headwater as hw
from headwater.log import WriteBatch
from headwater.log.storage.frame import HEADER_SIZE
from headwater.log.wire import FRAMES_MEDIA_TYPE, pack_batch, unpack_receipts
from headwater.log.write.write_batch import EventEncoder
from tests.client.shop import fresh

RECORD = struct.Struct("<iI")


@pytest.fixture
def name(client: hw.Client) -> str:
    name = fresh()
    client.create_topic(name, "number bigint not null, text string, at timestamp", partitions=2)
    return name


def rows_of(client: hw.Client, name: str, count: int = 3, **changes: Any) -> WriteBatch:
    made = EventEncoder(client.topic(name)).encode_many([{"number": n, "text": "x"} for n in range(count)], None, 1)
    return replace(made, **changes)


def post(web: httpx.Client, name: str, body: bytes) -> httpx.Response:
    return web.post(f"/api/topics/{name}/frames", content=body, headers={"content-type": FRAMES_MEDIA_TYPE})


def resealed(body: bytes) -> bytes:
    """The same frame with checksums that fit: a stranger can compute them, too."""
    frame = bytearray(body[RECORD.size :])
    frame[8:12] = zlib.crc32(frame[HEADER_SIZE:]).to_bytes(4, "little")
    frame[12:16] = len(frame).to_bytes(4, "little")
    frame[4:8] = zlib.crc32(frame[8:HEADER_SIZE]).to_bytes(4, "little")
    return body[:4] + len(frame).to_bytes(4, "little") + bytes(frame)


def with_batch(rows: WriteBatch, batch: bytes) -> bytes:
    """An append of these rows with other bytes for its Arrow batch."""
    body = pack_batch(rows)
    return resealed(body[: RECORD.size + HEADER_SIZE] + batch + bytes(-len(batch) % 8))


def events(client: hw.Client, name: str) -> int:
    return sum(1 for _ in client.read(name))


def test_a_frame_is_appended_with_receipts(web: httpx.Client, client: hw.Client, name: str):
    answer = post(web, name, pack_batch(rows_of(client, name, partition=1)))
    assert answer.status_code == 200
    assert [(r.partition, r.offset) for r in unpack_receipts(name, answer.content)] == [(1, 0), (1, 1), (1, 2)]


def test_a_repeated_frame_of_a_producer_is_told(web: httpx.Client, client: hw.Client, name: str):
    body = pack_batch(rows_of(client, name, partition=1, producer="till-7", sequence=5))
    once, twice = (unpack_receipts(name, post(web, name, body).content) for _ in range(2))
    assert (once.duplicates, twice.duplicates) == (0, 3)
    assert [receipt.offset for receipt in twice] == [receipt.offset for receipt in once]
    assert events(client, name) == 3


def test_a_frame_whose_predecessor_is_missing_is_refused(web: httpx.Client, client: hw.Client, name: str):
    body = pack_batch(rows_of(client, name, partition=1, producer="till-7", sequence=5))
    answers = [
        web.post(
            f"/api/topics/{name}/frames",
            content=body,
            headers={"content-type": FRAMES_MEDIA_TYPE},
            params={"previous": previous},
        )
        for previous in (4, "four", -1, 4)
    ]
    assert [answer.status_code for answer in answers] == [409, 400, 200, 200]
    assert answers[0].json()["code"] == "SEQUENCE_GAP"
    assert answers[0].json()["data"] == {"producer": "till-7", "sequence": 5, "previous": 4, "last": -1}
    assert unpack_receipts(name, answers[3].content).duplicates == 3
    assert events(client, name) == 3


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"partition": 2}, "BAD_OFFSET"),
        ({"version": 2}, "BAD_EVENT"),
        ({"version": 0}, "BAD_EVENT"),
        ({"producer": "p", "sequence": 0}, "BAD_EVENT"),
        ({"producer": "p", "sequence": 2**62 + 1, "partition": 0}, "BAD_EVENT"),
        ({"producer": "p", "sequence": -5, "partition": 0}, "BAD_EVENT"),
        ({"sent_at": 2**62}, "BAD_EVENT"),
        ({"envelope": {"_hw.offset": pa.array([1, 2, 3])}}, "BAD_EVENT"),
        ({"envelope": {"_hw.running_max": pa.array([1, 2, 3])}}, "BAD_EVENT"),
        ({"envelope": {"_hw.occurred_at": pa.array([2**62] * 3, pa.timestamp("us", "UTC"))}}, "BAD_EVENT"),
    ],
)
def test_what_only_the_log_decides_cannot_be_sent(
    web: httpx.Client, client: hw.Client, name: str, change: dict[str, Any], code: str
):
    answer = post(web, name, pack_batch(rows_of(client, name, **change)))
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert events(client, name) == 0


def test_a_required_value_that_is_missing_is_refused(web: httpx.Client, client: hw.Client, name: str):
    rows = rows_of(client, name)
    columns = [pa.array([1, None, 3], pa.int64()), *rows.values.columns[1:]]
    batch = pa.RecordBatch.from_arrays(columns, names=rows.values.schema.names).serialize().to_pybytes()
    answer = post(web, name, with_batch(rows, batch))
    assert (answer.json()["code"], answer.json()["data"]["row"]) == ("BAD_EVENT", 1)
    assert events(client, name) == 0


def test_a_compressed_batch_is_refused_before_it_is_unpacked(web: httpx.Client, client: hw.Client, name: str):
    rows = rows_of(client, name)
    sink = pa.BufferOutputStream()
    schema = rows.values.schema
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows.values)
    _, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    answer = post(web, name, with_batch(rows, message.serialize().to_pybytes()))
    assert answer.json()["code"] == "BAD_EVENT"
    assert "compressed" in answer.json()["title"]


def test_columns_of_another_type_are_refused(web: httpx.Client, client: hw.Client, name: str):
    rows = rows_of(client, name)
    other = pa.record_batch({"number": pa.array([1, 2, 3], pa.int8())}).serialize().to_pybytes()
    assert post(web, name, with_batch(rows, other)).json()["code"] == "BAD_EVENT"
    assert events(client, name) == 0


def test_text_that_is_not_unicode_is_refused(web: httpx.Client, client: hw.Client, name: str):
    rows = rows_of(client, name)
    raw = pa.array([b"\xff\xfe"] * 3, pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    batch = pa.RecordBatch.from_arrays(
        [rows.values.column(0), broken, rows.values.column(2)], names=rows.values.schema.names
    )
    assert post(web, name, with_batch(rows, batch.serialize().to_pybytes())).json()["code"] == "BAD_EVENT"


def test_a_flipped_bit_is_noticed(web: httpx.Client, client: hw.Client, name: str):
    body = pack_batch(rows_of(client, name))
    for position in range(0, len(body), 7):
        flipped = bytearray(body)
        flipped[position] ^= 1
        answer = post(web, name, bytes(flipped))
        # A flipped bit in the partition is another partition; everything else has a checksum.
        assert answer.status_code == 400 or position < 4, position
    assert all(event.value["text"] == "x" for event in client.read(name) if event.value)


def test_another_media_type_is_refused(web: httpx.Client, client: hw.Client, name: str):
    answer = web.post(f"/api/topics/{name}/frames", content=pack_batch(rows_of(client, name)))
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"positions": {"0": 5}}, "BAD_OFFSET"),
        ({"positions": {"0": -1}}, "BAD_OFFSET"),
        ({"positions": {"7": 0}}, "BAD_OFFSET"),
        ({"positions": {"-1": 0}}, "BAD_OFFSET"),
        ({"positions": {"a": 0}}, "BAD_USAGE"),
        ({"positions": {"0": 0}, "wait": 1, "group": "nobody"}, "UNKNOWN_GROUP"),
        ({}, "BAD_USAGE"),
    ],
)
def test_a_bad_fetch_is_refused(web: httpx.Client, name: str, wanted: dict[str, Any], code: str):
    answer = web.post(f"/api/topics/{name}/fetch", json=wanted)
    assert answer.json()["code"] == code


def test_a_fetch_that_waits_is_woken(web: httpx.Client, client: hw.Client, name: str):
    sender = threading.Timer(0.05, client.send, (name, {"number": 1}))
    sender.start()
    # An answer after the whole wait would be empty.
    wanted = {"positions": {"0": 0, "1": 0}, "wait": 25}
    assert web.post(f"/api/topics/{name}/fetch", json=wanted).content
    sender.join()


def test_a_large_topic_comes_in_bounded_answers(web: httpx.Client, client: hw.Client):
    name = fresh()
    client.create_topic(name, "text string", partitions=4, durability="fast")
    for partition in range(4):
        rows = EventEncoder(client.topic(name)).encode_many([{"text": "x" * 100_000}] * 120, None, 1)
        client.log.append(name, replace(rows, partition=partition))
    wanted = {"positions": dict.fromkeys("0123", 0), "max_bytes": 1 << 30}
    assert len(web.post(f"/api/topics/{name}/fetch", json=wanted).content) < 60 << 20
    assert sum(batch.num_rows for batch in client.read_arrow(name)) == 480
