"""Results of an engine's batches into Kafka: each batch's rows and its mark in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from headwater.errors import FencedError, HeadwaterError, LedgerMismatchError
from headwater.events import partitions_of
from headwater.log.kafka.kafka_log import KafkaLog
from headwater.log.kafka.records import Encoded, encoded
from headwater.log.kafka.sending import Delivery, Transactions
from headwater.log.receipts import Receipts
from headwater.log.rows import Rows

__all__ = ["KafkaPublisher", "Published"]


@dataclass(frozen=True)
class Published:
    """The newest batch whose rows are in Kafka: its number, its owner's epoch, and the range it was made of."""

    batch: int
    epoch: int
    span: Any = None


class KafkaPublisher:
    """Publishes batches, each once for readers of committed records. One thread at a time.

    A process that opens a publisher under the same id shuts this one out at its next call, and finishes or undoes what
    this one left open. Batches come in rising order; one that is there already is skipped.

    Args:
        where: A Kafka's URL, or a log that is connected.
        transactional_id: One for each pipeline and sink, the same after a restart.
        patience: How long to go on while no broker answers.
    """

    def __init__(
        self,
        where: str | KafkaLog,
        transactional_id: str,
        *,
        patience: timedelta = timedelta(seconds=30),
    ) -> None:
        self._own = KafkaLog(where, patience=patience) if isinstance(where, str) else None
        self._log: KafkaLog = where if isinstance(where, KafkaLog) else cast(KafkaLog, self._own)
        self._transactions = Transactions(
            self._log.brokers, self._log.kafka_topics, f"headwater.publisher/{transactional_id}"
        )

    def last_published(self) -> Published | None:
        """The newest batch that is in Kafka; asking makes this process the owner."""
        state = self._transactions.state
        return Published(**state) if state else None

    def publish(
        self, topic: str, rows: pa.Table | pa.RecordBatch | Rows, *, batch: int, epoch: int, span: Any = None
    ) -> Receipts | None:
        """Write a batch's rows and its mark, together; None when the batch is there already.

        Args:
            topic: Where to; it is declared.
            rows: In the topic's type; `Rows` carry keys, tombstones and other parts of the envelope.
            batch: Its number; none below the last one is taken.
            epoch: The owner's; a lower one than the last published is refused.
            span: What the batch was made of, as JSON holds it: the same batch with another span is refused.

        Raises:
            FencedError: Another process, or a newer epoch, owns this publisher.
            LedgerMismatchError: The batch is there with another span.
            UnreachableError: The brokers did not answer; ask `last_published` what became of the batch.
        """
        span = msgspec.json.decode(msgspec.json.encode(span))  # as it will be read again
        last = self.last_published()
        if last is not None and epoch < last.epoch:
            what = f"epoch {epoch} of {self._transactions.id!r} is over: {last.epoch} owns it"
            raise FencedError(what, epoch=last.epoch)
        if last is not None and batch <= last.batch:
            if batch == last.batch and span != last.span:
                what = f"batch {batch} was published from {last.span!r}, and comes again from {span!r}"
                raise LedgerMismatchError(what, batch=batch)
            return None
        ready = self._encoded(topic, rows)
        partitions = self._places(ready, self._log.topic(topic).partitions)
        deliveries: list[Delivery] = []

        def write(producer: Any) -> None:
            deliveries.append(Delivery(self._log.brokers))
            deliveries[-1].produce(producer, topic, ready, partitions)

        self._transactions.commit(write, {"batch": batch, "epoch": epoch, "span": span})
        self._log.kafka_topics.wait_until_visible(topic, deliveries[-1].newest)
        offsets = deliveries[-1].outcomes()[0]
        if isinstance(offsets, HeadwaterError):
            raise offsets
        return Receipts(topic, partitions, offsets, np.zeros(len(offsets), bool))

    def _encoded(self, topic: str, rows: Any) -> Encoded:
        known = self._log.topic(topic)
        form = self._log.form_of(topic, known.version)
        if not isinstance(rows, Rows):
            rows = Rows(form.codec.encode_frame(rows), known.version, {})
        return encoded(known, form, rows, rows.envelope)

    @staticmethod
    def _places(ready: Encoded, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        column = pa.array(ready.keys, pa.binary())
        if number == 1 or column.null_count:
            return np.zeros(len(ready.values), np.int64)
        return partitions_of(column, number)

    def close(self) -> None:
        """Let go of the connections."""
        self._transactions.close()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> KafkaPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
