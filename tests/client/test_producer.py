"""Producers with an id in the corners: forgotten ids, dropped and refused events, numbers of failed events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from headwater.client.producer import Producer
from headwater.events import ManualClock, Receipt
from headwater.log import EventLog
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import EventEncoder
from tests.client.failing_producer import FailingAppends

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[EventLog]:
    with EventLog(tmp_path, clock=clock) as log:
        yield log


@pytest.fixture
def client(log: EventLog, clock: ManualClock) -> hw.Client:
    client = hw.Client(log, clock)
    client.create_topic("orders", "n int", partitions=2)
    return client


def forget(log: EventLog, clock: ManualClock) -> None:
    """Let eight days pass, and close the segments in another process."""
    clock.advance(timedelta(days=8))
    with EventLog(log.folder, clock=clock) as other:
        for partition in other.open_topic("orders").partitions:
            with partition.lock() as state:
                partition.roll(state)


def numbers(client: hw.Client) -> list[int]:
    return sorted(event.value["n"] for event in client.read("orders") if event.value)


def test_a_producer_whose_id_was_forgotten_goes_on(client: hw.Client, log: EventLog, clock: ManualClock):
    producer = client.producer("orders", id="till-7")
    for number in range(4):
        producer.send({"n": number})
    producer.flush()
    forget(log, clock)
    assert client.log.last_sequences("orders", "till-7") == [-1, -1]
    for number in range(4, 10):
        producer.send({"n": number})
    receipts = producer.flush()
    assert [receipt.duplicate for receipt in receipts] == [False] * 6
    assert [client_event(client, receipt) for receipt in receipts] == list(range(4, 10))
    assert numbers(client) == list(range(10))
    assert client.log.last_sequences("orders", "till-7") == [4, 4]


def client_event(client: hw.Client, receipt: hw.Receipt) -> int:
    read = client.read("orders", receipt.offset, receipt.offset + 1, partitions=[receipt.partition])
    (event,) = read
    assert event.value
    number: int = event.value["n"]
    return number


def test_an_old_number_of_a_forgotten_producer_is_refused(client: hw.Client, log: EventLog, clock: ManualClock):
    producer = client.producer("orders", id="till-7")
    producer.send({"n": 6}, sequence=6)
    producer.flush()
    forget(log, clock)
    producer.send({"n": 6}, sequence=6)
    with pytest.raises(errors.SequenceGapError) as caught:
        producer.flush()
    assert (caught.value.data["previous"], caught.value.data["last"]) == (6, -1)
    assert numbers(client) == [6]


def test_nothing_is_sent_again_behind_an_event_that_has_failed(client: hw.Client, log: EventLog, clock: ManualClock):
    failing = FailingAppends(client.log, failing=lambda number: number == 1, at_once=False)
    producer = Producer(failing, clock, EventEncoder(client.topic("orders")), "till-7")
    producer.send({"n": 0}, sequence=0)
    producer.flush()
    forget(log, clock)
    for number in (2, 4):
        producer.send({"n": number}, sequence=number)
    with pytest.raises(errors.DiskFullError):
        producer.flush()
    assert numbers(client) == [0]
    for number in (2, 4):
        producer.send({"n": number}, sequence=number)
    assert [receipt.duplicate for receipt in producer.flush()] == [False, False]
    assert numbers(client) == [0, 2, 4]


def test_the_number_of_a_failed_event_is_given_to_no_other(client: hw.Client, clock: ManualClock):
    client.create_topic("lines", "n int")
    log = FailingAppends(client.log, failing=lambda number: number == 0)
    producer = Producer(log, clock, EventEncoder(client.topic("lines")), "till-7")
    producer.send({"n": 0})
    with pytest.raises(errors.DiskFullError):
        producer.flush()
    producer.send({"n": 1})
    producer.flush()
    assert client.log.last_sequences("lines", "till-7") == [1]


def test_an_event_that_is_in_the_log_in_spite_of_an_error_is_a_repeat_when_sent_again(
    client: hw.Client, monkeypatch: pytest.MonkeyPatch
):
    client.create_topic("lines", "n int")
    producer, real = client.producer("lines", id="till-7"), client.log.await_append

    def fail_after_append(name: str, pending: PendingAppend) -> Receipt:
        real(name, pending)
        raise errors.DiskFailedError("the disk failed after the write")

    producer.send({"n": 0})
    with monkeypatch.context() as patched:
        patched.setattr(client.log, "await_append", fail_after_append)
        with pytest.raises(errors.DiskFailedError):
            producer.flush()
    producer.send({"n": 0}, sequence=0)
    assert [receipt.duplicate for receipt in producer.flush()] == [True]
    producer.send({"n": 1})
    assert [receipt.duplicate for receipt in producer.flush()] == [False]


def test_an_event_that_the_buffer_refuses_uses_up_no_number(client: hw.Client, monkeypatch: pytest.MonkeyPatch):
    client.create_topic("lines", "n int")
    producer = client.producer("lines", id="till-7")

    def refuse(*_: object) -> PendingAppend:
        raise errors.OverloadedError("the buffer is full")

    with monkeypatch.context() as patched:
        patched.setattr(client.log, "begin_append", refuse)
        with pytest.raises(errors.OverloadedError):
            producer.send({"n": 0})
    producer.send({"n": 0})
    assert [receipt.duplicate for receipt in producer.flush()] == [False]
    assert client.log.last_sequences("lines", "till-7") == [0]


def test_events_dropped_by_policy_do_not_stop_a_producer(client: hw.Client, log: EventLog):
    client.create_topic("lines", "n int", overload=hw.drop("newest", events=1))
    producer = client.producer("lines", id="till-7")
    with log.open_topic("lines").partitions[0].lock():
        for number in range(20):
            producer.send({"n": number})
    receipts = producer.flush()
    producer.send({"n": 20})
    receipts += producer.flush()
    kept = [number for number, receipt in enumerate(receipts) if not receipt.dropped]
    assert 0 < len(kept) < 21
    assert [event.value["n"] for event in client.read("lines") if event.value] == kept
