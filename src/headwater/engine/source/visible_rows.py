"""Selects the rows and columns of a log batch that the user's function sees."""

from __future__ import annotations

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

__all__ = ["HIDDEN_COLUMNS", "TIMESTAMP", "VisibleRows"]

TIMESTAMP: Final = pa.timestamp("us", "UTC")
HIDDEN_COLUMNS: Final = {PARTITION: pa.int32(), OFFSET: pa.int64(), DELETED: pa.bool_(), SINCE: TIMESTAMP}
"""Columns that no event has: where a row stands in its topic, and what a table's row means."""
_TABLE_SIDE: Final = "table"


@dataclass(frozen=True)
class VisibleRows:
    """The rows and columns of a topic that a pipeline sees.

    Args:
        columns: The columns, in order; hidden ones may be among them.
        time: The event-time column; filled with the log's own event time where the type has none, or no value.
        ops: Of the changelog of a view: the kinds of change that count. Empty for a plain topic.
        side: Of the changelog of a view: whether the row "before" or "after" the change is the event. "table" for a
            table: each row takes the place of the one with its key, a deleted one too, and none is left out as late.
        lateness: How late a row may be, in microseconds; negative: as late as it likes.
    """

    columns: tuple[str, ...]
    time: str
    ops: tuple[str, ...] = ()
    lateness: int = -1
    side: str = "after"

    def mask(self, batch: LogBatch) -> npt.NDArray[np.bool_]:
        """Returns which rows are visible: no tombstones, unreadable or late rows, and only events of a changelog."""
        seen = ~batch.bad if self._is_table else ~(batch.tombstones | batch.bad)
        if self.lateness >= 0 and not self._is_table:
            seen &= ~batch.late(timedelta(microseconds=self.lateness))
        if self.ops:
            seen &= np.isin(np.array(batch.values.column("op").to_pylist()), self.ops)
        return seen

    def rows(self, batch: LogBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """Returns the rows under a mask, with exactly `schema(…)`."""
        values = pa.RecordBatch.from_struct_array(self._change_row(batch)) if self.ops else batch.values
        columns = [self._column(values, batch, name) for name in self.columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema(values.schema))
        return rows if mask.all() else rows.filter(flags_column(mask))

    @property
    def _is_table(self) -> bool:
        return self.side == _TABLE_SIDE

    def _change_row(self, batch: LogBatch) -> pa.Array:
        """Returns the row that a change of a view describes."""
        if not self._is_table:
            return batch.values.column(self.side)
        is_delete = pc.equal(batch.values.column("op"), "delete")
        return pc.if_else(is_delete, batch.values.column("before"), batch.values.column("after"))

    def _hidden_column(self, batch: LogBatch, name: str) -> pa.Array:
        if name == PARTITION:
            return pa.repeat(pa.scalar(batch.partition, pa.int32()), batch.values.num_rows)
        if name == OFFSET:
            return pa.array(batch.offsets, pa.int64())
        if name == DELETED:
            return pc.equal(batch.values.column("op"), "delete") if self.ops else flags_column(batch.tombstones)
        watermark = np.maximum(batch.max_event_times, LOWEST_TIME + max(self.lateness, 0)) - max(self.lateness, 0)
        return times_column(np.maximum(batch.event_times, watermark))

    def _column(self, values: pa.RecordBatch, batch: LogBatch, name: str) -> pa.Array:
        if name in HIDDEN_COLUMNS:
            return self._hidden_column(batch, name)
        if name == self.time and (name not in values.schema.names or values.column(name).null_count):
            return times_column(batch.event_times)
        return values.column(name)

    def schema(self, values: pa.Schema) -> pa.Schema:
        """Returns the schema of `rows` for values of this schema (of a changelog: of its rows)."""
        known: dict[str, Any] = HIDDEN_COLUMNS | {field.name: field.type for field in values}
        return pa.schema([pa.field(name, known.get(name, TIMESTAMP)) for name in self.columns])
