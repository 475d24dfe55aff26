"""Reading from Kafka: pooled consumers, and waiters for appends.

`ConsumerPool` hands out `PooledConsumer`s, preferring one that is already at the wanted offsets: a seek
drops what the driver has prefetched. `KafkaTopicWaiter` polls the end offsets of a topic, because the
brokers have no call that waits for them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from headwater.errors import BadOffsetError, DataGoneError, UnknownTopicError, UnreachableError
from headwater.log.kafka.brokers import Brokers, driver, topic_partition
from headwater.log.kafka.topics import KafkaTopics

__all__ = ["ConsumerPool", "KafkaGroupWaiter", "KafkaTopicWaiter"]

_MAX_IDLE: Final = 8
_MAX_MESSAGES: Final = 20_000
_POLL_INTERVAL: Final = 0.2  # seconds between two looks whether something else ended the wait
_INITIAL_MESSAGE_SIZE: Final = 200  # bytes of a message before any was seen


class PooledConsumer:
    """One consumer on partitions of one topic; used by one thread at a time."""

    def __init__(self, brokers: Brokers, topics: KafkaTopics, name: str) -> None:
        self.name = name
        self.positions: dict[int, int] = {}
        self._brokers = brokers
        self._topics = topics
        self._kafka = driver()
        self._consumer = brokers.create_consumer()
        self._eof_offsets: dict[int, int] = {}
        self._message_size = _INITIAL_MESSAGE_SIZE

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read from these offsets on, and from no other partition.

        Raises:
            DataGoneError: An offset was removed by retention.
            BadOffsetError: An offset is beyond the end.
        """
        gone = [number for number, at in self.positions.items() if positions.get(number) != at]
        fresh = {number: at for number, at in positions.items() if self.positions.get(number) != at}
        if fresh:
            self._check_offsets(fresh)
        if gone:
            self._consumer.incremental_unassign([topic_partition(self.name, number) for number in gone])
        if fresh:
            self._consumer.incremental_assign([topic_partition(self.name, *pair) for pair in fresh.items()])
        self.positions = dict(positions)
        self._eof_offsets = {number: end for number, end in self._eof_offsets.items() if number not in fresh}

    def _check_offsets(self, wanted: Mapping[int, int]) -> None:
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

    def poll(self, max_bytes: int, timeout: float, interrupted: Callable[[], bool]) -> dict[int, list[Any]]:
        """Messages by partition; none when there are none within `timeout`, or when something else changed."""
        most = max(1, min(_MAX_MESSAGES, max_bytes // self._message_size * max(1, len(self.positions))))
        found = self._poll_once(most, 0)
        if found or not self.positions:
            return found
        if timeout <= 0:
            return self._poll_to_end(most)
        deadline = time.monotonic() + timeout
        while not found and not interrupted():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            found = self._poll_once(most, min(left, _POLL_INTERVAL))
        return found

    def _poll_to_end(self, most: int) -> dict[int, list[Any]]:
        """Comes back empty only when the brokers have nothing behind our positions."""
        ends = self._topics.end_offsets(self.name, list(self.positions))
        deadline = time.monotonic() + self._brokers.patience
        while any(max(at, self._eof_offsets.get(p, 0)) < ends[p] for p, at in self.positions.items()):
            found = self._poll_once(most, _POLL_INTERVAL)
            if found:
                return found
            if time.monotonic() > deadline:
                what = f"no Kafka broker answers at {self._brokers.address}"
                raise UnreachableError(what, url=str(self._brokers.address))
        return {}

    def _poll_once(self, most: int, timeout: float) -> dict[int, list[Any]]:
        try:
            first = self._consumer.poll(timeout)
            rest = self._consumer.consume(most - 1, 0) if first is not None and most > 1 else []
        except self._kafka.KafkaException as error:
            raise self._brokers.translate_error(error) from None
        taken = [] if first is None else [first, *rest]
        if any(message.error() is not None for message in taken):
            taken = [message for message in taken if message.error() is None or self._handle_error(message)]
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
            self._message_size = max(1, size, self._message_size // 2)
        return found

    def _handle_error(self, message: Any) -> bool:
        """Take note of what is no record; always false."""
        codes = self._kafka.KafkaError
        fault, partition = message.error(), message.partition()
        if fault.code() == codes._PARTITION_EOF:
            self._eof_offsets[partition] = message.offset()
        elif fault.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._check_offsets({partition: self.positions[partition]})
        else:
            found = self._brokers.translate_error(fault)
            if not isinstance(found, UnreachableError):
                raise found
        return False

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()


class ConsumerPool:
    """Hands out cursors; one that stands where a reader wants to go on is preferred.

    Args:
        brokers: Where to read.
        topics: Knows what partitions hold.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics) -> None:
        self._brokers = brokers
        self._topics = topics
        self._lock = threading.Lock()
        self._idle: list[PooledConsumer] = []
        self._closed = False

    @contextlib.contextmanager
    def consumer_at(self, name: str, positions: Mapping[int, int]) -> Iterator[PooledConsumer]:
        """A cursor at these positions, for this block alone."""
        cursor = self._acquire(name, positions)
        try:
            cursor.seek(positions)
            yield cursor
        except UnknownTopicError as error:
            cursor.close()
            error.what = f'no topic "{name}": Kafka has it no longer'
            error.data["topic"] = name
            raise
        except BaseException:  # where it stands now is not where its reader is
            cursor.close()
            raise
        self._release(cursor)

    def _acquire(self, name: str, positions: Mapping[int, int]) -> PooledConsumer:
        with self._lock:
            for cursor in self._idle:  # to turn another one round takes longer than to make one
                if cursor.name == name and cursor.positions.items() & positions.items():
                    self._idle.remove(cursor)
                    return cursor
        return PooledConsumer(self._brokers, self._topics, name)

    def _release(self, cursor: PooledConsumer) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(cursor)
            spare = [cursor] if self._closed else self._idle[:-_MAX_IDLE]
            self._idle = self._idle[-_MAX_IDLE:]
        for each in spare:
            each.close()

    def close(self) -> None:
        """Close all that are not in use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for cursor in idle:
            cursor.close()


_WATCH_INTERVAL: Final = 0.2  # seconds between two questions


class KafkaGroupWaiter:
    """Changes of one group, as the members of this process hear of them.

    Args:
        on_close: Called with this waiter when it is closed.
    """

    def __init__(self, on_close: Callable[[KafkaGroupWaiter], None]) -> None:
        self._on_close = on_close
        self._changed = threading.Event()

    def notify(self) -> None:
        """The group changed."""
        self._changed.set()

    @property
    def has_changed(self) -> bool:
        """Whether the group changed since the last wait."""
        return self._changed.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the group changed since the last wait."""
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    def close(self) -> None:
        """Stop waiting."""
        self._on_close(self)


class KafkaTopicWaiter:
    """Waits for appends to one topic, or for a change of a group. `fetch` needs no waiting: the brokers push to it.

    Args:
        end_offsets: Where the partitions end.
        group_waiter: Changes of the group; None without one.
    """

    def __init__(self, end_offsets: Callable[[], dict[int, int]], group_waiter: KafkaGroupWaiter | None) -> None:
        self._end_offsets = end_offsets
        self._last_ends = end_offsets()
        self._group_waiter = group_waiter

    def group_changed(self) -> bool:
        """Whether the group changed; told once."""
        return self._group_waiter is not None and self._group_waiter.has_changed and self._group_waiter.wait(0)

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the topic grew, or the group changed, since the last wait."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            before, self._last_ends = self._last_ends, self._end_offsets()
            if before != self._last_ends or self.group_changed():
                return True
            left = _WATCH_INTERVAL if deadline is None else min(_WATCH_INTERVAL, deadline - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)

    def close(self) -> None:
        """Stop waiting."""
        if self._group_waiter is not None:
            self._group_waiter.close()
