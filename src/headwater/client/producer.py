"""A producer: sends in the background; with an id, repeated sends are not appended twice."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

from headwater.errors import HeadwaterError
from headwater.events import Clock, Receipt, partition_of
from headwater.log import PendingEvent
from headwater.log.protocol import Log
from headwater.log.write_batch import EventEncoder

__all__ = ["Producer"]

_MAX_IN_FLIGHT = 10_000


class Producer:
    """Sends events in the background; `flush` waits until all of them are safe.

    With an `id`, each event gets a sequence number per partition, and the log appends each number once. A
    retry after a lost answer is recognised as a repeat. A producer that restarts under its id continues
    after the log's last sequence number.
    """

    def __init__(self, log: Log, clock: Clock, encoder: EventEncoder, id: str | None) -> None:
        self.id = id
        self._log = log
        self._clock = clock
        self._encoder = encoder
        self._name = encoder.topic.name
        self._in_flight: deque[Any] = deque()
        self._receipts: list[Receipt] = []
        self._sequences = log.last_sequences(self._name, id) if id else []
        self._next_partition = 0

    def send(self, value: Any, *, key: Any = None, sequence: int | None = None, **attributes: Any) -> None:
        """Send one event and return at once.

        Args:
            value: A dict or an instance of the topic's type.
            key: For topics without a key column.
            sequence: The producer's own number for this event, rising per partition; counted for you if left out.
            attributes: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`.
        """
        row = self._encoder.encode_one(value, self._clock.micros(), key, **attributes)
        if self.id:
            self._assign_sequence(row, sequence)
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            self._receipts.append(self._log.await_append(self._name, self._in_flight.popleft()))
        self._in_flight.append(self._log.begin_append(self._name, row))

    def flush(self) -> list[Receipt]:
        """Wait for all acknowledgements; returns the receipts since the last flush, in order.

        Raises:
            HeadwaterError: The first thing that went wrong; the other events were still waited for.
        """
        receipts, self._receipts = self._receipts, []
        failed: HeadwaterError | None = None
        while self._in_flight:
            try:
                receipts.append(self._log.await_append(self._name, self._in_flight.popleft()))
            except HeadwaterError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return receipts

    def _assign_sequence(self, row: PendingEvent, sequence: int | None) -> None:
        row.producer = self.id or ""
        row.partition = partition = self._partition(row, sequence)
        row.sequence = self._sequences[partition] + 1 if sequence is None else sequence
        self._sequences[partition] = max(row.sequence, self._sequences[partition])

    def _partition(self, row: PendingEvent, sequence: int | None) -> int:
        number = len(self._sequences)
        if number == 1:
            return 0
        key = self._encoder.key_of(row)
        if key is None and sequence is not None:  # where it is sent again, it must meet itself
            return sequence % number
        if key is None:
            self._next_partition += 1
            return self._next_partition % number
        return partition_of(key, number)

    def close(self) -> None:
        """Flush."""
        self.flush()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
