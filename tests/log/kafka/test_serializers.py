"""Values in Avro and Arrow: plain libraries read what we write, we read what they write, and the rest is marked bad."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings

import headwater as hw
from headwater.errors import BadSettingError, BadTypeError
from headwater.events import Codec
from headwater.log import EventLog, Topic
from headwater.log.kafka import KafkaLog
from headwater.log.kafka.serializers import create_serializer
from headwater.log.kafka.topics import DEFINITIONS_TOPIC
from headwater.log.topic import ValueFormat
from tests.client.shop import fresh
from tests.events.strategies import same, schema_and_rows
from tests.log.kafka.plain import consume, produce
from tests.services.kafka import Broker

FORMS = ["avro", "arrow"]
TYPE = (
    "id bigint not null, name string not null, flag boolean, small tinyint, ratio float, amount decimal(12,2), "
    "day date, at timestamp, data binary, tags array<string>, who struct<name: string, age: int>, "
    "scores map<string, double>"
)
ROW = {
    "id": 7,
    "name": "Ada ä",
    "flag": True,
    "small": -3,
    "ratio": 0.5,
    "amount": Decimal("-1234.50"),
    "day": date(1815, 12, 10),
    "at": datetime(2026, 1, 1, 12, 0, 0, 123456, UTC),
    "data": b"\0\xff",
    "tags": ["a", None],
    "who": {"name": "x", "age": None},
    "scores": {"b": 1.5, "a": None},
}
EMPTY = {name: None for name in ROW} | {"id": 8, "name": ""}


def avro_of(address: str, name: str, fingerprint: str) -> Any:
    """The schema of a fingerprint, as a stranger finds it: the newest definition of the topic, in plain JSON."""
    documents = [m.value() for m in consume(address, DEFINITIONS_TOPIC) if m.key() == name.encode()]
    return fastavro.parse_schema(json.loads(documents[-1] or b"")["avro"][fingerprint])


def read_plainly(address: str, name: str, message: Any) -> dict[str, Any]:
    """A record's value by a library that knows nothing of Headwater."""
    heads = dict(message.headers())
    if heads["hw.values"] == b"arrow":
        [row] = pa.ipc.open_stream(message.value()).read_all().to_pylist()
        return row | {"scores": row["scores"] and dict(row["scores"])}
    schema = avro_of(address, name, heads["hw.fingerprint"].decode())
    return fastavro.schemaless_reader(io.BytesIO(message.value()), schema, None)


def written_plainly(form: str, address: str, name: str, row: dict[str, Any]) -> bytes:
    """A value as another program would write it, under the topic's type."""
    if form == "arrow":
        sink = io.BytesIO()
        table = pa.Table.from_pylist([row])
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
    [schema] = json.loads(consume_last(address, name))["avro"].values()
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), row)
    return sink.getvalue()


def consume_last(address: str, name: str) -> bytes:
    return [m.value() for m in consume(address, DEFINITIONS_TOPIC) if m.key() == name.encode()][-1] or b""


