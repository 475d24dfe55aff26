"""Rows of the table of changes, and of a snapshot, as batches of changes.

A row with a value that is not of its column's type is left out and described for quarantine. Where only the row before
an update or delete has such a value, the change is delivered with the key alone as its `before`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.capture.source import BEFORE_KINDS, CHANGE_COLUMNS, ChangeBatch, TableShape, change_columns
from headwater.capture.sqlite.triggers import DELETE, INSERT
from headwater.capture.sqlite.values import decode_column, describe_row
from headwater.events.change import OPS

__all__ = ["ChangeRows", "Decoded", "change_batch", "snapshot_batch"]

_NOTHING, _KEY, _ROW = range(len(BEFORE_KINDS))
_JULIAN_EPOCH: Final = 2440587.5  # the Julian day of 1970
_DAY: Final = 86_400_000  # milliseconds


@dataclass(frozen=True)
class Decoded:
    """A batch, or None if no row is left, and the rows that were left out, as JSON."""

    batch: ChangeBatch | None
    refused: list[str]


@dataclass(frozen=True)
class ChangeRows:
    """Rows of the table of changes that belong to one shape.

    Attributes:
        shape: The shape.
        rows: Sequence number, time, operation, the columns after, the columns before.
        first: The sequence number of the first change of the group.
        end: That of the last one.
        last: That of the last captured one; 0 if it is not known yet.
        since: No change was committed earlier, in microseconds since 1970.
        until: No change was committed later.
    """

    shape: TableShape
    rows: Sequence[tuple[Any, ...]]
    first: int
    end: int
    last: int
    since: int
    until: int

    def times(self) -> npt.NDArray[np.int64]:
        """Returns the commit times.

        The trigger stores the time of the statement. Its commit came after the previous read, which did not see it.
        """
        days = np.fromiter((row[1] for row in self.rows), np.float64, len(self.rows))
        times = np.rint((days - _JULIAN_EPOCH) * _DAY).astype(np.int64) * 1000
        return np.maximum.accumulate(np.clip(times, self.since, max(self.since, self.until)))


def change_batch(changes: ChangeRows) -> Decoded:
    """Returns changes as a batch."""
    rows, shape, width = changes.rows, changes.shape, len(changes.shape.schema)
    columns = list(zip(*rows, strict=True))
    ops = np.array(columns[2], np.int8)
    deleted, inserted = ops == DELETE, ops == INSERT
    after, after_bad = _decode_rows(columns[3 : 3 + width], shape)
    before, before_bad = _decode_rows(columns[3 + width : 3 + 2 * width], shape)
    after_unkeyed, before_unkeyed = _without_key(after, shape), _without_key(before, shape)
    holds = np.where(inserted, _NOTHING, np.where(before_unkeyed, _NOTHING, np.where(before_bad, _KEY, _ROW)))
    refused = np.where(deleted, before_unkeyed, after_bad | after_unkeyed)
    before = [
        one if field.name in shape.key else _clear(one, holds == _KEY)
        for one, field in zip(before, shape.schema, strict=True)
    ]
    sequence = np.array(columns[0], np.uint64)
    count = len(rows)
    batch = pa.record_batch(
        [
            pa.array(ops),
            pa.array(np.full(count, changes.end, np.uint64)),
            pa.array((sequence - np.uint64(changes.first)).astype(np.uint32)),
            pa.array(np.full(count, changes.end, np.uint64)),
            pa.array(changes.times()).view(pa.timestamp("us", "UTC")),
            pa.array(sequence == changes.last),
            pa.array(holds.astype(np.int8)),
            pa.nulls(count, CHANGE_COLUMNS[-1].type),
            _row_column(before, shape, holds == _NOTHING),
            _row_column(after, shape, deleted),
        ],
        schema=change_columns(shape.schema),
    )
    described = [_describe_change(rows[place], shape) for place in np.flatnonzero(refused).tolist()]
    return _leave_out(batch, shape, refused, described)


def snapshot_batch(shape: TableShape, rows: Sequence[tuple[Any, ...]], at: int) -> Decoded:
    """Returns rows of a snapshot as a batch."""
    count = len(rows)
    if not rows:
        return Decoded(None, [])
    columns, bad = _decode_rows(list(zip(*rows, strict=True)), shape)
    refused = bad | _without_key(columns, shape)
    none, nowhere = np.zeros(count, np.uint64), np.ones(count, bool)
    nothing = [pa.nulls(count, field.type) for field in shape.schema]
    batch = pa.record_batch(
        [
            pa.array(np.zeros(count, np.int8)),
            pa.array(none),
            pa.array(none.astype(np.uint32)),
            pa.array(none),
            pa.array(np.full(count, at, np.int64)).view(pa.timestamp("us", "UTC")),
            pa.array(~nowhere),
            pa.array(np.full(count, _NOTHING, np.int8)),
            pa.nulls(count, CHANGE_COLUMNS[-1].type),
            _row_column(nothing, shape, nowhere),
            _row_column(columns, shape, ~nowhere),
        ],
        schema=change_columns(shape.schema),
    )
    described = [
        describe_row({"op": OPS[0]} | {"after": _named(rows[place], shape)})
        for place in np.flatnonzero(refused).tolist()
    ]
    return _leave_out(batch, shape, refused, described)


def _leave_out(
    batch: pa.RecordBatch, shape: TableShape, refused: npt.NDArray[np.bool_], described: list[str]
) -> Decoded:
    kept = batch.filter(pa.array(~refused)) if described else batch
    return Decoded(ChangeBatch(shape, kept) if len(kept) else None, described)


def _decode_rows(columns: Sequence[Sequence[Any]], shape: TableShape) -> tuple[list[pa.Array], npt.NDArray[np.bool_]]:
    """Returns the columns of a row, and which rows have a value that is not of its column's type."""
    bad = np.zeros(len(columns[0]), bool)
    found = []
    for values, field in zip(columns, shape.schema, strict=True):
        column, failed = decode_column(values, field.type)
        found.append(column)
        bad[failed] = True
    return found, bad


def _without_key(columns: Sequence[pa.Array], shape: TableShape) -> npt.NDArray[np.bool_]:
    missing = np.zeros(len(columns[0]), bool)
    for name in shape.key:
        column = columns[shape.schema.get_field_index(name)]
        if column.null_count:
            missing |= column.is_null().to_numpy(zero_copy_only=False)
    return missing


def _clear(column: pa.Array, where: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.compute.if_else(pa.array(where), pa.scalar(None, column.type), column) if where.any() else column


def _row_column(columns: Sequence[pa.Array], shape: TableShape, absent: npt.NDArray[np.bool_]) -> pa.Array:
    fields = [pa.field(one.name, one.type) for one in shape.schema]
    return pa.StructArray.from_arrays(list(columns), fields=fields, mask=pa.array(absent))


def _named(values: Sequence[Any], shape: TableShape) -> dict[str, Any]:
    return dict(zip(shape.schema.names, values, strict=True))


def _describe_change(row: tuple[Any, ...], shape: TableShape) -> str:
    width = len(shape.schema)
    after, before = _named(row[3 : 3 + width], shape), _named(row[3 + width :], shape)
    facts: dict[str, Any] = {"op": OPS[row[2]], "sequence": row[0]}
    facts |= {"after": None if row[2] == DELETE else after, "before": None if row[2] == INSERT else before}
    return describe_row(facts)
