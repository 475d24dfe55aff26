"""The values of a column in a group, in order, with their weights: for min, max and count of distinct values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headwater.engine.keyed.keys import decode_keys, encode_keys
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.state import State
from headwater.engine.operators.tables.changes import weight_of, weight_to
from headwater.engine.operators.tables.evaluation import evaluated, quoted

__all__ = ["OrderedValues"]


@dataclass(frozen=True)
class OrderedValues:
    """Keeps the values of one column below the key of their group.

    Args:
        space: Where in the state.
        field: The column.
        ends: Whether the lowest and the highest value are wanted.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> values = OrderedValues("values.x", pa.field("x", pa.int64()))
        >>> found = values.changed(MemoryState(), pa.table({"x": [5, 3, 3], WEIGHT: [1, 1, 1]}), ())
        >>> lowest, highest, more = found[b""]
        >>> values.decoded([lowest, highest]).to_pylist(), more
        ([3, 5], 2)
    """

    space: str
    field: pa.Field
    ends: bool = True

    def changed(
        self, state: State, rows: pa.Table, by: tuple[str, ...]
    ) -> dict[bytes, tuple[bytes | None, bytes | None, int]]:
        """Take changes; for each group that changes, its lowest and highest value, and how many more are different."""
        keys, names, weights = self._delta(rows, by)
        before = [weight_of(value) for value in state.values(self.space, keys, names)]
        after = [old + more for old, more in zip(before, weights, strict=True)]
        state.put(self.space, keys, names, [weight_to(weight) for weight in after])
        more = dict.fromkeys(keys, 0)
        for key, old, new in zip(keys, before, after, strict=True):
            more[key] += bool(new) - bool(old)
        if not self.ends:
            return {key: (None, None, number) for key, number in more.items()}
        state.load(self.space, more)
        return {key: (*self._ends(state, key), number) for key, number in more.items()}

    def decoded(self, values: list[bytes | None]) -> pa.Array:
        """Values that slots keep as bytes, as a column."""
        there = [value for value in values if value is not None]
        (column,) = decode_keys(there, pa.schema([self.field]))
        places = iter(range(len(there)))
        return column.take(
            pa.array([None if value is None else next(places) for value in values], pa.int64())
        )

    def _ends(self, state: State, key: bytes) -> tuple[bytes | None, bytes | None]:
        lowest = state.entries(self.space, key, most=1)
        highest = state.entries(self.space, key, most=1, backwards=True)
        return (lowest[0][0], highest[0][0]) if lowest else (None, None)

    def _delta(self, rows: pa.Table, by: tuple[str, ...]) -> tuple[list[bytes], list[bytes], list[int]]:
        """Keys, values and weights of what changes."""
        name, weight = quoted(self.field.name), quoted(WEIGHT)
        columns = ", ".join([*(quoted(each) for each in by), name])
        total = f"cast(sum({weight}) as bigint) as {weight}"
        sql = f"select {columns}, {total} from t where {name} is not null group by {columns} having sum({weight}) <> 0"
        delta = evaluated(sql, {"t": rows})
        keys = encode_keys([delta.column(each) for each in by]) if by else [b""] * len(delta)
        value = delta.column(self.field.name).cast(self.field.type)
        return keys, encode_keys([value]), delta.column(WEIGHT).to_pylist()
