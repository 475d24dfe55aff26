"""Changes as the operator that applies them gets them, and the rows that it leaves."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headwater.engine.state.state import DELETED, OFFSET, PARTITION, QUARANTINE_REASON, SINCE, WEIGHT, MemoryState
from headwater.engine.tables.apply_changes import ApplyChanges
from headwater.events import changes

ROW = pa.schema([("a", pa.int32()), ("b", pa.string()), ("n", pa.int64()), ("f", pa.float64())])
KEY = ("a", "b")
COLUMNS = ("a", "b", "n", "f")
OPERATOR = ApplyChanges("raw", ROW, KEY)
START = datetime(2026, 3, 1, tzinfo=UTC)


def arrived(batch, first=0, seconds=None):
    """Changes as an operator gets them, each since so many seconds, or a second after the other."""
    offsets = range(first, first + len(batch))
    seconds = offsets if seconds is None else seconds
    hidden = {
        PARTITION: pa.array([0] * len(batch), pa.int32()),
        OFFSET: pa.array(offsets, pa.int64()),
        SINCE: pa.array([START + timedelta(seconds=each) for each in seconds], pa.timestamp("us", "UTC")),
        DELETED: pa.array([False] * len(batch), pa.bool_()),
    }
    table = pa.Table.from_pylist(batch, changes(ROW))
    for name, column in hidden.items():
        table = table.append_column(name, column)
    return table


def taken(made):
    return made.filter(made.column(QUARANTINE_REASON).is_null())


def refused(made):
    return [row[OFFSET] for row in made.to_pylist() if row[QUARANTINE_REASON] is not None]


def summed(shown, made):
    """The rows that are there after adding up weights."""
    for row in taken(made).to_pylist():
        shown[tuple(row[name] for name in COLUMNS)] += row[WEIGHT]
    assert all(weight in (0, 1) for weight in shown.values())
    return Counter({row: weight for row, weight in shown.items() if weight})


def run(batches, state=None):
    state, offset, results = MemoryState() if state is None else state, 0, []
    for batch in batches:
        results.append(OPERATOR.step(state, [arrived(batch, offset)], 0))
        assert results[-1].schema == OPERATOR.schema
        offset += len(batch)
    return results
