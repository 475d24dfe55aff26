"""Producers on Kafka.

`IdempotentProducer` is shared by all sends without a producer id. `NamedProducer` serves one producer id: its
events and its last sequence numbers commit in one transaction, so no number is used twice.
`TransactionalProducer` owns one transactional id: its writes and the record of its progress become visible
together or not at all. The record is in a compacted side topic, with the id as its key. The next process that
opens the id aborts the unfinished transaction, fences the previous owner, reads the record and claims it.
`RecordGroup` is a batch on its way through them; `ProducedBatch` collects the delivery reports of several.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.errors import FencedError, HeadwaterError, LedgerMismatchError, UnreachableError
from headwater.events import partition_of
from headwater.log.kafka.brokers import Brokers, close_quietly
from headwater.log.kafka.records import EncodedRecords
from headwater.log.kafka.topics import COMPACTED_CONFIG, KafkaTopics, PartitionTail
from headwater.log.storage.frame_builder import count_duplicates, find_gap
from headwater.log.write.topic_writer import Run
from headwater.log.write.write_batch import Origin, WriteBatch

__all__ = [
    "COMMITS_TOPIC",
    "IdempotentProducer",
    "NamedProducer",
    "NamedProducerPool",
    "ProducedBatch",
    "RecordGroup",
    "TransactionalProducer",
]

logger = logging.getLogger("headwater.kafka")
OffsetArray = npt.NDArray[np.int64]
COMMITS_TOPIC: Final = "__headwater.commits"
_COMMITS_PARTITIONS: Final = 8
_TRANSACTION_TIMEOUT_MS: Final = 30_000  # then the brokers abort the open transaction of a dead process
_OWNER: Final = "owner"  # in the record of an id, beside its state: who opened the id last
_CLAIM_TIMEOUT: Final = 1.0  # seconds from opening an id to its claim
_CLAIM_ATTEMPTS: Final = 3
_QUEUE_FULL_PAUSE: Final = 0.005  # seconds between attempts while the driver's queue is full
_MAX_OPEN: Final = 64  # named producers of a process; each has connections and threads of its own
_MAX_KNOWN_OFFSETS: Final = 20_000  # sequence numbers whose offsets are known, for receipts of repeats


class ProducedBatch:
    """The delivery reports of rows produced together; the driver reports a partition's rows in order.

    Args:
        brokers: The brokers.
        pause: Called with seconds while the driver's queue is full. Delivered rows leave the queue only when their
            reports are polled, so without a thread that polls this is the driver's `poll`.
    """

    def __init__(self, brokers: Brokers, pause: Callable[[float], Any] = time.sleep) -> None:
        self._brokers = brokers
        self._pause = pause
        self._sent: list[OffsetArray] = []
        # Two counters, so that each is written by one thread only: the caller's, and the one that polls the driver.
        self._accepted = 0
        self._reported = 0
        self._offsets: dict[int, list[int]] = {}
        self._errors: dict[int, Any] = {}
        self._caught_up = threading.Event()

    def produce(self, producer: Any, topic: str, rows: EncodedRecords, partitions: OffsetArray) -> None:
        """Pass rows to the driver, each with its partition."""
        self._sent.append(partitions)
        self._accepted += len(rows.values)
        retriable = (BufferError, self._brokers.kafka.KafkaException)
        report, give = self._on_delivery, producer.produce  # looked up once: this loop runs for every row
        headers = repeat(rows.headers[0]) if len(rows.headers) == 1 else rows.headers
        for value, key, partition, head in zip(rows.values, rows.keys, partitions.tolist(), headers, strict=False):
            try:
                give(topic, value, key, partition, report, headers=head)
            except retriable:
                self._retry_produce(producer, topic, value, key, partition, head)

    def _retry_produce(self, producer: Any, topic: str, value: Any, key: Any, partition: int, headers: Any) -> None:
        """Pass a row again: the driver's queue was full, or the driver did not know the partition yet."""
        kafka = self._brokers.kafka
        deadline = time.monotonic() + self._brokers.patience
        while True:
            try:
                producer.produce(topic, value, key, partition, self._on_delivery, headers=headers)
                return
            except BufferError:
                self._pause(_QUEUE_FULL_PAUSE)
            except kafka.KafkaException as error:
                fault = error.args[0]
                if fault.code() != kafka.KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                    self._errors.setdefault(partition, fault)
                    self._accepted -= 1
                    return
                self._brokers.retry(lambda seconds: producer.list_topics(topic, timeout=seconds))

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self._offsets.setdefault(message.partition(), []).append(message.offset())
        else:
            self._errors.setdefault(message.partition(), error)  # the first is the cause of those after it
        self._reported += 1
        if self._reported >= self._accepted:
            self._caught_up.set()

    def wait(self) -> None:
        """Wait until every row is reported; the driver fails rows after `delivery.timeout.ms`."""
        while self._reported < self._accepted:
            # An event that was set between two calls of `produce` is cleared here, and the counters are compared again.
            self._caught_up.wait(1)
            self._caught_up.clear()

    @property
    def last_offsets(self) -> dict[int, int]:
        """The highest offset in each partition."""
        return {partition: max(offsets) for partition, offsets in self._offsets.items()}

    def check(self) -> None:
        """Raise the error of a row that was refused, if there is one."""
        errors = [self._delivery_error(fault) for fault in self._errors.values()]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, UnreachableError))  # what a retry does not resolve

    def outcomes(self) -> list[OffsetArray | HeadwaterError]:
        """Returns for each call of `produce` the offsets of its rows, or the error of one of its partitions."""
        taken = dict.fromkeys(self._offsets, 0)
        found: list[OffsetArray | HeadwaterError] = []
        for partitions in self._sent:
            failed = [number for number in np.unique(partitions).tolist() if number in self._errors]
            if failed:
                found.append(self._delivery_error(self._errors[failed[0]]))
                continue
            offsets = np.empty(len(partitions), np.int64)
            for number in np.unique(partitions).tolist():
                mine = np.flatnonzero(partitions == number)
                offsets[mine] = self._offsets[number][taken[number] : taken[number] + len(mine)]
                taken[number] += len(mine)
            found.append(offsets)
        return found

    def _delivery_error(self, fault: Any) -> HeadwaterError:
        error = self._brokers.translate_error(fault)
        if isinstance(error, UnreachableError):
            error.what = f"{self._brokers.address} did not acknowledge the events"
            error.detail = f"they may or may not be in the log: {error.detail}"
            error.fix = 'send through client.producer(topic, id="…"): it retries without writing twice'
            error.data["sent"] = True
        return error


