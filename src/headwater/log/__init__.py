"""Where events are kept: topics of partitions of segments, read by offset, shared by several processes.

In come typed rows, through a door that decides what overload does; out come batches from any offset on, and a wake-up
when there are more. Consumer groups, retention, compaction and time marks live here too. Enter at `EventLog`.
"""

from headwater.log.batch import LogBatch
from headwater.log.definition import Durability, Retention, Topic
from headwater.log.door.overload import Overload, backpressure, buffer, drop
from headwater.log.event_log import EventLog, PartitionRange, Start
from headwater.log.groups import GroupState, Membership
from headwater.log.keeping import Values
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows
from headwater.log.wakeup import Wakeup

__all__ = [
    "Durability",
    "EventLog",
    "GroupState",
    "LogBatch",
    "Membership",
    "Overload",
    "PartitionRange",
    "Receipts",
    "Retention",
    "Row",
    "Rows",
    "Start",
    "Topic",
    "Values",
    "Wakeup",
    "backpressure",
    "buffer",
    "drop",
]
