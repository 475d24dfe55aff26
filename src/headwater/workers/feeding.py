"""Feeds at work: events of a topic become messages of a queue, messages of a queue become events of a topic.

Nothing is lost: an event is committed after its message is safe, a message is acknowledged after its event is. What a
crash leaves in doubt is told by ids: a message has the id of its event, an event the id of its message.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.client import Client
from headwater.errors import BadEventError, FencedError, OverloadedError
from headwater.events import Event
from headwater.queues import Delivery, Outgoing, Settled
from headwater.queues.body import Bodies, key_text
from headwater.queues.feed import Feed

__all__ = ["Feeder", "feeder"]

logger = logging.getLogger("headwater.workers")
_AT_ONCE: Final = 500
_PAUSE: Final = 0.1  # seconds before the next try when the queue is full
_LOOK: Final = 1.0  # seconds after which one that waits sees that it is to stop


class Feeder:
    """What the two directions share: they run until told to stop, and do one step at a time."""

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping`."""
        try:
            while not stopping.is_set():
                self.once(_LOOK)
        finally:
            self.close()

    def once(self, timeout: float) -> int:
        """Take what is there, wait for it up to `timeout` seconds, and hand it on; how many there were."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it takes from."""
        raise NotImplementedError


def feeder(client: Client, feed: Feed, folder: Path) -> Feeder:
    """What does the work of a feed.

    Args:
        client: Its topics and queues.
        feed: What goes where.
        folder: Where it may keep what it is about to do.
    """
    return _IntoQueue(client, feed) if feed.into_queue else _IntoTopic(client, feed, folder)


class _IntoQueue(Feeder):
    """A member of a consumer group of the topic; the group is named after the queue."""

    def __init__(self, client: Client, feed: Feed) -> None:
        self._broker = client.broker
        self._feed = feed
        definition = client.broker.queue(feed.queue)
        self._bodies = Bodies(definition.schema)
        self._most = min(_AT_ONCE, definition.limit or _AT_ONCE)
        self._consumer = client.consumer(feed.topic, group=f"hw.queue.{feed.queue}")
        self._rest: list[Outgoing] = []

    def once(self, timeout: float) -> int:
        if not self._rest:
            events = self._consumer.poll(timeout, self._most)
            self._rest = [self._message(event) for event in events if event.value is not None]
        count = len(self._rest)
        try:
            if self._rest:
                self._broker.publish(self._feed.queue, self._rest)
        except OverloadedError as error:
            logger.info("%s waits: %s", self._feed, error.what)
            time.sleep(min(timeout, _PAUSE))
            return 0
        self._rest = []
        try:
            self._consumer.commit()
        except FencedError as error:
            # It waited so long that others read on from here. What they publish once more, the queue knows by its id.
            logger.info("%s: %s", self._feed, error.what)
        return count

    def _message(self, event: Event) -> Outgoing:
        return Outgoing(
            self._bodies.encode(event.value),
            id=event.id,
            key=None if event.key is None else key_text(event.key),
            headers=event.headers,
            traceparent=event.traceparent,
        )

    def close(self) -> None:
        self._consumer.close()


class _Doubt(msgspec.Struct):
    """Messages that may have become events already: their ids, and where the topic ended before the first of them."""

    ids: list[str]
    ends: dict[int, int]


class _IntoTopic(Feeder):
    """A receiver of the queue. What it is about to append is written down first, so that a crash leaves no doubt."""

    def __init__(self, client: Client, feed: Feed, folder: Path) -> None:
        self._client = client
        self._feed = feed
        self._bodies = Bodies(client.broker.queue(feed.queue).schema)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{feed.queue}.{feed.group or 'all'}.{feed.topic}.json"
        self._note = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._appended: set[str] | None = None  # None until the note of an earlier run has been read
        self._since: dict[int, int] = {}
        self._receiver = client.broker.receiver(feed.queue, feed.group, worker=str(feed), prefetch=_AT_ONCE)

    def once(self, timeout: float) -> int:
        if self._appended is None and not self._begin():
            time.sleep(timeout)
            return 0
        deliveries = self._receiver.receive(timeout, _AT_ONCE)
        if deliveries:
            self._hand_on(deliveries)
        elif self._appended and self._nothing_left():
            self._appended.clear()
        return len(deliveries)

    def _nothing_left(self) -> bool:
        """Whether no message can come again, so that none is in doubt."""
        (counts,) = [
            one for one in self._client.broker.counts(self._feed.queue) if one.group == self._feed.group
        ]
        return not (counts.waiting or counts.delayed or counts.in_flight)

    def _begin(self) -> bool:
        """Read what an earlier run left in doubt, unless another process is at it; it goes on when that one ends."""
        try:
            fcntl.flock(self._note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._appended = set()
        with contextlib.suppress(msgspec.DecodeError):  # empty, or torn before anything was appended
            line = os.pread(self._note, os.fstat(self._note).st_size, 0).partition(b"\n")[0]
            doubt = msgspec.json.decode(line, type=_Doubt)
            ids, self._since = set(doubt.ids), doubt.ends
            # Whole batches behind the end that a killed writer published become part of the topic: now, not later.
            self._client.log.last_sequences(self._feed.topic, "hw.feed")
            for partition, end in doubt.ends.items() if ids else ():
                events = self._client.read(self._feed.topic, end, "end", partitions=[partition])
                self._appended |= ids & {event.id for event in events}
        return True

    def _hand_on(self, deliveries: Sequence[Delivery]) -> None:
        assert self._appended is not None
        fresh = [one for one in deliveries if _id(one) not in self._appended]
        if fresh:
            self._write_down(fresh)
        fitting = self._append(fresh)
        done = [one for one in deliveries if one in fitting or _id(one) in self._appended]
        self._appended |= {_id(one) for one in done}
        for one, settled in zip(done, self._receiver.ack(done), strict=True):
            if settled is Settled.DONE:
                self._appended.discard(_id(one))
        self._write([])  # lost in a crash of the machine, it only leaves more to look up

    def _write_down(self, fresh: Sequence[Delivery]) -> None:
        """What is about to be appended, beside what was and could not be acknowledged."""
        if not self._appended:
            self._since = {part.partition: part.end for part in self._client.log.ends(self._feed.topic)}
        self._write(fresh)
        os.fsync(self._note)

    def _write(self, fresh: Sequence[Delivery]) -> None:
        data = msgspec.json.encode(_Doubt([*map(_id, fresh), *(self._appended or ())], self._since)) + b"\n"
        os.pwrite(self._note, data, 0)  # what is left of a longer one stands behind the end of the line

    def _append(self, fresh: Sequence[Delivery]) -> list[Delivery]:
        fitting = []
        with self._client.producer(self._feed.topic) as producer:
            for one in fresh:
                about: dict[str, Any] = {
                    "id": _id(one),
                    "headers": one.message.headers,
                    "traceparent": one.message.traceparent,
                }
                try:
                    producer.send(self._bodies.decode(one.message.body), **about)
                    fitting.append(one)
                except BadEventError as error:
                    self._receiver.reject(one, f"no event of {self._feed.topic}: {error.what}")
        return fitting

    def close(self) -> None:
        self._receiver.close()
        os.close(self._note)


def _id(delivery: Delivery) -> str:
    return delivery.message.id or ""
