"""Reading from Kafka: pooled consumers, and waiters for appends.

`ConsumerPool` reuses a `PooledConsumer` that is already at the wanted offsets, because a seek discards what
the driver has prefetched. `KafkaTopicWaiter` polls the end offsets of a topic, because the brokers have no
request that waits for them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from headwater.errors import UnknownTopicError, UnreachableError
from headwater.log.kafka.brokers import topic_partition
from headwater.log.kafka.topics import KafkaTopics
from headwater.log.storage.segment import check_offset

__all__ = ["ConsumerPool", "KafkaGroupWaiter", "KafkaTopicWaiter"]

_MAX_IDLE: Final = 8  # consumers kept open
_MAX_MESSAGES: Final = 20_000  # of one poll
_POLL_INTERVAL: Final = 0.2  # seconds between checks for an interruption, or for new end offsets
_INITIAL_MESSAGE_SIZE: Final = 200  # bytes, until messages were seen


class PooledConsumer:
    """One consumer on partitions of one topic; used by one thread at a time."""

    def __init__(self, topics: KafkaTopics, name: str) -> None:
        self.name = name
        self.positions: dict[int, int] = {}
        self._topics = topics
        self._brokers = topics.brokers
        self._kafka = topics.brokers.kafka
        self._consumer = topics.brokers.create_consumer()
        self._eof_offsets: dict[int, int] = {}
        self._message_size = _INITIAL_MESSAGE_SIZE  # estimate of the mean, in bytes

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and no others.

        Raises:
            DataGoneError: Retention has removed an offset.
            BadOffsetError: An offset is beyond the end.
        """
        # Partitions that stay at their position keep what the driver has prefetched.
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
            check_offset(number, at, starts[number], ends[number])

    def poll(self, max_bytes: int, timeout: float, interrupted: Callable[[], bool]) -> dict[int, list[Any]]:
        """Return messages by partition; an empty dict after `timeout` seconds, or as soon as `interrupted()`."""
        # The driver bounds a poll by messages, not by bytes.
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
        """Poll until messages come; return empty only if the brokers have none at our positions or behind them.

        The end of a partition may be a commit marker, which the driver reports as an end-of-partition event only.
        """
        ends = self._topics.end_offsets(self.name, list(self.positions))
        deadline = time.monotonic() + self._brokers.patience
        while any(max(at, self._eof_offsets.get(p, 0)) < ends[p] for p, at in self.positions.items()):
            found = self._poll_once(most, _POLL_INTERVAL)
            if found:
                return found
            if time.monotonic() > deadline:
                raise self._brokers.unreachable_error()
        return {}

    def _poll_once(self, most: int, timeout: float) -> dict[int, list[Any]]:
        try:
            first = self._consumer.poll(timeout)
            rest = self._consumer.consume(most - 1, 0) if first is not None and most > 1 else []
        except self._kafka.KafkaException as error:
            raise self._brokers.translate_error(error) from None
        taken = [] if first is None else [first, *rest]
        failed = [message for message in taken if message.error() is not None]
        for message in failed:
            self._handle_error(message)
        if failed:
            taken = [message for message in taken if message.error() is None]
        found: dict[int, list[Any]] = {}
        for number, run in groupby(taken, self._kafka.Message.partition):
            messages = list(run)
            at = self.positions.get(number)
            if at is None or messages[-1].offset() < at:  # prefetched before the last seek
                continue
            if messages[0].offset() < at:
                messages = [message for message in messages if message.offset() >= at]
            found.setdefault(number, []).extend(messages)
            self.positions[number] = messages[-1].offset() + 1
        for messages in found.values():
            # Rises at once and falls by half per poll, so large messages exceed `max_bytes` only once.
            size = sum(map(len, messages[:50])) // min(50, len(messages))
            self._message_size = max(1, size, self._message_size // 2)
        return found

    def _handle_error(self, message: Any) -> None:
        """Handle a message that carries an error in place of a record."""
        codes = self._kafka.KafkaError
        fault, partition = message.error(), message.partition()
        if fault.code() == codes._PARTITION_EOF:
            self._eof_offsets[partition] = message.offset()
        elif fault.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._check_offsets({partition: self.positions[partition]})
        else:
            found = self._brokers.translate_error(fault)
            if not isinstance(found, UnreachableError):  # the driver reconnects by itself
                raise found

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class ConsumerPool:
    """Lends consumers; prefers one that is already at the wanted offsets.

    Args:
        topics: The topics, for start and end offsets.
    """

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics
        self._lock = threading.Lock()  # guards _idle and _capacity, not the consumers
        self._idle: list[PooledConsumer] = []
        self._capacity = _MAX_IDLE

    @contextlib.contextmanager
    def consumer_at(self, name: str, positions: Mapping[int, int]) -> Iterator[PooledConsumer]:
        """Lend a consumer at these positions for the block."""
        with self._lock:
            # A new consumer starts faster than one that must seek in all partitions.
            near = (c for c in self._idle if c.name == name and c.positions.items() & positions.items())
            consumer = next(near, None)
            if consumer is not None:
                self._idle.remove(consumer)
        consumer = consumer or PooledConsumer(self._topics, name)
        try:
            consumer.seek(positions)
            yield consumer
        except BaseException as error:  # its positions may be ahead of what the reader has received
            consumer.close()
            if isinstance(error, UnknownTopicError):
                error.what = f'no topic "{name}": it was deleted in Kafka'
                error.data["topic"] = name
            raise
        with self._lock:
            self._idle.append(consumer)
        self._shrink(self._capacity)

    def _shrink(self, capacity: int) -> None:
        """Close the consumers that have been idle longest."""
        with self._lock:
            surplus = max(0, len(self._idle) - capacity)
            closing, self._idle = self._idle[:surplus], self._idle[surplus:]
        for consumer in closing:
            consumer.close()

    def close(self) -> None:
        """Close idle consumers now and lent ones when they are returned."""
        self._capacity = 0
        self._shrink(0)


class KafkaGroupWaiter:
    """Waits for rebalances of one group that members of this process take part in.

    Args:
        on_close: Called with this waiter when it is closed.
    """

    def __init__(self, on_close: Callable[[KafkaGroupWaiter], None]) -> None:
        self._on_close = on_close
        self._changed = threading.Event()

    def notify(self) -> None:
        """Wake the waiter: the group changed."""
        self._changed.set()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the group has changed since the last wait."""
        changed = self._changed.wait(timeout)
        if changed:
            self._changed.clear()
        return changed

    def close(self) -> None:
        """Stop receiving notifications."""
        self._on_close(self)


class KafkaTopicWaiter:
    """Waits for appends to one topic, or for a rebalance of a group. `fetch` itself waits in the driver.

    Args:
        end_offsets: Returns the end offsets of the partitions.
        group_waiter: The waiter of the group; None without a group.
    """

    def __init__(self, end_offsets: Callable[[], dict[int, int]], group_waiter: KafkaGroupWaiter | None) -> None:
        self._end_offsets = end_offsets
        self._last_ends = end_offsets()
        self._group_waiter = group_waiter

    def group_changed(self) -> bool:
        """Returns whether the group has changed since the last call."""
        return self._group_waiter is not None and self._group_waiter.wait(0)

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the topic has grown, or the group has changed, since the last wait."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            before, self._last_ends = self._last_ends, self._end_offsets()
            if before != self._last_ends or self.group_changed():
                return True
            left = _POLL_INTERVAL if deadline is None else min(_POLL_INTERVAL, deadline - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)

    def close(self) -> None:
        """Stop receiving notifications."""
        if self._group_waiter is not None:
            self._group_waiter.close()
