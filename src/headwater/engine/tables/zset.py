"""Z-set rows: rows with a weight, and the functions that all operators over them share.

A stateless function is linear: its result for two sets of rows is the sum of its results for each. So
`apply_with_weights` passes the rows before a change with weight -1 and the rows after it with weight +1. The sum of the
weights of each result row is the change of the view. This holds for inserts, updates and deletes, in any order.
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
from headwater.engine.state.state import WEIGHT

__all__ = [
    "apply_with_weights",
    "build_zset",
    "decode_weight",
    "describe_columns",
    "distinct_rows",
    "encode_weight",
    "sum_weights",
]


def apply_with_weights(
    apply: Callable[[Mapping[str, DataFrame]], DataFrame],
    after: Mapping[str, DataFrame],
    before: Mapping[str, DataFrame],
) -> DataFrame:
    """Apply a stateless function to changes.

    Args:
        apply: The function.
        after: A frame for each input; of a view, its new rows.
        before: The old rows, for those inputs that are views.
    """
    gone = {name: before[name] if name in before else frame.where(F.lit(False)) for name, frame in after.items()}
    added = apply(after).withColumn(WEIGHT, F.lit(1))
    return added.unionByName(apply(gone).withColumn(WEIGHT, F.lit(-1)))


def sum_weights(rows: pa.Table) -> pa.Table:
    """Sum the weights of equal rows.

    Example:
        >>> sum_weights(pa.table({"k": [1, 1, 2, 2], WEIGHT: [1, -1, 1, 1]})).to_pylist()
        [{'k': 1, '_hw_weight': 0}, {'k': 2, '_hw_weight': 2}]
    """
    shown = rows.drop_columns([WEIGHT])
    first, at = _first_occurrences(shown)
    weights = np.zeros(len(first), np.int64)
    np.add.at(weights, at, rows.column(WEIGHT).to_numpy())
    return shown.take(first).append_column(WEIGHT, pa.array(weights))


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Returns the rows, each once: an event that was delivered twice gives the same row twice.

    Example:
        >>> distinct_rows(pa.table({"k": [1, 2, 1]})).to_pylist()
        [{'k': 1}, {'k': 2}]
    """
    return rows.take(_first_occurrences(rows)[0])


def _first_occurrences(rows: pa.Table) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Returns the index of each first occurrence, and for each row the number of its equal."""
    by_row = group_by_key(
        pa.table({str(n): _to_comparable(column) for n, column in enumerate(rows.columns)}),
        [str(n) for n in range(rows.num_columns)],
    )
    return pa.array(by_row.order[by_row.starts[:-1]]), by_row.codes


def _to_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the column, with nested types as text because some have no order."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(int).decode


def build_zset(
    parts: Iterable[tuple[pa.Table, int | Sequence[int] | npt.NDArray[np.int64]]], schema: pa.Schema
) -> pa.Table:
    """Returns rows and their weights (one for all, or one each) as one table.

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


def describe_columns(schema: pa.Schema) -> str:
    """Returns a description of columns, for the form of a state.

    Example:
        >>> describe_columns(pa.schema([("x", pa.int64()), ("y", pa.string())]))
        'x int64, y string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def decode_weight(value: bytes | None) -> int:
    """Decode a stored weight; 0 for none.

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
