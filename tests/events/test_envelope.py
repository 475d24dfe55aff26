import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import repeat

import pytest
from cloudevents.core.formats.json import JSONFormat

from headwater.errors import BadEventError
from headwater.events import Event, Receipt, build_events, check_headers, check_traceparent

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AT = datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=UTC)


def full_event() -> Event:
    return Event(
        "orders",
        2,
        2**40,
        key=("de", 7),
        value={"amount": Decimal("10.50"), "raw": b"hi", "at": AT, "items": [{"n": 1}], "note": None},
        id="own-id",
        occurred_at=AT.astimezone(timezone(timedelta(hours=5))),
        sent_at=AT,
        received_at=AT + timedelta(seconds=1),
        headers={"X-Tenant": "acme", "trace id": "ä"},
        traceparent=TRACE,
        source="/tills/7",
        type="order.placed",
    )


def test_an_event_has_its_place_as_id():
    assert Event("orders", 1, 41).id == "orders/1/41"
    assert full_event().id == "own-id"


def test_an_event_cannot_be_changed():
    event = full_event()
    with pytest.raises(AttributeError):
        event.offset = 3  # type: ignore[misc]


def test_a_tombstone_has_no_value():
    assert Event("orders", 0, 1, key="a").tombstone
    assert not full_event().tombstone


def test_the_cloudevents_sdk_reads_every_attribute():
    event = full_event()
    read = JSONFormat().read(None, json.dumps(event.cloud_event()))
    assert (read.get_specversion(), read.get_id()) == ("1.0", "own-id")
    assert (read.get_source(), read.get_type()) == ("/tills/7", "order.placed")
    assert read.get_time() == AT
    assert read.get_datacontenttype() == "application/json"
    assert read.get_data() == {
        "amount": "10.5",
        "raw": "aGk=",
        "at": "2026-01-01T12:00:00.000250Z",
        "items": [{"n": 1}],
        "note": None,
    }
    assert read.get_extension("partitionkey") == '["de",7]'
    assert read.get_extension("sequence") == str(2**40)
    assert read.get_extension("partition") == 2
    assert read.get_extension("traceparent") == TRACE
    assert read.get_extension("recordedtime") == "2026-01-01T12:00:01.000250Z"
    assert json.loads(read.get_extension("headers")) == event.headers


def test_the_cloudevents_sdk_reads_bare_events_and_tombstones():
    for event in (Event("orders", 0, 1, value={"a": 1}), Event("orders", 0, 2, key="x")):
        document = event.cloud_event()
        read = JSONFormat().read(None, json.dumps(document))
        assert (read.get_source(), read.get_type()) == ("/topics/orders", "orders")
        assert read.get_data() == event.value
        assert document.get("tombstone", False) is event.tombstone
        assert "time" not in document


def test_events_built_from_columns_equal_events_one_by_one():
    values = [{"a": 1}, None, {"a": 3}]
    made = list(
        build_events(
            "orders",
            1,
            range(5, 8),
            values,
            key=["x", "y", "z"],
            id=["", "mine", ""],
            occurred_at=[AT, None, AT],
            received_at=repeat(AT),
            headers=[{}, {"h": "1"}, {}],
            late=[False, False, True],
        )
    )
    assert made == [
        Event("orders", 1, 5, "x", {"a": 1}, occurred_at=AT, received_at=AT),
        Event("orders", 1, 6, "y", None, id="mine", received_at=AT, headers={"h": "1"}),
        Event("orders", 1, 7, "z", {"a": 3}, occurred_at=AT, received_at=AT, late=True),
    ]
    assert [event.id for event in made] == ["orders/1/5", "mine", "orders/1/7"]


def test_each_built_event_has_headers_of_its_own():
    first, second = build_events("orders", 0, [0, 1], [{}, {}])
    first.headers["x"] = "y"
    assert second.headers == {}


def test_a_column_that_is_no_field_of_an_event_is_refused():
    with pytest.raises(TypeError):
        next(build_events("orders", 0, [0], [{}], colour=["red"]))


def test_a_receipt_tells_duplicates_and_drops():
    assert Receipt("orders", 0, 5) == Receipt("orders", 0, 5, duplicate=False, dropped=None)
    assert Receipt("orders", -1, -1, dropped="newest").dropped == "newest"


def test_a_sound_traceparent_is_taken():
    assert check_traceparent(TRACE) == TRACE
    assert check_traceparent("cc" + TRACE[2:])


# The cases W3C Trace Context calls invalid.
@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        TRACE[:-1],
        TRACE + "0",
        TRACE.upper(),
        "ff" + TRACE[2:],
        TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        TRACE.replace("00f067aa0ba902b7", "0" * 16),
        TRACE.replace("-", "_"),
        TRACE.replace("4", "g"),
        TRACE + "\n",
        f" {TRACE}",
        None,
        5,
    ],
)
def test_a_bad_traceparent_is_refused(text):
    with pytest.raises(BadEventError) as caught:
        check_traceparent(text)
    assert caught.value.data["field"] == "traceparent"


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"": "x"}, {"a": None}, {"a": "\ud800"}, {"a": b"x"}])
def test_headers_that_are_not_text_are_refused(headers):
    with pytest.raises(BadEventError) as caught:
        check_headers(headers)
    assert caught.value.data["field"] == "headers"


def test_headers_are_copied():
    given = {"a": "ä"}
    taken = check_headers(given)
    given["b"] = "late"
    assert taken == {"a": "ä"}
