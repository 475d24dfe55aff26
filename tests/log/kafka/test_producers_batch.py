"""`ProducedBatch` with a driver that the test controls: no broker is needed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headwater.log.kafka.producers import ProducedBatch
from headwater.log.kafka.records import EncodedRecords

pytest.importorskip("confluent_kafka")


class DriverError(Exception):
    """Stands for the driver's exception."""


class Driver:
    """Reports each row after a delay, from another thread; at once without one."""

    def __init__(self, delay: float = 0) -> None:
        self.delay = delay
        self.next_offset = 0

    def produce(self, topic: str, value: Any, key: Any, partition: int, report: Any, headers: Any) -> None:
        offset = self.next_offset
        self.next_offset += 1
        message = SimpleNamespace(partition=lambda: partition, offset=lambda: offset)
        if self.delay:
            threading.Timer(self.delay, report, (None, message)).start()
        else:
            report(None, message)


def test_wait_covers_rows_produced_after_earlier_ones_were_reported():
    brokers: Any = SimpleNamespace(kafka=SimpleNamespace(KafkaException=DriverError))
    batch = ProducedBatch(brokers)
    driver = Driver()
    row = EncodedRecords([b"{}"], [None], [[]])
    batch.produce(driver, "orders", row, np.array([0]))
    driver.delay = 0.2
    batch.produce(driver, "orders", row, np.array([0]))
    batch.wait()
    assert [offsets.tolist() for offsets in batch.outcomes()] == [[0], [1]]
