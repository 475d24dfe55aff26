"""A producer: sends in the background; with an id, repeated sends are not appended twice."""

from __future__ import annotations

from collections import deque
from typing import Any, Unpack

from headwater.client.sender import EventSender, origin_of_caller
from headwater.errors import (
    BadEventError,
    BadKeyError,
    FencedError,
    HeadwaterError,
    RefusedError,
    SequenceGapError,
)
from headwater.events import Clock, Receipt, partition_of
from headwater.log import PendingEvent
from headwater.log.protocol import Log
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import EventAttributes, EventEncoder

__all__ = ["Producer"]

_MAX_IN_FLIGHT = 10_000  # events; beyond it, `send` waits for the oldest


class Producer:
    """Sends events in the background; `flush` waits until all of them are acknowledged.

    With an `id`, each event gets a sequence number per partition, and the log appends each number once: a retry
    after a lost acknowledgement is recognised. A producer that restarts under its id continues after the last
    sequence number in the log. Each event also names the number sent before it, and the log refuses it if that one
    is missing: of the events of a partition, none is appended after one that failed.

    An id belongs to one live producer. If another one has used a number that this one assigned, `flush` raises
    `FencedError` for that event, which is not in the log, and this producer sends nothing more.
    """

    def __init__(self, log: Log, clock: Clock, encoder: EventEncoder, id: str | None) -> None:
        self.id = id
        self._log = log
        self._clock = clock
        self._encoder = encoder
        self._name = encoder.topic.name
        self._sender = EventSender(log, clock)  # for invalid events
        self._in_flight: deque[tuple[PendingAppend, PendingEvent]] = deque()
        self._receipts: list[Receipt] = []
        self._failure: HeadwaterError | OSError | None = None  # the first since the last flush
        # By partition: the last number sent, which the next event names, and the highest number ever used.
        self._previous = log.last_sequences(self._name, id) if id else []
        self._highest = dict(enumerate(self._previous))
        self._next_partition = 0
        # Partitions and numbers that this producer assigned: the log has them only if another producer used them.
        self._assigned: set[tuple[int | None, int]] = set()
        self._fenced: FencedError | None = None

    def send(
        self, value: Any, *, key: Any = None, sequence: int | None = None, **attributes: Unpack[EventAttributes]
    ) -> None:
        """Send one event without waiting for its acknowledgement.

        Args:
            value: A dict or an instance of the topic's type.
            key: For topics without a key column.
            sequence: The event's sequence number, increasing per partition; the next number if left out.
            attributes: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`; see `EventAttributes`.

        Raises:
            BadEventError: The event does not match the topic's type, and the topic has no topic for invalid events.
            RefusedError: An earlier event of a producer with an id failed. `flush` raises its error; then call again.
            FencedError: Another producer sends under this id.
        """
        try:
            row = self._encoder.encode_one(value, self._clock.micros(), key, **attributes)
        except (BadEventError, BadKeyError) as error:
            self._divert(value, error)
            return
        # Appends are awaited in the order of their sends, so that the receipts of `flush` are in that order, too.
        while self._in_flight and (len(self._in_flight) >= _MAX_IN_FLIGHT or self._in_flight[0][0].done):
            self._await_oldest()
        if self.id:
            self._check_failure()
            self._assign_sequence(row, sequence)
        self._in_flight.append((self._log.begin_append(self._name, row), row))
        if self.id and sequence is None and not self._log.repeats_appends:
            self._assigned.add((row.partition, row.sequence))
        if row.partition is not None:  # only now: a number that the log did not accept is not used up
            self._previous[row.partition] = max(row.sequence, self._previous[row.partition])
            self._highest[row.partition] = max(row.sequence, self._highest.get(row.partition, -1))

    def _divert(self, value: Any, error: BadEventError | BadKeyError) -> None:
        """Divert an invalid event; its receipt comes after those of the events in flight."""
        origin = f"producer {self.id}" if self.id else origin_of_caller()
        receipt = self._sender.divert_one(self._name, value, error, origin)
        while self._in_flight:
            self._await_oldest()
        self._receipts.append(receipt)

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
            receipt = self._log.await_append(self._name, pending)
            self._check_fence(row, receipt)
            self._receipts.append(receipt)
        except (HeadwaterError, OSError) as error:
            if self._failure is None and _is_forgotten(error, row):
                self._in_flight.appendleft((pending, row))
                self._reopen()
            else:
                # It may be in the log all the same: then a repeat under its number is its own.
                self._assigned.discard((row.partition, row.sequence))
                self._failure = self._failure or error

    def _check_fence(self, row: PendingEvent, receipt: Receipt) -> None:
        """Raise if the log has another producer's event under a number that this producer assigned."""
        position = row.partition, row.sequence
        if receipt.duplicate and position in self._assigned:
            self._fenced = FencedError(
                f"another producer sends to topic {self._name!r} under the id {self.id!r}",
                detail=f"sequence {row.sequence} of partition {row.partition} is its event at offset {receipt.offset}; "
                "the event of this producer was not appended",
                fix="give each process an id of its own; or end one of them, and open the producer again",
                producer=self.id,
                sequence=row.sequence,
                partition=row.partition,
                offset=receipt.offset,
            )
            raise self._fenced
        self._assigned.discard(position)

    def _check_failure(self) -> None:
        if self._fenced is not None and self._failure is None:
            raise self._fenced
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
