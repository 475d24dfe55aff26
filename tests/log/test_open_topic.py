"""An open topic: its definition, a type that evolves, and ranges of its events."""

from __future__ import annotations

import pytest

from headwater.errors import DamagedError
from headwater.log import Durability, EventLog, reader
from tests.log.given import declared, rows_of

BLOB = "id string, body string, amount int"


def test_a_missing_schema_is_damage(log):
    log.create(declared())
    (log.folder / "topics" / "orders" / "schema-0001.arrow").unlink()
    with pytest.raises(DamagedError):
        log.topic("orders")


def test_a_thread_that_reads_while_the_type_evolves_sees_one_type(log, monkeypatch):
    topic = log.create(declared(type_="id string"))
    log.append("orders", rows_of(topic, [{"id": "a"}]))
    opened = log.open_topic("orders")
    frame, data = opened.partitions[0].fetch(0, 1000)[0]
    seen = []

    def codec(schema):
        batch = opened.decode(0, frame, data)
        seen.append((batch.values.schema.names, batch.topic.schema.names, batch.codec.schema.names))
        return original(schema)

    original = reader.Codec
    monkeypatch.setattr(reader, "Codec", codec)
    log.create(declared(type_="id string, more int"))
    assert seen == [(["id"], ["id"], ["id"])]


def test_new_settings_reach_a_process_that_has_the_topic_open(log):
    log.create(declared(durability="fast"))
    opened = log.open_topic("orders")
    with EventLog(log.folder) as other:
        other.create(declared(durability="durable", overload="drop"))
    opened.reload()
    assert opened.partitions[0].definition.durability is Durability.DURABLE
    assert opened.writer.buffer.overload.when_full.value == "drop newest"


def test_few_events_are_read_without_all_that_is_behind_them(log, monkeypatch):
    topic = log.create(declared("blobs", BLOB))
    body = "x" * 1000
    for number in range(400):
        log.append("blobs", rows_of(topic, [{"id": "a", "body": body, "amount": number}], partition=0))
    opened = log.open_topic("blobs")
    partition, frames = opened.partitions[0], []
    fetch = partition.fetch

    def counted(offset, most):
        found = fetch(offset, most)
        frames.append(len(found))
        return found

    monkeypatch.setattr(partition, "fetch", counted)
    (one,) = opened.batches(0, 100, 101)
    assert one.values.column("amount").to_pylist() == [100]
    assert sum(frames) < 100
    whole = [amount for batch in opened.batches(0, 0, 400) for amount in batch.values.column("amount").to_pylist()]
    assert whole == list(range(400))
