"""The event log: topics with partitions, read by offset, shared by several processes.

Typed rows come in through an append buffer with an overload policy. Batches are read from any offset, and
waiters report new ones. Consumer groups, retention, compaction and idle markers belong here too. Enter at
`EventLog` (event_log.py) for a folder, `HttpLog` (http) for a node, and `KafkaLog` (kafka) for Kafka;
protocol.py declares what they share.
"""

from headwater.log.batch import LogBatch
from headwater.log.consumer_groups import GroupState, Membership
from headwater.log.event_log import EventLog, PartitionRange, Start
from headwater.log.notifier import FileNotifier
from headwater.log.topic import Durability, Overload, Retention, Topic, ValueFormat, backpressure, buffer, drop
from headwater.log.write.write_batch import PendingEvent, WriteBatch

__all__ = [
    "Durability",
    "EventLog",
    "FileNotifier",
    "GroupState",
    "LogBatch",
    "Membership",
    "Overload",
    "PartitionRange",
    "PendingEvent",
    "Retention",
    "Start",
    "Topic",
    "ValueFormat",
    "WriteBatch",
    "backpressure",
    "buffer",
    "drop",
]
