"""Aggregates over ranges of rows: count, sum, avg, min, max and stddev.

Integers and decimals are summed exactly. Sums of doubles are computed anew for each range, in the order of rows.
Nothing is subtracted, so no rounding error accumulates, and equal rows give equal sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.operators.arguments import refuse
from headwater.engine.state.grouping import Numbers

__all__ = ["WindowAggregate", "compute_aggregates", "input_columns", "output_fields"]

AggregateFunction = Literal["count", "sum", "avg", "min", "max", "stddev"]
_EXACT: Final = Context(prec=76)
_MAX_PRECISION: Final = 38
_MAX_ROWS: Final = 1 << 20
"""How many rows are looked at in one go, over all runs: what bounds the memory."""


@dataclass(frozen=True)
class WindowAggregate:
    """One result column: a function over a column of the rows of a range.

    Nulls are left out; a run without values has a count of 0 and null for the rest. `avg` and `stddev` are doubles;
    `stddev` is that of a sample, null below two values. NaN is above all numbers.

    Args:
        function: What to compute.
        column: Of what; none for "count" of all rows.
        name: What the result is called.
    """

    function: AggregateFunction
    column: str | None
    name: str


def output_fields(operator: str, aggregates: Sequence[WindowAggregate], rows: pa.Schema) -> list[pa.Field]:
    """Returns the result columns of aggregates; refuses invalid ones.

    Args:
        operator: Its name, for error messages.
        aggregates: The aggregates.
        rows: The columns of the rows.

    Raises:
        BadPipelineError: A column is not there, or is of a type that the function does not know.

    Example:
        >>> rows = pa.schema([("price", pa.decimal128(10, 2))])
        >>> [str(field.type) for field in output_fields("sliding", [WindowAggregate("sum", "price", "total")], rows)]
        ['decimal128(20, 2)']
    """
    if not aggregates:
        refuse(f"{operator} has nothing to compute", "count, sum, avg, min, max or stddev", aggregates=[])
    return [pa.field(aggregate.name, _output_type(operator, aggregate, rows)) for aggregate in aggregates]


def input_columns(aggregates: Sequence[WindowAggregate], rows: pa.Schema) -> pa.Schema:
    """Returns the columns that aggregates read, each once."""
    names = dict.fromkeys(aggregate.column for aggregate in aggregates if aggregate.column is not None)
    return pa.schema([rows.field(name) for name in names])


def compute_aggregates(
    aggregates: Sequence[WindowAggregate], rows: pa.Table, low: Numbers, high: Numbers
) -> list[pa.Array]:
    """Returns a column for each aggregate, with one value per range.

    Args:
        aggregates: What to compute.
        rows: All rows.
        low: Where each run begins.
        high: Where it ends, not including that row; not below `low`.

    Example:
        >>> rows = pa.table({"n": [1, 2, 4, None]})
        >>> specs = [("count", None, "rows"), ("sum", "n", "n"), ("max", "n", "top")]
        >>> asked = [WindowAggregate(*spec) for spec in specs]
        >>> [found.to_pylist() for found in compute_aggregates(asked, rows, np.array([0, 1, 3]), np.array([3, 4, 4]))]
        [[3, 3, 1], [7, 6, None], [4, 4, None]]
    """
    return [_compute_one(aggregate, rows, low, high) for aggregate in aggregates]


def _output_type(operator: str, aggregate: WindowAggregate, rows: pa.Schema) -> pa.DataType:
    asked = f"{aggregate.function}({aggregate.column or '*'})"
    if aggregate.function not in _COMPUTE:
        refuse(f"{operator} cannot compute {asked}", f"one of: {', '.join(_COMPUTE)}", aggregate=asked)
    if aggregate.column is None:
        if aggregate.function != "count":
            refuse(f"{operator} cannot compute {asked}", f"{aggregate.function} of a column", aggregate=asked)
        return pa.int64()
    if aggregate.column not in rows.names:
        what = f"{operator} computes {asked}, and there is no column {aggregate.column}"
        refuse(what, f"one of: {', '.join(rows.names)}", aggregate=asked, column=aggregate.column)
    kind = _result_type(aggregate.function, rows.field(aggregate.column).type)
    if kind is None:
        what = f"{operator} cannot compute {asked}: the column is of type {rows.field(aggregate.column).type}"
        refuse(what, "cast the column, or another function", aggregate=asked, column=aggregate.column)
    return kind


def _result_type(function: AggregateFunction, kind: pa.DataType) -> pa.DataType | None:
    """Returns the type of a result; None when the function does not know the column's."""
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if function == "count":
        return pa.int64()
    if function in ("min", "max"):
        return None if pa.types.is_nested(kind) else kind
    if not number:
        return None
    if function != "sum" or pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.decimal128(min(kind.precision + 10, _MAX_PRECISION), kind.scale)


def _compute_one(aggregate: WindowAggregate, rows: pa.Table, low: Numbers, high: Numbers) -> pa.Array:
    if aggregate.column is None:
        return pa.array(high - low, pa.int64())
    return _COMPUTE[aggregate.function](rows.column(aggregate.column).combine_chunks(), low, high)


def _count(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    return pa.array(_valid_counts(column, low, high), pa.int64())


def _valid_counts(column: pa.Array, low: Numbers, high: Numbers) -> Numbers:
    before = _prefix_sums(column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64))
    counts: Numbers = before[high] - before[low]
    return counts


