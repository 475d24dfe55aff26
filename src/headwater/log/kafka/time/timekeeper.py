"""Keeps the event time of a Kafka topic: reads what is new once, and writes down its stretches (index.py).

One process keeps the time of a topic, under a transactional id that shuts its predecessor out; others stand by, and
take over when time stands still although there are events. A stretch and how far the keeper has come are one
transaction, so every event is in exactly one stretch, whoever dies when.

A partition that a topic is given later begins with a time mark: the lowest time of the partitions before it. So no
event of it that is in time lies behind a watermark that was reached without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from headwater.errors import DataGoneError, FencedError, HeadwaterError, UnknownTopicError, UnreachableError
from headwater.log.kafka.sending.transactions import Transactions
from headwater.log.kafka.time.index import SETTINGS, Stretch, TimeEnd
from headwater.log.kafka.time.walk import EventTimeWalk
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.upkeep.quiet import Quiet

if TYPE_CHECKING:
    from headwater.log.batch import LogBatch
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["Timekeeper"]

logger = logging.getLogger("headwater.kafka")
_AT_ONCE: Final = 8 << 20  # bytes of one read
_UNREAD: Final = 20_000  # offsets of a stretch whose rows nobody has read
_ROW: Final = 250  # bytes that such a row is taken for
_PAUSE: Final = 0.25  # seconds in which a quiet topic is looked at once
_STALL: Final = 5.0  # seconds without progress after which another keeper is taken for dead
_LOOK: Final = 1.0  # seconds between two looks whether the topic is the same, and has the same partitions
_ENDED: Final = 10.0  # seconds of silence after which marks of commits at the end are passed over


@dataclass
class _Reached:
    """How far the keeper has come in one partition."""

    next: int
    running_max: int = LOWEST_TIME


class Timekeeper:
    """Keeps the time of one topic in a thread of this process.

    Args:
        log: Where the topic is.
        name: The topic.
        index: Its side topic.
    """

    def __init__(self, log: KafkaLog, name: str, index: str) -> None:
        self._log = log
        self._name = name
        self._index = index
        self._quiet = Quiet(log.clock)
        self._transactions = self._fresh()
        self._reached: dict[int, _Reached] = {}
        self._read_up_to: dict[int, int] = {}
        self._changed = threading.Condition(threading.RLock())
        self._leads = False
        self._stopped = threading.Event()
        self._failure: HeadwaterError | None = None
        self._asked = threading.Event()
        self._looked_at = self._heard_at = 0.0
        topic = log.topic(name)
        self._clocked = topic.clocked
        log.kafka_topics.create(index, topic.partitions, SETTINGS)
        self._thread = threading.Thread(target=self._run, name=f"headwater-time-{name}", daemon=True)
        self._thread.start()

    def _fresh(self) -> Transactions:
        return Transactions(self._log.brokers, self._log.kafka_topics, self._index)

    # -- what others ask -----------------------------------------------------------------------------------------

    def settle(self, timeout: float = 60.0) -> None:
        """Return when the time of every event that is in the topic now is known.

        Raises:
            UnreachableError: The brokers do not answer, or whoever keeps the time elsewhere is too slow.
        """
        ends = {part.partition: part.end for part in self._log.ends(self._name)}
        self._asked.set()
        with self._changed:
            done = self._changed.wait_for(
                lambda: all(self._read_up_to.get(p, -1) >= end for p, end in ends.items() if end), timeout
            )
        if not done:
            raise self._failure or UnreachableError(f'the time of topic "{self._name}" stands still')

    def mark(self, partition: int, time_: int) -> None:
        """Move a partition's time on, behind everything that is in it now."""
        self.settle()
        with self._changed:
            if self._leads and partition in self._reached:
                self._write([self._marked(partition, time_)])

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(timeout=10)
        self._transactions.close()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._lead()
            except FencedError:
                logger.info("%s: another process keeps the time", self._name)
                self._transactions.close()
                self._transactions = self._fresh()
                self._stand_by()
            except UnknownTopicError:
                if self._deleted():
                    return
            except DataGoneError as error:
                logger.warning("%s: its time goes on from what is left: %s", self._name, error.what)
            except HeadwaterError as error:
                self._failure = error
                logger.warning("%s: its time is not kept: %s", self._name, error.what)
                self._transactions.close()
                self._stopped.wait(1.0)
            finally:
                self._leads = False

    def _deleted(self) -> bool:
        """Whether the topic is gone, and not only a partition that the driver has not heard of yet."""
        try:
            self._look_at_topic()
        except UnknownTopicError as error:
            self._failure = error
            logger.warning("%s: %s", self._name, error.what)
            return True
        except HeadwaterError:
            logger.debug("%s: nobody answers", self._name, exc_info=True)
        self._stopped.wait(0.2)
        return False

    def _lead(self) -> None:
        self._look_at_topic()
        with self._changed:
            known = self._transactions.state.get("reached", {})
            starts = {part.partition: part.start for part in self._log.ends(self._name)}
            # Pipelines that have not read what retention removed fail by themselves; time goes on.
            self._reached = {
                int(number): _Reached(max(next_, starts[int(number)]), running_max)
                for number, (next_, running_max) in known.items()
            }
            self._add_partitions(starts)
            self._leads = True
        if self._log.pages is not None:
            self._log.pages.clear(self._name)
        self._looked_at = self._heard_at = time.monotonic()
        while not self._stopped.is_set():
            if self._clocked:
                self._look_at_ends()
            else:
                self._look_once()
            if time.monotonic() - self._looked_at > _LOOK:
                self._look_at_topic()

    def _look_at_ends(self) -> None:
        """Where only marks move time, rows need not be read: that they are there is enough."""
        self._asked.wait(_PAUSE)
        self._asked.clear()
        ends = self._log.kafka_topics.end_offsets(self._name, list(self._reached))
        with self._changed:
            self._write(
                [(number, each) for number, end in ends.items() for each in self._unread(number, end)]
            )
            self._read_up_to = ends
            self._changed.notify_all()

    def _unread(self, partition: int, end: int) -> Iterator[Stretch]:
        """Stretches that say nothing of their rows, so that whoever counts must look."""
        reached = self._reached[partition]
        time_, unknown = reached.running_max, LOWEST_TIME
        for base in range(reached.next, end, _UNREAD):
            count = min(_UNREAD, end - base)
            size = count * _ROW
            yield Stretch(base, base + count, count, size, True, unknown, unknown, time_, time_)

    def _look_once(self) -> None:
        positions = {number: reached.next for number, reached in self._reached.items()}
        found = self._log.fetch(self._name, positions, max_bytes=_AT_ONCE, timeout=_PAUSE, envelope=False)
        if found:
            self._heard_at = time.monotonic()
            with self._changed:
                self._write([self._walked(batch) for batch in found])
            return
        ends = self._log.kafka_topics.end_offsets(self._name, list(positions))
        if self._log.fetch(self._name, positions, max_bytes=1, timeout=0):
            return
        with self._changed:
            self._read_up_to = ends
            self._changed.notify_all()
            self._write([*self._endings(ends), *self._idle_marks()])

    def _walked(self, batch: LogBatch) -> tuple[int, Stretch]:
        reached = self._reached[batch.partition]
        judged = EventTimeWalk(reached.running_max).judge(batch)
        frame = judged.frame
        if self._log.pages is not None:
            self._log.pages.put(reached.next, judged)
        look = bool(batch.deleted.any() or batch.bad.any())
        return batch.partition, Stretch(
            reached.next,
            batch.next_offset,
            batch.values.num_rows,
            int(batch.values.nbytes),
            look,
            frame.lowest,
            frame.highest,
            frame.running_before,
            frame.running_max,
        )

    def _marked(self, partition: int, time_: int) -> tuple[int, Stretch]:
        reached = self._reached[partition]
        after = max(reached.running_max, time_)
        lowest = LOWEST_TIME
        return partition, Stretch(
            reached.next, reached.next, 0, 0, False, lowest, lowest, reached.running_max, after
        )

    def _endings(self, ends: dict[int, int]) -> list[tuple[int, Stretch]]:
        """Marks of commits behind the last events, as stretches without any: retention may remove them, too."""
        if time.monotonic() - self._heard_at < _ENDED:
            return []
        return [
            (number, replace(self._marked(number, LOWEST_TIME)[1], next=end))
            for number, end in ends.items()
            if end > self._reached[number].next
        ]

    def _idle_marks(self) -> list[tuple[int, Stretch]]:
        topic = self._log.topic(self._name)
        ends = {number: TimeEnd(r.next, r.running_max) for number, r in self._reached.items()}
        # What other topics wait for is in other keepers' hands, perhaps on other machines.
        waits = (lambda _: True) if topic.lasting else None
        due = self._quiet.due(self._name, ends, topic.idle, width=0, table=waits)
        return [self._marked(number, at) for number, at in due]

    def _write(self, stretches: list[tuple[int, Stretch]]) -> None:
        """Stretches and how far we have come, in one transaction."""
        if not stretches:
            return
        after = {
            number: _Reached(reached.next, reached.running_max) for number, reached in self._reached.items()
        }
        for number, stretch in stretches:
            after[number] = _Reached(stretch.next, stretch.after)

        newest: dict[int, int] = {}

        def delivered(_: Any, message: Any) -> None:
            newest[message.partition()] = message.offset()

        def write(producer: Any) -> None:
            for number, stretch in stretches:
                value = msgspec.json.encode(replace(stretch, partitions=len(after)))
                producer.produce(
                    self._index,
                    value,
                    partition=number,
                    timestamp=stretch.next,
                    on_delivery=delivered,
                )

        state = {"reached": {str(number): [r.next, r.running_max] for number, r in sorted(after.items())}}
        self._transactions.commit(write, state)
        self._log.kafka_topics.wait_until_visible(self._index, newest)
        self._reached = after
        for number, stretch in stretches:
            self._read_up_to[number] = max(self._read_up_to.get(number, 0), stretch.next)
        self._changed.notify_all()

    def _look_at_topic(self) -> None:
        self._looked_at = time.monotonic()
        id, number = self._log.kafka_topics.about(self._name)
        if not self._index.endswith(f".{id}"):
            raise UnknownTopicError(f'topic "{self._name}" was deleted and made again', topic=self._name)
        if self._leads and number > len(self._reached):
            with self._changed:
                self._add_partitions(self._log.kafka_topics.start_offsets(self._name, list(range(number))))

    def _add_partitions(self, starts: dict[int, int]) -> None:
        """Take in partitions that are not known yet, from their start and with the lowest time of the others."""
        if self._log.kafka_topics.partitions(self._index)[self._index] < len(starts):
            self._log.kafka_topics.grow(self._index, len(starts))
        lowest = min((reached.running_max for reached in self._reached.values()), default=LOWEST_TIME)
        new = {number: _Reached(start) for number, start in starts.items() if number not in self._reached}
        self._reached |= new
        if lowest > LOWEST_TIME:
            self._write([self._marked(number, lowest) for number in new])

    def _stand_by(self) -> None:
        """Watch the other one; come back when it makes no progress although there is something to do."""
        index = self._log.opened(self._name).index
        moved_at = time.monotonic()
        seen: dict[int, TimeEnd] = {}
        while not self._stopped.wait(0.2):
            index.refresh()
            ends = self._log.kafka_topics.end_offsets(self._name, list(self._reached))
            now = {number: index.end(number) for number in ends}
            if now != seen:
                moved_at, seen = time.monotonic(), now
            with self._changed:
                self._read_up_to = {number: end.next_offset for number, end in now.items()}
                self._changed.notify_all()
            behind = any(now[number].next_offset < end for number, end in ends.items())
            if behind and time.monotonic() - moved_at > _STALL:
                return
