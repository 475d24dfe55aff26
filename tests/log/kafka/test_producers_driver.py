"""Producers with a driver that the test controls: no broker is needed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import SequenceGapError
from headwater.log.kafka.producers import IdempotentProducer, NamedProducer, ProducedBatch, RecordGroup
from headwater.log.kafka.records import EncodedRecords
from headwater.log.write.write_batch import WriteBatch

pytest.importorskip("confluent_kafka")
DEADLINE = 10  # seconds


class DriverError(Exception):
    """Stands for the driver's exception."""


class Driver:
    """Reports each row after a delay, from another thread; at once without one."""

    def __init__(self, delay: float = 0, step: int = 1) -> None:
        self.delay = delay
        self.step = step
        self.next_offset = 0

    def produce(self, topic: str, value: Any, key: Any, partition: int, report: Any, headers: Any) -> None:
        offset = self.next_offset
        self.next_offset += self.step
        message = SimpleNamespace(partition=lambda: partition, offset=lambda: offset)
        if self.delay:
            threading.Timer(self.delay, report, (None, message)).start()
        else:
            report(None, message)

    def poll(self, seconds: float) -> None:
        """Do nothing: rows are reported without a poll."""


class FullDriver(Driver):
    """Its queue is full until it is polled."""

    attempts = 0
    polled = False

    def produce(self, *row: Any, **headers: Any) -> None:
        self.attempts += 1
        assert self.attempts < 100, "nobody polls"
        if not self.polled:
            raise BufferError
        super().produce(*row, **headers)

    def poll(self, seconds: float) -> None:
        self.polled = True


class FailingDriver:
    """Raises from `poll` as soon as it is flushed."""

    def __init__(self) -> None:
        self.flushed = threading.Event()

    def poll(self, seconds: float) -> None:
        self.flushed.wait(DEADLINE)
        raise DriverError

    def flush(self, seconds: float) -> None:
        self.flushed.set()

    def __len__(self) -> int:
        return 0


class Transactions:
    """Stands for a `TransactionalProducer` whose commits always succeed."""

    def __init__(self, driver: Driver) -> None:
        self.lock = threading.RLock()
        self.state: dict[str, Any] = {}
        self._driver = driver

    def commit(self, write: Any, state: dict[str, Any], check: Any) -> None:
        write(self._driver)
        check()
        self.state = state


@pytest.fixture
def brokers() -> Any:
    return SimpleNamespace(kafka=SimpleNamespace(KafkaException=DriverError), patience=1)


@pytest.fixture
def topics(brokers: Any) -> Any:
    return SimpleNamespace(brokers=brokers, wait_until_visible=lambda *_: None)


def append_twice(topics: Any, driver: Driver) -> list[tuple[list[int], int]]:
    """Offsets and repeats of a batch of two rows, and of the same batch again."""
    named = NamedProducer(topics, "orders", "till")
    named._producer = Transactions(driver)  # type: ignore[assignment]
    rows = WriteBatch(pa.record_batch({"n": [1, 2]}), 1, {}, 0, "till", 7, per_row=False)
    group = RecordGroup(rows, EncodedRecords([b"{}", b"{}"], [None, None], [[]]), np.array([0, 0]), [])
    return [(offsets.tolist(), repeats) for _ in range(2) for offsets, repeats in named.append([group])]


def test_wait_covers_rows_produced_after_earlier_ones_were_reported(brokers: Any):
    batch = ProducedBatch(brokers)
    driver = Driver()
    row = EncodedRecords([b"{}"], [None], [[]])
    batch.produce(driver, "orders", row, np.array([0]))
    driver.delay = 0.2
    batch.produce(driver, "orders", row, np.array([0]))
    batch.wait()
    assert [offsets.tolist() for offsets in batch.outcomes()] == [[0], [1]]


def test_a_repeated_batch_has_the_offsets_of_the_first(topics: Any):
    assert append_twice(topics, Driver()) == [([0, 1], 0), ([0, 1], 2)]


def test_offsets_of_a_repeated_batch_with_gaps_are_unknown(topics: Any):
    assert append_twice(topics, Driver(step=5)) == [([0, 5], 0), ([-1, -1], 2)]


def test_a_group_whose_predecessor_is_missing_is_not_written(topics: Any):
    named = NamedProducer(topics, "orders", "till")
    named._producer = Transactions(Driver())  # type: ignore[assignment]

    def group(partition: int, sequence: int, previous: int | None) -> RecordGroup:
        rows = WriteBatch(pa.record_batch({"n": [1, 2]}), 1, {}, partition, "till", sequence, previous)
        return RecordGroup(rows, EncodedRecords([b"{}", b"{}"], [None, None], [[]]), np.full(2, partition), [])

    named.append([group(0, 0, -1)])
    found = named.append([group(0, 9, 7), group(0, 11, 10), group(1, 5, -1)])
    gaps = [outcome for outcome, _ in found[:2]]
    assert [(gap.data["previous"], gap.data["last"]) for gap in gaps if isinstance(gap, SequenceGapError)] == [
        (7, 1),
        (10, 1),
    ]
    assert [(offsets.tolist(), repeats) for offsets, repeats in found[2:]] == [([2, 3], 0)]
    assert named._producer.state["sequences"] == {"0": 1, "1": 6}
    ((offsets, repeats),) = named.append([group(0, 9, 1)])
    assert (offsets.tolist(), repeats) == ([4, 5], 0)


def test_a_transaction_polls_while_the_queue_of_the_driver_is_full(topics: Any):
    assert append_twice(topics, FullDriver())[0] == ([0, 1], 0)


def test_closing_ends_although_the_driver_fails_meanwhile(brokers: Any):
    brokers.create_producer = lambda settings: FailingDriver()
    producer = IdempotentProducer(brokers)
    producer.get()
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(DEADLINE)
    assert not closing.is_alive()
