"""A view over views: every change takes away what the old row gave, and adds what the new row gives.

A function without state is linear: what it makes of some rows and of some others, it makes of all of them. So the rows
before a change go through it with weight -1, the rows after it with weight +1, and what is left of each result after
adding up its weights is the change of the view. That holds for inserts, updates and deletes alike, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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


def net(rows: pa.Table, key: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """The rows that are left, and the keys of which none is.

    Example:
        >>> rows = pa.table({"k": [1, 1, 2], "n": [5, 6, 7], WEIGHT: [-1, 1, -1]})
        >>> kept, gone = net(rows, ("k",))
        >>> kept.to_pylist(), gone.to_pylist()
        ([{'k': 1, 'n': 6}], [{'k': 2}])
    """
    names = [name for name in rows.column_names if name != WEIGHT]
    shown = rows.select(names)
    contents = list(zip(*map(_hashable, shown.columns), strict=True))
    left: Counter[tuple[Any, ...]] = Counter()
    for content, weight in zip(contents, rows.column(WEIGHT).to_pylist(), strict=True):
        left[content] += weight
    place = {content: number for number, content in enumerate(contents)}
    keys = list(zip(*(_hashable(rows.column(name)) for name in key), strict=True))
    kept = [place[content] for content, weight in left.items() for _ in range(weight)]
    there = {keys[number] for number in kept}
    gone = {keys[place[content]]: place[content] for content, weight in left.items() if weight < 0}
    lost = [number for found, number in gone.items() if found not in there]
    return shown.take(pa.array(kept, pa.int64())), shown.select(list(key)).take(pa.array(lost, pa.int64()))


def distinct(rows: pa.Table) -> pa.Table:
    """The rows, each once: an event that was delivered twice gives the same row twice.

    Example:
        >>> distinct(pa.table({"k": [1, 2, 1]})).to_pylist()
        [{'k': 1}, {'k': 2}]
    """
    contents = zip(*map(_hashable, rows.columns), strict=True)
    first: dict[tuple[Any, ...], int] = {}
    for number, content in enumerate(contents):
        first.setdefault(content, number)
    return rows.take(pa.array(first.values(), pa.int64()))


def _hashable(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; those of nested types as text."""
    values = column.to_pylist()
    return [repr(value) for value in values] if pa.types.is_nested(column.type) else values
