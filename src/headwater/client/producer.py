"""A producer: sends in the background; with an id, repeated sends are not appended twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from headwater.errors import BadEventError, HeadwaterError
from headwater.events import Clock, Receipt, partition_of
from headwater.log import PendingEvent
from headwater.log.protocol import Log
from headwater.log.write_batch import EventEncoder

__all__ = ["EncoderCache", "Producer"]

R = TypeVar("R")
_MAX_IN_FLIGHT = 10_000  # events; beyond it, `send` waits for the oldest


class EncoderCache:
    """Encodes values by the type of their topic. Keeps one encoder per topic and replaces it when the type evolves."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # No lock: if two threads make the encoder of a topic at the same time, either one serves.
        self._encoders: dict[str, EventEncoder] = {}

    def encode(self, topic: str, make: Callable[[EventEncoder, int], R]) -> R:
        """Returns what `make` returns for the topic's encoder and the current time in microseconds since 1970."""
        encoder = self.get(topic)
        try:
            return make(encoder, self._clock.micros())
        except BadEventError:  # the value may fit a version of the type that this process has not seen
            newest = self._log.topic(topic)
            if newest.version == encoder.topic.version:
                raise
            self._encoders[topic] = EventEncoder(newest)
            return make(self._encoders[topic], self._clock.micros())

    def get(self, topic: str) -> EventEncoder:
        """Returns the encoder of a topic."""
        if topic not in self._encoders:
            self._encoders[topic] = EventEncoder(self._log.topic(topic))
        return self._encoders[topic]

    def remove(self, topic: str) -> None:
        """Remove the encoder of a topic whose definition changed."""
        self._encoders.pop(topic, None)


class Producer:
    """Sends events in the background; `flush` waits until all of them are acknowledged.

    With an `id`, each event gets a sequence number per partition, and the log appends each number once: a retry
    after a lost acknowledgement is recognised. A producer that restarts under its id continues after the last
    sequence number in the log.
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
        """Send one event without waiting for its acknowledgement.

        Args:
            value: A dict or an instance of the topic's type.
            key: For topics without a key column.
            sequence: The event's sequence number, increasing per partition; the next number if left out.
            attributes: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`.
        """
        row = self._encoder.encode_one(value, self._clock.micros(), key, **attributes)
        if self.id:
            self._assign_sequence(row, sequence)
        # Appends are awaited in the order of their sends, so that the receipts of `flush` are in that order, too.
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            self._receipts.append(self._log.await_append(self._name, self._in_flight.popleft()))
        self._in_flight.append(self._log.begin_append(self._name, row))

    def flush(self) -> list[Receipt]:
        """Wait for all acknowledgements; returns the receipts since the last flush, in order.

        Raises:
            HeadwaterError: The first error; all other events are acknowledged or failed, too.
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
        if key is None and sequence is not None:  # a repeat of the event must reach the same partition
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

    def __exit__(self, *_: object) -> None:
        self.close()
