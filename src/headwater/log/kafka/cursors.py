"""Reading from offsets on: consumers of the driver that stay where their last reader stopped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from headwater.errors import BadOffsetError, DataGoneError, UnknownTopicError, UnreachableError
from headwater.log.kafka.brokers import Brokers, driver, partition_at
from headwater.log.kafka.topics import KafkaTopics

__all__ = ["Cursors"]

_MOST_IDLE: Final = 8
_MOST_MESSAGES: Final = 20_000
_SLICE: Final = 0.2  # seconds between two looks whether something else ended the wait
_FIRST_GUESS: Final = 200  # bytes of a message before any was seen


class Cursor:
    """One consumer on partitions of one topic; used by one thread at a time."""

    def __init__(self, brokers: Brokers, topics: KafkaTopics, name: str) -> None:
        self.name = name
        self.positions: dict[int, int] = {}
        self._brokers = brokers
        self._topics = topics
        self._kafka = driver()
        self._consumer = brokers.consumer()
        self._ended: dict[int, int] = {}
        self._size = _FIRST_GUESS

    def move(self, positions: Mapping[int, int]) -> None:
        """Read from these offsets on, and from no other partition.

        Raises:
            DataGoneError: An offset was removed by retention.
            BadOffsetError: An offset is beyond the end.
        """
        gone = [number for number, at in self.positions.items() if positions.get(number) != at]
        fresh = {number: at for number, at in positions.items() if self.positions.get(number) != at}
        if fresh:
            self._require_there(fresh)
        if gone:
            self._consumer.incremental_unassign([partition_at(self.name, number) for number in gone])
        if fresh:
            self._consumer.incremental_assign([partition_at(self.name, *pair) for pair in fresh.items()])
        self.positions = dict(positions)
        self._ended = {number: end for number, end in self._ended.items() if number not in fresh}

    def _require_there(self, wanted: Mapping[int, int]) -> None:
        starts = self._topics.start_offsets(self.name, list(wanted))
        ends = self._topics.end_offsets(self.name, list(wanted))
        for number, at in wanted.items():
            if at > ends[number] or at < 0:
                what = f"offset {at} is outside partition {number}, which ends at {ends[number]}"
                raise BadOffsetError(what, offset=at, end=ends[number], partition=number)
            if at < starts[number]:
                raise DataGoneError(
                    f"offsets {at} to {starts[number] - 1} of partition {number} are gone",
                    detail=f"retention removed them; the partition now starts at {starts[number]}",
                    fix='start="earliest", or headwater reset GROUP --to earliest',
                    partition=number,
                    first=at,
                    last=starts[number] - 1,
                    start=starts[number],
                )

    def read(self, max_bytes: int, timeout: float, changed: Callable[[], bool]) -> dict[int, list[Any]]:
        """Messages by partition; none when there are none within `timeout`, or when something else changed."""
        most = max(1, min(_MOST_MESSAGES, max_bytes // self._size * max(1, len(self.positions))))
        found = self._take(most, 0)
        if found or not self.positions:
            return found
        if timeout <= 0:
            return self._take_what_is_there(most)
        deadline = time.monotonic() + timeout
        while not found and not changed():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            found = self._take(most, min(left, _SLICE))
        return found

    def _take_what_is_there(self, most: int) -> dict[int, list[Any]]:
        """Comes back empty only when the brokers have nothing behind our positions."""
        ends = self._topics.end_offsets(self.name, list(self.positions))
        deadline = time.monotonic() + self._brokers.patience
        while any(max(at, self._ended.get(p, 0)) < ends[p] for p, at in self.positions.items()):
            found = self._take(most, _SLICE)
            if found:
                return found
            if time.monotonic() > deadline:
                what = f"no Kafka broker answers at {self._brokers.address}"
                raise UnreachableError(what, url=str(self._brokers.address))
        return {}

    def _take(self, most: int, timeout: float) -> dict[int, list[Any]]:
        try:
            first = self._consumer.poll(timeout)
            rest = self._consumer.consume(most - 1, 0) if first is not None and most > 1 else []
        except self._kafka.KafkaException as error:
            raise self._brokers.error(error) from None
        taken = [] if first is None else [first, *rest]
        if any(message.error() is not None for message in taken):
            taken = [message for message in taken if message.error() is None or self._hear(message)]
        found: dict[int, list[Any]] = {}
        for number, run in groupby(taken, self._kafka.Message.partition):
            messages = list(run)
            at = self.positions.get(number)
            if at is None or messages[-1].offset() < at:  # of an assignment that is over
                continue
            if messages[0].offset() < at:
                messages = [message for message in messages if message.offset() >= at]
            found.setdefault(number, []).extend(messages)
            self.positions[number] = messages[-1].offset() + 1
        for messages in found.values():
            size = sum(map(len, messages[:50])) // min(50, len(messages))
            self._size = max(1, size, self._size // 2)
        return found

    def _hear(self, message: Any) -> bool:
        """Take note of what is no record; always false."""
        codes = self._kafka.KafkaError
        fault, partition = message.error(), message.partition()
        if fault.code() == codes._PARTITION_EOF:
            self._ended[partition] = message.offset()
        elif fault.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._require_there({partition: self.positions[partition]})
        else:
            found = self._brokers.error(fault)
            if not isinstance(found, UnreachableError):
                raise found
        return False

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()


class Cursors:
    """Hands out cursors; one that stands where a reader wants to go on is preferred.

    Args:
        brokers: Where to read.
        topics: Knows what partitions hold.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics) -> None:
        self._brokers = brokers
        self._topics = topics
        self._lock = threading.Lock()
        self._idle: list[Cursor] = []
        self._closed = False

    @contextlib.contextmanager
    def at(self, name: str, positions: Mapping[int, int]) -> Iterator[Cursor]:
        """A cursor at these positions, for this block alone."""
        cursor = self._taken(name, positions)
        try:
            cursor.move(positions)
            yield cursor
        except UnknownTopicError as error:
            cursor.close()
            error.what = f'no topic "{name}": Kafka has it no longer'
            error.data["topic"] = name
            raise
        except BaseException:  # where it stands now is not where its reader is
            cursor.close()
            raise
        self._give_back(cursor)

    def _taken(self, name: str, positions: Mapping[int, int]) -> Cursor:
        with self._lock:
            for cursor in self._idle:  # to turn another one round takes longer than to make one
                if cursor.name == name and cursor.positions.items() & positions.items():
                    self._idle.remove(cursor)
                    return cursor
        return Cursor(self._brokers, self._topics, name)

    def _give_back(self, cursor: Cursor) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(cursor)
            spare = [cursor] if self._closed else self._idle[:-_MOST_IDLE]
            self._idle = self._idle[-_MOST_IDLE:]
        for each in spare:
            each.close()

    def close(self) -> None:
        """Close all that are not in use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for cursor in idle:
            cursor.close()
