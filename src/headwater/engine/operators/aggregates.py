"""Aggregates over ranges of rows: count, sum, avg, min, max and stddev.

Integers and decimals are summed exactly. Sums of doubles are computed anew for each range, in the order of rows.
Nothing is subtracted, so no rounding error accumulates, and equal rows give equal sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from itertools import pairwise, starmap
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.operators.arguments import refuse
from headwater.engine.state.grouping import Numbers

__all__ = ["WindowAggregate", "compute_aggregates", "input_columns", "output_fields"]

AggregateFunction = Literal["count", "sum", "avg", "min", "max", "stddev"]
_EXACT: Final = Context(prec=76)  # the default context would round to 28 digits
_MAX_PRECISION: Final = 38
_MAX_ROWS: Final = 1 << 20
"""The maximum rows of all ranges that are expanded at once; it bounds the memory."""


@dataclass(frozen=True)
class WindowAggregate:
    """One result column: a function over a column of the rows of a range.

    Nulls are ignored. A range without values has a count of 0, and null for the other functions. `avg` and `stddev` are
    doubles; `stddev` is the sample standard deviation, null below two values. NaN is above all numbers.

    Args:
        function: The aggregate function.
        column: Its argument; None for the count of all rows.
        name: The name of the result column.
    """

    function: AggregateFunction
    column: str | None
    name: str


def output_fields(operator: str, aggregates: Sequence[WindowAggregate], rows: pa.Schema) -> list[pa.Field]:
    """Returns the result columns of aggregates; refuses invalid ones.

    Args:
        operator: The name of the operator, for error messages.
        aggregates: The aggregates.
        rows: The columns of the rows.

    Raises:
        BadPipelineError: A function is unknown, or a column is missing or of a type that the function does not support.

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
        aggregates: The aggregates.
        rows: All rows.
        low: The first row of each range.
        high: The end of each range, exclusive; not below `low`.

    Example:
        >>> rows = pa.table({"n": [1, 2, 4, None]})
        >>> specs = [("count", None, "rows"), ("sum", "n", "n"), ("max", "n", "top")]
        >>> aggregates, low, high = [WindowAggregate(*spec) for spec in specs], np.array([0, 1, 3]), np.array([3, 4, 4])
        >>> [column.to_pylist() for column in compute_aggregates(aggregates, rows, low, high)]
        [[3, 3, 1], [7, 6, None], [4, 4, None]]
    """
    return [
        pa.array(high - low, pa.int64())
        if aggregate.column is None
        else _COMPUTE[aggregate.function](rows.column(aggregate.column).combine_chunks(), low, high)
        for aggregate in aggregates
    ]


def _output_type(operator: str, aggregate: WindowAggregate, rows: pa.Schema) -> pa.DataType:
    call = f"{aggregate.function}({aggregate.column or '*'})"
    what, fix = f"{operator} cannot compute {call}", "cast the column, or another function"
    if aggregate.function not in _COMPUTE:
        refuse(what, f"one of: {', '.join(_COMPUTE)}", aggregate=call)
    if aggregate.column is None:
        if aggregate.function != "count":
            refuse(what, f"{aggregate.function} of a column", aggregate=call)
        return pa.int64()
    if aggregate.column not in rows.names:
        fix = f"one of: {', '.join(rows.names)}"
        refuse(f"{what}: there is no column {aggregate.column}", fix, aggregate=call, column=aggregate.column)
    given = rows.field(aggregate.column).type
    kind = _result_type(aggregate.function, given)
    if kind is None:
        refuse(f"{what}: the column is of type {given}", fix, aggregate=call, column=aggregate.column)
    return kind


def _result_type(function: AggregateFunction, kind: pa.DataType) -> pa.DataType | None:
    """Returns the type of a result; None if the function does not support the type of the column."""
    if function == "count":
        return pa.int64()
    if function in ("min", "max"):
        return None if pa.types.is_nested(kind) else kind
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    if function != "sum" or pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.decimal128(min(kind.precision + 10, _MAX_PRECISION), kind.scale)


def _valid_counts(column: pa.Array, low: Numbers, high: Numbers) -> Numbers:
    return _subtract_prefixes(column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), low, high)


def _sum(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    empty = _valid_counts(column, low, high) == 0
    if pa.types.is_floating(column.type):
        return pa.array(_reduce(np.add, _to_floats(column), low, high, 0.0), mask=empty)
    sums = _exact_sums(column, low, high)
    if pa.types.is_integer(column.type):
        return pa.array(sums.tolist(), pa.int64(), mask=empty)
    values = [_EXACT.scaleb(Decimal(value), -column.type.scale) for value in sums.tolist()]
    return pa.array(values, _result_type("sum", column.type), mask=empty)


def _avg(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    counts = _valid_counts(column, low, high)
    if pa.types.is_floating(column.type):
        sums = _reduce(np.add, _to_floats(column), low, high, 0.0)
    else:
        scale = 10 ** (column.type.scale if pa.types.is_decimal(column.type) else 0)
        sums = np.array([value / scale for value in _exact_sums(column, low, high).tolist()], float)
    return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)


def _stddev(column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    """Compute from distances to the mean, in two passes: sums of squares lose all digits if values are close together.

    Values are taken relative to the first value of the range, so that equal values give exactly 0.
    """
    counts = _valid_counts(column, low, high)
    values, valid = _to_floats(column), column.is_valid().to_numpy(zero_copy_only=False)
    present = np.flatnonzero(valid)
    first = np.append(values[present], 0.0)[np.searchsorted(present, low)]
    squares = np.zeros(len(low))
    for part, rows, sizes in _expand_ranges(low, high):
        distances = np.where(valid[rows], values[rows] - np.repeat(first[part], sizes), 0.0)
        means = _reduce_ranges(np.add, distances, sizes, 0.0) / np.maximum(counts[part], 1)
        distances = np.where(valid[rows], distances - np.repeat(means, sizes), 0.0)
        squares[part] = _reduce_ranges(np.add, distances * distances, sizes, 0.0)
    return pa.array(np.sqrt(squares / np.maximum(counts - 1, 1)), mask=counts < 2)


def _extreme(better: np.ufunc, column: pa.Array, low: Numbers, high: Numbers) -> pa.Array:
    """Compute from the rank of each value: works for every ordered type, with NaN above all numbers."""
    order = pc.sort_indices(column).to_numpy().astype(np.int64)
    ranks = np.empty(len(column), np.int64)
    ranks[order] = np.arange(len(column))
    null = len(column) if better is np.minimum else -1  # never better than a value
    ranks[order[len(column) - column.null_count :]] = null
    best = _reduce(better, ranks, low, high, null)
    return column.take(pa.array(np.append(order, 0)[best], mask=best == null))


def _to_floats(column: pa.Array) -> Numbers:
    """Returns values as doubles; 0 for null."""
    found: Numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    return found


def _exact_sums(column: pa.Array, low: Numbers, high: Numbers) -> Numbers:
    """Returns exact sums of integers, or of decimals in units of their last digit."""
    if pa.types.is_decimal(column.type):
        scale = column.type.scale
        values = [0 if value is None else int(_EXACT.scaleb(value, scale)) for value in column.to_pylist()]
    else:
        values = column.fill_null(0).to_pylist()
    return _subtract_prefixes(np.array(values, object), low, high)


def _subtract_prefixes(values: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Returns the sum of each range as the difference of two prefix sums, which is exact for integers only."""
    before = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
    sums: Numbers = before[high] - before[low]
    return sums


