"""Z-set rows: rows with a weight, and the functions that all operators over them share.

A stateless function is linear: its result for two sets of rows is the sum of its results for each. So
`apply_with_weights` gives the rows before a change weight -1 and the rows after it weight +1. The sum of the weights of
each result row is the change of the view. This holds for inserts, updates and deletes, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.engine.state.grouping import group_by_key
from headwater.engine.state.state import WEIGHT, State

__all__ = [
    "add_weights",
    "apply_with_weights",
    "build_zset",
    "decode_weight",
    "distinct_rows",
    "encode_weight",
    "sum_weights",
    "without_weight",
]


def apply_with_weights(
    apply: Callable[[Mapping[str, DataFrame]], DataFrame],
    after: Mapping[str, DataFrame],
    before: Mapping[str, DataFrame],
) -> DataFrame:
    """Apply a stateless function to changes.

    Args:
        apply: The function.
        after: The frame of each input: the rows of a topic, the new rows of a view.
        before: The frames of the old rows, for inputs that are views.
    """
    old = {name: before[name] if name in before else frame.where(F.lit(False)) for name, frame in after.items()}
    added = apply(after).withColumn(WEIGHT, F.lit(1))
    return added.unionByName(apply(old).withColumn(WEIGHT, F.lit(-1)))


def sum_weights(rows: pa.Table) -> pa.Table:
    """Returns the distinct rows, each with the sum of its weights, which may be 0.

    Example:
        >>> sum_weights(pa.table({"k": [1, 1, 2, 2], WEIGHT: [1, -1, 1, 1]})).to_pylist()
        [{'k': 1, '_hw_weight': 0}, {'k': 2, '_hw_weight': 2}]
    """
    visible = rows.drop_columns([WEIGHT])
    first, codes = _first_occurrences(visible)
    weights = np.zeros(len(first), np.int64)
    np.add.at(weights, codes, rows.column(WEIGHT).to_numpy())
    return visible.take(first).append_column(WEIGHT, pa.array(weights))


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Returns each row once; an event that is delivered twice gives the same row twice.

    Example:
        >>> distinct_rows(pa.table({"k": [1, 2, 1]})).to_pylist()
        [{'k': 1}, {'k': 2}]
    """
    return rows.take(_first_occurrences(rows)[0])


def _first_occurrences(rows: pa.Table) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Returns the first index of each distinct row, and for each row the number of its distinct row."""
    columns = {}
    for number, column in enumerate(rows.columns):
        if pa.types.is_nested(column.type):  # compared as text: maps have no order, so `encode_keys` refuses them
            column = pa.array([repr(value) for value in column.to_pylist()], pa.string())  # noqa: PLW2901
        columns[str(number)] = column
    by_row = group_by_key(pa.table(columns), list(columns))
    return pa.array(by_row.order[by_row.starts[:-1]]), by_row.codes


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(int).decode


def build_zset(
    parts: Iterable[tuple[pa.Table, int | Sequence[int] | npt.NDArray[np.int64]]], schema: pa.Schema
) -> pa.Table:
    """Returns rows with their weights as one table; a part has one weight for all rows or one for each.

    Example:
        >>> schema = pa.schema([("x", pa.int64()), ("_hw_weight", pa.int64())])
        >>> build_zset([(pa.table({"x": [1]}), -1), (pa.table({"x": [2]}), [3])], schema).to_pylist()
        [{'x': 1, '_hw_weight': -1}, {'x': 2, '_hw_weight': 3}]
    """
    tables = []
    for rows, weight in parts:
        if len(rows):
            weights = pa.repeat(pa.scalar(weight, pa.int64()), len(rows)) if isinstance(weight, int) else weight
            columns = [*rows.columns, pa.array(weights, pa.int64())]
            tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def without_weight(schema: pa.Schema) -> pa.Schema:
    """Returns the columns other than the weight.

    Example:
        >>> without_weight(pa.schema([("x", pa.int64()), (WEIGHT, pa.int64())])).names
        ['x']
    """
    return pa.schema([field for field in schema if field.name != WEIGHT])


def decode_weight(value: bytes | None) -> int:
    """Decode a stored weight; 0 for a missing entry.

    Example:
        >>> decode_weight(encode_weight(3)), decode_weight(None)
        (3, 0)
    """
    return 0 if value is None else _DECODE(value)


def encode_weight(weight: int) -> bytes | None:
    r"""Encode a weight for storage; None, which deletes the entry, for 0.

    Example:
        >>> encode_weight(1), encode_weight(0)
        (b'\x01', None)
    """
    return _ENCODE(weight) if weight else None


def add_weights(
    state: State, space: str, keys: list[bytes], names: list[bytes] | None, weights: list[int], kinds: str = ""
) -> list[tuple[int, int]]:
    """Add weights to stored ones; returns the weight of each entry before and after. Each entry must occur once.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> add_weights(state, "rows", [b"a", b"b"], None, [1, 2]), add_weights(state, "rows", [b"b"], None, [-2])
        ([(0, 1), (0, 2)], [(2, 0)])
    """
    before = map(decode_weight, state.values(space, keys, names))
    sums = [(old, old + more) for old, more in zip(before, weights, strict=True)]
    state.put(space, keys, names, [encode_weight(new) for _, new in sums], kinds=kinds)
    return sums
