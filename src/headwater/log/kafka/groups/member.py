"""One member of a consumer group: a consumer of the driver that reads nothing and keeps the partitions for us.

A thread of its own does all calls, as the driver takes calls on one consumer from one thread at a time: signs of life,
commits, news of partitions that come and go. A partition that is to move is given up when its
reader has said that it let go of it; a reader that has not come back for its session time loses all of them.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final

from headwater.errors import FencedError, HeadwaterError
from headwater.log.kafka.brokers import Brokers, driver, partition_at

__all__ = ["Member"]

_SESSION: Final = 10_000  # milliseconds without a sign of life after which the brokers count a member as dead
_SLICE: Final = 0.05  # seconds that the driver may wait while a commit waits for it
_TRIES: Final = 40


class Member:
    """A place in a group on one topic.

    Args:
        brokers: Where the group is.
        group: Its name, the same in Kafka.
        topic: What it reads.
        session: A reader that does not come back for this long loses its partitions.
        tell: Called when partitions came or are to go.
    """

    def __init__(
        self, brokers: Brokers, group: str, topic: str, session: timedelta, tell: Callable[[], None]
    ) -> None:
        self.group = group
        self.topic = topic
        self.id = ""
        self.generation = 0
        self.expelled = False
        self._brokers = brokers
        self._kafka = driver()
        self._session = session.total_seconds()
        self._tell = tell
        self._mine: set[int] = set()
        self._leaving: set[int] = set()
        self._changed = threading.Condition()
        self._commits: queue.SimpleQueue[tuple[list[Any], Future[None]]] = queue.SimpleQueue()
        self._seen_at = time.monotonic()
        self._closing = False
        self._begun = False
        self._first = threading.Event()
        session_ms = int(brokers.address.settings.get("session.timeout.ms", _SESSION))
        self._consumer = brokers.consumer(
            {
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(100, session_ms // 4),
                "topic.metadata.refresh.interval.ms": 30_000,  # how soon new partitions are shared out
                "max.poll.interval.ms": max(session_ms, int(self._session * 1000) + 1000, 300_000),
            }
        )
        self._thread = threading.Thread(target=self._run, name="headwater-member", daemon=True)

    def join(self) -> None:
        """Become a member; comes back when the group has said what is ours, which can be nothing for now."""
        self._consumer.subscribe(
            [self.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._thread.start()
        if not self._first.wait(self._brokers.patience + self._session):
            self.leave()
            codes = self._kafka.KafkaError
            raise self._brokers.error(codes(codes._WAIT_COORD))

    def partitions(self) -> set[int]:
        """What is ours, without what is to go: our reader has let go of that by asking."""
        with self._changed:
            self._seen_at = time.monotonic()
            self._mine -= self._leaving
            self._leaving.clear()
            self._changed.notify_all()
            return set(self._mine)

    def commit(self, offsets: dict[int, int]) -> None:
        """Everything below these offsets is done.

        Raises:
            FencedError: A partition is not ours any more.
        """
        self._seen_at = time.monotonic()
        if self.expelled:
            raise self.fenced("the member was expelled")
        for partition in offsets:
            if partition not in self._mine:
                raise self.fenced(f"partition {partition} has another owner")
        places = [partition_at(self.topic, *pair) for pair in offsets.items()]
        done: Future[None] = Future()
        self._commits.put((places, done))
        while self._thread.is_alive() and not done.done():
            with contextlib.suppress(TimeoutError):
                done.result(1)
        if not done.done():
            raise self.fenced("the member was expelled")
        done.result()

    def _refuse(self, error: Any, *, last: bool) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID):
            self.expelled = True
            self.generation += 1
            raise self.fenced("the member was expelled")
        if error.code() != codes.REBALANCE_IN_PROGRESS or last:
            raise self._brokers.error(error)

    def fenced(self, why: str) -> FencedError:
        """The error of a member that is none any more."""
        return FencedError(
            f'group "{self.group}": {why}',
            detail="its commit was not taken",
            fix="open a new consumer; it goes on where the group committed",
            group=self.group,
            generation=self.generation,
            member=self.id,
        )

    def leave(self) -> None:
        """Give the partitions back."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._brokers.patience)

    # -- in the member's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = min(_SLICE, self._session / 4)
        try:
            while not self._closing and not self.expelled:
                with contextlib.suppress(HeadwaterError, self._kafka.KafkaException):
                    self._consumer.poll(pause)
                if self._begun and not self._first.is_set():
                    self.id = str(self._consumer.memberid())
                    self._first.set()
                self._commit_waiting()
                if time.monotonic() - self._seen_at > self._session:
                    self._expel()
        finally:
            with contextlib.suppress(self._kafka.KafkaException, RuntimeError):
                self._consumer.close()
            self._tell()

    def _commit_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                places, done = self._commits.get_nowait()
                try:
                    self._commit(places)
                    done.set_result(None)
                except HeadwaterError as error:
                    done.set_exception(error)

    def _commit(self, places: list[Any]) -> None:
        for attempt in range(_TRIES):
            try:
                found = self._consumer.commit(offsets=places, asynchronous=False)
                failed = [place.error for place in found or () if place.error is not None]
                if not failed:
                    return
                error = failed[0]
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
            self._refuse(error, last=attempt == _TRIES - 1)
            time.sleep(0.1)

    def _assigned(self, consumer: Any, places: list[Any]) -> None:
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)
        with self._changed:
            self._mine |= {place.partition for place in places}
            self.generation += bool(places) or not self._begun
        self._begun = True
        self._tell()

    def _revoked(self, consumer: Any, places: list[Any]) -> None:
        going = {place.partition for place in places}
        with self._changed:
            self._leaving |= going & self._mine
            self.generation += 1
        self._tell()
        while (
            not self._closing and self._leaving & going and time.monotonic() - self._seen_at < self._session
        ):
            self._commit_waiting()  # the reader may finish what it has before it lets go
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not (self._leaving & going), _SLICE)
        with self._changed:
            self._mine -= going
            self._leaving -= going
        consumer.incremental_unassign(places)

    def _lost(self, consumer: Any, places: list[Any]) -> None:
        with self._changed:
            self._mine -= {place.partition for place in places}
            self.generation += 1
        with contextlib.suppress(self._kafka.KafkaException):
            consumer.incremental_unassign(places)
        self._tell()

    def _expel(self) -> None:
        with self._changed:
            self.expelled = True
            self._closing = True
            self.generation += 1
            self._mine.clear()