def _sum(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    empty = _valid_counts(column, low, high) == 0
    if pa.types.is_floating(column.type):
        return pa.array(_float_sums(_to_floats(column), low, high), mask=empty)
    sums = _exact_sums(column, low, high)
    if pa.types.is_integer(column.type):
        return pa.array(sums.tolist(), pa.int64(), mask=empty)
    kind = _result_type("sum", column.type)
    values = [_EXACT.scaleb(Decimal(value), -column.type.scale) for value in sums.tolist()]
    return pa.array(values, kind, mask=empty)


def _avg(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    counts = _valid_counts(column, low, high)
    return pa.array(_sums_as_floats(column, low, high) / np.maximum(counts, 1), mask=counts == 0)


def _stddev(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    """Compute from distances to the mean, relative to the first value, so that equal values give exactly 0."""
    counts = _valid_counts(column, low, high)
    values, valid = _to_floats(column), column.is_valid().to_numpy(zero_copy_only=False)
    there = np.flatnonzero(valid)
    first = np.append(values[there], 0.0)[np.searchsorted(there, low)]
    squares = np.zeros(len(low))
    for part in _split_runs(low, high):
        rows, sizes = _expand_runs(low[part], high[part])
        apart = np.where(valid[rows], values[rows] - np.repeat(first[part], sizes), 0.0)
        means = _run_totals(apart, sizes) / np.maximum(counts[part], 1)
        apart = np.where(valid[rows], apart - np.repeat(means, sizes), 0.0)
        squares[part] = _run_totals(apart * apart, sizes)
    return pa.array(np.sqrt(squares / np.maximum(counts - 1, 1)), mask=counts < 2)


def _min(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    return _extreme(column, low, high, np.minimum)


def _max(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    return _extreme(column, low, high, np.maximum)


def _extreme(column: pa.Array, low: Numbers, high: Numbers, better: np.ufunc) -> pa.Array:
    """Compute by the rank of each value: works for any ordered type, with NaN above numbers."""
    order = pc.sort_indices(column).to_numpy().astype(np.int64)
    valid = len(column) - column.null_count
    ranks = np.empty(len(column), np.int64)
    ranks[order] = np.arange(len(column))
    nothing = len(column) if better is np.minimum else -1
    ranks[order[valid:]] = nothing
    best = np.full(len(low), nothing)
    for part in _split_runs(low, high):
        rows, sizes = _expand_runs(low[part], high[part])
        there = np.flatnonzero(sizes)
        if len(there):
            starts = np.cumsum(sizes)[there] - sizes[there]
            best[np.arange(len(low))[part][there]] = better.reduceat(ranks[rows], starts)
    where = np.append(order, 0)[best]
    return column.take(pa.array(where, mask=best == nothing))


def _to_floats(column: pa.Array) -> Numbers:
    """Returns values as doubles; 0 for null."""
    found: Numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    return found


def _sums_as_floats(column: pa.Array, low: Numbers, high: Numbers) -> Numbers:
    """Returns sums as doubles; of decimals and integers from the exact ones."""
    if pa.types.is_floating(column.type):
        return _float_sums(_to_floats(column), low, high)
    scale = 10 ** (column.type.scale if pa.types.is_decimal(column.type) else 0)
    exact = _exact_sums(column, low, high)
    return np.array([value / scale for value in exact.tolist()], float)


def _exact_sums(column: pa.Array, low: Numbers, high: Numbers) -> Numbers:
    """Returns exact sums of integers, or of decimals in units of their last digit."""
    if pa.types.is_decimal(column.type):
        scale = column.type.scale
        values = [0 if value is None else int(_EXACT.scaleb(value, scale)) for value in column.to_pylist()]
    else:
        values = column.fill_null(0).to_pylist()
    before = _prefix_sums(np.array(values, object))
    sums: Numbers = before[high] - before[low]
    return sums


def _prefix_sums(values: Numbers) -> Numbers:
    """Returns the sum of the values before each index, and after the last."""
    return np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])


def _float_sums(values: Numbers, low: Numbers, high: Numbers) -> Numbers:
    sums = np.zeros(len(low))
    for part in _split_runs(low, high):
        rows, sizes = _expand_runs(low[part], high[part])
        sums[part] = _run_totals(values[rows], sizes)
    return sums


def _split_runs(low: Numbers, high: Numbers) -> list[slice]:
    """Split the ranges into parts of limited total size; a single range may be larger."""
    sizes = np.cumsum(high - low)
    total = int(sizes[-1]) if len(sizes) else 0
    cuts = np.searchsorted(sizes, np.arange(_MAX_ROWS, total, _MAX_ROWS), side="right")
    edges = np.unique(np.concatenate([[0], cuts, [len(low)]])).tolist()
    return [slice(start, end) for start, end in pairwise(edges)]


def _expand_runs(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the rows of all ranges, one range after another, and the length of each."""
    sizes = high - low
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) + np.repeat(low - starts, sizes), sizes


def _run_totals(values: Numbers, sizes: Numbers) -> Numbers:
    found, there = np.zeros(len(sizes)), np.flatnonzero(sizes)
    if len(there):
        found[there] = np.add.reduceat(values, np.cumsum(sizes)[there] - sizes[there])
    return found


_COMPUTE: Final[dict[str, Callable[[pa.Array, Numbers, Numbers], pa.Array]]] = {
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    "min": _min,
    "max": _max,
    "stddev": _stddev,
}
