"""A view as it was at a moment of its past, folded out of its changes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.events import values_of
from headwater.store.definition import ViewTable
from headwater.units import micros

__all__ = ["rows_as_of"]


def rows_as_of(table: ViewTable, moment: datetime | int, changes: Iterable[pa.Table]) -> pa.Table:
    """The rows a view had at a moment, in the order in which they last changed.

    Args:
        table: The view; its changes may have been made under an older version with the same columns.
        moment: A time, or microseconds since 1970; what was committed at that moment counts.
        changes: Its changes since its beginning, in their order, with a column `committed_at` beside op, before, after.

    Example:
        >>> view = ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
        >>> history = [{"op": "insert", "before": None, "after": {"k": "a", "n": 1}, "committed_at": 10},
        ...            {"op": "update", "before": {"k": "a", "n": 1}, "after": {"k": "a", "n": 2}, "committed_at": 20}]
        >>> rows_as_of(view, 15, [pa.Table.from_pylist(history)]).to_pylist()
        [{'k': 'a', 'n': 1}]
    """
    until = moment if isinstance(moment, int) else micros(moment)
    newest: dict[tuple[Any, ...], tuple[int, int]] = {}
    parts: list[pa.Array] = []
    for part in changes:
        seen = part.filter(_counted(part, until))
        _fold(table, seen, len(parts), newest)
        parts.append(seen.column("after").combine_chunks())
    places: list[list[int]] = [[] for _ in parts]
    for number, row in sorted(newest.values()):
        places[number].append(row)
    found = [
        pa.Table.from_struct_array(part.take(pa.array(rows, pa.int64()))).cast(table.schema)
        for part, rows in zip(parts, places, strict=True)
        if rows
    ]
    return pa.concat_tables([table.schema.empty_table(), *found])


def _counted(part: pa.Table, until: int) -> pa.Array:
    """Which changes count: committed in time, and not only a word that a row is final."""
    committed = part.column("committed_at")
    if pa.types.is_timestamp(committed.type):
        committed = committed.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return pc.and_(pc.less_equal(committed, until), pc.not_equal(part.column("op"), "final"))


def _fold(
    table: ViewTable, part: pa.Table, number: int, newest: dict[tuple[Any, ...], tuple[int, int]]
) -> None:
    ops = part.column("op").to_pylist()
    before, after = (part.column(name).combine_chunks() for name in ("before", "after"))
    columns = [
        (_keys(pc.struct_field(before, name)), _keys(pc.struct_field(after, name))) for name in table.key
    ]
    for row, op in enumerate(ops):
        key = tuple(old[row] if op == "delete" else new[row] for old, new in columns)
        newest.pop(key, None)
        if op != "delete":
            newest[key] = (number, row)


def _keys(column: pa.Array) -> list[Any]:
    return [_hashable(value) for value in values_of(column)]


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
