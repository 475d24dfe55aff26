"""Versions of rows, each with the time since when it holds: as the changes that are published, and the last of each."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import SINCE, WEIGHT
from headwater.store import ViewTable
from headwater.store.changes import change_schema

__all__ = ["changes_in", "last_of_each"]


def changes_in(rows: pa.Table, view: ViewTable) -> pa.Table:
    """Weighted rows in the order in which they came and went, as changes; what goes and comes at once is an update.

    Example:
        >>> view = ViewTable("v", 1, pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",))
        >>> rows = pa.table({"k": [1, 1, 1], "n": [5, 5, 6], WEIGHT: [1, -1, 1], SINCE: [10, 20, 20]})
        >>> [(row["op"], row["before"], row["after"]) for row in changes_in(rows, view).to_pylist()]
        [('insert', None, {'k': 1, 'n': 5}), ('update', {'k': 1, 'n': 5}, {'k': 1, 'n': 6})]
    """
    schema = change_schema(view)
    keys = _keys(rows, view.key)
    weights, since = rows.column(WEIGHT).to_numpy(), rows.column(SINCE).cast(pa.int64()).to_numpy()
    same = np.fromiter((one == other for one, other in pairwise(keys)), bool)
    paired = np.zeros(len(keys) + 1, bool)  # whether a row goes and the next one takes its place
    paired[1:-1] = same & (weights[:-1] < 0) & (weights[1:] > 0) & (since[:-1] == since[1:])
    first = np.flatnonzero(~paired[:-1])
    last = first + paired[1:][first]
    ops = np.where(first != last, "update", np.where(weights[first] < 0, "delete", "insert"))
    structs = _structs(rows, view.schema)
    columns = [
        pa.array(ops.tolist(), pa.string()),
        structs.take(pa.array(first, pa.int64(), mask=weights[first] > 0)),
        structs.take(pa.array(last, pa.int64(), mask=weights[last] < 0)),
        pa.array(since[first], pa.int64()).cast(schema.field("at").type),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def last_of_each(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Of weighted rows, the last one of each key: it says whether there is one, and which.

    Example:
        >>> rows = pa.table({"k": [1, 2, 1], WEIGHT: [1, 1, -1]})
        >>> last_of_each(rows, ("k",)).to_pylist()
        [{'k': 2, '_hw_weight': 1}, {'k': 1, '_hw_weight': -1}]
    """
    last = {found: place for place, found in enumerate(_keys(rows, key))}
    return rows.take(pa.array(sorted(last.values()), pa.int64()))


def _keys(rows: pa.Table, key: tuple[str, ...]) -> list[bytes]:
    return encode_keys([rows.column(name) for name in key])


def _structs(rows: pa.Table, schema: pa.Schema) -> pa.StructArray:
    columns = [rows.column(field.name).cast(field.type).combine_chunks() for field in schema]
    return pa.StructArray.from_arrays(columns, fields=list(schema))
