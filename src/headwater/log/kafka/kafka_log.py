"""The log on Kafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from headwater.errors import BadOffsetError
from headwater.events import Clock, Receipt, SystemClock
from headwater.log.batch import LogBatch
from headwater.log.definition import (
    Topic,
    brought_up,
    check_name,
    check_producer,
    refuse_clash,
    unknown_topic,
)
from headwater.log.door import Entry
from headwater.log.event_log import PartitionRange, Start
from headwater.log.kafka.brokers import Brokers, KafkaAddress, with_pages
from headwater.log.kafka.cursors import Cursors
from headwater.log.kafka.definitions import Definition, Definitions
from headwater.log.kafka.forms import Form
from headwater.log.kafka.groups import KafkaGroups
from headwater.log.kafka.records import Typed, event_times
from headwater.log.kafka.sending import IdempotentProducer, NamedProducers, Route, TopicSender
from headwater.log.kafka.time import IndexWaiter, TimedKafkaTopic
from headwater.log.kafka.time.pages import Pages
from headwater.log.kafka.topics import KafkaTopics, settings_of
from headwater.log.kafka.waiter import TopicWaiter
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows
from headwater.log.wakeup import Waiter
from headwater.units import micros, moment

__all__ = ["KafkaLog"]

_MICROSECOND = timedelta(microseconds=1)
_SCAN: Final = 1 << 20  # bytes read at once while a time is looked for


@dataclass
class _Open:
    """A topic that this process uses: how it is written, how it is read."""

    typed: Typed
    sender: TopicSender


class KafkaLog:
    """Behaves like `EventLog`, on the brokers of a Kafka; safe to share between threads.

    Args:
        url: `kafka://[user:password@]host:port[,host:port][?setting=value&…]`; settings are librdkafka's, and
            `replication.factor` and `min.insync.replicas` for topics that are created.
        patience: How long to go on while no broker answers.
        clock: What time it is, for tests.
        keeps_time: Whether this process keeps the event time of topics that pipelines read (see timekeeper.py).
        pages: A folder for what it read while it did, so that pipelines on this machine need not read it again.

    Example:
        >>> log = KafkaLog("kafka://ada:secret@127.0.0.1:9", patience=timedelta(0))
        >>> log
        KafkaLog('kafka://127.0.0.1:9')
        >>> log.topics()
        Traceback (most recent call last):
        headwater.errors.UnreachableError: UNREACHABLE: no Kafka broker answers at kafka://127.0.0.1:9
        ...
    """

    def __init__(
        self,
        url: str,
        *,
        patience: timedelta = timedelta(seconds=30),
        clock: Clock | None = None,
        keeps_time: bool = False,
        pages: Path | None = None,
    ) -> None:
        self.where = url if pages is None else with_pages(url, pages)
        self.address = KafkaAddress.of(self.where)
        self.pages = Pages(Path(self.address.pages)) if self.address.pages else None
        if pages is not None and self.pages is not None:
            self.pages.clear()
        self.brokers = Brokers(self.address, patience)
        self.kafka_topics = KafkaTopics(self.brokers)
        self.clock = clock or SystemClock()
        self._keeps_time = keeps_time
        self._timed: dict[str, TimedKafkaTopic] = {}
        self._definitions = Definitions(self.brokers, self.kafka_topics)
        self._producer = IdempotentProducer(self.brokers)
        self._named = NamedProducers(self.brokers, self.kafka_topics)
        self._cursors = Cursors(self.brokers, self.kafka_topics)
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._route = Route(
            self.brokers, self._producer, self._named, self.form_of, self._partitions_of, self.clock
        )
        self.groups = KafkaGroups(self.brokers, self)

    def __repr__(self) -> str:
        return f"KafkaLog('{self.address}')"

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Names of all topics that were declared; what others made and nobody declared is left out."""
        there = self.kafka_topics.partitions()
        return sorted(name for name in self._definitions.all() if name in there)

    def topic(self, name: str) -> Topic:
        """A topic's definition under its newest type, with the partitions it has now."""
        check_name(name)
        known = self._definitions.all().get(name)
        number = self._partitions_of(name) if known is not None else 0
        if known is None or not number:
            self._open.pop(name, None)
            raise unknown_topic(name, self.topics())
        return self._learn(known, number).typed.topic

    def create(self, topic: Topic) -> Topic:
        """Create a topic, bring an existing one up to this definition, or declare one that others made.

        Raises:
            SchemaConflictError: Old events could not be read under the new type.
            TopicExistsError: The partitions, the key or the time column differ.
        """
        check_name(topic.name)
        known = self._definitions.all().get(topic.name)
        number = self._partitions_of(topic.name)
        if known is None or not number or _brought_up(known.topic, number, topic) != known.topic:
            self._definitions.change(lambda: self._created(topic))
        return self.topic(topic.name)

    def _created(self, topic: Topic) -> Definition | None:
        """The definition to write, its topic made or set; called by one process at a time."""
        known = self._definitions.get(topic.name)
        there = self.kafka_topics.partitions()
        number = there.get(topic.name, 0)
        if known is None or not number:
            if not number:
                refuse_clash(topic.name, [name for name in there if not name.startswith("__")])
                self.kafka_topics.create(topic.name, topic.partitions, settings_of(topic))
            elif "partitions" in topic.given:
                brought_up(_sized(topic, number), topic)
            first = _sized(topic, number or topic.partitions).with_schema(topic.schema, 1)
            return Definition(first, {1: topic.schema})
        new = _brought_up(known.topic, number, topic)
        if new == known.topic:
            return None
        before = settings_of(known.topic)
        changed = {name: value for name, value in settings_of(new).items() if before[name] != value}
        if changed:
            self.kafka_topics.configure(topic.name, changed)
        return known.becoming(new)

    def _partitions_of(self, name: str) -> int:
        return self.kafka_topics.partitions(name).get(name, 0)

    def _learn(self, known: Definition, partitions: int) -> _Open:
        topic = _sized(known.topic, partitions)
        with self._lock:
            opened = self._open.get(topic.name)
            if opened is None:
                opened = self._open[topic.name] = _Open(
                    Typed(topic, known.schemas), TopicSender(topic, self._route)
                )
            elif opened.typed.topic != topic:
                opened.typed = Typed(topic, known.schemas)
                opened.sender.define(topic)
            return opened

    def _opened(self, name: str, version: int = 0) -> _Open:
        """What is known of a topic, if its type is at least of this version."""
        found = self._open.get(name)
        if found is None or found.typed.topic.version < version:
            self.topic(name)
            found = self._open[name]
        return found

    def form_of(self, name: str, version: int) -> Form:
        """How rows of a version of a topic's type are written."""
        return self._opened(name, version).typed.writer(version)

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, name: str, rows: Rows) -> Receipts:
        """Append rows; comes back when all in-sync replicas have them."""
        sender = self._opened(name, rows.version).sender
        return sender.receipts(sender.door.pass_through(sender.entry(rows)))

    def append_one(self, name: str, row: Row) -> Receipt:
        """Append one event; with others that come at the same time it shares a request."""
        sender = self._opened(name, row.version).sender
        return sender.receipt(sender.door.pass_through(sender.entry(row)))

    def put(self, name: str, row: Row) -> Entry:
        """Hand one event to the door and come back at once; `finish` waits."""
        sender = self._opened(name, row.version).sender
        return sender.door.put(sender.entry(row))

    def finish(self, name: str, entry: Entry) -> Receipt:
        """Wait for an event that was `put`."""
        sender = self._opened(name).sender
        sender.door.finish(entry)
        return sender.receipt(entry)

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Highest sequence of a producer in each partition; whoever asks takes over the producer's id."""
        check_producer(producer)
        partitions = self._opened(name).typed.topic.partitions
        return self._named.get(name, producer).last(partitions)

    def counts(self, name: str) -> dict[str, int]:
        """What the doors of this process decided; Kafka does not count for others."""
        return dict(self._opened(name).sender.counts)

    # -- out -----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """What each partition holds now; event times are not known without reading."""
        return self.kafka_topics.ends(name, self.topic(name).partitions)

    def find(self, name: str, partition: int, start: Start) -> int:
        """The offset to start from.

        Args:
            name: The topic.
            partition: One of its partitions.
            start: "earliest", "latest", an offset, or a time: the first offset at which the partition's event time
                reaches it. Text is read as an offset or a time, too.
        """
        number = self._opened(name).typed.topic.partitions
        if not 0 <= partition < number and not 0 <= partition < self.topic(name).partitions:
            what = f'topic "{name}" has no partition {partition}'
            raise BadOffsetError(what, detail=f"it has {number}", partition=partition)
        if start == "earliest":
            return self.kafka_topics.start_offsets(name, [partition])[partition]
        end = self.kafka_topics.end_offsets(name, [partition])[partition]
        if start == "latest":
            return end
        if isinstance(start, int) or (isinstance(start, str) and start.isdigit()):
            if int(start) > end:
                what = f"offset {start} is beyond the end of partition {partition}, which is {end}"
                raise BadOffsetError(what, offset=int(start), end=end, partition=partition)
            return int(start)
        return self._reach(name, partition, micros(moment(start, now=self.clock.now())), end)

    def _reach(self, name: str, partition: int, time_: int, end: int) -> int:
        """Where event time reaches a moment.

        What arrived earlier than the moment by more than the tolerance cannot have moved event time so far, so the
        search starts at the first event that arrived later than that.
        """
        ahead = self._opened(name).typed.topic.ahead // _MICROSECOND
        at = self.kafka_topics.at_time(name, partition, time_ - ahead)
        while at is not None and at < end:
            found = self.fetch(name, {partition: at}, max_bytes=_SCAN)
            for batch in found:
                times = event_times(batch)
                reached = np.flatnonzero((times >= time_) & (times <= batch.received + ahead))
                if len(reached):
                    return int(batch.offsets[reached[0]])
                at = batch.next_offset
            if not found:
                break
        return end

    def fetch(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 0,
        waiter: Waiter | None = None,
        envelope: bool = True,
    ) -> list[LogBatch]:
        """Batches from these offsets on, one per partition; waits up to `timeout` seconds for the first.

        Comes back with nothing when the time is over, or when the group of the waiter changed. Rows that others
        wrote and that cannot be read under the topic's type are marked: see `LogBatch.bad`. Without `envelope`, ids,
        sources, traces and senders' headers are left out.
        """
        opened = self._opened(name)
        known = opened.typed.topic.partitions
        for number in positions:
            if not 0 <= number < known and not 0 <= number < self.topic(name).partitions:
                what = f'topic "{name}" has no partition {number}'
                raise BadOffsetError(what, detail=f"it has {known}", partition=number)
        changed = waiter.group_changed if isinstance(waiter, TopicWaiter) else bool
        with self._cursors.at(name, positions) as cursor:
            found = cursor.read(max_bytes, timeout, changed)
        return [
            self._decoded(name, number, messages, envelope=envelope) for number, messages in found.items()
        ]

    def _decoded(self, name: str, partition: int, messages: list[Any], *, envelope: bool) -> LogBatch:
        opened = self._opened(name)
        batch = opened.typed.batch(partition, messages, envelope=envelope)
        if batch.frame.schema > opened.typed.topic.version:  # written under a type that is news to us
            newer = self._opened(name, batch.frame.schema).typed
            batch = newer.batch(partition, messages, envelope=envelope)
        return batch

    # -- for pipelines -------------------------------------------------------------------------------------------

    def opened(self, name: str) -> TimedKafkaTopic:
        """A topic as pipelines read it."""
        with self._lock:
            if name not in self._timed:
                self._timed[name] = TimedKafkaTopic(self, name, keep=self._keeps_time)
            return self._timed[name]

    def page(self, name: str, partition: int, base: int) -> LogBatch | None:
        """The stretch from an offset on, if the process that keeps time has left it on this machine."""
        return self.pages.get(self._opened(name).typed, partition, base) if self.pages is not None else None

    def incarnation(self, name: str) -> str:
        """What tells a topic from another one that was made later under the same name."""
        return self.kafka_topics.about(name)[0]

    def settle(self, name: str) -> None:
        """Return when the event time of everything that is in a topic now is known."""
        self.opened(name).settle()

    def watch_times(self, names: Sequence[str]) -> IndexWaiter:
        """A wake-up for pipelines: more is known of one of these topics."""
        return IndexWaiter([self.opened(name).index for name in names])

    # -- waiting -------------------------------------------------------------------------------------------------

    def watch(self, name: str, group: str | None = None) -> TopicWaiter:
        """A wake-up for appends to a topic and, with `group`, for changes of that group."""
        partitions = list(range(self._opened(name).typed.topic.partitions))
        changes = None if group is None else self.groups.watch(group, name)
        return TopicWaiter(lambda: self.kafka_topics.end_offsets(name, partitions), changes)

    def close(self) -> None:
        """Send what waits and let go of all connections."""
        for timed in list(self._timed.values()):
            timed.close()
        for opened in list(self._open.values()):
            opened.sender.door.close()
        self.groups.close()
        self._producer.close()
        self._named.close()
        self._cursors.close()
        self._definitions.close()

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _brought_up(known: Topic, partitions: int, wanted: Topic) -> Topic:
    """As `brought_up`; a topic may have been given more partitions than its definition says, which then still holds."""
    there = known if wanted.partitions == known.partitions <= partitions else _sized(known, partitions)
    return brought_up(there, wanted)


def _sized(topic: Topic, partitions: int) -> Topic:
    return topic if topic.partitions == partitions else replace(topic, partitions=partitions)
