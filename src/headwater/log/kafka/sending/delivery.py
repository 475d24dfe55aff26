"""Rows on their way to the brokers: given to the driver, and their offsets when all replicas have them."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headwater.errors import HeadwaterError, UnreachableError
from headwater.log.kafka.brokers import Brokers, driver
from headwater.log.kafka.records import Encoded

__all__ = ["Delivery", "IdempotentProducer"]

logger = logging.getLogger("headwater.kafka")
Offsets = npt.NDArray[np.int64]
_FULL: Final = 0.005  # seconds to wait while the driver's own queue is full


class Delivery:
    """What became of rows that were produced together; the driver reports them in order within a partition."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._kafka = driver()
        self._sent: list[Offsets] = []
        self._left = 0
        self._offsets: dict[int, list[int]] = {}
        self._faults: dict[int, Any] = {}
        self._finished = threading.Event()

    def produce(self, producer: Any, topic: str, rows: Encoded, partitions: Offsets) -> None:
        """Give rows to the driver; the partition of each is known."""
        self._sent.append(partitions)
        self._left += len(rows.values)
        keys, headers, report, give = rows.keys, rows.headers, self._report, producer.produce
        one = headers[0] if len(headers) == 1 else None
        for row, (value, partition) in enumerate(zip(rows.values, partitions.tolist(), strict=True)):
            about = headers[row] if one is None else one
            try:
                give(topic, value, keys[row], partition, report, headers=about)
            except (BufferError, self._kafka.KafkaException):
                self._insist(producer, topic, value, keys[row], partition, about)

    def _insist(self, producer: Any, topic: str, value: Any, key: Any, partition: int, headers: Any) -> None:
        """Offer a row again: the driver's queue was full, or it did not know the partition yet."""
        deadline = time.monotonic() + self._brokers.patience
        while True:
            try:
                producer.produce(topic, value, key, partition, self._report, headers=headers)
                return
            except BufferError:
                time.sleep(_FULL)
            except self._kafka.KafkaException as error:
                fault = error.args[0]
                if fault.code() != self._kafka.KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                    self._fail(partition, fault)
                    return
                self._brokers.ask(lambda seconds: producer.list_topics(topic, timeout=seconds))

    def _report(self, error: Any, message: Any) -> None:
        if error is None:
            self._offsets.setdefault(message.partition(), []).append(message.offset())
            self._one_less()
        else:
            self._fail(message.partition(), error)

    def _fail(self, partition: int, fault: Any) -> None:
        self._faults[partition] = fault
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._finished.set()

    def wait(self) -> None:
        """Come back when every row was reported; the driver gives up by itself when its time is over."""
        while self._left and not self._finished.wait(1):
            pass

    @property
    def newest(self) -> dict[int, int]:
        """The highest offset in each partition."""
        return {partition: max(offsets) for partition, offsets in self._offsets.items()}

    def outcomes(self) -> list[Offsets | HeadwaterError]:
        """For each `produce` its offsets, or why they are not known."""
        taken = dict.fromkeys(self._offsets, 0)
        found: list[Offsets | HeadwaterError] = []
        for partitions in self._sent:
            failed = [number for number in np.unique(partitions).tolist() if number in self._faults]
            if failed:
                found.append(self._lost(self._faults[failed[0]]))
                continue
            offsets = np.empty(len(partitions), np.int64)
            for number in np.unique(partitions).tolist():
                mine = np.flatnonzero(partitions == number)
                offsets[mine] = self._offsets[number][taken[number] : taken[number] + len(mine)]
                taken[number] += len(mine)
            found.append(offsets)
        return found

    def _lost(self, fault: Any) -> HeadwaterError:
        error = self._brokers.error(fault)
        if isinstance(error, UnreachableError):
            error.what = f"{self._brokers.address} did not acknowledge the events"
            error.detail = f"they may or may not be in the log: {error.detail}"
            error.fix = 'send through client.producer(topic, id="…"): it repeats a send without writing twice'
            error.data["sent"] = True
        return error


class IdempotentProducer:
    """The producer that all unnamed sends of a process share, and the thread that hears what became of them."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()
        self._producer: Any = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def get(self) -> Any:
        """The driver's producer; a new one after an error that the old one cannot get over."""
        with self._lock:
            if self._producer is None:
                self._producer = self._brokers.producer({})
                self._thread = threading.Thread(
                    target=self._listen, args=(self._producer,), name="headwater-kafka", daemon=True
                )
                self._thread.start()
            return self._producer

    def _listen(self, producer: Any) -> None:
        while not self._closed.is_set():
            try:
                producer.poll(0.5)
            except (
                Exception
            ) as error:  # the driver raises here what ends this producer: the next send makes a new one
                logger.warning("a new Kafka producer is needed: %s", error)
                with self._lock:
                    if self._producer is producer:
                        self._producer = None
            if self._producer is not producer and not len(producer):
                return

    def close(self) -> None:
        """Send what waits and end the thread."""
        with self._lock:
            if self._producer is not None:
                self._producer.flush(self._brokers.patience)
                self._closed.set()
                if self._thread is not None:
                    self._thread.join()
                self._producer = None
