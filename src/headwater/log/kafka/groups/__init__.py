"""Consumer groups of Kafka as ours: a member for each consumer, offsets committed under the group's own name.

In come members that join, come back, commit and leave, out goes who owns what. Enter at `KafkaGroups`.
"""

from headwater.log.kafka.groups.group_book import KafkaGroups

__all__ = ["KafkaGroups"]
