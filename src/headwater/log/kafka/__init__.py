"""The log on Kafka, with the same calls as the log in a folder.

In come rows and offsets; they become records that any Kafka client can read: values in JSON, or in Avro or Arrow by
choice of the topic, and the envelope in headers.
Definitions of topics and what was committed lie in compacted side topics. Enter at `KafkaLog`.
"""

from headwater.log.kafka.kafka_log import KafkaLog
from headwater.log.kafka.time.walk import EventTimeWalk, walk

__all__ = ["EventTimeWalk", "KafkaLog", "walk"]
