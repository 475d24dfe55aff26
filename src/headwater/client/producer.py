"""A producer: sends without waiting for each event, and never twice."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

from headwater.client.rows import Incoming
from headwater.errors import HeadwaterError
from headwater.events import Clock, Receipt, partition_of
from headwater.log import Row
from headwater.log.protocol import Log

__all__ = ["Producer"]

_MOST_UNFINISHED = 10_000


class Producer:
    """Sends events in the background; `flush` waits until all of them are safe.

    With an `id`, each event gets a sequence number per partition, and the log takes each number once: a send that is
    repeated because its answer was lost is told apart from a new one. A producer that starts again under its id goes
    on counting where the log left off.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_topic("orders", "order_id string")
        >>> with client.producer("orders", id="till-7") as producer:
        ...     producer.send({"order_id": "a"})
        ...     producer.send({"order_id": "b"})
        >>> [event.value["order_id"] for event in client.read("orders")]
        ['a', 'b']
    """

    def __init__(self, log: Log, clock: Clock, incoming: Incoming, id: str | None) -> None:
        self.id = id
        self._log = log
        self._clock = clock
        self._incoming = incoming
        self._name = incoming.topic.name
        self._unfinished: deque[Any] = deque()
        self._receipts: list[Receipt] = []
        self._sequences = log.last_sequences(self._name, id) if id else []
        self._turn = 0

    def send(self, value: Any, *, key: Any = None, sequence: int | None = None, **about: Any) -> None:
        """Send one event and come back at once.

        Args:
            value: A dict or an instance of the topic's type.
            key: For topics without a key column.
            sequence: The producer's own number for this event, rising per partition; counted for you if left out.
            about: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`.
        """
        row = self._incoming.one(value, self._clock.micros(), key, **about)
        if self.id:
            self._number(row, sequence)
        if len(self._unfinished) >= _MOST_UNFINISHED:
            self._receipts.append(self._log.finish(self._name, self._unfinished.popleft()))
        self._unfinished.append(self._log.put(self._name, row))

    def flush(self) -> list[Receipt]:
        """Wait until everything sent so far is acknowledged; the receipts since the last flush, in order.

        Raises:
            HeadwaterError: The first thing that went wrong; the other events were still waited for.
        """
        receipts, self._receipts = self._receipts, []
        failed: HeadwaterError | None = None
        while self._unfinished:
            try:
                receipts.append(self._log.finish(self._name, self._unfinished.popleft()))
            except HeadwaterError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return receipts

    def _number(self, row: Row, sequence: int | None) -> None:
        row.producer = self.id or ""
        row.partition = partition = self._partition(row, sequence)
        row.sequence = self._sequences[partition] + 1 if sequence is None else sequence
        self._sequences[partition] = max(row.sequence, self._sequences[partition])

    def _partition(self, row: Row, sequence: int | None) -> int:
        number = len(self._sequences)
        if number == 1:
            return 0
        key = self._incoming.key_of(row)
        if key is None and sequence is not None:  # where it is sent again, it must meet itself
            return sequence % number
        if key is None:
            self._turn += 1
            return self._turn % number
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
