"""The views that the system keeps of itself, with types for their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from headwater.store import Answer, ViewTable

__all__ = ["SYSTEM_KEYS", "system_table", "system_view"]

SYSTEM_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "hw_pipelines": ("name",),
    "hw_batches": ("pipeline", "version", "batch"),
    "hw_late": ("pipeline", "topic", "partition", "offset"),
    "hw_quarantine": ("pipeline", "topic", "partition", "offset"),
}
"""The system views and what tells their rows apart."""

_WHOLE: Final = frozenset(
    (
        *("version", "rebuilding", "batch", "batches", "epoch", "partition", "offset", "rows", "watermark"),
        *("in_", "used", "late", "quarantined", "dropped", "unaccounted"),
    )
)
_MEASURED: Final = frozenset({"wall_seconds", "cpu_seconds"})
_TIMES: Final = frozenset(
    {"since", "watermark_at", "last_commit_at", "committed_at", "occurred_at", "received_at"}
)


def system_view(name: str, columns: Sequence[str]) -> ViewTable:
    """A system view with these columns.

    Example:
        >>> system_view("hw_pipelines", ["name", "in_"]).schema.field("in_").type
        DataType(int64)
    """
    schema = pa.schema([(column, _kind(column)) for column in columns])
    return ViewTable(name, 1, schema, SYSTEM_KEYS[name])


def system_table(view: ViewTable, answer: Answer) -> pa.Table:
    """The answer of a query as a table of the view's columns."""
    columns: list[tuple[Any, ...]] = list(zip(*answer.rows, strict=True)) or [()] * len(view.schema)
    arrays = [_column(values, field.type) for values, field in zip(columns, view.schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=view.schema)


def _kind(column: str) -> pa.DataType:
    if column in _WHOLE:
        return pa.int64()
    if column in _MEASURED:
        return pa.float64()
    return pa.timestamp("us", "UTC") if column in _TIMES else pa.string()


def _column(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)