@pytest.mark.parametrize("form", [ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.ARROW])
@given(drawn=schema_and_rows().filter(lambda drawn: drawn[1]))
@settings(max_examples=30)
def test_rows_come_back_as_they_were_whatever_their_type(form, drawn):
    schema, rows = drawn
    fields = [pa.field(f"f{number}", _plain(field.type), field.nullable) for number, field in enumerate(schema)]
    renamed = pa.schema(fields)
    codec = Codec(renamed)
    batch = codec.encode([{f"f{n}": _renamed(row.get(f.name), f.type) for n, f in enumerate(schema)} for row in rows])
    made = create_serializer(form, codec, "t")
    assert same(codec.rows(made.decode(made.encode(batch))), codec.rows(batch))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The same type with names that Avro takes."""
    if pa.types.is_struct(kind):
        inner = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([pa.field(f"f{n}", _plain(f.type), f.nullable) for n, f in enumerate(inner)])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), pa.field("value", _plain(kind.item_type), kind.item_field.nullable))
    return kind


def _renamed(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        inner = [kind.field(n) for n in range(kind.num_fields)]
        return {f"f{n}": _renamed(value.get(f.name), f.type) for n, f in enumerate(inner)}
    if pa.types.is_list(kind):
        return [_renamed(one, kind.value_type) for one in value]
    if pa.types.is_map(kind):
        return {key: _renamed(one, kind.item_type) for key, one in value.items()}
    return value


@pytest.mark.services
@pytest.mark.parametrize("form", FORMS)
def test_a_plain_library_reads_what_we_write(client: hw.Client, kafka: Broker, form: str):
    name = fresh()
    client.create_topic(name, TYPE, key="id", value_format=form, compact=True)
    client.send_many(name, [ROW, EMPTY])
    client.delete(name, 8)
    first, second, gone = consume(kafka.address, name)
    assert (gone.key(), gone.value()) == (b"8", None)
    assert [read_plainly(kafka.address, name, message) for message in (first, second)] == [ROW, EMPTY]
    assert [event.value for event in client.read(name)] == [ROW, EMPTY, None]
    assert client.table(name).rows() == [ROW]


@pytest.mark.services
@pytest.mark.parametrize("form", FORMS)
def test_we_read_what_a_plain_library_writes_and_mark_the_rest(client: hw.Client, kafka: Broker, form: str):
    name = fresh()
    client.create_topic(name, "id bigint not null, note string", value_format=form)
    good = [written_plainly(form, kafka.address, name, {"id": n, "note": "hi"}) for n in (1, 2)]
    bad = [b'{"id":1}', b"", good[0] + b"more", good[0][:-1], b"\xff" * 40]
    produce(kafka.address, name, *[(None, value) for value in (good[0], *bad, good[1])])
    produce(kafka.address, name, (None, good[0]), headers={"hw.values": b"morse"})
    produce(kafka.address, name, (None, good[0]), headers={"hw.values": b"avro", "hw.fingerprint": b"00"})
    client.send(name, {"id": 3})
    events = list(client.read(name))
    read = [event.value["id"] for event in events if event.value]
    assert read[:1] + read[-2:] == [1, 2, 3]
    marked = [event.raw for event in events if event.error]
    if form == "arrow":
        del bad[2]  # a stream says where it ends, and what comes behind it is no part of it
    assert marked == [*bad, good[0], good[0]]
    assert all(event.error.startswith("BAD_EVENT: ") for event in events if event.error)


@pytest.mark.services
def test_an_arrow_record_of_two_rows_is_bad(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, "id bigint", value_format="arrow")
    sink = io.BytesIO()
    table = pa.table({"id": [1, 2]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    produce(kafka.address, name, (None, sink.getvalue()))
    [event] = client.read(name)
    assert event.error.startswith("BAD_EVENT: ")
    assert (event.value, event.raw) == (None, sink.getvalue())


@pytest.mark.services
@pytest.mark.parametrize("form", FORMS)
def test_types_grow_and_the_form_may_change(client: hw.Client, kafka: Broker, form: str):
    name = fresh()
    client.create_topic(name, "id int")
    client.send(name, {"id": 1})
    client.create_topic(name, "id int", value_format=form)
    client.send(name, {"id": 2})
    client.create_topic(name, "id bigint, note string")  # what is not said stays
    client.send(name, {"id": 3, "note": "x"})
    assert client.topic(name).value_format == form
    assert [event.value for event in client.read(name)] == [
        {"id": 1, "note": None}, {"id": 2, "note": None}, {"id": 3, "note": "x"},
    ]  # fmt: skip
    with hw.connect(f"kafka://{kafka.address}") as other:
        assert [event.value["id"] for event in other.read(name) if event.value] == [1, 2, 3]
    with hw.connect(f"kafka://{kafka.address}") as other, other.producer(name, id="till") as producer:
        producer.send({"id": 4})
    assert dict(consume(kafka.address, name)[-1].headers())["hw.values"] == form.encode()


@pytest.mark.services
def test_envelopes_of_debezium_are_changes_and_changes_are_envelopes(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, hw.changes("id int, name string, price decimal(10,2)"), value_format="debezium")
    sent = {"before": None, "after": {"id": 7, "name": "tea", "price": "2.50"}, "op": "c", "source": {"ts_ms": 1000}}
    guess = {"op": "u", "after": {"id": 7, "price": "APo="}}  # perhaps base64, of unknown scale
    produce(kafka.address, name, *[(b'{"id":7}', json.dumps(each).encode()) for each in (sent, guess)], (b"{}", None))
    read, bad, tombstone = client.read(name)
    assert (read.value["op"], read.value["after"]["price"]) == ("insert", Decimal("2.50"))
    assert "in several ways" in bad.error
    assert tombstone.value is None
    client.send(name, read.value | {"op": "update", "after": {"id": 7, "price": "3"}, "unchanged": ["name"]})
    written = json.loads(consume(kafka.address, name)[-1].value())
    assert (written["op"], written["source"]["ts_ms"]) == ("u", 1000)
    assert written["after"] == {"id": 7, "name": "__debezium_unavailable_value", "price": "3.00"}


@pytest.mark.services
@pytest.mark.parametrize("form", FORMS)
def test_event_time_is_walked_and_bad_messages_move_nothing(kafka: Broker, form: str):
    name = fresh()
    with KafkaLog(f"kafka://{kafka.address}", index_time=True) as log:
        log.create(Topic.declare(name, "id int, at timestamp", time="at", lateness="10 seconds", value_format=form))
        client = hw.Client(log, log.clock)
        client.send_many(name, [{"id": n, "at": f"2026-01-01T00:00:{s}Z"} for n, s in enumerate((10, 40, 20))])
        produce(kafka.address, name, (None, b"\xffgarbage"))
        client.send(name, {"id": 3, "at": "2026-01-01T00:00:35Z"})
        log.await_event_time(name)
        opened = log.open_topic(name)
        end = opened.partitions[0].state().next_offset
        batches = list(opened.batches(0, 0, end))
        late = [batch.values.column("id")[int(row)].as_py() for batch in batches for row in batch.late().nonzero()[0]]
        assert (end, late, sum(int(batch.bad.sum()) for batch in batches)) == (5, [2], 1)


def test_a_folder_takes_the_choice_and_keeps_columns(tmp_path):
    with EventLog(tmp_path) as log:
        made = log.create(Topic.declare("orders", "id int", value_format="avro"))
        assert made.value_format is ValueFormat.AVRO
    with hw.connect(tmp_path) as client:
        client.send("orders", {"id": 1})
        assert client.topic("orders").value_format == "avro"
        assert [event.value for event in client.read("orders")] == [{"id": 1}]


def test_what_cannot_be_is_refused_when_it_is_declared():
    with pytest.raises(BadSettingError) as caught:
        Topic.declare("orders", "id int", value_format="xml")
    assert caught.value.detail == "it can be: json, avro, arrow, debezium"
    with pytest.raises(BadSettingError):
        Topic.declare("orders", "op string, after int", value_format="debezium")
    with pytest.raises(BadTypeError) as wrong:
        Topic.declare("orders", "`two words` int", value_format="avro")
    assert wrong.value.data["field"] == "two words"
