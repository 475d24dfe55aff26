"""The rows of a log batch as the user's function sees them: which ones, and with which columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.operator import DELETED, OFFSET, PARTITION, SINCE
from headwater.events import flags_column, times_column
from headwater.log import LogBatch
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["HIDDEN", "TIME", "Visible"]

TIME: Final = pa.timestamp("us", "UTC")
HIDDEN: Final = {PARTITION: pa.int32(), OFFSET: pa.int64(), DELETED: pa.bool_(), SINCE: TIME}
"""Columns that no event has: where a row stands in its topic, and what a table's row means."""
_TABLE: Final = "table"


@dataclass(frozen=True)
class Visible:
    """What is seen of a topic.

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
        """Which rows are seen: no tombstones, none that cannot be read, no late ones, only events of a changelog."""
        seen = ~batch.bad if self._of_table else ~(batch.deleted | batch.bad)
        if self.lateness >= 0 and not self._of_table:
            seen &= ~batch.late(timedelta(microseconds=self.lateness))
        if self.ops:
            seen &= np.isin(np.array(batch.values.column("op").to_pylist()), self.ops)
        return seen

    def rows(self, batch: LogBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """The rows under a mask, with exactly `schema(…)`."""
        values = pa.RecordBatch.from_struct_array(self._row_of(batch)) if self.ops else batch.values
        columns = [self._column(values, batch, name) for name in self.columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema(values.schema))
        return rows if mask.all() else rows.filter(flags_column(mask))

    @property
    def _of_table(self) -> bool:
        return self.side == _TABLE

    def _row_of(self, batch: LogBatch) -> pa.Array:
        """The row that a change of a view is about."""
        if not self._of_table:
            return batch.values.column(self.side)
        gone = pc.equal(batch.values.column("op"), "delete")
        return pc.if_else(gone, batch.values.column("before"), batch.values.column("after"))

    def _hidden(self, batch: LogBatch, name: str) -> pa.Array:
        if name == PARTITION:
            return pa.repeat(pa.scalar(batch.partition, pa.int32()), batch.values.num_rows)
        if name == OFFSET:
            return pa.array(batch.offsets, pa.int64())
        if name == DELETED:
            return pc.equal(batch.values.column("op"), "delete") if self.ops else flags_column(batch.deleted)
        waited = np.maximum(batch.running_max, LOWEST_TIME + max(self.lateness, 0)) - max(self.lateness, 0)
        return times_column(np.maximum(batch.occurred, waited))

    def _column(self, values: pa.RecordBatch, batch: LogBatch, name: str) -> pa.Array:
        if name in HIDDEN:
            return self._hidden(batch, name)
        if name == self.time and (name not in values.schema.names or values.column(name).null_count):
            return times_column(batch.occurred)
        return values.column(name)

    def schema(self, values: pa.Schema) -> pa.Schema:
        """The schema of `rows` for values of this schema (of a changelog: of its rows)."""
        known: dict[str, Any] = HIDDEN | {field.name: field.type for field in values}
        return pa.schema([pa.field(name, known.get(name, TIME)) for name in self.columns])
