"""Topics of the brokers: made with the settings of a definition, and what each partition holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from headwater.errors import RefusedError, UnreachableError
from headwater.log.definition import LARGEST_EVENT, Topic
from headwater.log.event_log import PartitionRange
from headwater.log.kafka.brokers import Brokers, driver, partition_at
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["COMPACTED", "KafkaTopics", "Tail", "settings_of"]

_MILLISECOND = timedelta(milliseconds=1)
_SMALLEST_SEGMENT: Final = 1 << 20  # brokers from 4.0 on take nothing smaller
_HEADERS: Final = 64 << 10  # room for headers beside the largest event
_AS_KAFKA_WRITES: Final = str.maketrans("+/", "-_")  # the driver writes ids with signs that no name may have

# Side topics: of each key the newest record counts, and what is older goes soon.
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(16 << 20),
    "segment.ms": str(timedelta(days=1) // _MILLISECOND),
}


def settings_of(topic: Topic) -> dict[str, str]:
    """What a topic's definition means to a broker.

    Example:
        >>> settings_of(Topic.declare("orders", "id int", retention="7 days"))["retention.ms"]
        '604800000'
    """
    kept, size = topic.retention.time, topic.retention.size
    limited = kept is not None or size is not None
    return {
        "cleanup.policy": ("compact,delete" if limited else "compact") if topic.compact else "delete",
        "retention.ms": "-1" if kept is None else str(kept // _MILLISECOND),
        "retention.bytes": "-1" if size is None else str(size),
        "segment.bytes": str(max(topic.segment_size, _SMALLEST_SEGMENT)),
        "max.message.bytes": str(LARGEST_EVENT + _HEADERS),
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

    def partitions(self, name: str | None = None) -> dict[str, int]:
        """How many partitions each topic has, or only this one; topics that do not exist are left out."""
        found = self.brokers.ask(lambda seconds: self._listed(name, seconds))
        return {
            topic: len(about.partitions)
            for topic, about in found.topics.items()
            if about.error is None and about.partitions
        }

    def _listed(self, name: str | None, seconds: float) -> Any:
        found = self.brokers.admin.list_topics(name, timeout=seconds)
        unsure = found.topics[name].error if name in found.topics else None
        if unsure is not None and unsure.code() in self.brokers.silent:  # between two leaders, not gone
            raise self._kafka.KafkaException(unsure)
        return found

    def about(self, name: str) -> tuple[str, int]:
        """The id that a topic was given when it was made, and how many partitions it has.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        names = self._kafka.TopicCollection([name])
        found = self.brokers.futures(
            lambda admin, seconds: admin.describe_topics(names, request_timeout=seconds)
        )[name]
        return str(found.topic_id).translate(_AS_KAFKA_WRITES), len(found.partitions)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> bool:
        """Create a topic and wait until the brokers have it; False when it was there already."""
        wanted = dict(self.brokers.address.topic_settings)
        copies = int(wanted.pop("replication.factor", -1))  # -1: as many as the brokers think right
        config = settings | wanted
        new = self._kafka.admin.NewTopic(
            name, num_partitions=partitions, replication_factor=copies, config=config
        )
        try:
            self.brokers.futures(
                lambda admin, seconds: admin.create_topics(
                    [new], operation_timeout=seconds, request_timeout=seconds
                )
            )
        except Exception as error:
            if self.partitions(name).get(name):
                return False
            raise self._refused(error, name) from None
        self.brokers.ask(lambda seconds: self._appeared(name, seconds))
        return True

    def _appeared(self, name: str, seconds: float) -> None:
        found = self.brokers.admin.list_topics(name, timeout=seconds).topics.get(name)
        if found is None or found.error is not None or any(p.leader < 0 for p in found.partitions.values()):
            raise self._kafka.KafkaException(
                self._kafka.KafkaError(self._kafka.KafkaError.LEADER_NOT_AVAILABLE)
            )

    @staticmethod
    def _refused(error: Exception, name: str) -> Exception:
        return RefusedError(f'Kafka does not create the topic "{name}"', detail=str(error), topic=name)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        more = self._kafka.admin.NewPartitions(name, partitions)
        self.brokers.futures(lambda admin, seconds: admin.create_partitions([more], request_timeout=seconds))

    def configure(self, name: str, settings: dict[str, str]) -> None:
        """Change settings of a topic; others stay."""
        admin = self._kafka.admin
        entries = [
            admin.ConfigEntry(setting, value, incremental_operation=admin.AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self.brokers.futures(
            lambda client, seconds: client.incremental_alter_configs([resource], request_timeout=seconds)
        )

    def settings(self, name: str) -> dict[str, str]:
        """The settings of a topic, with the number of its copies; of one that is not there, those it would have."""
        cluster = self.brokers.ask(lambda seconds: self.brokers.admin.list_topics(timeout=seconds))
        if name not in cluster.topics:
            broker = self._described("BROKER", str(min(cluster.brokers)))
            return {"replication.factor": broker["default.replication.factor"]}
        copies = len(cluster.topics[name].partitions[0].replicas)
        return self._described("TOPIC", name) | {"replication.factor": str(copies)}

    def _described(self, kind: str, name: str) -> dict[str, str]:
        admin = self._kafka.admin
        asked = admin.ConfigResource(admin.ConfigResource.Type[kind], name)
        found = self.brokers.futures(
            lambda client, seconds: client.describe_configs([asked], request_timeout=seconds)
        )
        return {entry.name: str(entry.value) for entry in found[asked].values()}

    def ends(self, name: str, partitions: int) -> list[PartitionRange]:
        """What each partition holds for readers of committed events.

        Kafka does not know event times: `running_max` is left open here, and walked where it is needed.
        """
        spec = self._kafka.admin.OffsetSpec
        starts = self._offsets(name, partitions, spec.earliest())
        ends = self._offsets(name, partitions, spec.latest())
        newest = self._offsets(name, partitions, spec.max_timestamp())
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
        """Where the committed events of these partitions end."""
        found = self._offsets(name, partitions, self._kafka.admin.OffsetSpec.latest())
        return {number: held.offset for number, held in found.items()}

    def start_offsets(self, name: str, partitions: list[int]) -> dict[int, int]:
        """Where these partitions start."""
        found = self._offsets(name, partitions, self._kafka.admin.OffsetSpec.earliest())
        return {number: held.offset for number, held in found.items()}

    def wait_until_visible(self, name: str, offsets: dict[int, int]) -> None:
        """Come back when readers of committed events see these offsets: a commit is answered a moment before that."""
        deadline = time.monotonic() + self.brokers.patience
        while any(end <= offsets[p] for p, end in self.end_offsets(name, list(offsets)).items()):
            if time.monotonic() > deadline:
                what = f"{self.brokers.address} has committed, but does not show it"
                raise UnreachableError(what, url=str(self.brokers.address), sent=True)
            time.sleep(0.002)

    def at_time(self, name: str, partition: int, micros: int) -> int | None:
        """The first offset that arrived at this time or later; None when there is none."""
        spec = self._kafka.admin.OffsetSpec.for_timestamp(max(0, -(-micros // 1000)))
        offset = self._offsets(name, [partition], spec)[partition].offset
        return None if offset < 0 else int(offset)

    def _offsets(self, name: str, partitions: list[int] | int, spec: Any) -> dict[int, Any]:
        numbers = range(partitions) if isinstance(partitions, int) else partitions
        wanted = {partition_at(name, number): spec for number in numbers}
        committed = self._kafka.IsolationLevel.READ_COMMITTED
        found = self.brokers.futures(
            lambda admin, seconds: admin.list_offsets(
                wanted, isolation_level=committed, request_timeout=seconds
            )
        )
        return {where.partition: held for where, held in found.items()}


class Tail:
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
        self._where = (topic, partition)
        self._next = -1
        self._consumer: Any = None

    def read(self, markers: int = 0) -> Iterator[Any]:
        """Messages that were not read yet; the last `markers` offsets are known to be marks of a commit."""
        if self._consumer is None:
            self._consumer = self._brokers.consumer()
        topic, partition = self._where
        if self._next < 0:
            self._next = self._topics.start_offsets(topic, [partition])[partition]
            self._consumer.assign([partition_at(topic, partition, self._next)])
        end = self._topics.end_offsets(topic, [partition])[partition]
        last = end - markers
        quiet = time.monotonic()
        while self._next < last:
            for message in self._consumer.consume(10_000, 0.02) or ():
                quiet = time.monotonic()
                if message.error() is None:
                    yield message
                elif message.error().code() != self._kafka.KafkaError._PARTITION_EOF:
                    continue
                self._next = max(self._next, message.offset() + (message.error() is None))
            if time.monotonic() - quiet > self._brokers.patience:
                what = f"no Kafka broker answers at {self._brokers.address}"
                raise UnreachableError(what, url=str(self._brokers.address))

    def close(self) -> None:
        """Let go of the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
