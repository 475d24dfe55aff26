"""What an event is: its envelope, key and clocks, its type and how that may change, and `Change`.

Declared types come in (`arrow_schema`), rows, JSON lines and frames become checked Arrow batches (`Codec`) and come
out again as events (`events_of`). Enter at `declared.py` for types, at `codec.py` for data.
"""

from headwater.events.change import Change, Position, Row, Transaction
from headwater.events.changes import changes, row_of_changes
from headwater.events.clock import Clock, ManualClock, SystemClock
from headwater.events.codec import Codec, Limits, storage_schema
from headwater.events.ddl import from_ddl, to_ddl
from headwater.events.declared import Precision, arrow_schema, from_row
from headwater.events.device_clock import UNKNOWN, ClockOffsets, DeviceClock, device_clock
from headwater.events.envelope import Event, Receipt, checked_headers, checked_traceparent, events_of
from headwater.events.evolution import Difference, FieldChange, compare, merge, upgrade
from headwater.events.key import key_bytes, keys_of, murmur2, partition_of, partitions_of
from headwater.events.values import flags_column, integers_of, moments_of, times_column, to_row, values_of
from headwater.events.where import Where

__all__ = [
    "UNKNOWN",
    "Change",
    "Clock",
    "ClockOffsets",
    "Codec",
    "DeviceClock",
    "Difference",
    "Event",
    "FieldChange",
    "Limits",
    "ManualClock",
    "Position",
    "Precision",
    "Receipt",
    "Row",
    "SystemClock",
    "Transaction",
    "Where",
    "arrow_schema",
    "changes",
    "checked_headers",
    "checked_traceparent",
    "compare",
    "device_clock",
    "events_of",
    "flags_column",
    "from_ddl",
    "from_row",
    "integers_of",
    "key_bytes",
    "keys_of",
    "merge",
    "moments_of",
    "murmur2",
    "partition_of",
    "partitions_of",
    "row_of_changes",
    "storage_schema",
    "times_column",
    "to_ddl",
    "to_row",
    "upgrade",
    "values_of",
]
