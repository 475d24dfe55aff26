"""Others read what we write, we read what others write, and what cannot be read stops nobody."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import BadEventError, TooLargeError
from headwater.events import partition_of
from headwater.log.kafka.records import parse_headers
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.write.write_batch import WriteBatch
from tests.client.shop import NOON, Order, fresh, order, orders
from tests.log.kafka.plain import consume, produce
from tests.services.kafka import Broker, create_kafka_topic

pytestmark = pytest.mark.services


def test_a_plain_client_reads_what_we_write(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, Order, key="customer_id", partitions=3)
    client.send_many(name, orders(30))
    client.send(name, order(1), id="x-1", headers={"tenant": "acme"}, occurred_at=NOON)
    found = consume(kafka.address, name, 3)
    assert len(found) == 31
    for message in found:
        value = json.loads(message.value())
        assert message.key() == str(value["customer_id"]).encode()
        assert message.partition() == partition_of(message.key(), 3)
        assert dict(message.headers())["hw.version"] == b"1"
    said = next(dict(m.headers()) for m in found if "hw.id" in dict(m.headers()))
    assert (said["hw.id"], said["tenant"]) == (b"x-1", b"acme")
    assert said["hw.occurred_at"] == b"2026-01-01T12:00:00Z"
    assert json.loads(found[0].value())["placed_at"].endswith("Z")


def test_we_read_what_a_plain_client_writes(client: hw.Client, kafka: Broker):
    name = fresh()
    create_kafka_topic(kafka.address, name, partitions=2)
    produce(kafka.address, name, (b"ada", b'{"id": 1, "note": "hi"}'), (None, b'{"id":2}'))
    made = client.create_topic(name, "id bigint, note string", partitions=2)
    assert (made.partitions, made.version) == (2, 1)
    found = {event.value["id"]: event for event in client.read(name) if event.value}
    assert {number: event.value for number, event in found.items()} == {
        1: {"id": 1, "note": "hi"},
        2: {"id": 2, "note": None},
    }
    assert (found[1].key, found[1].headers, found[1].sent_at) == ("ada", {}, None)


def test_a_topic_of_others_is_declared_with_the_partitions_it_has(client: hw.Client, kafka: Broker):
    name = fresh()
    create_kafka_topic(kafka.address, name, partitions=4)
    assert client.create_topic(name, "id bigint").partitions == 4
    assert client.create_topic(name, "id bigint").partitions == 4
    with pytest.raises(hw.HeadwaterError) as caught:
        client.create_topic(name, "id bigint", partitions=2)
    assert caught.value.code == "TOPIC_EXISTS"


def test_bad_messages_come_out_with_reason_and_bytes(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, "id bigint, note string", key="id")
    lines = [b'{"id":1}', b"not json", b'{"id":"seven"}', b'{"id":2,"more":1}', b"\xff\xfe", b"", b'{"id":3}']
    produce(kafka.address, name, *[(b"k", line) for line in lines])
    events = list(client.read(name))
    assert [event.value and event.value["id"] for event in events] == [1, None, None, None, None, None, 3]
    bad = [event for event in events if event.error]
    assert [event.raw for event in bad] == lines[1:6]
    assert [event.error.split(":")[0] for event in bad if event.error] == [
        "BAD_JSON",
        "BAD_EVENT",
        "BAD_EVENT",
        "BAD_JSON",
        "BAD_JSON",
    ]
    assert not any(event.tombstone for event in events)
    assert [row["id"] for batch in client.read_arrow(name) for row in batch.to_pylist()] == [1, 3]
    [batch] = client.log.fetch(name, {0: 0}, max_bytes=1 << 20, timeout=0, waiter=None)
    assert batch.bad.tolist() == [False, True, True, True, True, True, False]


def test_one_bad_message_among_many_costs_little(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, "id bigint")
    lines = [(None, b'{"id":%d}' % number) for number in range(3000)]
    lines[1234] = (None, b"{")
    produce(kafka.address, name, *lines)
    events = list(client.read(name))
    assert [event.offset for event in events if event.error] == [1234]
    assert sum(event.value["id"] for event in events if event.value) == sum(range(3000)) - 1234


@pytest.mark.parametrize(
    ("ddl", "key"),
    [
        ("k string, note string", "ada"),
        ("k bigint, note string", -7),
        ("k boolean, note string", True),
        ("k decimal(10,2), note string", Decimal("1.50")),
        ("k timestamp, note string", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("k date, note string", date(2026, 1, 1)),
        ("k binary, note string", b"\x00\xff"),
    ],
)
def test_a_tombstone_has_the_key_and_no_value(client: hw.Client, kafka: Broker, ddl: str, key: object):
    name = fresh("products")
    client.create_topic(name, ddl, key="k", compact=True)
    client.send(name, {"k": key, "note": "x"})
    client.delete(name, key)
    first, gone = consume(kafka.address, name)
    assert (gone.key(), gone.value()) == (first.key(), None)
    assert [(event.key, event.tombstone) for event in client.read(name)] == [(key, False), (key, True)]
    assert client.table(name).rows() == []


def test_tombstones_of_others_delete_rows_too(client: hw.Client, kafka: Broker):
    name = fresh("products")
    client.create_topic(name, "shop string, id bigint, n int", key=("shop", "id"), compact=True)
    client.send_many(name, [{"shop": "de", "id": 1, "n": 1}, {"shop": "de", "id": 2, "n": 2}])
    produce(kafka.address, name, (b'["de",1]', None), (b"garbage", None))
    assert client.table(name).rows() == [{"shop": "de", "id": 2, "n": 2}]
    assert [event.raw for event in client.read(name) if event.error] == [b"garbage"]


def test_times_are_the_brokers_and_survive_the_way(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, Order, time="placed_at")
    client.send(name, order(5))
    [batch] = client.log.fetch(name, {0: 0}, max_bytes=1, timeout=0, waiter=None)
    [message] = consume(kafka.address, name)
    kind, stamp = message.timestamp()
    assert (kind, stamp * 1000) == (2, int(batch.arrival_times[0]))  # 2: by the broker's clock
    assert batch.event_times[0] == int(NOON.timestamp() + 5) * 10**6


def test_gaps_in_offsets_are_kept(client: hw.Client):
    name = fresh()
    client.create_topic(name, "id bigint")
    with client.producer(name, id="till-7") as producer:
        for number in range(4):
            producer.send({"id": number})
            producer.flush()
    found = [(event.offset, event.value["id"]) for event in client.read(name) if event.value]
    assert found == [(0, 0), (2, 1), (4, 2), (6, 3)]
    assert [event.offset for event in client.read(name, 3)] == [4, 6]
    assert client.log.ends(name)[0].end == 8


def test_headers_of_ours_are_refused_from_senders(client: hw.Client):
    name = fresh()
    client.create_topic(name, "id bigint")
    with pytest.raises(BadEventError):
        client.send(name, {"id": 1}, headers={"hw.version": "9"})


def test_an_event_larger_than_a_topic_of_others_takes_is_told(client: hw.Client, kafka: Broker):
    name = fresh()
    create_kafka_topic(kafka.address, name, max_message_bytes=2000)
    client.create_topic(name, "text string")
    with pytest.raises(TooLargeError):
        client.send(name, {"text": random.Random(1).randbytes(9000).hex()})


def test_garbage_under_our_header_names_is_left_out():
    heads = [[("hw.sent_at", b"soon"), ("hw.version", b"x")], [("hw.sent_at", b"2026-01-01T12:00:00Z")]]
    columns, sent, version = parse_headers(heads)
    assert columns["_hw.sent_at"].to_pylist() == [None, NOON]
    assert (sent, version) == (LOWEST_TIME, 0)


def test_rows_without_any_row_are_taken(client: hw.Client):
    name = fresh()
    topic = client.create_topic(name, "id bigint")
    assert len(client.log.append(name, WriteBatch(pa.RecordBatch.from_pylist([], topic.schema), 1, {}))) == 0
