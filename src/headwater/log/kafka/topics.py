"""Topics on the brokers: settings, offsets, and the definitions that Headwater keeps about them.

`KafkaTopics` creates and describes topics. `TopicDefinitions` keeps definitions in a compacted side topic,
so every process sees the same. Writers are serialised: each takes over the transactional id of the side
topic before it reads, so a writer that read earlier and has not committed is fenced, reads again and
retries.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import (
    BadCredentialsError,
    BadTypeError,
    FencedError,
    HeadwaterError,
    RefusedError,
    UnreachableError,
)
from headwater.events import Codec
from headwater.events.schema_export import from_arrow_base64, to_arrow_base64
from headwater.log.event_log import PartitionRange
from headwater.log.kafka.brokers import Brokers, close_quietly, topic_partition
from headwater.log.kafka.serializers import AvroSerializer
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.tombstones import TombstoneHorizon
from headwater.log.topic import MAX_EVENT_BYTES, OPTION_NAMES, Topic, ValueFormat

__all__ = [
    "COMPACTED_CONFIG",
    "DEFINITIONS_TOPIC",
    "KafkaTopics",
    "PartitionTail",
    "TopicDefinition",
    "TopicDefinitions",
    "topic_config",
]

logger = logging.getLogger("headwater.kafka")
DEFINITIONS_TOPIC: Final = "__headwater.topics"
_STORED_FIELDS: Final = {item.name for item in fields(Topic)} - {"schema", "location", "given"} | set(OPTION_NAMES)
_CREATE_TIMEOUT: Final = 3.0  # seconds that brokers wait until a new topic is known to all of them
_MAX_ATTEMPTS: Final = 20  # to write a definition, while other processes write theirs
_MILLISECOND = timedelta(milliseconds=1)
# Microseconds by which clocks of brokers and clients may differ, and for which a horizon may be cached.
_CLOCK_TOLERANCE: Final = 300 * 1_000_000
_MIN_SEGMENT_BYTES: Final = 1 << 20  # brokers since 4.0 refuse smaller segments
_HEADER_ALLOWANCE: Final = 64 << 10  # bytes for headers, beside the largest event
_URL_SAFE: Final = str.maketrans("+/", "-_")  # topic ids are base64; names may not contain + and /

# Side topics keep the newest record of each key. A low dirty ratio and small segments compact them often.
COMPACTED_CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(16 << 20),
    "segment.ms": str(timedelta(days=1) // _MILLISECOND),
}


def topic_config(topic: Topic) -> dict[str, str]:
    """Returns the broker settings of a topic's definition.

    Example:
        >>> topic_config(Topic.declare("orders", "id int", retention="7 days"))["retention.ms"]
        '604800000'
    """
    kept, size = topic.retention.time, topic.retention.size
    limited = kept is not None or size is not None
    return {
        "cleanup.policy": ("compact,delete" if limited else "compact") if topic.compact else "delete",
        "retention.ms": "-1" if kept is None else str(kept // _MILLISECOND),
        "retention.bytes": "-1" if size is None else str(size),
        "segment.bytes": str(max(topic.segment_size, _MIN_SEGMENT_BYTES)),
        "max.message.bytes": str(MAX_EVENT_BYTES + _HEADER_ALLOWANCE),
        # Arrival time by the broker's clock. Retention uses it, and `ahead` limits event times relative to it.
        "message.timestamp.type": "LogAppendTime",
    }


class KafkaTopics:
    """Creates and describes topics.

    Args:
        brokers: The brokers.
    """

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self._kafka = brokers.kafka

    def partition_counts(self, name: str | None = None) -> dict[str, int]:
        """Returns the number of partitions of every topic, or of one; topics that do not exist are left out."""

        def list_topics(seconds: float) -> Any:
            found = self.brokers.admin.list_topics(name, timeout=seconds)
            error = found.topics[name].error if name in found.topics else None
            if error is not None and error.code() in self.brokers.retriable_codes:  # without a leader for a moment
                raise self._kafka.KafkaException(error)
            return found

        described = self.brokers.retry(list_topics).topics
        return {
            topic: len(each.partitions) for topic, each in described.items() if each.error is None and each.partitions
        }

    def partition_count(self, name: str) -> int:
        """Returns the number of partitions of a topic; 0 if it does not exist."""
        return self.partition_counts(name).get(name, 0)

    def describe(self, name: str) -> tuple[str, int]:
        """Returns the id that Kafka assigned to a topic, and its number of partitions.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        names = self._kafka.TopicCollection([name])
        found = self.brokers.call_admin(self.brokers.admin.describe_topics, names)
        return str(found[name].topic_id).translate(_URL_SAFE), len(found[name].partitions)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        """Create a topic if it does not exist, and wait until every partition has a leader."""
        config = settings | self.brokers.address.topic_settings
        replicas = int(config.pop("replication.factor", -1))  # -1: the brokers' default.replication.factor
        new = self._kafka.admin.NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=config)
        try:
            self.brokers.call_admin(self.brokers.admin.create_topics, [new], operation_timeout=_CREATE_TIMEOUT)
        except Exception as error:
            if self.partition_count(name):
                return
            raise RefusedError(f'Kafka does not create topic "{name}"', detail=str(error), topic=name) from None

        def check_leaders(seconds: float) -> None:
            found = self.brokers.admin.list_topics(name, timeout=seconds).topics.get(name)
            if found is None or found.error is not None or any(p.leader < 0 for p in found.partitions.values()):
                raise self._kafka.KafkaException(self._kafka.KafkaError(self._kafka.KafkaError.LEADER_NOT_AVAILABLE))

        self.brokers.retry(check_leaders)

    def delete(self, names: list[str]) -> None:
        """Delete topics, and wait until the brokers no longer name them."""
        if not names:
            return
        self.brokers.call_admin(self.brokers.admin.delete_topics, names, operation_timeout=_CREATE_TIMEOUT)
        deadline = time.monotonic() + self.brokers.patience
        while any(map(self.partition_count, names)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Raise the number of partitions of a topic to `partitions`."""
        more = self._kafka.admin.NewPartitions(name, partitions)
        self.brokers.call_admin(self.brokers.admin.create_partitions, [more])

    def configure(self, name: str, settings: dict[str, str]) -> None:
        """Change settings of a topic; other settings stay."""
        admin = self._kafka.admin
        entries = [
            admin.ConfigEntry(setting, value, incremental_operation=admin.AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self.brokers.call_admin(self.brokers.admin.incremental_alter_configs, [resource])

    def settings(self, name: str) -> dict[str, str]:
        """Returns the settings of a topic and its replication factor; only the default factor if it does not exist."""
        cluster = self.brokers.retry(lambda seconds: self.brokers.admin.list_topics(timeout=seconds))
        if name not in cluster.topics:
            broker = self._describe_config("BROKER", str(min(cluster.brokers)))
            return {"replication.factor": broker["default.replication.factor"]}
        replicas = len(cluster.topics[name].partitions[0].replicas)
        return self._describe_config("TOPIC", name) | {"replication.factor": str(replicas)}

    def is_compacted(self, name: str) -> bool:
        """Returns whether the brokers compact a topic, whatever its definition says: other tools may have created it.

        If the brokers do not allow the question, it counts as compacted.
        """
        try:
            return "compact" in self._describe_config("TOPIC", name)["cleanup.policy"]
        except BadCredentialsError:
            return True

    def _describe_config(self, kind: str, name: str) -> dict[str, str]:
        admin = self._kafka.admin
        resource = admin.ConfigResource(admin.ConfigResource.Type[kind], name)
        found = self.brokers.call_admin(self.brokers.admin.describe_configs, [resource])
        return {entry.name: str(entry.value) for entry in found[resource].values()}

    def partition_ranges(self, name: str, partitions: int) -> list[PartitionRange]:
        """Returns the offsets of each partition that readers of committed events see, and its last arrival time.

        Kafka stores no event times: the max event time is `LOWEST_TIME` here.
        """
        numbers = range(partitions)
        starts, ends = self.start_offsets(name, numbers), self.end_offsets(name, numbers)
        newest = self._list_offsets(name, numbers, self._kafka.admin.OffsetSpec.max_timestamp())
        return [PartitionRange(n, starts[n], ends[n], LOWEST_TIME, max(0, newest[n].timestamp * 1000)) for n in numbers]

    def end_offsets(self, name: str, partitions: Sequence[int]) -> dict[int, int]:
        """Returns the end offsets of committed events in these partitions."""
        found = self._list_offsets(name, partitions, self._kafka.admin.OffsetSpec.latest())
        return {number: result.offset for number, result in found.items()}

    def start_offsets(self, name: str, partitions: Sequence[int]) -> dict[int, int]:
        """Returns the start offsets of these partitions."""
        found = self._list_offsets(name, partitions, self._kafka.admin.OffsetSpec.earliest())
        return {number: result.offset for number, result in found.items()}

    def wait_until_visible(self, name: str, offsets: dict[int, int]) -> None:
        """Wait until readers of committed events see these offsets, which is shortly after the commit's reply."""
        deadline = time.monotonic() + self.brokers.patience
        while any(end <= offsets[p] for p, end in self.end_offsets(name, list(offsets)).items()):
            if time.monotonic() > deadline:
                what = f"{self.brokers.address} has committed, but readers do not see the events"
                raise UnreachableError(what, url=str(self.brokers.address), sent=True)
            time.sleep(0.002)

    def offset_for_time(self, name: str, partition: int, micros: int) -> int | None:
        """Returns the first offset that arrived at this time or later; None if there is none."""
        spec = self._kafka.admin.OffsetSpec.for_timestamp(max(0, -(-micros // 1000)))
        offset = self._list_offsets(name, [partition], spec)[partition].offset
        return None if offset < 0 else int(offset)

    def tombstone_horizons(self, name: str, partitions: int, now: int) -> list[TombstoneHorizon]:
        """Returns the tombstones that the brokers may have removed; none for a topic that is not compacted.

        Brokers do not report what they have removed. They keep a tombstone for `delete.retention.ms` from the first
        run of compaction after its arrival, so one that arrived later than that ago is there. That run also removes
        the row that it deletes, so a reader that begins at the start now misses nothing for that long.
        """
        config = self._describe_config("TOPIC", name)
        if "compact" not in config["cleanup.policy"]:
            return []
        kept = int(config["delete.retention.ms"]) * 1000
        mark, ends = now + _CLOCK_TOLERANCE, self.end_offsets(name, range(partitions))
        untils = {number: self.offset_for_time(name, number, mark - kept) for number in range(partitions)}
        return [
            TombstoneHorizon(number, ends[number] if until is None else until, mark, fresh=now + kept)
            for number, until in untils.items()
        ]

    def _list_offsets(self, name: str, partitions: Sequence[int], spec: Any) -> dict[int, Any]:
        wanted = {topic_partition(name, number): spec for number in partitions}
        committed = self._kafka.IsolationLevel.READ_COMMITTED
        found = self.brokers.call_admin(self.brokers.admin.list_offsets, wanted, isolation_level=committed)
        return {each.partition: result for each, result in found.items()}


class PartitionTail:
    """Reads a partition to its present end; each later read continues from there. One thread at a time.

    Args:
        topics: The topics, for start and end offsets.
        topic: The topic.
        partition: One of its partitions.
    """

    def __init__(self, topics: KafkaTopics, topic: str, partition: int) -> None:
        self._topics = topics
        self._brokers = topics.brokers
        self._kafka = topics.brokers.kafka
        self._topic_partition = (topic, partition)
        self._next_offset = -1
        self._consumer: Any = None

    def read(self, commit_markers: int = 0) -> Iterator[Any]:
        """Yields messages that were not read yet.

        Args:
            commit_markers: How many offsets at the end are commit markers; the read does not wait for them.
        """
        if self._consumer is None:
            self._consumer = self._brokers.create_consumer()
        topic, partition = self._topic_partition
        if self._next_offset < 0:
            self._next_offset = self._topics.start_offsets(topic, [partition])[partition]
            self._consumer.assign([topic_partition(topic, partition, self._next_offset)])
        end = self._topics.end_offsets(topic, [partition])[partition] - commit_markers
        idle_since = time.monotonic()
        while self._next_offset < end:
            for message in self._consumer.consume(10_000, 0.02) or ():
                idle_since = time.monotonic()
                if message.error() is None:
                    yield message
                    self._next_offset = message.offset() + 1
                # The offset of an end-of-partition event lies behind commit markers, which are not delivered.
                elif message.error().code() == self._kafka.KafkaError._PARTITION_EOF:
                    self._next_offset = max(self._next_offset, message.offset())
            if time.monotonic() - idle_since > self._brokers.patience:
                raise self._brokers.unreachable_error()

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


@dataclass(frozen=True)
class TopicDefinition:
    """A topic's definition and all versions of its type."""

    topic: Topic
    schemas: dict[int, pa.Schema] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> TopicDefinition:
        """Decode the value of a record."""
        document = msgspec.json.decode(value)
        schemas = {int(version): from_arrow_base64(text) for version, text in document["schemas"].items()}
        settings = {name: value for name, value in document.items() if name in _STORED_FIELDS}
        return cls(Topic.from_json(msgspec.json.encode(settings), schemas[document["version"]]), schemas)

    def encode(self) -> bytes:
        """Returns the value of the record."""
        document = msgspec.json.decode(self.topic.to_json())
        document["schemas"] = {str(version): to_arrow_base64(schema) for version, schema in self.schemas.items()}
        if self.topic.value_format is ValueFormat.AVRO:
            serializers = [AvroSerializer(Codec(schema), self.topic.name) for schema in self.schemas.values()]
            document["avro"] = {serializer.fingerprint: serializer.schema for serializer in serializers}
        return msgspec.json.encode(document)


class TopicDefinitions:
    """All definitions that this process has read.

    Args:
        topics: The topics; creates the side topic if it is missing.
    """

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics
        self._brokers = topics.brokers
        self._lock = threading.RLock()  # held while reading and writing: one thread per consumer and producer
        self._known: dict[str, TopicDefinition] = {}
        self._tail = PartitionTail(topics, DEFINITIONS_TOPIC, 0)
        self._topic_exists = False
        self._producer: Any = None

    def get(self, name: str) -> TopicDefinition | None:
        """Returns a topic's definition as last read."""
        return self._known.get(name)

    def all(self) -> dict[str, TopicDefinition]:
        """Read new definitions and return all."""
        with self._lock:
            self._refresh()
            return dict(self._known)

    def update(self, build: Callable[[], TopicDefinition | None]) -> None:
        """Write the definition that `build` returns, exclusively; `build` runs again if another writer was faster."""
        with self._lock:
            if not self._topic_exists:
                self._topics.create(DEFINITIONS_TOPIC, 1, COMPACTED_CONFIG)
                self._topic_exists = True
            for _ in range(_MAX_ATTEMPTS):
                with contextlib.suppress(FencedError):
                    self._attempt(build)
                    return
        raise FencedError("other processes keep changing topic definitions", fix="try again later")

    def _attempt(self, build: Callable[[], TopicDefinition | None]) -> None:
        """Take over the transactional id, read, build, commit.

        In this order the commit succeeds only if no other process has taken over since the read.
        """
        try:
            if self._producer is None:
                self._producer = self._brokers.create_producer({"transactional.id": DEFINITIONS_TOPIC})
                self._brokers.retry(self._producer.init_transactions)
            self._refresh()
            new = build()
            if new is None:
                return
            self._producer.begin_transaction()
            self._producer.produce(DEFINITIONS_TOPIC, key=new.topic.name.encode(), value=new.encode(), partition=0)
            self._brokers.retry(self._producer.commit_transaction)
        except self._brokers.kafka.KafkaException as error:
            self._close_producer()
            raise self._brokers.translate_error(error) from None
        except HeadwaterError:
            self._close_producer()
            raise
        deadline = time.monotonic() + self._brokers.patience
        while self._known.get(new.topic.name) != new and time.monotonic() < deadline:
            self._refresh()  # readers see a commit shortly after its reply

    def _close_producer(self) -> None:
        close_quietly(self._producer)
        self._producer = None

    def _refresh(self) -> None:
        if not self._topic_exists:
            self._topic_exists = self._topics.partition_count(DEFINITIONS_TOPIC) > 0
            if not self._topic_exists:
                return
        for message in self._tail.read(commit_markers=1):
            name, value = message.key().decode(), message.value()
            if value is None:
                self._known.pop(name, None)
                continue
            try:
                self._known[name] = TopicDefinition.decode(value)
            except (msgspec.MsgspecError, BadTypeError, LookupError, TypeError, ValueError) as error:
                logger.warning("offset %d of %s is not a definition: %s", message.offset(), DEFINITIONS_TOPIC, error)

    def close(self) -> None:
        """Close the connections."""
        self._close_producer()
        self._tail.close()
