"""Debezium's envelope: read with and without a schema, refused where a value would be guessed, and written."""

import base64
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest

from headwater.errors import BadEventError
from headwater.events import Codec, changes
from headwater.events.debezium import UNAVAILABLE, EnvelopeReader, write_envelope

ROW = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("made", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
READER = EnvelopeReader(ROW)


def envelope(op="u", before=None, after=None, **more):
    return msgspec.json.encode({"op": op, "before": before, "after": after, "source": {"ts_ms": 1_000}} | more)


def with_schema(payload, fields):
    row = {"type": "struct", "fields": fields}
    schema = {"type": "struct", "fields": [row | {"field": "before"}, row | {"field": "after"}]}
    return msgspec.json.encode({"schema": schema, "payload": msgspec.json.decode(payload)})


@pytest.mark.parametrize(
    ("code", "op"), [("r", "read"), ("c", "insert"), ("u", "update"), ("d", "delete"), ("t", "truncate")]
)
def test_each_operation_has_our_name(code, op):
    assert READER.read(envelope(code))["op"] == op


def test_plain_values_are_read_without_a_schema():
    row = {"id": 7, "name": "tea", "price": "2.50", "made": "2026-01-02T03:04:05.000006Z", "day": 3, "raw": "aGk="}
    event = READER.read(envelope("c", after=row | {"tags": ["a", None]}))
    assert event["after"] == {
        "id": 7,
        "name": "tea",
        "price": Decimal("2.50"),
        "made": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "day": date(1970, 1, 4),
        "raw": b"hi",
        "tags": ["a", None],
    }
    assert event["at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("io.debezium.time.Timestamp", 1_767_323_045_000),
        ("io.debezium.time.MicroTimestamp", 1_767_323_045_000_000),
        ("io.debezium.time.NanoTimestamp", 1_767_323_045_000_000_000),
    ],
)
def test_the_schema_names_the_unit_of_a_time(name, count):
    text = with_schema(envelope("c", after={"made": count}), [{"field": "made", "type": "int64", "name": name}])
    assert READER.read(text)["after"] == {"made": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}


@pytest.mark.parametrize("unscaled", [0, 1, -1, 250, -12345, 2**33])
def test_the_schema_names_the_scale_of_a_decimal(unscaled):
    size = unscaled.bit_length() // 8 + 1
    data = base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()
    field = {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    text = with_schema(envelope("c", after={"price": data}), [field | {"parameters": {"scale": "2"}}])
    assert READER.read(text)["after"] == {"price": Decimal(unscaled) / 100}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("made", 1_767_323_045_000),  # milliseconds or microseconds
        ("price", "APo="),  # bytes of unknown scale
        ("price", "1234"),  # perhaps, too
        ("price", True),
        ("day", "yesterday"),
        ("raw", "not base64!"),
        ("raw", 12),
        ("tags", "a,b"),
        ("unknown", 1),
    ],
)
def test_what_would_be_a_guess_is_refused_with_its_field(column, value):
    with pytest.raises(BadEventError) as raised:
        READER.read(envelope("c", after={column: value}))
    assert raised.value.data["field"] == f"after.{column}"


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"op": "m"}', b'{"op": "c", "after": 7}', b"\xff"])
def test_other_values_are_refused(text):
    with pytest.raises(BadEventError):
        READER.read(text)


@pytest.mark.parametrize("placeholder", [UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode(), [UNAVAILABLE]])
def test_the_placeholder_is_a_column_that_was_not_sent(placeholder):
    event = READER.read(envelope(after={"id": 7, "name": placeholder}))
    assert event["after"] == {"id": 7}
    assert event["unchanged"] == ["name"]


def test_what_is_written_is_read_back():
    row = {
        "id": 7,
        "name": "thé ☕",
        "price": Decimal("-12.34"),
        "made": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "day": date(1969, 12, 31),
        "raw": b"\x00\xff",
        "tags": ["x", None],
    }
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    events = [
        {"op": "insert", "before": None, "after": row, "unchanged": [], "at": at},
        {"op": "update", "before": row, "after": {"id": 7, "price": None}, "unchanged": ["name"], "at": at},
        {"op": "delete", "before": {"id": 7}, "after": None, "unchanged": [], "at": at},
        {"op": "truncate", "before": None, "after": None, "unchanged": [], "at": at},
    ]
    assert [READER.read(write_envelope(event, "products")) for event in events] == events


def test_an_event_that_was_read_is_a_row_of_its_topic():
    codec = Codec(changes(ROW))
    event = READER.read(envelope("u", before={"id": 7}, after={"id": 8, "name": UNAVAILABLE}))
    assert codec.rows(codec.encode([event]))[0]["unchanged"] == ["name"]
