"""Builds batches of changes from decoded columns; sets aside rows that the types of their table cannot hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.postgres.catalog import Layout
from headwater.capture.postgres.column_types import convert
from headwater.capture.postgres.pgoutput_columns import RowColumns
from headwater.capture.source import BEFORE_KINDS, ChangeBatch, change_columns
from headwater.events.change import OPS
from headwater.events.values import flags_column, times_column

__all__ = ["Places", "change_batch", "snapshot_batch", "truncate_batch"]

_OP_OF: npt.NDArray[np.int8] = np.zeros(128, np.int8)
_HOLDS_OF: npt.NDArray[np.int8] = np.zeros(128, np.int8)
for _letter, _op in (("I", "insert"), ("U", "update"), ("D", "delete")):
    _OP_OF[ord(_letter)] = OPS.index(_op)
for _letter, _holds in (("K", "key"), ("O", "row")):
    _HOLDS_OF[ord(_letter)] = BEFORE_KINDS.index(_holds)
_DELETE = ord("D")

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Places:
    """Where each change stands: its transaction, commit time and index, as arrays of one length."""

    commit: npt.NDArray[np.uint64]
    index: npt.NDArray[np.uint32]
    transaction: npt.NDArray[np.uint64]
    at: npt.NDArray[np.int64]
    last: Flags

    def select(self, rows: npt.NDArray[np.int64]) -> Places:
        """Returns those of some changes."""
        return Places(self.commit[rows], self.index[rows], self.transaction[rows], self.at[rows], self.last[rows])

    def mark_last(self, commits: Sequence[int], numbers: npt.NDArray[np.int64], captured: Flags) -> None:
        """Mark the last captured change of each transaction that ends here.

        Args:
            commits: Behind which changes a transaction ends.
            numbers: The number of each change's transaction.
            captured: Which changes are captured.
        """
        ends = np.array(commits, np.int64) - 1
        if captured.all():
            self.last[ends] = True
            return
        for end in ends.tolist():
            row = end
            while row >= 0 and numbers[row] == numbers[end] and not captured[row]:
                row -= 1
            if row >= 0 and numbers[row] == numbers[end]:
                self.last[row] = True

    @classmethod
    def of_snapshot(cls, count: int, at: int) -> Places:
        """Returns those of rows of a snapshot."""
        return cls(
            np.zeros(count, np.uint64),
            np.zeros(count, np.uint32),
            np.zeros(count, np.uint64),
            np.full(count, at, np.int64),
            np.zeros(count, np.bool_),
        )


def change_batch(layout: Layout, rows: RowColumns, places: Places) -> tuple[ChangeBatch | None, list[str]]:
    """Returns the changes that fit their table, and those that do not as JSON of the raw texts."""
    new, missing = _fill_from_old(layout, rows)
    deleted = rows.kinds == _DELETE
    after, after_bad = _struct(layout, new, deleted)
    if rows.old:
        before, before_bad = _struct(layout, [rows.old[place] for place in layout.wanted], rows.old_kinds == 0)
    else:
        before, before_bad = pa.nulls(len(rows.kinds), after.type), None
    batch = _assemble(
        layout, _OP_OF[rows.kinds], _HOLDS_OF[rows.old_kinds], places, _names(layout, missing), before, after
    )
    bad = _either(after_bad, before_bad)
    if bad is None:
        return ChangeBatch(layout.shape, batch), []
    raw = [_raw(layout, rows, places, int(row)) for row in np.flatnonzero(bad)]
    moved = _key_changed(layout, rows, new) & bad if before_bad is None else np.zeros(len(bad), np.bool_)
    if moved.any():
        # The new row cannot be delivered, but there is no row with the old key any more.
        op = np.where(moved, _OP_OF[_DELETE], _OP_OF[rows.kinds]).astype(np.int8)
        holds = _HOLDS_OF[rows.old_kinds]
        after = pc.if_else(flags_column(moved), pa.scalar(None, after.type), after)
        batch = _assemble(layout, op, holds, places, _names(layout, missing), before, after)
    kept = batch.filter(flags_column(~bad | moved))
    return (ChangeBatch(layout.shape, kept) if kept.num_rows else None), raw


def snapshot_batch(layout: Layout, texts: Sequence[pa.Array], at: int) -> tuple[ChangeBatch | None, list[str]]:
    """Returns rows of a snapshot that fit their table, and the others as JSON of the raw texts.

    Args:
        layout: The layout; its captured columns are those of `texts`.
        texts: The text of each captured column.
        at: The time of the snapshot.
    """
    count = len(texts[0])
    after, bad = _struct(layout, texts, np.zeros(count, np.bool_))
    zeros = np.zeros(count, np.int8)
    places = Places.of_snapshot(count, at)
    batch = _assemble(layout, zeros, zeros, places, None, pa.nulls(count, after.type), after)
    if bad is None:
        return ChangeBatch(layout.shape, batch), []
    names = layout.shape.schema.names
    raw = [
        json.dumps(
            {"op": "read", "after": {name: _text(column[row]) for name, column in zip(names, texts, strict=True)}}
        )
        for row in np.flatnonzero(bad).tolist()
    ]
    kept = batch.filter(flags_column(~bad))
    return (ChangeBatch(layout.shape, kept) if kept.num_rows else None), raw


def truncate_batch(layout: Layout, places: Places) -> ChangeBatch:
    """Returns one truncate of a table."""
    row = pa.struct([pa.field(one.name, one.type) for one in layout.shape.schema])
    op, holds = np.array([OPS.index("truncate")], np.int8), np.zeros(1, np.int8)
    return ChangeBatch(layout.shape, _assemble(layout, op, holds, places, None, pa.nulls(1, row), pa.nulls(1, row)))


def _fill_from_old(layout: Layout, rows: RowColumns) -> tuple[list[pa.Array], list[Flags | None]]:
    """Take values that were not sent from the old row where it has them: whole rows, and keys that are large."""
    texts, missing = [], []
    for place in layout.wanted:
        column, absent = rows.new[place], rows.unchanged[place]
        if absent is not None and rows.old:
            column = pc.if_else(flags_column(absent), rows.old[place], column)
            absent = absent & rows.old[place].is_null().to_numpy(zero_copy_only=False)
        texts.append(column)
        missing.append(absent)
    return texts, missing


def _key_changed(layout: Layout, rows: RowColumns, new: Sequence[pa.Array]) -> Flags:
    """Returns which updates gave their row another key."""
    changed = np.zeros(len(rows.kinds), np.bool_)
    if rows.old:
        names = layout.shape.schema.names
        for name, place in zip(layout.shape.key, layout.key_positions, strict=True):
            differs = pc.fill_null(pc.not_equal(rows.old[place], new[names.index(name)]), False)
            changed |= differs.to_numpy(zero_copy_only=False)
    return changed


def _struct(layout: Layout, texts: Sequence[pa.Array], absent: Flags) -> tuple[pa.Array, Flags | None]:
    """Returns the typed rows, null where `absent`, and which rows have a value that its type cannot hold."""
    arrays, fields, bad = [], [], None
    for field, column in zip(layout.shape.schema, texts, strict=True):
        values, unfit = convert(column, field.type)
        arrays.append(values)
        fields.append(pa.field(field.name, field.type))
        bad = _either(bad, unfit)
    mask = flags_column(absent) if absent.any() else None
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask), bad


def _assemble(
    layout: Layout,
    op: npt.NDArray[np.int8],
    holds: npt.NDArray[np.int8],
    places: Places,
    unchanged: pa.Array | None,
    before: pa.Array,
    after: pa.Array,
) -> pa.RecordBatch:
    count = len(op)
    columns = [
        pa.array(op),
        pa.array(places.commit),
        pa.array(places.index),
        pa.array(places.transaction),
        times_column(places.at),
        flags_column(places.last),
        pa.array(holds),
        unchanged if unchanged is not None else pa.nulls(count, pa.list_(pa.string())),
        before,
        after,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=change_columns(layout.shape.schema))


def _names(layout: Layout, missing: Sequence[Flags | None]) -> pa.Array | None:
    """Returns the names of the columns that each row lacks."""
    lacking = [
        (name, flags) for name, flags in zip(layout.shape.schema.names, missing, strict=True) if flags is not None
    ]
    lacking = [(name, flags) for name, flags in lacking if flags.any()]
    if not lacking:
        return None
    names = np.array([name for name, _ in lacking], object)
    rows = np.stack([flags for _, flags in lacking], axis=1)
    return pa.array([names[row].tolist() or None for row in rows], pa.list_(pa.string()))


def _either(first: Flags | None, second: Flags | None) -> Flags | None:
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _raw(layout: Layout, rows: RowColumns, places: Places, row: int) -> str:
    def texts(columns: Sequence[pa.Array]) -> dict[str, str | None]:
        return {layout.names[place]: _text(columns[place][row]) for place in layout.wanted}

    kind, old_kind = rows.kinds[row], rows.old_kinds[row]
    absent = [layout.names[place] for place in layout.wanted if _flag(rows.unchanged[place], row)]
    return json.dumps(
        {
            "op": OPS[_OP_OF[kind]],
            "commit": int(places.commit[row]),
            "index": int(places.index[row]),
            "transaction": int(places.transaction[row]),
            "at": int(places.at[row]),
            "before_holds": BEFORE_KINDS[_HOLDS_OF[old_kind]],
            "before": texts(rows.old) if old_kind else None,
            "after": None if kind == _DELETE else texts(rows.new),
            "unchanged": absent,
        }
    )


def _flag(flags: Flags | None, row: int) -> bool:
    return flags is not None and bool(flags[row])


def _text(value: pa.Scalar) -> str | None:
    raw = value.as_py()
    return None if raw is None else raw.decode("utf-8", "backslashreplace")
