"""Accumulators of a group that support retraction.

`Total` is a sum from which values can be subtracted exactly: integers and decimals are integers, floats are exact
binary fractions. `OrderedValues` keeps the values of a column in order with their weights, for min, max and count
distinct.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.engine.state.encoding import decode_int64, decode_keys, encode_keys, kinds_of
from headwater.engine.state.state import WEIGHT, State
from headwater.engine.tables.evaluation import evaluate
from headwater.engine.tables.zset import add_weights
from headwater.sql.identifiers import quote

__all__ = ["OrderedValues", "Total", "ValueMoves", "total_of"]


@dataclass
class ValueMoves:
    """The distinct values that a batch has added to one group, and those it has removed.

    Example:
        >>> ValueMoves(added=[b"a"]).removed
        []
    """

    added: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class OrderedValues:
    """Stores the distinct values of one column under the key of their group, in order, with their weights.

    Args:
        space: The space in the state.
        column: The column.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> values, state = OrderedValues("values.x", pa.field("x", pa.int64())), MemoryState()
        >>> moves = values.apply(state, pa.table({"x": [5, 3, 3], WEIGHT: [1, 1, 1]}), ())[b""]
        >>> lowest = values.find_extreme(state, b"", moves, None, highest=False)
        >>> values.decode([lowest, None]).to_pylist(), len(moves.added)
        ([3, None], 2)
    """

    space: str
    column: pa.Field

    def apply(self, state: State, rows: pa.Table, by: tuple[str, ...]) -> dict[bytes, ValueMoves]:
        """Apply changes; returns the distinct values added and removed, by group."""
        keys, names, weights = self._delta(rows, by)
        sums = add_weights(state, self.space, keys, names, weights, kinds_of([rows.column(each) for each in by]))
        moves = {key: ValueMoves() for key in keys}
        for key, name, (old, new) in zip(keys, names, sums, strict=True):
            if not old:
                moves[key].added.append(name)
            elif not new:
                moves[key].removed.append(name)
        return moves

    def find_extreme(
        self, state: State, key: bytes, moves: ValueMoves, old: bytes | None, *, highest: bool
    ) -> bytes | None:
        """Returns the lowest or highest value of a group.

        Args:
            state: The state after the changes.
            key: The key of the group.
            moves: The values added and removed.
            old: The lowest or highest value before the changes; None if the group was empty.
            highest: Whether the highest value is requested.
        """
        if old in moves.removed:  # only then is the state read
            found = state.entries(self.space, key, limit=1, reverse=highest)
            return found[0][0] if found else None
        values = moves.added if old is None else [*moves.added, old]
        return (max if highest else min)(values, default=None)

    def decode(self, values: list[bytes | None]) -> pa.Array:
        """Decode stored values to a column; None becomes null."""
        present, kind = [value for value in values if value is not None], self.column.type
        if pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind):
            # Vectorized: a key of `encode_keys` is one byte, then the eight bytes of `encode_int64`.
            wide = np.frombuffer(b"".join(present), np.uint8).reshape(-1, 9)[:, 1:]
            column = pa.array(decode_int64(wide)).cast(kind)
        else:
            (column,) = decode_keys(present, pa.schema([self.column]))
        if len(present) == len(values):
            return column
        numbers = iter(range(len(present)))
        return column.take(pa.array([None if value is None else next(numbers) for value in values], pa.int64()))

    def _delta(self, rows: pa.Table, by: tuple[str, ...]) -> tuple[list[bytes], list[bytes], list[int]]:
        """Returns group keys, encoded values and weights of the changes; each value of a group once, without nulls."""
        name, weight = quote(self.column.name), quote(WEIGHT)
        columns = ", ".join([*(quote(each) for each in by), name])
        total = f"cast(sum({weight}) as bigint) as {weight}"
        where = f"where {name} is not null group by {columns} having sum({weight}) <> 0"
        delta = evaluate(f"select {columns}, {total} from t {where}", {"t": rows})
        keys = encode_keys([delta.column(each) for each in by]) if by else [b""] * len(delta)
        value = delta.column(self.column.name).cast(self.column.type)
        return keys, encode_keys([value]), delta.column(WEIGHT).to_pylist()


_LIMB: Final = 1 << 62
"""DuckDB returns a sum of 64-bit numbers as quotient and remainder of this number, which fit into 64 bits."""
_SMALLEST: Final = 1074
"""The smallest float above 0 is 2 ** -1074, and every finite float is an integer multiple of it."""


@dataclass(frozen=True)
class _IntegerTotal:
    """A sum of integers, or of decimals as unscaled integers.

    Both totals have the same members: `zero` is the stored total of no values, `type` and `average_type` are the types
    of sum and average, `sql` the expressions that sum up a group of changes, `prepare` adds the columns that they read,
    `add` adds their results to stored totals, and `result` returns sums or averages, null for a count of 0.
    """

    name: str
    precision: int | None
    scale: int

    zero = 0

    @property
    def _column(self) -> str:
        return f"total.{self.name}"

    @property
    def _is_wide(self) -> bool:
        """Whether an unscaled value may need more than 64 bits."""
        return self.precision is not None and self.precision > 18

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self.precision is None else pa.decimal128(min(38, self.precision + 10), self.scale)

    @property
    def average_type(self) -> pa.DataType:
        if self.precision is None:
            return pa.float64()
        return pa.decimal128(min(38, self.precision + 4), min(38, self.scale + 4))

    @property
    def sql(self) -> tuple[str, ...]:
        value = quote(self._column if self.precision is not None else self.name)
        value = f"cast({value} as hugeint)"
        if self._is_wide:
            value += f" + 18446744073709551616::hugeint * {quote(self._column + '.high')}"
        total = f"coalesce(sum(({value}) * {quote(WEIGHT)}), 0::hugeint)"
        if self._is_wide:  # the quotient of a sum of 38 digits may exceed 64 bits
            return (f"cast({total} as varchar)",)
        limb = f"{_LIMB}::hugeint"
        return f"cast({total} // {limb} as bigint)", f"cast({total} % {limb} as bigint)"

    def prepare(self, rows: pa.Table) -> pa.Table:
        if self.precision is None:
            return rows
        low, high = _limbs(rows.column(self.name))
        if not self._is_wide:
            return rows.append_column(self._column, low.cast(pa.int64(), safe=False))
        return rows.append_column(self._column, low).append_column(self._column + ".high", high)

    def add(self, old: list[int | str], more: Sequence[pa.ChunkedArray]) -> list[int | str]:
        columns = [column.to_pylist() for column in more]
        if self._is_wide:
            added = list(map(int, columns[0]))
        else:
            added = [upper * _LIMB + lower for upper, lower in zip(*columns, strict=True)]
        totals = [int(total) + value for total, value in zip(old, added, strict=True)]
        # MessagePack's integers have at most 64 bits; larger ones are stored as text.
        return [total if -_LIMB < total < _LIMB else str(total) for total in totals]

    def result(self, kind: str, totals: list[int | str], counts: list[int]) -> pa.Array:
        pairs = list(zip(map(int, totals), counts, strict=True))
        if kind == "sum":
            return _to_array(self.type, [total if count else None for total, count in pairs])
        if self.precision is None:
            return pa.array([total / count if count else None for total, count in pairs], pa.float64())
        factor: int = 10 ** (self.average_type.scale - self.scale)
        averages = [_divide_half_up(total * factor, count) if count else None for total, count in pairs]
        return _to_array(self.average_type, averages)


@dataclass(frozen=True)
class _FloatTotal:
    """A sum of floats as an integer multiple of the smallest float; NaN, inf and -inf are counted separately."""

    name: str

    type = pa.float64()
    average_type = pa.float64()
    zero = ("0", 0, 0, 0)

    @property
    def sql(self) -> tuple[str, ...]:
        there = f"filter ({quote(self.name)} is not null)"
        return f"list(cast({quote(self.name)} as double)) {there}", f"list({quote(WEIGHT)}) {there}"

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def add(self, old: list[Any], more: Sequence[pa.ChunkedArray]) -> list[Any]:
        values, weights = (column.to_pylist() for column in more)
        rows = zip(old, values, weights, strict=True)
        return [_add_floats(kept, value or (), weight or ()) for kept, value, weight in rows]

    def result(self, kind: str, totals: list[Any], counts: list[int]) -> pa.Array:
        divisors = [min(1, count) for count in counts] if kind == "sum" else counts
        pairs = zip(totals, divisors, strict=True)
        return pa.array([_to_float(total, divisor) if divisor else None for total, divisor in pairs], pa.float64())


Total = _IntegerTotal | _FloatTotal
"""The sum of the values of one column, from which values can be subtracted exactly."""


def total_of(name: str, kind: pa.DataType) -> Total:
    """Returns the `Total` for a column type.

    Raises:
        TypeError: The type has no sum.

    Example:
        >>> total_of("x", pa.int32()).type, total_of("x", pa.decimal128(10, 2)).average_type
        (DataType(int64), Decimal128Type(decimal128(14, 6)))
    """
    if pa.types.is_floating(kind):
        return _FloatTotal(name)
    if pa.types.is_decimal(kind):
        return _IntegerTotal(name, kind.precision, kind.scale)
    if pa.types.is_integer(kind):
        return _IntegerTotal(name, None, 0)
    message = f"values of type {kind} cannot be added up"
    raise TypeError(message)


def _add_floats(kept: Sequence[Any], values: Sequence[float], weights: Sequence[int]) -> tuple[str, int, int, int]:
    text, *others = kept
    total = _parse_total(text)
    for value, weight in zip(values, weights, strict=True):
        if math.isfinite(value):
            upper, lower = value.as_integer_ratio()
            total += upper * weight << (_SMALLEST + 1 - lower.bit_length())
        else:
            others[0 if math.isnan(value) else 1 if value > 0 else 2] += weight
    # Stored in hexadecimal without trailing zero bits, of which most totals have about a thousand.
    zeros = (total & -total).bit_length() - 1 if total else 0
    return f"{total >> zeros:x}p{zeros}", others[0], others[1], others[2]


def _parse_total(text: str) -> int:
    digits, _, zeros = text.partition("p")
    return int(digits, 16) << int(zeros or 0)


def _to_float(kept: Sequence[Any], count: int) -> float:
    text, nan, above, below = kept
    if nan or (above and below):
        return math.nan
    if above or below:
        return math.inf if above else -math.inf
    try:
        return _parse_total(text) / (count << _SMALLEST)
    except OverflowError:
        return math.copysign(math.inf, _parse_total(text))


def _limbs(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Returns the low and high 64 bits of unscaled decimals."""
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    halves = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    empty = ~np.asarray(array.is_valid())
    low, high = halves[0::2].view(np.uint64), halves[1::2]
    return pa.array(low, pa.uint64(), mask=empty), pa.array(high, pa.int64(), mask=empty)


def _to_array(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    """Returns integers as a column; of a decimal column they are the unscaled values."""
    if not pa.types.is_decimal(kind):
        return pa.array(values, kind)
    highest = max((abs(value) for value in values if value is not None), default=0)
    if highest >= 10**kind.precision:
        message = f"a sum has more than {kind.precision} digits"
        raise OverflowError(message)
    raw = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    empty = pa.array([value is not None for value in values], pa.bool_())
    return pa.Array.from_buffers(kind, len(values), [empty.buffers()[1], pa.py_buffer(raw)])


def _divide_half_up(upper: int, lower: int) -> int:
    sign = -1 if upper < 0 else 1
    return sign * ((2 * abs(upper) + lower) // (2 * lower))
