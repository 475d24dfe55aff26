"""Sums that can be taken back: whole numbers and decimals as integers, floats as exact binary fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.operators.scalars.evaluation import quoted

__all__ = ["Total", "total_of"]

_LIMB: Final = 1 << 62
_SMALLEST: Final = 1074
"""The smallest float above 0 is 2 ** -1074: in units of it every float is a whole number."""


class Total(Protocol):
    """How the values of one column are added up."""

    @property
    def sql(self) -> tuple[str, ...]:
        """What is computed of each group of changes."""

    @property
    def zero(self) -> Any:
        """What is kept of no values."""

    @property
    def type(self) -> pa.DataType:
        """The type of the sum."""

    @property
    def average_type(self) -> pa.DataType:
        """The type of the average."""

    def prepared(self, rows: pa.Table) -> pa.Table:
        """The rows with what `sql` reads."""

    def added(self, old: list[Any], more: Sequence[pa.ChunkedArray]) -> list[Any]:
        """What is kept, with the results of `sql` added."""

    def result(self, kind: str, totals: list[Any], counts: list[int]) -> pa.Array:
        """The sum or average, null where no value was counted."""


def total_of(name: str, kind: pa.DataType) -> Total:
    """The way to add up a column of a type.

    Raises:
        TypeError: Values of this type cannot be added.

    Example:
        >>> total_of("x", pa.int32()).type, total_of("x", pa.decimal128(10, 2)).average_type
        (DataType(int64), Decimal128Type(decimal128(14, 6)))
    """
    if pa.types.is_floating(kind):
        return _Floats(name)
    if pa.types.is_decimal(kind):
        return _Whole(name, kind.precision, kind.scale)
    if pa.types.is_integer(kind):
        return _Whole(name, None, 0)
    message = f"values of type {kind} cannot be added up"
    raise TypeError(message)


@dataclass(frozen=True)
class _Whole:
    """Whole numbers; of decimals, the number without its point."""

    name: str
    precision: int | None
    scale: int

    zero = 0

    @property
    def _column(self) -> str:
        return f"total.{self.name}"

    @property
    def type(self) -> pa.DataType:
        return (
            pa.int64() if self.precision is None else pa.decimal128(min(38, self.precision + 10), self.scale)
        )

    @property
    def average_type(self) -> pa.DataType:
        if self.precision is None:
            return pa.float64()
        return pa.decimal128(min(38, self.precision + 4), min(38, self.scale + 4))

    @property
    def sql(self) -> tuple[str, ...]:
        value = quoted(self._column if self.precision is not None else self.name)
        value = f"cast({value} as hugeint)"
        if self.precision is not None and self.precision > 18:
            value += f" + 18446744073709551616::hugeint * {quoted(self._column + '.high')}"
        total = f"coalesce(sum(({value}) * {quoted(WEIGHT)}), 0::hugeint)"
        limb = f"{_LIMB}::hugeint"
        return f"cast({total} // {limb} as bigint)", f"cast({total} % {limb} as bigint)"

    def prepared(self, rows: pa.Table) -> pa.Table:
        if self.precision is None:
            return rows
        low, high = _limbs(rows.column(self.name))
        if self.precision <= 18:
            return rows.append_column(self._column, low.cast(pa.int64(), safe=False))
        return rows.append_column(self._column, low).append_column(self._column + ".high", high)

    def added(self, old: list[int | str], more: Sequence[pa.ChunkedArray]) -> list[int | str]:
        high, low = (column.to_pylist() for column in more)
        news = [int(one) + two * _LIMB + three for one, two, three in zip(old, high, low, strict=True)]
        # MessagePack's whole numbers end at 64 bits; larger ones are kept as text.
        return [new if -_LIMB < new < _LIMB else str(new) for new in news]

    def result(self, kind: str, totals: list[int | str], counts: list[int]) -> pa.Array:
        pairs = list(zip(map(int, totals), counts, strict=True))
        if kind == "sum":
            return _as(self.type, [total if count else None for total, count in pairs])
        if self.precision is None:
            return pa.array([total / count if count else None for total, count in pairs], pa.float64())
        more: int = 10 ** (self.average_type.scale - self.scale)
        return _as(
            self.average_type, [_half_up(total * more, count) if count else None for total, count in pairs]
        )


@dataclass(frozen=True)
class _Floats:
    """Floats in units of the smallest one; what is not finite is counted apart, as nan, inf and -inf."""

    name: str

    type = pa.float64()
    average_type = pa.float64()
    zero = ("0", 0, 0, 0)

    @property
    def sql(self) -> tuple[str, ...]:
        there = f"filter ({quoted(self.name)} is not null)"
        return f"list(cast({quoted(self.name)} as double)) {there}", f"list({quoted(WEIGHT)}) {there}"

    def prepared(self, rows: pa.Table) -> pa.Table:
        return rows

    def added(self, old: list[Any], more: Sequence[pa.ChunkedArray]) -> list[Any]:
        values, weights = (column.to_pylist() for column in more)
        rows = zip(old, values, weights, strict=True)
        return [_plus(kept, value or (), weight or ()) for kept, value, weight in rows]

    def result(self, kind: str, totals: list[Any], counts: list[int]) -> pa.Array:
        if kind == "sum":
            sums = [_float(total, 1) if count else None for total, count in zip(totals, counts, strict=True)]
        else:
            sums = [
                _float(total, count) if count else None for total, count in zip(totals, counts, strict=True)
            ]
        return pa.array(sums, pa.float64())


def _plus(kept: Sequence[Any], values: Sequence[float], weights: Sequence[int]) -> tuple[str, int, int, int]:
    text, *others = kept
    total = _number(text)
    for value, weight in zip(values, weights, strict=True):
        if math.isfinite(value):
            upper, lower = value.as_integer_ratio()
            total += upper * weight << (_SMALLEST + 1 - lower.bit_length())
        else:
            others[0 if math.isnan(value) else 1 if value > 0 else 2] += weight
    return _text(total), others[0], others[1], others[2]


def _text(total: int) -> str:
    """A number that mostly ends in many zero bits."""
    zeros = (total & -total).bit_length() - 1 if total else 0
    return f"{total >> zeros:x}p{zeros}"


def _number(text: str) -> int:
    digits, _, zeros = text.partition("p")
    return int(digits, 16) << int(zeros or 0)


def _float(kept: Sequence[Any], count: int) -> float:
    text, nan, above, below = kept
    if nan or (above and below):
        return math.nan
    if above or below:
        return math.inf if above else -math.inf
    try:
        return _number(text) / (count << _SMALLEST)
    except OverflowError:
        return math.copysign(math.inf, _number(text))


def _limbs(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """The low and the high half of decimals, without their point."""
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    halves = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    empty = ~np.asarray(array.is_valid())
    low, high = halves[0::2].view(np.uint64), halves[1::2]
    return pa.array(low, pa.uint64(), mask=empty), pa.array(high, pa.int64(), mask=empty)


def _as(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    """Whole numbers as a column; of decimals, numbers without their point."""
    if not pa.types.is_decimal(kind):
        return pa.array(values, kind)
    highest = max((abs(value) for value in values if value is not None), default=0)
    if highest >= 10**kind.precision:
        message = f"a sum has more than {kind.precision} digits"
        raise OverflowError(message)
    raw = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    empty = pa.array([value is not None for value in values], pa.bool_())
    return pa.Array.from_buffers(kind, len(values), [empty.buffers()[1], pa.py_buffer(raw)])


def _half_up(upper: int, lower: int) -> int:
    sign = -1 if upper < 0 else 1
    return sign * ((2 * abs(upper) + lower) // (2 * lower))
