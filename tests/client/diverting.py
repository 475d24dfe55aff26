"""What every client promises about events that do not match the type of their topic."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pytest

import headwater as hw
from headwater import errors
from tests.client.shop import fresh

TYPE = "order_id string, cents int"
INVALID = [{"order_id": "b", "cents": "ten"}, {"cents": 3}, {"order_id": "d", "cents": 2**40}]
MIXED = [{"order_id": "a", "cents": 1}, *INVALID, {"order_id": "e", "cents": 5}]


def values(client: hw.Client, name: str) -> list[hw.InvalidEvent]:
    """The invalid events in a topic."""
    return [event.value for event in client.read(name, as_=hw.InvalidEvent)]  # type: ignore[misc]


class DivertingContract:
    """Inherited by `ClientContract`."""

    @pytest.fixture
    def name(self, client: hw.Client) -> str:
        """A topic with a topic for its invalid events."""
        name = fresh("orders")
        client.create_topic(name, TYPE, key="order_id", partitions=2, invalid=f"{name}.invalid")
        return name

    def test_the_topic_of_invalid_events_exists_from_the_start(self, client: hw.Client, name: str):
        assert client.topic(name).invalid == f"{name}.invalid"
        assert values(client, f"{name}.invalid") == []

    def test_an_invalid_event_goes_there_with_its_value_and_reason(self, client: hw.Client, name: str):
        receipt = client.send(name, INVALID[0], headers={"tenant": "acme"})
        assert (receipt.topic, receipt.offset) == (f"{name}.invalid", 0)
        assert "cents" in (receipt.diverted or "")
        (event,) = values(client, f"{name}.invalid")
        assert (event.topic, json.loads(event.value), event.code) == (name, INVALID[0], "BAD_EVENT")
        assert (event.field, event.reason) == ("cents", receipt.diverted)
        assert event.origin.endswith("diverting.py:40")

    def test_the_valid_rows_of_a_call_are_appended(self, client: hw.Client, name: str):
        receipts = client.send_many(name, MIXED)
        assert [receipt.topic == name for receipt in receipts] == [True, False, False, False, True]
        assert receipts.diverted == 3
        assert {event.value["order_id"] for event in client.read(name) if event.value} == {"a", "e"}
        assert [json.loads(event.value) for event in values(client, f"{name}.invalid")] == INVALID
        for receipt in receipts:
            read = list(client.read(receipt.topic, partitions=[receipt.partition]))
            assert receipt.offset in [event.offset for event in read]

    def test_lines_that_are_not_json_are_kept_as_they_were(self, client: hw.Client, name: str):
        receipts = client.send_json(name, [b'{"order_id": "a", "cents": 1}', b"{nope"])
        assert [receipt.diverted is None for receipt in receipts] == [True, False]
        assert [(event.value, event.code) for event in values(client, f"{name}.invalid")] == [("{nope", "BAD_JSON")]

    @pytest.mark.parametrize("frame", [pa.table, pd.DataFrame])
    def test_rows_of_a_frame_are_diverted_one_by_one(self, client: hw.Client, name: str, frame: type):
        receipts = client.send_many(name, frame({"order_id": ["a", None, "c"], "cents": [1, 2, 2**40]}))
        assert [receipt.diverted is None for receipt in receipts] == [True, False, False]
        assert [event.field for event in values(client, f"{name}.invalid")] == ["order_id", "cents"]

    def test_a_producer_goes_on_after_an_invalid_event(self, client: hw.Client, name: str):
        with client.producer(name, id=fresh("till")) as producer:
            for row in MIXED:
                producer.send(row)
            receipts = producer.flush()
        assert [receipt.topic == name for receipt in receipts] == [True, False, False, False, True]
        assert [event.origin for event in values(client, f"{name}.invalid")] == [f"producer {producer.id}"] * 3

    def test_every_offered_event_is_counted_once(self, client: hw.Client, name: str):
        client.send_many(name, MIXED)
        client.send(name, {"order_id": 7})
        counts = client.log.counts(name)
        assert (counts["offered"], counts["appended"], counts["diverted"]) == (6, 2, 4)
        assert counts["offered"] == sum(number for decision, number in counts.items() if decision != "offered")

    def test_a_wrong_call_is_refused_and_not_diverted(self, client: hw.Client, name: str):
        with pytest.raises(errors.BadEventError):
            client.send(name, MIXED[0], color="red")  # type: ignore[call-arg]
        with pytest.raises(errors.BadEventError):
            client.send_many(name, pa.table({"unknown": [1]}))
        assert values(client, f"{name}.invalid") == []

    def test_a_deleted_topic_of_invalid_events_is_made_anew(self, client: hw.Client, name: str):
        client.send(name, INVALID[0])
        client.delete_topic(f"{name}.invalid")
        client.send(name, INVALID[0])
        assert len(values(client, f"{name}.invalid")) == 1

    def test_the_topic_of_invalid_events_can_be_named_later_and_taken_back(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, TYPE)
        with pytest.raises(errors.BadEventError):
            client.send(name, INVALID[0])
        client.create_topic(name, TYPE, invalid=f"{name}.invalid")
        assert client.send(name, INVALID[0]).diverted
        client.create_topic(name, TYPE, invalid=None)  # type: ignore[typeddict-item]
        with pytest.raises(errors.BadEventError):
            client.send(name, INVALID[0])

    def test_a_topic_of_another_type_cannot_hold_invalid_events(self, client: hw.Client):
        name, other = fresh(), fresh()
        client.create_topic(other, TYPE)
        with pytest.raises(errors.TopicExistsError) as caught:
            client.create_topic(name, TYPE, invalid=other)
        assert (caught.value.data, name in client.topics()) == ({"topic": other}, False)

    def test_a_topic_cannot_hold_its_own_invalid_events(self, client: hw.Client):
        with pytest.raises(errors.BadSettingError):
            client.create_topic("orders", TYPE, invalid="orders")

    def test_invalid_rows_can_be_left_out(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, TYPE, key="order_id")
        with pytest.raises((errors.BadEventError, errors.BadKeyError)):
            client.send_many(name, MIXED)
        receipts = client.send_many(name, MIXED, skip_invalid=True)
        assert ([receipt.refused is None for receipt in receipts], receipts.refused) == ([True, *[False] * 3, True], 3)
        assert [receipt.offset for receipt in receipts] == [0, -1, -1, -1, 1]
        assert client.send_many(name, INVALID, skip_invalid=True).refused == 3
        assert client.send_many(name, [{"cents": 1}], skip_invalid=True).refused == 1
        assert sum(1 for _ in client.read(name)) == 2
