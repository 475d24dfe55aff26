"""What brokers have under the names of topics, looked at and not touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from headwater.log.definition import Topic
from headwater.log.kafka.brokers import Brokers, KafkaAddress
from headwater.log.kafka.definitions import DEFINITIONS, Definitions
from headwater.log.kafka.sending.transactions import COMMITS
from headwater.log.kafka.time.index import index_name
from headwater.log.kafka.topics import KafkaTopics, settings_of
from headwater.log.survey import Standing

__all__ = ["KafkaSurvey"]


class KafkaSurvey:
    """Looks at the topics of a Kafka; nothing is made or changed.

    Args:
        url: As for `KafkaLog`.
        patience: How long to go on while no broker answers.
    """

    def __init__(self, url: str, patience: timedelta) -> None:
        self._address = KafkaAddress.of(url)
        brokers = Brokers(self._address, patience)
        self._topics = KafkaTopics(brokers)
        self._definitions = Definitions(brokers, self._topics)

    def standing(self, name: str) -> Standing:
        """What there is under this name.

        Raises:
            UnreachableError: No broker answers.
            BadCredentialsError: They do not accept us.
        """
        number = self._topics.partitions().get(name, 0)
        known = self._definitions.all().get(name) if number else None
        topic = None if known is None else replace(known.topic, partitions=number)
        return Standing(topic, number, self._topics.settings(name))

    def meant(self, topic: Topic) -> dict[str, str]:
        """The settings that a topic of this definition would be made with."""
        return settings_of(topic) | self._address.topic_settings

    def side_topics(self, read: Sequence[str]) -> list[str]:
        """Definitions, commits, and the event time of each topic that is read; `ID` until the topic has one."""
        there = self._topics.partitions()
        ids = {name: self._topics.about(name)[0] if name in there else "ID" for name in read}
        return [DEFINITIONS, COMMITS, *(index_name(name, ids[name]) for name in read)]

    def close(self) -> None:
        """Let go of the connections."""
        self._definitions.close()
