"""What every client promises about topics and sending."""

from __future__ import annotations

import queue
import random
import threading
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater import errors
from headwater.client.producer import Producer
from headwater.events import SystemClock
from headwater.log import EventLog, PendingEvent
from headwater.log.write.write_batch import EventEncoder
from tests.client.failing_producer import FailingAppends, retry_until_acknowledged
from tests.client.shop import FORMS, NOON, Order, OrderModel, OrderStruct, fresh, order, orders

LINE = b'{"order_id":"a","customer_id":1,"amount":"0.10","placed_at":"2026-01-01T12:00:00Z"}'
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class SendingContract:
    """Inherited by `ClientContract`."""

    def test_a_topic_is_created_as_declared(self, client: hw.Client):
        name = fresh()
        made = client.create_topic(
            name, Order, key="customer_id", time="placed_at", partitions=3, lateness="10 minutes", retention="7 days"
        )
        assert made == client.topic(name)
        assert (made.key, made.time, made.partitions, made.version) == (("customer_id",), "placed_at", 3, 1)
        assert made.lateness == timedelta(minutes=10)
        assert made.retention.time == timedelta(days=7)
        assert made.schema.field("amount").type == pa.decimal128(38, 18)
        assert name in client.topics()

    def test_creating_a_topic_again_changes_only_what_is_said(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string", lateness="1 minute", overload=hw.drop("oldest", events=50))
        again = client.create_topic(name, "order_id string", idle="5 s")
        assert (again.lateness, again.idle) == (timedelta(minutes=1), timedelta(seconds=5))
        assert str(again.overload) == "drop oldest after 50 events"

    def test_partitions_cannot_change_in_place(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string", partitions=2)
        assert client.create_topic(name, "order_id string").partitions == 2  # nothing was asked of them
        with pytest.raises(errors.TopicExistsError) as caught:
            client.create_topic(name, "order_id string", partitions=3)
        assert caught.value.data == {"topic": name}
        assert caught.value.location is not None
        assert caught.value.location.file.endswith("sending.py")

    def test_a_topic_is_completed_up_to_the_present(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order, time="placed_at", partitions=2)
        client.send(name, order(1))
        assert client.complete(name) > NOON + timedelta(days=1)
        assert [event.late for event in client.read(name)] == [False]

    def test_a_topic_that_does_not_exist_cannot_be_completed(self, client: hw.Client):
        with pytest.raises(errors.UnknownTopicError):
            client.complete(fresh())

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a b", "ä", "x" * 250, "a\x00", "a%2Fb"])
    def test_a_name_that_cannot_be_is_refused(self, client: hw.Client, name: str):
        with pytest.raises(errors.BadNameError):
            client.create_topic(name, "order_id string")
        with pytest.raises(errors.BadNameError):
            client.topic(name)

    def test_names_that_differ_only_by_case_are_refused(self, client: hw.Client):
        name = fresh("orders")
        client.create_topic(name, "order_id string")
        with pytest.raises(errors.BadNameError):
            client.create_topic(name.upper(), "order_id string")

    def test_an_unknown_topic_lists_near_names(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string")
        with pytest.raises(errors.UnknownTopicError) as caught:
            client.send(f"{name}s", {"order_id": "a"})
        assert caught.value.data == {"topic": f"{name}s"}
        assert caught.value.fix == name

    def test_a_missing_time_column_is_named(self, client: hw.Client):
        with pytest.raises(errors.TimeColumnMissingError) as caught:
            client.create_topic(fresh(), Order, time="placed_on")
        assert caught.value.data["column"] == "placed_on"
        assert caught.value.fix == 'time="placed_at"'

    @pytest.mark.parametrize("kind", [Order, OrderModel, OrderStruct])
    def test_an_instance_of_the_type_is_sent_and_read_back(self, client: hw.Client, kind: Any):
        name = fresh()
        client.create_topic(name, kind)
        sent = kind(**order(1))
        receipt = client.send(name, sent)
        assert (receipt.topic, receipt.partition, receipt.offset, receipt.duplicate) == (name, 0, 0, False)
        assert [event.value for event in client.read(name, as_=kind)] == [sent]

    def test_what_is_said_about_an_event_comes_back(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string")
        about = {"id": "x-1", "headers": {"tenant": "acme", "é": "ü"}, "traceparent": TRACE, "source": "/tills/7"}
        client.send(name, {"order_id": "a"}, key="ada", occurred_at=NOON, sent_at="2026-01-01T12:00:01Z", **about)
        event = next(client.read(name))
        assert {said: getattr(event, said) for said in about} == about
        assert (event.key, event.occurred_at, event.sent_at) == ("ada", NOON, NOON + timedelta(seconds=1))
        assert event.received_at is not None

    def test_one_key_has_one_partition(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order, key="customer_id", partitions=4)
        client.send_many(name, orders(60))
        single = {client.send(name, order(1, customer)).partition for customer in [5, 5, 5]}
        found = {event.key: event.partition for event in client.read(name)}
        assert single == {found[5]}
        assert len(set(found.values())) > 1

    def test_a_key_that_is_not_the_events_key_is_refused(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order, key="customer_id")
        with pytest.raises(errors.BadKeyError) as caught:
            client.send(name, order(1, customer=7), key=8)
        assert caught.value.data["topic"] == name

    def test_a_missing_key_is_refused(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "customer_id int, note string", key="customer_id", partitions=2)
        with pytest.raises(errors.BadKeyError) as caught:
            client.send_many(name, [{"customer_id": 1}, {"note": "whose?"}])
        assert caught.value.data["row"] == 1
        assert list(client.read(name)) == []

    @pytest.mark.parametrize("form", FORMS)
    def test_many_events_are_sent_in_any_form(self, client: hw.Client, form: str):
        name = fresh()
        client.create_topic(name, Order)
        receipts = client.send_many(name, FORMS[form]())
        assert [receipt.offset for receipt in receipts] == [0, 1, 2]
        assert [event.value for event in client.read(name)] == orders(3)

    def test_one_bad_row_keeps_all_out(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order, partitions=3, key="customer_id")
        rows = orders(9)
        rows[4] = rows[4] | {"customer_id": "seven"}
        with pytest.raises(errors.BadEventError) as caught:
            client.send_many(name, rows)
        assert (caught.value.data["row"], caught.value.data["field"]) == (4, "customer_id")
        assert list(client.read(name)) == []

    def test_an_event_that_is_too_large_is_refused_with_the_limit(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "text string")
        with pytest.raises(errors.TooLargeError) as caught:
            client.send(name, {"text": "x" * (20 << 20)})
        assert caught.value.data["limit"] > 0
        assert list(client.read(name)) == []

    def test_lines_of_json_are_sent(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order)
        client.send_json(name, [LINE])
        with pytest.raises(errors.BadJsonError) as caught:
            client.send_json(name, [LINE, b"{"])
        assert caught.value.data["row"] == 1
        assert [event.value["amount"] for event in client.read(name) if event.value] == [Decimal("0.1")]

    # -- producers -----------------------------------------------------------------------------------------------

    def test_a_producer_gives_receipts_in_order(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order, key="customer_id", partitions=3)
        with client.producer(name) as producer:
            for row in orders(500):
                producer.send(row)
            receipts = producer.flush()
        placed = {(receipt.partition, receipt.offset): row for receipt, row in zip(receipts, orders(500), strict=True)}
        assert {(event.partition, event.offset): event.value for event in client.read(name)} == placed

    def test_a_repeated_sequence_is_told_as_duplicate(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string")
        with client.producer(name, id="till-7") as producer:
            for number in (0, 1, 2):
                producer.send({"order_id": f"o-{number}"}, sequence=number)
            first = producer.flush()
            for number in (1, 2, 3):
                producer.send({"order_id": f"o-{number}"}, sequence=number)
            second = producer.flush()
        assert [receipt.duplicate for receipt in first] == [False] * 3
        assert [(receipt.duplicate, receipt.offset) for receipt in second] == [(True, 1), (True, 2), (False, 3)]
        assert [event.value["order_id"] for event in client.read(name) if event.value] == ["o-0", "o-1", "o-2", "o-3"]
        assert client.log.counts(name)["duplicate"] == 2

    def test_a_producer_that_starts_again_goes_on_counting(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string")
        for number in range(3):
            with client.producer(name, id="till 7/ü") as producer:
                producer.send({"order_id": f"o-{number}"})
                assert [receipt.duplicate for receipt in producer.flush()] == [False]
        assert client.log.last_sequences(name, "till 7/ü") == [2]

    def test_an_event_whose_predecessor_is_missing_is_refused(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "n int", partitions=2)
        assert not _append(client, name, 10, previous=-1).duplicate
        with pytest.raises(errors.SequenceGapError) as caught:
            _append(client, name, 30, previous=20)
        assert {key: caught.value.data[key] for key in ("sequence", "previous", "last")} == {
            "sequence": 30,
            "previous": 20,
            "last": 10,
        }
        receipts = [_append(client, name, *numbers) for numbers in ((20, 10), (30, 20), (20, 10))]
        assert [receipt.duplicate for receipt in receipts] == [False, False, True]
        assert [event.value for event in client.read(name)] == [{"n": 10}, {"n": 20}, {"n": 30}]

    def test_a_gap_of_one_producer_does_not_harm_another(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "n int")
        rows = [_row(client, name, 5, 4, "a"), _row(client, name, 0, -1, "b"), _row(client, name, 1, 0, "b")]
        pending = [client.log.begin_append(name, row) for row in rows]
        with pytest.raises(errors.SequenceGapError):
            client.log.await_append(name, pending[0])
        assert [client.log.await_append(name, each).duplicate for each in pending[1:]] == [False, False]
        assert [event.value for event in client.read(name)] == [{"n": 0}, {"n": 1}]
        counts = client.log.counts(name)
        assert (counts["offered"], counts["appended"], counts["refused"]) == (3, 2, 1)

    def test_a_producer_refuses_events_after_a_failure_until_flush_has_raised(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "n int")
        log = FailingAppends(client.log, failing=lambda number: number == 1)
        producer = Producer(log, SystemClock(), EventEncoder(client.topic(name)), "till-7")
        producer.send({"n": 0}, sequence=0)
        producer.flush()
        producer.send({"n": 1}, sequence=1)
        with pytest.raises(errors.RefusedError) as caught:
            producer.send({"n": 2}, sequence=2)
        assert isinstance(caught.value.__cause__, errors.DiskFullError)
        with pytest.raises(errors.DiskFullError):
            producer.flush()
        for number in (0, 1, 2):
            producer.send({"n": number}, sequence=number)
        assert [receipt.duplicate for receipt in producer.flush()] == [True, False, False]
        assert [event.value for event in client.read(name)] == [{"n": 0}, {"n": 1}, {"n": 2}]

    @pytest.mark.parametrize("seed", range(3))
    def test_what_a_failing_producer_sends_again_is_there_once(self, client: hw.Client, seed: int):
        name, chance = fresh(), random.Random(seed)
        client.create_topic(name, "n int", partitions=2)
        log = FailingAppends(client.log, failing=lambda _: chance.random() < 0.15)
        told = retry_until_acknowledged(log, client.topic(name), chance, 120)
        found = {event.value["n"]: (event.partition, event.offset) for event in client.read(name) if event.value}
        assert sorted(event.value["n"] for event in client.read(name) if event.value) == list(range(120))
        for number, receipt in told:
            assert receipt.offset in (-1, found[number][1]), (number, receipt)
            assert receipt.partition == found[number][0]

    def test_a_bad_event_does_not_harm_its_neighbours(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "customer_id int, note string", key="customer_id")
        producer = client.producer(name)
        producer.send({"customer_id": 1, "note": "before"})
        with pytest.raises(errors.BadKeyError):
            _send_and_flush(producer, {"note": "no key"})
        producer.send({"customer_id": 2, "note": "after"})
        producer.flush()
        assert [event.value["note"] for event in client.read(name) if event.value] == ["before", "after"]

    # -- overload ------------------------------------------------------------------------------------------------

    def test_a_full_buffer_pushes_back(self, client: hw.Client, folder: Path):
        name = fresh()
        client.create_topic(name, "order_id string", overload=hw.backpressure("100 ms", events=1))
        client.send(name, {"order_id": "warm"})
        outcomes: queue.Queue[hw.HeadwaterError | hw.Receipt] = queue.Queue()

        def send(number: int) -> None:
            try:
                outcomes.put(client.send(name, {"order_id": f"o-{number}"}))
            except hw.HeadwaterError as error:
                outcomes.put(error)

        senders = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        with EventLog(folder) as log, log.open_topic(name).partitions[0].lock():
            for sender in senders:
                sender.start()
            refused = outcomes.get(timeout=60)  # one leads, one waits, nothing else can happen
        for sender in senders:
            sender.join()
        assert isinstance(refused, errors.OverloadedError)
        assert refused.retryable
        assert refused.data["limit"] == 1
        counts = client.log.counts(name)
        assert counts["refused"] >= 1
        assert counts["offered"] == counts["appended"] + counts["refused"]

    def test_appends_are_counted_by_outcome(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order)
        client.send_many(name, orders(5))
        counts = client.log.counts(name)
        assert (counts["offered"], counts["appended"], counts["refused"]) == (5, 5, 0)


def _row(client: hw.Client, name: str, number: int, previous: int, producer: str = "till-7") -> PendingEvent:
    row = EventEncoder(client.topic(name)).encode_one({"n": number}, 0)
    row.producer, row.partition, row.sequence, row.previous = producer, 0, number, previous
    return row


def _append(client: hw.Client, name: str, number: int, previous: int) -> hw.Receipt:
    return client.log.append_one(name, _row(client, name, number, previous))


def _send_and_flush(producer: hw.Producer, value: dict[str, Any]) -> None:
    """A client may notice a bad event at once, or when it is sent."""
    producer.send(value)
    producer.flush()
