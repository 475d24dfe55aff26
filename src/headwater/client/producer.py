"""A producer: sends in the background; with an id, repeated sends are not appended twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from headwater.errors import BadEventError, HeadwaterError, RefusedError, SequenceGapError
from headwater.events import Clock, Receipt, partition_of
from headwater.log import PendingEvent
from headwater.log.append_buffer import PendingAppend
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
    sequence number in the log. Each event also names the number sent before it, and the log refuses it if that one
    is missing: of the events of a partition, none is appended after one that failed.
    """

    def __init__(self, log: Log, clock: Clock, encoder: EventEncoder, id: str | None) -> None:
        self.id = id
        self._log = log
        self._clock = clock
        self._encoder = encoder
        self._name = encoder.topic.name
        self._in_flight: deque[tuple[PendingAppend, PendingEvent]] = deque()
        self._receipts: list[Receipt] = []
        self._failure: HeadwaterError | OSError | None = None  # the first since the last flush
        # By partition: the last number sent, which the next event names, and the highest number ever used.
        self._previous = log.last_sequences(self._name, id) if id else []
        self._highest = dict(enumerate(self._previous))
        self._next_partition = 0

    def send(self, value: Any, *, key: Any = None, sequence: int | None = None, **attributes: Any) -> None:
        """Send one event without waiting for its acknowledgement.

        Args:
            value: A dict or an instance of the topic's type.
            key: For topics without a key column.
            sequence: The event's sequence number, increasing per partition; the next number if left out.
            attributes: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`.

        Raises:
            BadEventError: The event does not match the topic's type.
            RefusedError: An earlier event of a producer with an id failed. `flush` raises its error; then call again.
        """
        row = self._encoder.encode_one(value, self._clock.micros(), key, **attributes)
        # Appends are awaited in the order of their sends, so that the receipts of `flush` are in that order, too.
        while self._in_flight and (len(self._in_flight) >= _MAX_IN_FLIGHT or self._in_flight[0][0].done):
            self._await_oldest()
        if self.id:
            self._check_failure()
            self._assign_sequence(row, sequence)
        self._in_flight.append((self._log.begin_append(self._name, row), row))
        if row.partition is not None:  # only now: a number that the log did not accept is not used up
            self._previous[row.partition] = max(row.sequence, self._previous[row.partition])
            self._highest[row.partition] = max(row.sequence, self._highest.get(row.partition, -1))

    def flush(self) -> list[Receipt]:
        """Wait for all acknowledgements; returns the receipts since the last flush, in order.

        Raises:
            HeadwaterError: The first error; all other events are acknowledged or failed, too.
        """
        while self._in_flight:
            self._await_oldest()
        receipts, self._receipts = self._receipts, []
        failure, self._failure = self._failure, None
        if failure is not None:
            self._previous = []  # the log knows which of the numbers it has
            raise failure
        return receipts

    def _await_oldest(self) -> None:
        """Wait for the oldest event in flight; keeps its receipt, or the error if it is the first."""
        pending, row = self._in_flight.popleft()
        try:
            self._receipts.append(self._log.await_append(self._name, pending))
        except (HeadwaterError, OSError) as error:
            if self._failure is None and _is_forgotten(error, row):
                self._in_flight.appendleft((pending, row))
                self._reopen()
            else:
                self._failure = self._failure or error

    def _check_failure(self) -> None:
        # Another class than the failure's: the caller must not take it for the error of the event it sends now.
        if self._failure is not None:
            raise RefusedError(
                f"an earlier event of producer {self.id!r} failed, so this one was not sent",
                detail=str(self._failure),
                fix="call flush, which raises the error; then send again",
                producer=self.id,
            ) from self._failure

    def _reopen(self) -> None:
        """Send again what the log refused because it no longer knows this id; all events before are acknowledged."""
        refused, self._in_flight = self._in_flight, deque()
        reopened: set[int | None] = set()
        for pending, row in refused:
            again = pending
            try:
                self._log.await_append(self._name, pending)
            except (HeadwaterError, OSError) as error:
                if _is_forgotten(error, row):
                    row.previous = row.previous if row.partition in reopened else -1
                    reopened.add(row.partition)
                    again = self._log.begin_append(self._name, row)
            self._in_flight.append((again, row))

    def _assign_sequence(self, row: PendingEvent, sequence: int | None) -> None:
        if not self._previous:
            self._previous = self._log.last_sequences(self._name, self.id or "")
        row.producer = self.id or ""
        row.partition = partition = self._partition(row, sequence)
        row.previous = self._previous[partition]
        # A number that failed is not given to another event: its append may still arrive.
        row.sequence = max(row.previous, self._highest.get(partition, -1)) + 1 if sequence is None else sequence

    def _partition(self, row: PendingEvent, sequence: int | None) -> int:
        number = len(self._previous)
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


def _is_forgotten(error: Exception, row: PendingEvent) -> bool:
    """Whether a new event was refused because the log has no number of the producer in the partition."""
    new = row.previous is not None and row.sequence > row.previous
    return new and isinstance(error, SequenceGapError) and error.data.get("last") == -1
