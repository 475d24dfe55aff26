"""The log on Kafka.

`KafkaLog` implements `Log` and `TimedLog` with topics (topics.py), writers (topic_writer.py), consumers
(fetcher.py) and the event time index. `KafkaInspector` inspects topics read-only for `headwater plan`.
`SUPPORT` compares topics in a folder with topics on Kafka, for the documentation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from headwater.errors import BadOffsetError, HeadwaterError, UnknownTopicError
from headwater.events import Clock, Receipt, Receipts, SystemClock
from headwater.log.batch import LogBatch
from headwater.log.event_log import PartitionRange, Start
from headwater.log.inspection import TopicInspection
from headwater.log.invalid_events import create_invalid_topic, invalid_topic_of
from headwater.log.kafka.brokers import Brokers, KafkaAddress, with_batch_cache
from headwater.log.kafka.completions import Completions, no_indexer_error
from headwater.log.kafka.consumer_groups import KafkaGroups
from headwater.log.kafka.event_time_index import EventTimeEnd, EventTimeIndex, index_topic
from headwater.log.kafka.fetcher import ConsumerPool, KafkaTopicWaiter
from headwater.log.kafka.marker_requests import MarkerRequests
from headwater.log.kafka.producers import COMMITS_TOPIC, IdempotentProducer, NamedProducerPool
from headwater.log.kafka.records import RecordCodec, event_times
from headwater.log.kafka.serializers import Serializer
from headwater.log.kafka.timed_topic import BatchCache, EventTimeWaiter, TimedKafkaTopic
from headwater.log.kafka.topic_writer import KafkaTopicWriter
from headwater.log.kafka.topics import DEFINITIONS_TOPIC, KafkaTopics, TopicDefinition, TopicDefinitions, topic_config
from headwater.log.maintenance.awaited_topics import InputTime
from headwater.log.notifier import Waiter
from headwater.log.storage.anchored_clock import AnchoredClock
from headwater.log.tombstones import TombstoneHorizon
from headwater.log.topic import (
    Topic,
    check_name,
    check_name_clash,
    check_producer,
    external_time_error,
    merge_definition,
    unknown_topic_error,
)
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import PendingEvent, WriteBatch
from headwater.units import micros, moment

__all__ = ["SUPPORT", "KafkaInspector", "KafkaLog"]

logger = logging.getLogger("headwater.kafka")
_MICROSECOND = timedelta(microseconds=1)
_SCAN_BYTES: Final = 1 << 20  # of one read while a time is searched
_RENEWAL_INTERVAL: Final = 60.0  # seconds between two renewals of the clock's anchor
_HORIZON_AGE: Final = 60 * 1_000_000  # microseconds; less than the tolerance of the horizon


@dataclass
class _TopicHandle:
    """A topic that this process uses, with its record codec and its writer."""

    codec: RecordCodec
    writer: KafkaTopicWriter


class KafkaLog:
    """The log on a Kafka cluster; safe to share between threads.

    Args:
        url: `kafka://[user:password@]host:port[,host:port][?setting=value&…]`. Settings are those of librdkafka, and
            `replication.factor` and `min.insync.replicas` for new topics.
        patience: How long to retry while no broker answers.
        clock: The clock, which does not stamp arrivals: the brokers do. The wall clock, if left out.
        index_time: Whether this process indexes the event time of topics that pipelines read (event_time_indexer.py).
        cache: Folder for decoded batches, which pipelines on this machine read instead of decoding records again.

    Example:
        >>> log = KafkaLog("kafka://ada:secret@127.0.0.1:9", patience=timedelta(0))
        >>> log
        KafkaLog('kafka://127.0.0.1:9')
        >>> log.topics()
        Traceback (most recent call last):
        headwater.errors.UnreachableError: UNREACHABLE: no Kafka broker answers at kafka://127.0.0.1:9
        ...
    """

    repeats_appends = True

    def __init__(
        self,
        url: str,
        *,
        patience: timedelta = timedelta(seconds=30),
        clock: Clock | None = None,
        index_time: bool = False,
        cache: Path | None = None,
    ) -> None:
        self.url = url if cache is None else with_batch_cache(url, cache)
        self.address = KafkaAddress.parse(self.url)
        self.batch_cache = BatchCache(Path(self.address.cache_folder)) if self.address.cache_folder else None
        if cache is not None and self.batch_cache is not None:
            self.batch_cache.clear()
        self.brokers = Brokers(self.address, patience)
        self.kafka_topics = KafkaTopics(self.brokers)
        self.clock = clock or SystemClock()
        self._renewed_at = time.monotonic() - _RENEWAL_INTERVAL
        self._index_time = index_time
        self._timed_topics: dict[str, TimedKafkaTopic] = {}
        self._definitions = TopicDefinitions(self.kafka_topics)
        self.producer = IdempotentProducer(self.brokers)
        self.named_producers = NamedProducerPool(self.kafka_topics)
        self.completions = Completions(self.kafka_topics, self.producer)
        self.marker_requests = MarkerRequests(self.kafka_topics, self.producer)
        self._consumers = ConsumerPool(self.kafka_topics)
        self._lock = threading.RLock()  # guards _handles and _timed_topics
        self._handles: dict[str, _TopicHandle] = {}
        self._horizons: dict[str, tuple[int, list[TombstoneHorizon]]] = {}  # by topic, with the time of the question
        self.groups = KafkaGroups(self.brokers, self)

    def renew_clock(self) -> None:
        """Renew the anchor of the data folder's clock, at most once a minute; called by what indexes event time."""
        if isinstance(self.clock, AnchoredClock) and time.monotonic() - self._renewed_at > _RENEWAL_INTERVAL:
            self._renewed_at = time.monotonic()
            try:
                self.clock.renew()
            except (HeadwaterError, OSError):
                logger.warning("the clock of the data folder was not renewed", exc_info=True)

    def __repr__(self) -> str:
        return f"KafkaLog('{self.address}')"

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Returns the names of all declared topics; topics that only exist in Kafka are left out."""
        there = self.kafka_topics.partition_counts()
        return sorted(name for name in self._definitions.all() if name in there)

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition under its newest type, with its present number of partitions."""
        check_name(name)
        known = self._definitions.all().get(name)
        number = self.kafka_topics.partition_count(name) if known is not None else 0
        if known is None or not number:
            # A definition outlives a topic that was deleted by other tools.
            self._handles.pop(name, None)
            raise unknown_topic_error(name, self.topics())
        return self._update_handle(known, number).codec.topic

    def create(self, topic: Topic) -> Topic:
        """Create a topic, update it to this definition, or declare a topic that exists in Kafka.

        Raises:
            SchemaConflictError: Old events cannot be read under the new type.
            TopicExistsError: The partitions, the key or the time column differ.
        """
        check_name(topic.name)
        create_invalid_topic(self, topic)
        known = self._definitions.all().get(topic.name)
        number = self.kafka_topics.partition_count(topic.name)
        if known is None or not number or _merge_wanted(known.topic, number, topic) != known.topic:
            self._definitions.update(lambda: self._create_topic(topic))
        return self.topic(topic.name)

    def _create_topic(self, topic: Topic) -> TopicDefinition | None:
        """Create or configure the topic and return the definition to write; runs in one process at a time."""
        known = self._definitions.get(topic.name)
        there = self.kafka_topics.partition_counts()
        number = there.get(topic.name, 0)
        if known is None or not number:
            if not number:
                check_name_clash(topic.name, [name for name in there if not name.startswith("__")])
                self.kafka_topics.create(topic.name, topic.partitions, topic_config(topic))
            elif "partitions" in topic.given:
                merge_definition(replace(topic, partitions=number), topic)  # raises if the numbers differ
            # The definition of a deleted topic stays: its versions are those of rows made for that topic.
            version = 1 if known is None else known.topic.version + 1
            first = replace(topic, partitions=number or topic.partitions, first_version=version)
            return TopicDefinition(first.with_schema(topic.schema, version), {version: topic.schema})
        new = _merge_wanted(known.topic, number, topic)
        if new == known.topic:
            return None
        before = topic_config(known.topic)
        changed = {name: value for name, value in topic_config(new).items() if before[name] != value}
        if changed:
            self.kafka_topics.configure(topic.name, changed)
        return TopicDefinition(new, known.schemas | {new.version: new.schema})

    def delete(self, name: str) -> None:
        """Delete a topic and its side topics; the brokers remove the offsets of its groups.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        self.topic(name)
        doomed = self.side_topics(name)
        with self._lock:
            timed, handle = self._timed_topics.pop(name, None), self._handles.pop(name, None)
        if timed is not None:
            timed.close()
        # The topic first: an index without a topic is harmless, a topic without its index has no event time.
        self.kafka_topics.delete([name])
        self.kafka_topics.delete(doomed)
        if handle is not None:
            handle.writer.buffer.close()
        self._horizons.pop(name, None)
        if self.batch_cache is not None:
            self.batch_cache.clear(name)

    def size(self, name: str) -> int | None:
        """Returns None: the driver does not ask brokers for the size of their files."""
        return None

    def side_topics(self, name: str) -> list[str]:
        """Returns the event-time index of a topic, if there is one."""
        index = index_topic(name, self.topic_id(name))
        return [index] if self.kafka_topics.partition_count(index) else []

    def _update_handle(self, known: TopicDefinition, partitions: int) -> _TopicHandle:
        topic = replace(known.topic, partitions=partitions)
        with self._lock:
            opened = self._handles.get(topic.name)
            if opened is None:
                opened = self._handles[topic.name] = _TopicHandle(
                    RecordCodec(topic, known.schemas), KafkaTopicWriter(self, topic)
                )
            elif opened.codec.topic != topic:
                opened.codec = RecordCodec(topic, known.schemas)
                opened.writer.update_definition(topic)
            return opened

    def _topic_handle(self, name: str, version: int = 0) -> _TopicHandle:
        """Returns the handle of a topic; reads the definition again if the known type is older than `version`."""
        if name not in self._handles or self._handles[name].codec.topic.version < version:
            self.topic(name)
        return self._handles[name]

    def serializer(self, name: str, version: int) -> Serializer:
        """Returns the serializer of a version of a topic's type."""
        return self._topic_handle(name, version).codec.serializer(version)

    # -- append --------------------------------------------------------------------------------------------------

    def append(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows; return when all in-sync replicas have acknowledged them."""
        return self._topic_handle(name, batch.version).writer.append(batch)

    def append_one(self, name: str, event: PendingEvent) -> Receipt:
        """Append one event; concurrent calls share a request."""
        return self._topic_handle(name, event.version).writer.append_one(event)

    def begin_append(self, name: str, event: PendingEvent) -> PendingAppend:
        """Put one event into the append buffer and return at once; `await_append` waits for it."""
        return self._topic_handle(name, event.version).writer.begin_append(event)

    def await_append(self, name: str, pending: PendingAppend) -> Receipt:
        """Wait for an event passed to `begin_append`."""
        return self._topic_handle(name).writer.await_append(pending)

    def divert(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows to the topic of a topic's invalid events, and count them as offered to it and diverted."""
        receipts = self.append(invalid_topic_of(self.topic(name)), batch)
        self._topic_handle(name).writer.counts.update(offered=batch.row_count, diverted=batch.row_count)
        return receipts

    def complete(self, name: str) -> int:
        """Advance the event time of a topic to the present; the process that indexes it writes the markers.

        Raises:
            RefusedError: A pipeline keeps the event time of the topic.
            UnreachableError: No process indexes the event time of the topic.
        """
        if self.topic(name).external_time:
            raise external_time_error(name)
        now = self.clock.micros()
        index = EventTimeIndex(self.kafka_topics, index_topic(name, self.topic_id(name)))
        try:
            self.completions.request(index, now, name)
        except UnknownTopicError:  # the side topic: nobody has ever indexed this topic
            raise no_indexer_error(name) from None
        finally:
            index.close()
        return now

    def check_sizes(self, name: str, batch: WriteBatch) -> None:
        """Check that every record of a batch is within the size limit; appends nothing."""
        self._topic_handle(name, batch.version).writer.check_sizes(batch)

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Returns the highest sequence number per partition; the caller takes over the producer id."""
        check_producer(producer)
        partitions = self._topic_handle(name).codec.topic.partitions
        return self.named_producers.get(name, producer).last_sequences(partitions)

    def counts(self, name: str) -> dict[str, int]:
        """Returns the append counters of this process."""
        return dict(self._topic_handle(name).writer.counts)

    # -- read ----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """Returns what each partition holds now; without max event times, which Kafka does not store."""
        return self.kafka_topics.partition_ranges(name, self.topic(name).partitions)

    def tombstone_horizons(self, name: str) -> list[TombstoneHorizon]:
        """Returns which tombstones the brokers may have removed; asked once a minute, because each read asks."""
        now = self.clock.micros()
        cached_at, horizons = self._horizons.get(name, (0, []))
        if not cached_at <= now < cached_at + _HORIZON_AGE:
            horizons = self.kafka_topics.tombstone_horizons(name, self.topic(name).partitions, now)
            self._horizons[name] = (now, horizons)
        return horizons

    def count_events(self, name: str, starts: Mapping[int, int] | None = None) -> dict[int, int]:
        """Returns the number of offsets in each partition, from an offset on; commits of transactions take some."""
        held = self.ends(name)
        return {
            part.partition: max(0, part.end - max(part.start, 0 if starts is None else starts[part.partition]))
            for part in held
            if starts is None or part.partition in starts
        }

    def _check_partitions(self, name: str, numbers: Iterable[int]) -> None:
        known = self._topic_handle(name).codec.topic.partitions
        for number in numbers:
            # The topic may have got partitions since this process read its definition.
            if not 0 <= number < known and not 0 <= number < self.topic(name).partitions:
                what = f'topic "{name}" has no partition {number}'
                raise BadOffsetError(what, detail=f"it has {known}", partition=number)

    def find_offset(self, name: str, partition: int, start: Start) -> int:
        """Returns the offset to start from.

        Args:
            name: The topic.
            partition: One of its partitions.
            start: "earliest", "latest", an offset, or a time: the first offset at which the partition's event time
                reaches it. Text is read as an offset or a time, too.
        """
        self._check_partitions(name, [partition])
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
        return self._find_time(name, partition, micros(moment(start, now=self.clock.now())), end)

    def _find_time(self, name: str, partition: int, time_: int, end: int) -> int:
        """Returns the first offset at which event time reaches a moment.

        An event time may be at most `ahead` later than its arrival. The search therefore starts at the first event
        that arrived no earlier than the moment minus `ahead`.
        """
        ahead = self._topic_handle(name).codec.topic.ahead // _MICROSECOND
        at = self.kafka_topics.offset_for_time(name, partition, time_ - ahead)
        while at is not None and at < end:
            found = self.fetch(name, {partition: at}, max_bytes=_SCAN_BYTES)
            for batch in found:
                times = event_times(batch)
                reached = np.flatnonzero((times >= time_) & (times <= batch.arrival_times + ahead))
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
        """Returns batches from these offsets, one per partition; waits up to `timeout` seconds for the first.

        Returns an empty list after the timeout, or when the group of the waiter changed. Rows that cannot be read
        under the topic's type are marked: see `LogBatch.bad`. Without `envelope`, ids, sources, traces and senders'
        headers are left out.
        """
        self._check_partitions(name, positions)
        changed = waiter.group_changed if isinstance(waiter, KafkaTopicWaiter) else bool
        with self._consumers.consumer_at(name, positions) as consumer:
            found = consumer.poll(max_bytes, timeout, changed)
        return [self._decode(name, number, messages, envelope=envelope) for number, messages in found.items()]

    def _decode(self, name: str, partition: int, messages: list[Any], *, envelope: bool) -> LogBatch:
        codec = self._topic_handle(name).codec
        batch = codec.decode(partition, messages, envelope=envelope)
        if batch.frame.schema > codec.topic.version:  # written under a newer type than this process knows
            newer = self._topic_handle(name, batch.frame.schema).codec
            batch = newer.decode(partition, messages, envelope=envelope)
        return batch

    # -- for pipelines -------------------------------------------------------------------------------------------

    def open_topic(self, name: str) -> TimedKafkaTopic:
        """Returns a topic as pipelines read it."""
        with self._lock:
            if name not in self._timed_topics:
                self._timed_topics[name] = TimedKafkaTopic(self, name, index_time=self._index_time)
            return self._timed_topics[name]

    def input_time(self, name: str) -> InputTime | None:
        """Returns the time of an input of a pipeline; None if it does not exist, or never had an event.

        Reads the index of a topic that another process indexes, and does not take it over.
        """
        try:
            topic = self.topic(name)
            if not (topic.is_table or topic.external_time or any(part.end for part in self.ends(name))):
                return None
            timed = self._timed_topics.get(name)
            index = timed.index if timed else EventTimeIndex(self.kafka_topics, index_topic(name, self.topic_id(name)))
        except UnknownTopicError:
            return None
        try:
            index.refresh()
            ends = [index.end(number) for number in range(topic.partitions)]
        except UnknownTopicError:  # the side topic: nobody has indexed this topic yet
            ends = [EventTimeEnd()]
        finally:
            if timed is None:
                index.close()
        newest = max(ends, key=lambda end: end.max_event_time)
        return InputTime.of(topic, ends, lambda: topic.is_live(newest.max_event_time, newest.arrived_at))

    def get_cached_batch(self, name: str, partition: int, base: int) -> LogBatch | None:
        """Returns the range that starts at an offset, if the indexing process has cached it on this machine."""
        if self.batch_cache is None:
            return None
        return self.batch_cache.get(self._topic_handle(name).codec, partition, base)

    def topic_id(self, name: str) -> str:
        """Returns the id that Kafka assigned to the topic; a later topic of the same name has another."""
        return self.kafka_topics.describe(name)[0]

    def sync(self, name: str) -> None:
        """Return at once: an append returns when all in-sync replicas have it."""

    def append_idle_markers(self, name: str, time: int) -> None:
        """Ask the leading indexer to advance all partitions of a topic, after their present events; does not wait."""
        ends = self.kafka_topics.end_offsets(name, range(self.topic(name).partitions))
        self.marker_requests.send(index_topic(name, self.topic_id(name)), ends, time)

    def await_event_time(self, name: str) -> None:
        """Wait until the event time of all present events of a topic is known."""
        self.open_topic(name).await_event_time()

    def watch_event_times(self, names: Sequence[str]) -> EventTimeWaiter:
        """Returns a waiter for everything that advances the event time of these topics."""
        return EventTimeWaiter([self.open_topic(name).index for name in names])

    # -- waiting -------------------------------------------------------------------------------------------------

    def watch(self, name: str, group: str | None = None) -> KafkaTopicWaiter:
        """Returns a waiter for appends to a topic and, with `group`, for changes of that group."""
        partitions = range(self._topic_handle(name).codec.topic.partitions)
        changes = None if group is None else self.groups.watch(group, name)
        return KafkaTopicWaiter(lambda: self.kafka_topics.end_offsets(name, partitions), changes)

    def close(self) -> None:
        """Send the remaining events and close all connections."""
        # Buffers before producers: closing a buffer sends its events.
        for timed in list(self._timed_topics.values()):
            timed.close()
        for opened in list(self._handles.values()):
            opened.writer.buffer.close()
        self.groups.close()
        self.completions.close()
        self.marker_requests.close()
        self.producer.close()
        self.named_producers.close()
        self._consumers.close()
        self._definitions.close()

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _merge_wanted(known: Topic, partitions: int, wanted: Topic) -> Topic:
    """Returns `merge_definition` of both, with the present number of partitions in Kafka.

    After partitions were added in Kafka, the wanted definition may name the old or the present number.
    """
    if not wanted.partitions == known.partitions <= partitions:
        known = replace(known, partitions=partitions)
    return merge_definition(known, wanted)


# Capability: (embedded log, Kafka). Contract tests that Kafka overrides give the same reasons.
SUPPORT: Final[dict[str, tuple[str, str]]] = {
    "append, receipts with partition and offset": ("yes", "yes"),
    "same key, same partition": ("yes", "yes; adding partitions moves keys, as with every Kafka client"),
    "acknowledged = survives kill -9": ("yes", "yes"),
    "acknowledged = survives a power cut": (
        "yes, at `durable`",
        "by replicas only: `replication.factor=3&min.insync.replicas=2`; brokers do not sync each append",
    ),
    "`durability=`": ("durable, fast, memory", "kept in the definition; always all in-sync replicas"),
    "`send_many` whole or not at all per partition": (
        "yes",
        "with a producer id; otherwise a broker that dies can keep a part, which is reported",
    ),
    "producer id + sequence": ("yes", "yes; a second process under an id fences the first"),
    "offset of a repeated event": ("yes", "if this process sent it; -1 otherwise"),
    "offsets without gaps": ("until compaction", "no: each commit of a transaction takes one"),
    "schema evolution": ("yes", "yes, the same rules"),
    "`value_format=`": ("kept in the definition; always typed columns", "json, avro, arrow, debezium"),
    "records of other programs": ("not possible", "read under the declared type; unreadable records are marked bad"),
    "read from an offset, a time, the end": ("yes", "yes; a time is found by reading from its arrival on"),
    "late records": ("on every read", "in pipelines; elsewhere by a walk (`headwater.log.kafka.walk`)"),
    "idle markers of idle partitions": ("yes", "in a side topic, for topics that pipelines read"),
    "completing history": ("yes", "while a process runs pipelines of the topic"),
    "tombstones and compaction": ("yes", "yes"),
    "retention waits for groups": ("yes", "no: brokers remove old events, read or not"),
    "overload policy": ("yes", "yes, per process"),
    "append counters": ("over all processes", "of this process"),
    "consumer groups": ("yes", "yes, as Kafka's own; other tools see members and lag"),
    "generation of a group": ("yes", "as the members of this process have seen it"),
    "a dead member is detected": ("at once", "after `session.timeout.ms`, 10 s unless the URL sets it"),
    "wake-up": ("at once", "at once while fetching; 0.2 s for a bare `watch`"),
}


class KafkaInspector:
    """Inspects the topics of a Kafka cluster; creates and changes nothing.

    Args:
        url: The URL, as for `KafkaLog`.
        patience: How long to retry while no broker answers.
    """

    def __init__(self, url: str, patience: timedelta) -> None:
        self._address = KafkaAddress.parse(url)
        self._topics = KafkaTopics(Brokers(self._address, patience))
        self._definitions = TopicDefinitions(self._topics)

    def inspect_topic(self, name: str) -> TopicInspection:
        """Returns the definition, partitions and settings of a topic, as far as it exists.

        Raises:
            UnreachableError: No broker answers.
            BadCredentialsError: The brokers refuse the credentials.
        """
        number = self._topics.partition_counts().get(name, 0)
        known = self._definitions.all().get(name) if number else None
        topic = None if known is None else replace(known.topic, partitions=number)
        return TopicInspection(topic, number, self._topics.settings(name))

    def settings_for(self, topic: Topic) -> dict[str, str]:
        """Returns the settings that a topic of this definition is created with."""
        return topic_config(topic) | self._address.topic_settings

    def side_topics(self, read: Sequence[str]) -> list[str]:
        """Returns the side topics: definitions, commits, and an index per topic that is read.

        A topic that does not exist yet has `ID` in place of its id.
        """
        there = self._topics.partition_counts()
        ids = {name: self._topics.describe(name)[0] if name in there else "ID" for name in read}
        return [DEFINITIONS_TOPIC, COMMITS_TOPIC, *(index_topic(name, ids[name]) for name in read)]

    def close(self) -> None:
        """Close the connections."""
        self._definitions.close()
