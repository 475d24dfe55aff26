"""The rows of a log batch as the user's function sees them: which ones, and with which columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.events import flags_column, times_column
from headwater.log import LogBatch

__all__ = ["TIME", "Visible"]

TIME: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Visible:
    """What is seen of a topic.

    Args:
        columns: The columns, in order.
        time: The event-time column; filled with the log's own event time where the type has none, or no value.
        ops: Of the changelog of a view: the kinds of change that count. Empty for a plain topic.
        side: Of the changelog of a view: whether the row "before" or "after" the change is the event.
        lateness: How late a row may be, in microseconds; negative: as late as it likes.
    """

    columns: tuple[str, ...]
    time: str
    ops: tuple[str, ...] = ()
    lateness: int = -1
    side: str = "after"

    def mask(self, batch: LogBatch) -> npt.NDArray[np.bool_]:
        """Which rows are seen: no tombstones, none that cannot be read, no late ones, only events of a changelog."""
        seen = ~(batch.deleted | batch.bad)
        if self.lateness >= 0:
            seen &= ~batch.late(timedelta(microseconds=self.lateness))
        if self.ops:
            seen &= np.isin(np.array(batch.values.column("op").to_pylist()), self.ops)
        return seen

    def rows(self, batch: LogBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """The rows under a mask, with exactly `schema(…)`."""
        values = (
            pa.RecordBatch.from_struct_array(batch.values.column(self.side)) if self.ops else batch.values
        )
        columns = [self._column(values, batch, name) for name in self.columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema(values.schema))
        return rows if mask.all() else rows.filter(flags_column(mask))

    def _column(self, values: pa.RecordBatch, batch: LogBatch, name: str) -> pa.Array:
        if name == self.time and (name not in values.schema.names or values.column(name).null_count):
            return times_column(batch.occurred)
        return values.column(name)

    def schema(self, values: pa.Schema) -> pa.Schema:
        """The schema of `rows` for values of this schema (of a changelog: of its rows)."""
        known: dict[str, Any] = {field.name: field.type for field in values}
        return pa.schema([pa.field(name, known.get(name, TIME)) for name in self.columns])
