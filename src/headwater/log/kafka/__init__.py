"""The log on Kafka, with the same calls as `EventLog`.

Rows and offsets come in and become records that any Kafka client can read: values in JSON, Avro or Arrow,
as the topic's `value_format` says, and the envelope in headers. Topic definitions, producer progress and
event time are in compacted side topics. Enter at `KafkaLog` (kafka_log.py).
"""

from headwater.log.kafka.event_time_index import EventTimeWalk, walk
from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["EventTimeWalk", "KafkaLog", "walk"]
