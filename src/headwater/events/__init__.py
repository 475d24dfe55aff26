"""Events: envelope, key and times, types and their evolution, and `Change`.

Declared types come in (`arrow_schema`). Rows, JSON lines and frames become checked Arrow batches (`Codec`),
and batches become events again (`build_events`). Enter at event_types.py for types and at codec.py for
data.
"""

from headwater.events.change import Change, Position, Row, Transaction, change_row_schema, changes
from headwater.events.clock import (
    UNKNOWN_TIME,
    Clock,
    ClockOffsets,
    DeviceClock,
    ManualClock,
    SystemClock,
    device_clock,
)
from headwater.events.codec import MAX_JSON_LINE, Codec, storage_schema
from headwater.events.ddl import from_ddl, to_ddl
from headwater.events.envelope import Event, Receipt, Receipts, build_events, check_headers, check_traceparent
from headwater.events.event_types import Precision, arrow_schema, from_row
from headwater.events.evolution import Difference, FieldChange, compare, merge, upgrade
from headwater.events.key import key_bytes, keys_of, murmur2, partition_of, partitions_of
from headwater.events.values import flags_column, integers_of, moments_of, times_column, to_row, values_of

__all__ = [
    "MAX_JSON_LINE",
    "UNKNOWN_TIME",
    "Change",
    "Clock",
    "ClockOffsets",
    "Codec",
    "DeviceClock",
    "Difference",
    "Event",
    "FieldChange",
    "ManualClock",
    "Position",
    "Precision",
    "Receipt",
    "Receipts",
    "Row",
    "SystemClock",
    "Transaction",
    "arrow_schema",
    "build_events",
    "change_row_schema",
    "changes",
    "check_headers",
    "check_traceparent",
    "compare",
    "device_clock",
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
    "storage_schema",
    "times_column",
    "to_ddl",
    "to_row",
    "upgrade",
    "values_of",
]