def _reduce(function: np.ufunc, values: Numbers, low: Numbers, high: Numbers, empty: float) -> Numbers:
    """Returns the result of a function for each range; `empty` for a range without rows."""
    results = np.full(len(low), empty, values.dtype)
    for part, rows, sizes in _expand_ranges(low, high):
        results[part] = _reduce_ranges(function, values[rows], sizes, empty)
    return results


def _expand_ranges(low: Numbers, high: Numbers) -> Iterator[tuple[slice, Numbers, Numbers]]:
    """Yields the ranges in parts of limited total size; a single range may be larger.

    A part is a slice of the ranges, the rows of its ranges, one range after another, and the length of each range.
    """
    ends = np.cumsum(high - low)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(_MAX_ROWS, total, _MAX_ROWS), side="right")
    for part in starmap(slice, pairwise(np.unique([0, *cuts, len(low)]).tolist())):
        sizes = high[part] - low[part]
        starts = np.cumsum(sizes) - sizes
        yield part, np.arange(int(sizes.sum())) + np.repeat(low[part] - starts, sizes), sizes


def _reduce_ranges(function: np.ufunc, values: Numbers, sizes: Numbers, empty: float) -> Numbers:
    """Returns the result of a function for each range of a part; `empty` for a range without rows."""
    results, filled = np.full(len(sizes), empty, values.dtype), np.flatnonzero(sizes)
    if len(filled):  # `reduceat` has no result for an empty range
        results[filled] = function.reduceat(values, np.cumsum(sizes)[filled] - sizes[filled])
    return results


_COMPUTE: Final[dict[str, Callable[[pa.Array, Numbers, Numbers], pa.Array]]] = {
    "count": lambda column, low, high: pa.array(_valid_counts(column, low, high), pa.int64()),
    "sum": _sum,
    "avg": _avg,
    "min": partial(_extreme, np.minimum),
    "max": partial(_extreme, np.maximum),
    "stddev": _stddev,
}
