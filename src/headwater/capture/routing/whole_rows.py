"""Turns changes as a source sends them into whole rows: one row or one deletion per key, in order.

A change of the key becomes a deletion and a row. Columns that the source did not send are taken from the row before,
which an earlier change of the same batch may have written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.routing.row_encoding import RowEncoding
from headwater.capture.routing.table_rows import CurrentRows
from headwater.events import flags_column, keys_of
from headwater.events.change import OPS

__all__ = ["DELETE", "READ", "TRUNCATE", "WholeRows", "complete_rows", "find_first_versions", "select_new_rows"]

READ: Final = OPS.index("read")
UPDATE: Final = OPS.index("update")
DELETE: Final = OPS.index("delete")
TRUNCATE: Final = OPS.index("truncate")

Indexes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class WholeRows:
    """Rows and deletions of one table, in order.

    Attributes:
        values: The columns of the table; those of a deletion are null but the key.
        keys: The key of each row as bytes.
        gone: Which rows are deletions.
        source: The change that each row comes from.
        moved: Which deletions come from a change of the key.
        rejected: Changes that cannot be completed, with the reason.
    """

    values: pa.RecordBatch
    keys: pa.Array
    gone: Flags
    source: Indexes
    moved: Flags
    rejected: dict[int, str] = field(default_factory=dict)

    def take(self, rows: Indexes) -> WholeRows:
        """Returns some of the rows."""
        places = pa.array(rows, pa.int64())
        return WholeRows(
            self.values.take(places), self.keys.take(places), self.gone[rows], self.source[rows], self.moved[rows]
        )


def complete_rows(changes: pa.RecordBatch, schema: pa.Schema, key: tuple[str, ...], rows: CurrentRows) -> WholeRows:
    """Returns inserts, updates and deletes as whole rows.

    Args:
        changes: The changes, without truncates.
        schema: The columns of the table's topic.
        key: Its key columns.
        rows: The rows before the changes.

    Raises:
        BadKeyError: A key is null.
    """
    deleted = changes.column("op").to_numpy() == DELETE
    after = _fields(changes.column("after"), schema)
    places = [schema.get_field_index(name) for name in key]
    key_columns, keys = _choose_keys(changes.column("before"), [after[place] for place in places], schema, key, deleted)
    holds = changes.column("before_holds").to_numpy() > 0
    moving = holds & (changes.column("op").to_numpy() == UPDATE)
    old_columns, old_keys = key_columns, keys
    moved = np.zeros(len(deleted), bool)
    if moving.any():
        old_columns, old_keys = _choose_keys(changes.column("before"), key_columns, schema, key, moving)
        moved = pc.not_equal(old_keys, keys).to_numpy(zero_copy_only=False)
    rejected: dict[int, str] = {}
    unsent = changes.column("unchanged")
    if unsent.null_count < len(unsent):
        after, rejected = _fill(after, schema, unsent, keys, old_keys, deleted, rows)
    for place, column in zip(places, key_columns, strict=True):
        after[place] = column
    values = pa.RecordBatch.from_arrays(after, schema=schema)
    source = np.arange(len(deleted))
    whole = WholeRows(values, keys, deleted, source, np.zeros(len(deleted), bool), rejected)
    if not moved.any() and not rejected:
        return whole
    return _insert_deletions(whole, moved, dict(zip(key, old_columns, strict=True)), old_keys)


def _fields(column: pa.StructArray, schema: pa.Schema) -> list[pa.Array]:
    """Returns the members of a row column as the columns of a schema; those that it lacks are null."""
    found = []
    for member in schema:
        if column.type.get_field_index(member.name) < 0:
            found.append(pa.nulls(len(column), member.type))
        else:
            values = pc.struct_field(column, member.name)
            found.append(values if values.type == member.type else values.cast(member.type))
    return found


def _choose_keys(
    before: pa.StructArray, columns: list[pa.Array], schema: pa.Schema, key: tuple[str, ...], old: Flags
) -> tuple[list[pa.Array], pa.Array]:
    """Returns the key columns with those of `before` where `old` is true, and the keys as bytes."""
    if old.any():
        earlier = _fields(before, pa.schema([schema.field(name) for name in key]))
        mask = flags_column(old)
        columns = [pc.if_else(mask, past, now) for past, now in zip(earlier, columns, strict=True)]
    return columns, keys_of(columns)


def _fill(
    after: list[pa.Array],
    schema: pa.Schema,
    unsent: pa.ListArray,
    keys: pa.Array,
    old_keys: pa.Array,
    deleted: Flags,
    rows: CurrentRows,
) -> tuple[list[pa.Array], dict[int, str]]:
    """Returns the columns with what the source did not send, and the changes whose row before is not known."""
    count = len(keys)
    names = unsent.to_pylist()
    pending = [row for row in range(count) if names[row] and not deleted[row]]
    olds, news = old_keys.to_pylist(), keys.to_pylist()
    positions, stored = rows.find([olds[row] for row in pending], schema)
    stored_at = dict(zip(pending, positions.tolist(), strict=True))
    origin = {name: np.arange(count) for name in {name for row in pending for name in names[row]} & set(schema.names)}
    latest: dict[bytes, int] = {}  # the row of the batch that a key has now; -1: deleted
    rejected: dict[int, str] = {}
    for row in range(count):
        if row in stored_at:
            place = latest.get(olds[row], count + stored_at[row] if stored_at[row] >= 0 else -1)
            if place < 0:
                rejected[row] = f"columns {', '.join(names[row])} were not sent, and the row before is not known"
                continue
            for name in names[row]:
                if name in origin:
                    origin[name][row] = origin[name][place] if place < count else place
        if olds[row] != news[row]:
            latest[olds[row]] = -1
        latest[news[row]] = -1 if deleted[row] else row
    filled = list(after)
    for name, places in origin.items():
        index = schema.get_field_index(name)
        filled[index] = pa.concat_arrays([after[index], stored.column(index)]).take(pa.array(places))
    return filled, rejected


def _insert_deletions(
    whole: WholeRows, moved: Flags, old_columns: dict[str, pa.Array], old_keys: pa.Array
) -> WholeRows:
    """Returns the rows with a deletion of the old key before each change of a key, and without rejected changes."""
    count = len(moved)
    kept = np.ones(count, bool)
    kept[list(whole.rejected)] = False
    deletions = np.flatnonzero(moved & kept)
    # Deletions stand behind the rows, and the order puts each before the row of its change.
    places = np.concatenate((np.flatnonzero(kept), count + deletions))
    order = places[np.lexsort((places < count, places % count))]
    schema = whole.values.schema
    columns = [
        pa.concat_arrays([column, old_columns.get(item.name, pa.nulls(count, item.type))])
        for item, column in zip(schema, whole.values.columns, strict=True)
    ]
    return WholeRows(
        pa.RecordBatch.from_arrays(columns, schema=schema).take(pa.array(order)),
        pa.concat_arrays([whole.keys, old_keys]).take(pa.array(order)),
        np.concatenate((whole.gone, np.ones(count, bool)))[order],
        order % count,
        order >= count,
        whole.rejected,
    )


def find_first_versions(changes: pa.RecordBatch, whole: WholeRows, rows: CurrentRows) -> Flags:
    """Returns which rows come from the first known change of a row that was there before, as its table loads.

    The snapshot leaves such rows out, so this version stands for the one before, which nobody knows.
    """
    updated = (changes.column("op").to_numpy() == UPDATE)[whole.source]
    updated &= ~np.isin(whole.source, whole.source[whole.moved])  # a new key was not there before
    keys = whole.keys.to_pylist()
    first = np.zeros(len(keys), bool)
    first[list({key: place for place, key in reversed(list(enumerate(keys)))}.values())] = True
    positions, _ = rows.find(keys, whole.values.schema)
    found: Flags = updated & first & (positions < 0)
    return found


def select_new_rows(
    snapshot: pa.RecordBatch, schema: pa.Schema, key: tuple[str, ...], rows: CurrentRows
) -> tuple[WholeRows, Flags]:
    """Returns the rows of a snapshot, and which of them differ from the rows that are known.

    Raises:
        BadKeyError: A key is null.
    """  # fmt: skip
    columns = _fields(snapshot.column("after"), schema)
    values = pa.RecordBatch.from_arrays(columns, schema=schema)
    keys = keys_of([values.column(name) for name in key])
    count = values.num_rows
    none = np.zeros(count, bool)
    whole = WholeRows(values, keys, none, np.arange(count), none)
    positions, known = rows.find(keys.to_pylist(), schema)
    differs = positions < 0
    found = np.flatnonzero(~differs)
    if len(found):
        encoding = RowEncoding(schema)
        now: list[Any] = encoding.encode(values.take(pa.array(found)))
        before: list[Any] = encoding.encode(known.take(pa.array(positions[found])))
        differs[found] = [one != other for one, other in zip(now, before, strict=True)]
    return whole, differs