class IdempotentProducer:
    """The producer that all sends without a producer id share, with a thread that polls its delivery reports."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()  # guards _producer
        self._producer: Any = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def get(self) -> Any:
        """Returns the driver's producer; a new one after a fatal error of the old one."""
        with self._lock:
            if self._producer is None:
                self._producer = self._brokers.create_producer({})
                self._thread = threading.Thread(
                    target=self._poll, args=(self._producer,), name="headwater-kafka", daemon=True
                )
                self._thread.start()
            return self._producer

    def _poll(self, producer: Any) -> None:
        while not self._closed.is_set():
            try:
                producer.poll(0.5)
            except Exception as error:  # the driver raises fatal errors here; the next send creates a new producer
                logger.warning("the Kafka producer failed and is replaced: %s", error)
                with self._lock:
                    if self._producer is producer:
                        self._producer = None
            if self._producer is not producer and not len(producer):
                return

    def close(self) -> None:
        """Send the remaining events and end the thread."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None and self._thread is not None:
            producer.flush(self._brokers.patience)
            self._closed.set()
            self._thread.join()  # without the lock: the thread takes it when the driver fails


class TransactionalProducer:
    """Writes under one transactional id; one thread at a time.

    Args:
        topics: The topics; creates the side topic if it is missing.
        id: The transactional id. A second process that opens it fences the first.
    """

    def __init__(self, topics: KafkaTopics, id: str) -> None:
        self.id = id
        self.lock = threading.RLock()  # held during a transaction, and by callers that read `state` before one
        self._topics = topics
        self._brokers = topics.brokers
        self._kafka = topics.brokers.kafka
        self._partition = partition_of(id.encode(), _COMMITS_PARTITIONS)
        self._producer: Any = None
        self._state: dict[str, Any] = {}
        self._owner = uuid.uuid4().hex
        self._known_owner: str | None = None  # who has opened the id last, as far as known; None before it is opened
        self._fenced: FencedError | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The newest committed state of this id; empty if there is none."""
        with self.lock:
            if self._producer is None:
                self._open()
            return self._state

    def commit(
        self, write: Callable[[Any], None], state: dict[str, Any], check: Callable[[], None] = lambda: None
    ) -> None:
        """Call `write` with the driver's producer and store `state`, in one transaction.

        If the outcome of a commit is unknown, or the brokers have aborted the transaction because it took too long, the
        id is opened again, which completes or aborts the transaction; an aborted one is written again. `write` may
        therefore be called twice; readers see the rows of one call.

        Args:
            write: Passes rows to the producer.
            state: The new state of this id.
            check: Called after every row was delivered or refused; raises if one was refused, which aborts.

        Raises:
            FencedError: Another process has opened the id.
            UnreachableError: The brokers did not answer. The next read of `state` shows whether it was committed.
        """
        with self.lock:
            before = self.state
            if before == state:
                return
            try:
                self._attempt(write, state, check)
            except HeadwaterError as error:
                self.close()
                if not isinstance(error, UnreachableError | FencedError):
                    raise
                if isinstance(error, FencedError):  # a process that has just opened the id is about to claim it
                    time.sleep(_CLAIM_TIMEOUT)
                now = self.state
                if now not in (before, state):  # a process of an older version, which does not claim the id
                    raise self._fence("its record is newer than ours") from None
                if now == before:
                    self._attempt(write, state, check)

    def _fence(self, reason: str | None) -> FencedError:
        """Returns the error of an id that another process has taken over; it is raised from now on."""
        self._fenced = self._fencing_error(reason)
        return self._fenced

    def _fencing_error(self, reason: str | None) -> FencedError:
        return FencedError(
            f"another process writes as {self.id!r} now", detail=reason, fix="stop one of them", id=self.id
        )

    def _attempt(self, write: Callable[[Any], None], state: dict[str, Any], check: Callable[[], None]) -> None:
        producer = self._producer
        try:
            producer.begin_transaction()
            write(producer)
            value = msgspec.json.encode(state | {_OWNER: self._owner})
            producer.produce(COMMITS_TOPIC, key=self.id.encode(), value=value, partition=self._partition)
            producer.flush(self._brokers.patience)
            check()
            producer.commit_transaction(self._brokers.patience)
            self._state = state
        except (self._kafka.KafkaException, SystemError) as error:
            # The driver wraps an error that a callback raised into a SystemError.
            cause = error.__cause__ or error.__context__ if isinstance(error, SystemError) else error
            found = self._translate_error(cause or error)
            if isinstance(found, UnreachableError):
                check()  # a refused row explains why the transaction cannot be committed
            raise found from None
        except HeadwaterError:
            with contextlib.suppress(self._kafka.KafkaException):
                producer.abort_transaction(self._brokers.patience)
            raise

    def _translate_error(self, error: Any) -> HeadwaterError:
        found = self._brokers.translate_error(error)
        if isinstance(found, FencedError):
            return self._fencing_error(found.detail)
        if getattr(error.args[0], "txn_requires_abort", bool)():
            with contextlib.suppress(self._kafka.KafkaException):
                self._producer.abort_transaction(self._brokers.patience)
        # Whatever the driver reports, the outcome is unknown: `commit` opens the id again and reads it.
        return found if isinstance(found, UnreachableError) else UnreachableError(found.what, detail=found.detail)

    def _open(self) -> None:
        """Open the id, and claim it the first time.

        The claim tells a process that was replaced from one that was too slow for its transaction: the brokers report
        the same error to both. The first finds another owner in the record, and is fenced. The second finds itself, and
        goes on.
        """
        if self._fenced is not None:
            raise self._fenced
        self._topics.create(COMMITS_TOPIC, _COMMITS_PARTITIONS, COMPACTED_CONFIG)
        for _ in range(_CLAIM_ATTEMPTS):
            if self._known_owner is not None:
                self._check_owner(self._read_record())  # before the next step, which would fence a new owner
            self._producer, self._state = self._take_over()
            if self._known_owner == self._owner:
                return
            try:
                self._attempt(lambda _: None, self._state, lambda: None)
                self._known_owner = self._owner
                return
            except HeadwaterError as error:
                self.close()
                if not isinstance(error, FencedError):
                    raise
                # The process that was replaced has opened the id again before our claim; it finds the next one.
        raise self._fencing_error("several processes open it at the same time")

    def _take_over(self) -> tuple[Any, dict[str, Any]]:
        """Returns a producer of the driver with this id, and the state of the id."""
        settings = {"transactional.id": self.id, "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, "linger.ms": 1}
        producer = self._brokers.create_producer(settings | {"delivery.timeout.ms": _TRANSACTION_TIMEOUT_MS})
        try:
            # Fences the previous owner first: no record can be committed under this id after the read below.
            self._brokers.retry(producer.init_transactions)
            record = self._read_record()
            self._check_owner(record)
        except HeadwaterError:
            close_quietly(producer)
            raise
        return producer, {name: value for name, value in record.items() if name != _OWNER}

    def _check_owner(self, record: dict[str, Any]) -> None:
        owner = record.get(_OWNER, "")
        if owner != self._owner and self._known_owner not in (None, owner):
            raise self._fence("it opened the id after this process")
        self._known_owner = owner

    def _read_record(self) -> dict[str, Any]:
        with contextlib.closing(PartitionTail(self._topics, COMMITS_TOPIC, self._partition)) as tail:
            mine = [message.value() for message in tail.read() if message.key() == self.id.encode()]
        return msgspec.json.decode(mine[-1], type=dict[str, Any]) if mine and mine[-1] else {}

    def close(self) -> None:
        """Close the connection; an open transaction is aborted when the id is opened again."""
        with self.lock:
            close_quietly(self._producer)
            self._producer = None


@dataclass(frozen=True)
class RecordGroup:
    """A batch as Kafka records, with the partition of each row and the appends it belongs to."""

    batch: WriteBatch
    records: EncodedRecords
    partitions: OffsetArray
    run: Run

    def complete(self, offsets: OffsetArray | HeadwaterError, repeats: int = 0) -> None:
        """Set the outcome of each append: partitions, offsets, and how many of its first rows are repeats."""
        start = 0
        for append, _ in self.run:
            rows = slice(start, start + append.row_count)
            if isinstance(offsets, HeadwaterError):
                append.error = offsets
            else:
                append.outcome = (self.partitions[rows], offsets[rows], max(0, min(append.row_count, repeats - start)))
            start += append.row_count


class NamedProducer:
    """One producer id on one topic; a second process that uses the id fences this one."""

    def __init__(self, topics: KafkaTopics, topic: str, id: str) -> None:
        self._topic = topic
        self._topics = topics
        self._producer = TransactionalProducer(topics, f"headwater/{topic}/{id}")
        self._known_offsets: OrderedDict[tuple[int, int], int] = OrderedDict()

    def last_sequences(self, partitions: int) -> list[int]:
        """Returns the highest number in each partition; -1 where there is none."""
        known = self._producer.state.get("sequences", {})
        return [known.get(str(partition), -1) for partition in range(partitions)]

    def append(self, groups: list[RecordGroup]) -> list[tuple[OffsetArray | HeadwaterError, int]]:
        """Append groups in one transaction, with the last sequence numbers and the origin of a pipeline's rows.

        All rows of a group have the same partition. Returns for each group the offsets of its rows, and how many
        rows at its start are repeats. A group whose predecessor is missing gets an error; the others are not affected.

        Raises:
            FencedError: Another process, or a newer runner of the pipeline, writes under this id.
            LedgerMismatchError: A batch is published again, from other input offsets.
            TooLargeError: A row was refused. Nothing was appended.
        """
        with self._producer.lock:
            state, judged = self._judge(groups)
            fresh = [group.records.skip(again) for group, (again, _) in zip(groups, judged, strict=True)]
            deliveries: list[ProducedBatch] = []

            def write(producer: Any) -> None:
                deliveries.append(ProducedBatch(self._topics.brokers, producer.poll))
                for group, rows, (again, _) in zip(groups, fresh, judged, strict=True):
                    deliveries[-1].produce(producer, self._topic, rows, group.partitions[again:])

            def check() -> None:
                deliveries[-1].check()

            if any(rows.values for rows in fresh):
                self._producer.commit(write, state, check)
                self._topics.wait_until_visible(self._topic, deliveries[-1].last_offsets)
            found = deliveries[-1].outcomes() if deliveries else [np.empty(0, np.int64)] * len(groups)
            return [
                (gap or self._resolve_offsets(group, again, new), again)
                for group, (again, gap), new in zip(groups, judged, found, strict=True)
            ]

    def _judge(self, groups: list[RecordGroup]) -> tuple[dict[str, Any], list[tuple[int, HeadwaterError | None]]]:
        """Returns the state after these groups, and for each group how many rows are repeats, and its gap, if any."""
        state = dict(self._producer.state)
        sequences = dict(state.get("sequences", {}))
        judged: list[tuple[int, HeadwaterError | None]] = []
        for group in groups:
            batch, partition = group.batch, str(group.partitions[0])
            if batch.origin is not None:
                self._check_origin(batch.origin, state.get("origin"))
            last = sequences.get(partition, -1)
            gap = find_gap(batch, last)
            if gap is not None:
                judged.append((batch.row_count, gap))  # nothing of it is written
                continue
            if batch.origin is not None:
                state["origin"] = asdict(batch.origin)
            judged.append((count_duplicates(batch, last), None))
            sequences[partition] = max(last, batch.last_sequence)
        return state | {"sequences": sequences}, judged

    def _check_origin(self, origin: Origin, last: dict[str, Any] | None) -> None:
        if last is None or origin.batch < last["batch"]:
            return
        if origin.batch == last["batch"] and origin.span == last["span"]:
            return  # the same batch again: its sequence numbers mark the rows as repeats
        if origin.epoch < last["epoch"]:
            what = f"epoch {origin.epoch} of {self._producer.id!r} is fenced: epoch {last['epoch']} has published"
            raise FencedError(what, epoch=last["epoch"])
        if origin.batch == last["batch"]:
            what = f"batch {origin.batch} was published from offsets {last['span']}, not {origin.span}"
            raise LedgerMismatchError(what, batch=origin.batch)

    def _resolve_offsets(self, group: RecordGroup, repeats: int, new: OffsetArray | HeadwaterError) -> OffsetArray:
        if isinstance(new, HeadwaterError):
            raise new
        rows, partition = group.batch, int(group.partitions[0])
        if not rows.per_row:
            if len(new):
                if new[-1] - new[0] == len(new) - 1:  # other producers may write between the rows of a large batch
                    self._remember_offset(partition, rows.sequence, int(new[0]))
                return np.asarray(new)
            first = self._known_offsets.get((partition, rows.sequence), -1)
            return np.full(repeats, -1) if first < 0 else first + np.arange(repeats)
        for index, offset in enumerate(new.tolist()):
            self._remember_offset(partition, rows.sequence + repeats + index, offset)
        old = [self._known_offsets.get((partition, rows.sequence + index), -1) for index in range(repeats)]
        return np.concatenate((np.array(old, np.int64), new))

    def _remember_offset(self, partition: int, sequence: int, offset: int) -> None:
        self._known_offsets[partition, sequence] = offset
        if len(self._known_offsets) > _MAX_KNOWN_OFFSETS:
            self._known_offsets.popitem(last=False)

    def close(self) -> None:
        """Close the connection."""
        self._producer.close()


class NamedProducerPool:
    """The named producers of this process; the least recently used one is closed when there are too many.

    Args:
        topics: The topics.
    """

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics
        self._lock = threading.Lock()  # guards _open, not the producers in it
        self._open: OrderedDict[tuple[str, str], NamedProducer] = OrderedDict()

    def get(self, topic: str, id: str) -> NamedProducer:
        """Returns the producer of this id on this topic."""
        with self._lock:
            found = self._open.pop((topic, id), None) or NamedProducer(self._topics, topic, id)
            self._open[topic, id] = found  # last: the most recently used
            oldest = self._open.popitem(last=False)[1] if len(self._open) > _MAX_OPEN else None
        if oldest is not None:
            oldest.close()
        return found

    def close(self) -> None:
        """Close all producers."""
        with self._lock:
            producers, self._open = list(self._open.values()), OrderedDict()
        for producer in producers:
            producer.close()
