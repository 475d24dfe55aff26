"""A view over views: every change takes away what the old row gave, and adds what the new row gives.

A function without state is linear: what it makes of some rows and of some others, it makes of all of them. So the rows
before a change go through it with weight -1, the rows after it with weight +1, and what is left of each result after
adding up its weights is the change of the view. That holds for inserts, updates and deletes alike, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.engine.keyed.grouping import grouped
from headwater.engine.keyed.operator import WEIGHT

__all__ = ["distinct", "net", "weighted"]


def weighted(
    apply: Callable[[Mapping[str, DataFrame]], DataFrame],
    after: Mapping[str, DataFrame],
    before: Mapping[str, DataFrame],
) -> DataFrame:
    """What a function without state makes of changes.

    Args:
        apply: The function.
        after: A frame for each input; of a view, its new rows.
        before: The old rows, for those inputs that are views.
    """
    gone = {
        name: before[name] if name in before else frame.where(F.lit(False)) for name, frame in after.items()
    }
    added = apply(after).withColumn(WEIGHT, F.lit(1))
    return added.unionByName(apply(gone).withColumn(WEIGHT, F.lit(-1)))


def net(rows: pa.Table) -> pa.Table:
    """The changes with weights of equal rows added up.

    Example:
        >>> net(pa.table({"k": [1, 1, 2, 2], WEIGHT: [1, -1, 1, 1]})).to_pylist()
        [{'k': 1, '_hw_weight': 0}, {'k': 2, '_hw_weight': 2}]
    """
    shown = rows.drop_columns([WEIGHT])
    first, at = _first(shown)
    weights = np.zeros(len(first), np.int64)
    np.add.at(weights, at, rows.column(WEIGHT).to_numpy())
    return shown.take(first).append_column(WEIGHT, pa.array(weights))


def distinct(rows: pa.Table) -> pa.Table:
    """The rows, each once: an event that was delivered twice gives the same row twice.

    Example:
        >>> distinct(pa.table({"k": [1, 2, 1]})).to_pylist()
        [{'k': 1}, {'k': 2}]
    """
    return rows.take(_first(rows)[0])


def _first(rows: pa.Table) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Where each row is for the first time; and of each row, the number of the one that it is equal to."""
    by_row = grouped(
        pa.table({str(n): _comparable(column) for n, column in enumerate(rows.columns)}),
        [str(n) for n in range(rows.num_columns)],
    )
    return pa.array(by_row.order[by_row.starts[:-1]]), by_row.at


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column; of nested types as text, since some of them have no order."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])
