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
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import FencedError, RefusedError, UnreachableError
from headwater.events import Codec
from headwater.log.event_log import PartitionRange
from headwater.log.kafka.brokers import Brokers, close_quietly, driver, topic_partition
from headwater.log.kafka.serializers import AvroSerializer
from headwater.log.storage.frame import LOWEST_TIME
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

_MILLISECOND = timedelta(milliseconds=1)
_MIN_SEGMENT_BYTES: Final = 1 << 20  # brokers from 4.0 on take nothing smaller
_HEADER_ALLOWANCE: Final = 64 << 10  # room for headers beside the largest event
_URL_SAFE: Final = str.maketrans("+/", "-_")  # the driver writes ids with signs that no name may have

# Side topics: of each key the newest record counts, and what is older goes soon.
COMPACTED_CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(16 << 20),
    "segment.ms": str(timedelta(days=1) // _MILLISECOND),
}


def topic_config(topic: Topic) -> dict[str, str]:
    """Returns what a topic's definition means to a broker.

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
        # Arrival by the broker's clock: retention goes by it, and it is what an event's own time is measured against.
        "message.timestamp.type": "LogAppendTime",
    }


class KafkaTopics:
    """Asks and tells the brokers about topics.

    Args:
        brokers: Whom to ask.
    """

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self._kafka = driver()

    def partition_counts(self, name: str | None = None) -> dict[str, int]:
        """Returns how many partitions each topic has, or only this one; topics that do not exist are left out."""
        found = self.brokers.retry(lambda seconds: self._list_topics(name, seconds))
        return {
            topic: len(about.partitions)
            for topic, about in found.topics.items()
            if about.error is None and about.partitions
        }

    def _list_topics(self, name: str | None, seconds: float) -> Any:
        found = self.brokers.admin.list_topics(name, timeout=seconds)
        unsure = found.topics[name].error if name in found.topics else None
        if unsure is not None and unsure.code() in self.brokers.retriable_codes:  # between two leaders, not gone
            raise self._kafka.KafkaException(unsure)
        return found

    def describe(self, name: str) -> tuple[str, int]:
        """Returns the id that a topic was given when it was made, and how many partitions it has.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        names = self._kafka.TopicCollection([name])
        found = self.brokers.call_admin(lambda admin, seconds: admin.describe_topics(names, request_timeout=seconds))[
            name
        ]
        return str(found.topic_id).translate(_URL_SAFE), len(found.partitions)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> bool:
        """Create a topic and wait until the brokers have it; False when it was there already."""
        wanted = dict(self.brokers.address.topic_settings)
        copies = int(wanted.pop("replication.factor", -1))  # -1: as many as the brokers think right
        config = settings | wanted
        new = self._kafka.admin.NewTopic(name, num_partitions=partitions, replication_factor=copies, config=config)
        try:
            self.brokers.call_admin(
                lambda admin, seconds: admin.create_topics([new], operation_timeout=seconds, request_timeout=seconds)
            )
        except Exception as error:
            if self.partition_counts(name).get(name):
                return False
            raise self._create_error(error, name) from None
        self.brokers.retry(lambda seconds: self._check_created(name, seconds))
        return True

    def _check_created(self, name: str, seconds: float) -> None:
        found = self.brokers.admin.list_topics(name, timeout=seconds).topics.get(name)
        if found is None or found.error is not None or any(p.leader < 0 for p in found.partitions.values()):
            raise self._kafka.KafkaException(self._kafka.KafkaError(self._kafka.KafkaError.LEADER_NOT_AVAILABLE))

    @staticmethod
    def _create_error(error: Exception, name: str) -> Exception:
        return RefusedError(f'Kafka does not create the topic "{name}"', detail=str(error), topic=name)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        more = self._kafka.admin.NewPartitions(name, partitions)
        self.brokers.call_admin(lambda admin, seconds: admin.create_partitions([more], request_timeout=seconds))

    def configure(self, name: str, settings: dict[str, str]) -> None:
        """Change settings of a topic; others stay."""
        admin = self._kafka.admin
        entries = [
            admin.ConfigEntry(setting, value, incremental_operation=admin.AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self.brokers.call_admin(
            lambda client, seconds: client.incremental_alter_configs([resource], request_timeout=seconds)
        )

    def settings(self, name: str) -> dict[str, str]:
        """The settings of a topic, with the number of its copies; of one that is not there, those it would have."""
        cluster = self.brokers.retry(lambda seconds: self.brokers.admin.list_topics(timeout=seconds))
        if name not in cluster.topics:
            broker = self._describe_config("BROKER", str(min(cluster.brokers)))
            return {"replication.factor": broker["default.replication.factor"]}
        copies = len(cluster.topics[name].partitions[0].replicas)
        return self._describe_config("TOPIC", name) | {"replication.factor": str(copies)}

    def _describe_config(self, kind: str, name: str) -> dict[str, str]:
        admin = self._kafka.admin
        asked = admin.ConfigResource(admin.ConfigResource.Type[kind], name)
        found = self.brokers.call_admin(
            lambda client, seconds: client.describe_configs([asked], request_timeout=seconds)
        )
        return {entry.name: str(entry.value) for entry in found[asked].values()}

    def partition_ranges(self, name: str, partitions: int) -> list[PartitionRange]:
        """Returns what each partition holds for readers of committed events.

        Kafka does not know event times: `running_max` is left open here, and walked where it is needed.
        """
        spec = self._kafka.admin.OffsetSpec
        starts = self._list_offsets(name, partitions, spec.earliest())
        ends = self._list_offsets(name, partitions, spec.latest())
        newest = self._list_offsets(name, partitions, spec.max_timestamp())
        return [
            PartitionRange(
                number,
                starts[number].offset,
                ends[number].offset,
                LOWEST_TIME,
                newest[number].timestamp * 1000 if newest[number].timestamp > 0 else 0,
            )
            for number in range(partitions)
        ]

    def end_offsets(self, name: str, partitions: list[int]) -> dict[int, int]:
        """Returns where the committed events of these partitions end."""
        found = self._list_offsets(name, partitions, self._kafka.admin.OffsetSpec.latest())
        return {number: held.offset for number, held in found.items()}

    def start_offsets(self, name: str, partitions: list[int]) -> dict[int, int]:
        """Returns where these partitions start."""
        found = self._list_offsets(name, partitions, self._kafka.admin.OffsetSpec.earliest())
        return {number: held.offset for number, held in found.items()}

    def wait_until_visible(self, name: str, offsets: dict[int, int]) -> None:
        """Come back when readers of committed events see these offsets: a commit is answered a moment before that."""
        deadline = time.monotonic() + self.brokers.patience
        while any(end <= offsets[p] for p, end in self.end_offsets(name, list(offsets)).items()):
            if time.monotonic() > deadline:
                what = f"{self.brokers.address} has committed, but does not show it"
                raise UnreachableError(what, url=str(self.brokers.address), sent=True)
            time.sleep(0.002)

    def offset_for_time(self, name: str, partition: int, micros: int) -> int | None:
        """Returns the first offset that arrived at this time or later; None when there is none."""
        spec = self._kafka.admin.OffsetSpec.for_timestamp(max(0, -(-micros // 1000)))
        offset = self._list_offsets(name, [partition], spec)[partition].offset
        return None if offset < 0 else int(offset)

    def _list_offsets(self, name: str, partitions: list[int] | int, spec: Any) -> dict[int, Any]:
        numbers = range(partitions) if isinstance(partitions, int) else partitions
        wanted = {topic_partition(name, number): spec for number in numbers}
        committed = self._kafka.IsolationLevel.READ_COMMITTED
        found = self.brokers.call_admin(
            lambda admin, seconds: admin.list_offsets(wanted, isolation_level=committed, request_timeout=seconds)
        )
        return {where.partition: held for where, held in found.items()}


class PartitionTail:
    """Reads a partition up to its present end, and later what has come since; one thread at a time.

    Args:
        topics: Knows where it ends.
        topic: The topic.
        partition: One of its partitions.
    """

    def __init__(self, topics: KafkaTopics, topic: str, partition: int) -> None:
        self._topics = topics
        self._brokers = topics.brokers
        self._kafka = driver()
        self._topic_partition = (topic, partition)
        self._next_offset = -1
        self._consumer: Any = None

    def read(self, commit_markers: int = 0) -> Iterator[Any]:
        """Messages that were not read yet; the last `commit_markers` offsets are known to be marks of a commit."""
        if self._consumer is None:
            self._consumer = self._brokers.create_consumer()
        topic, partition = self._topic_partition
        if self._next_offset < 0:
            self._next_offset = self._topics.start_offsets(topic, [partition])[partition]
            self._consumer.assign([topic_partition(topic, partition, self._next_offset)])
        end = self._topics.end_offsets(topic, [partition])[partition]
        last = end - commit_markers
        idle_since = time.monotonic()
        while self._next_offset < last:
            for message in self._consumer.consume(10_000, 0.02) or ():
                idle_since = time.monotonic()
                if message.error() is None:
                    yield message
                elif message.error().code() != self._kafka.KafkaError._PARTITION_EOF:
                    continue
                self._next_offset = max(self._next_offset, message.offset() + (message.error() is None))
            if time.monotonic() - idle_since > self._brokers.patience:
                what = f"no Kafka broker answers at {self._brokers.address}"
                raise UnreachableError(what, url=str(self._brokers.address))

    def close(self) -> None:
        """Let go of the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


logger = logging.getLogger("headwater.kafka")
DEFINITIONS_TOPIC: Final = "__headwater.topics"
_STORED_FIELDS: Final = {item.name for item in fields(Topic)} - {"schema", "location", "given"} | set(OPTION_NAMES)
_MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class TopicDefinition:
    """A topic's definition and every type it had, by version."""

    topic: Topic
    schemas: dict[int, pa.Schema] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> TopicDefinition:
        """From a record's value."""
        document = msgspec.json.decode(value)
        schemas = {
            int(version): pa.ipc.read_schema(pa.py_buffer(b64decode(text)))
            for version, text in document["schemas"].items()
        }
        settings = {name: value for name, value in document.items() if name in _STORED_FIELDS}
        topic = Topic.from_json(msgspec.json.encode(settings), schemas[document["version"]])
        return cls(topic, schemas)

    def encode(self) -> bytes:
        """Returns the value of its record."""
        document = msgspec.json.decode(self.topic.to_json())
        document["schemas"] = {
            str(version): b64encode(schema.serialize().to_pybytes()).decode()
            for version, schema in self.schemas.items()
        }
        if self.topic.value_format is ValueFormat.AVRO:
            serializers = [AvroSerializer(Codec(schema), self.topic.name) for schema in self.schemas.values()]
            document["avro"] = {form.fingerprint: form.schema for form in serializers}
        return msgspec.json.encode(document)

    def with_topic(self, topic: Topic) -> TopicDefinition:
        """The same under a newer definition."""
        return TopicDefinition(topic, self.schemas | {topic.version: topic.schema})


class TopicDefinitions:
    """All definitions, as far as this process has read them.

    Args:
        brokers: Where they are.
        topics: Makes the side topic when it is missing.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics) -> None:
        self._brokers = brokers
        self._topics = topics
        self._kafka = driver()
        self._lock = threading.RLock()
        self._known: dict[str, TopicDefinition] = {}
        self._tail = PartitionTail(topics, DEFINITIONS_TOPIC, 0)
        self._topic_exists = False
        self._producer: Any = None

    def get(self, name: str) -> TopicDefinition | None:
        """A topic's definition, as last read."""
        return self._known.get(name)

    def all(self) -> dict[str, TopicDefinition]:
        """Returns all definitions, up to now."""
        with self._lock:
            self._refresh()
            return dict(self._known)

    def update(self, build: Callable[[], TopicDefinition | None]) -> None:
        """Write what `build` gives while nobody else writes; it may be called again when somebody else was faster."""
        with self._lock:
            if not self._topic_exists:
                self._topics.create(DEFINITIONS_TOPIC, 1, COMPACTED_CONFIG)
                self._topic_exists = True
            for attempt in range(_MAX_ATTEMPTS):
                with contextlib.suppress(FencedError):
                    self._attempt(build)
                    return
                if attempt == _MAX_ATTEMPTS - 1:
                    raise FencedError("other processes change topics all the time", fix="try again later")

    def _attempt(self, build: Callable[[], TopicDefinition | None]) -> None:
        """One try. Whoever still has the id open when it commits has had the say since it opened it."""
        try:
            if self._producer is None:
                producer = self._brokers.create_producer({"transactional.id": DEFINITIONS_TOPIC})
                self._brokers.retry(producer.init_transactions)
                self._producer = producer
            self._refresh()
            new = build()
            if new is None:
                return
            self._producer.begin_transaction()
            self._producer.produce(DEFINITIONS_TOPIC, key=new.topic.name.encode(), value=new.encode(), partition=0)
            self._brokers.retry(self._producer.commit_transaction)
        except self._kafka.KafkaException as error:
            self._close_producer()
            raise self._brokers.translate_error(error) from None
        except (FencedError, UnreachableError):
            self._close_producer()
            raise
        deadline = time.monotonic() + self._brokers.patience
        while self._known.get(new.topic.name) != new and time.monotonic() < deadline:
            self._refresh()  # a commit is answered a moment before readers see it

    def _close_producer(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            close_quietly(producer)

    def _refresh(self) -> None:
        if not self._topic_exists:
            self._topic_exists = DEFINITIONS_TOPIC in self._topics.partition_counts(DEFINITIONS_TOPIC)
            if not self._topic_exists:
                return
        for message in self._tail.read(commit_markers=1):
            self._apply(message)

    def close(self) -> None:
        """Let go of the connection."""
        self._close_producer()
        self._tail.close()

    def _apply(self, message: Any) -> None:
        name = message.key().decode()
        value = message.value()
        if value is None:
            self._known.pop(name, None)
            return
        try:
            self._known[name] = TopicDefinition.decode(value)
        except (msgspec.MsgspecError, pa.ArrowException, LookupError, TypeError, ValueError) as error:
            logger.warning("offset %d of %s is no definition: %s", message.offset(), DEFINITIONS_TOPIC, error)
