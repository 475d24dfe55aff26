"""Selects the rows and columns of a log batch that the user's function sees."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.state import DELETED, OFFSET, PARTITION, SINCE
from headwater.events import flags_column, times_column
from headwater.log import LogBatch
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["HIDDEN_COLUMNS", "TIMESTAMP", "VisibleRows", "precedes_spark"]

TIMESTAMP: Final = pa.timestamp("us", "UTC")
HIDDEN_COLUMNS: Final = {PARTITION: pa.int32(), OFFSET: pa.int64(), DELETED: pa.bool_(), SINCE: TIMESTAMP}
"""Columns that Headwater adds: the position of a row in its topic, and for a table whether and since when it holds."""
_TABLE_SIDE: Final = "table"


def precedes_spark(batch: LogBatch) -> npt.NDArray[np.bool_]:
    """Returns which events are at or before 1970-01-01: Spark's watermark begins there, and its steps would drop them.

    Spark knows no lower watermark, so its steps cannot order such events, nor close their windows.
    """
    return batch.event_times <= 0


@dataclass(frozen=True)
class VisibleRows:
    """The rows and columns of a topic that a pipeline sees.

    Args:
        columns: The columns in order, possibly with hidden ones.
        time: The event-time column; the log's event time replaces a missing column or missing values.
        ops: For a changelog, the kinds of change that are events; empty for a plain topic.
        side: For a changelog, which row of a change is the event, "before" or "after". "table" for a changing table:
            deletes are included, and no row is late.
        lateness: How late a row may be, in microseconds; negative if no row is late.
        after_1970: Whether events up to 1970 are left out (see `precedes_spark`).
    """

    columns: tuple[str, ...]
    time: str
    ops: tuple[str, ...] = ()
    lateness: int = -1
    side: str = "after"
    after_1970: bool = False

    def mask(self, batch: LogBatch) -> npt.NDArray[np.bool_]:
        """Returns which rows are visible: not tombstones, unreadable or late rows, nor other kinds of change."""
        seen = ~batch.bad if self._is_table else ~(batch.tombstones | batch.bad)
        if self.lateness >= 0 and not self._is_table:
            seen &= ~batch.late(timedelta(microseconds=self.lateness))
        if self.after_1970 and not self._is_table:
            seen &= ~precedes_spark(batch)
        if self.ops:
            seen &= np.isin(np.array(batch.values.column("op").to_pylist()), self.ops)
        return seen

    def retry_mask(self, batch: LogBatch, offsets: Collection[int], watermark: int) -> npt.NDArray[np.bool_]:
        """Returns which rows a retry of these offsets takes: visible ones above the watermark, if lateness matters.

        Rows of tables and of changelogs are never taken, because they are valid only in the order of their offsets.
        """
        if self.ops or self._is_table:
            return np.zeros(batch.values.num_rows, bool)
        seen = self.mask(batch) & np.isin(batch.offsets, list(offsets))
        return seen if self.lateness < 0 else seen & (batch.event_times > watermark)

    def rows(self, batch: LogBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """Returns the rows under a mask; their schema is `schema(…)`."""
        values = batch.values
        if self.ops and self._is_table:
            is_delete = pc.equal(values.column("op"), "delete")
            row = pc.if_else(is_delete, values.column("before"), values.column("after"))
            values = pa.RecordBatch.from_struct_array(row)
        elif self.ops:
            values = pa.RecordBatch.from_struct_array(values.column(self.side))
        columns = [self._column(values, batch, name) for name in self.columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema(values.schema))
        return rows if mask.all() else rows.filter(flags_column(mask))

    @property
    def _is_table(self) -> bool:
        return self.side == _TABLE_SIDE

    def _column(self, values: pa.RecordBatch, batch: LogBatch, name: str) -> pa.Array:
        if name == PARTITION:
            return pa.repeat(pa.scalar(batch.partition, pa.int32()), batch.values.num_rows)
        if name == OFFSET:
            return pa.array(batch.offsets, pa.int64())
        if name == DELETED:
            return pc.equal(batch.values.column("op"), "delete") if self.ops else flags_column(batch.tombstones)
        if (
            name == SINCE
        ):  # a late row of a table holds from the lowest time that is not late: earlier results are final
            lateness = max(self.lateness, 0)
            limits = np.maximum(batch.max_event_times, LOWEST_TIME + lateness) - lateness
            return times_column(np.maximum(batch.event_times, limits))
        if name == self.time and (name not in values.schema.names or values.column(name).null_count):
            return times_column(batch.event_times)
        return values.column(name)

    def schema(self, values: pa.Schema) -> pa.Schema:
        """Returns the schema of `rows` for a topic of this schema, or for a changelog with rows of this schema."""
        known: dict[str, Any] = HIDDEN_COLUMNS | {field.name: field.type for field in values}
        return pa.schema([pa.field(name, known.get(name, TIMESTAMP)) for name in self.columns])
