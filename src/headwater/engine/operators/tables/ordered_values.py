"""The values of a column in a group, in order, with their weights: for min, max and count of distinct values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.keys import decode_keys, encode_keys, kinds_of
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.state import State
from headwater.engine.operators.scalars.evaluation import evaluated, quoted
from headwater.engine.operators.tables.changes import weight_of, weight_to

__all__ = ["Moves", "OrderedValues"]

_SIGN: Final = np.uint64(1 << 63)


@dataclass
class Moves:
    """What became of the values of one group: which are new, and which are no more.

    Example:
        >>> Moves(new=[b"a"]).gone
        []
    """

    new: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class OrderedValues:
    """Keeps the values of one column below the key of their group.

    Args:
        space: Where in the state.
        column: The column.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> values, state = OrderedValues("values.x", pa.field("x", pa.int64())), MemoryState()
        >>> moves = values.changed(state, pa.table({"x": [5, 3, 3], WEIGHT: [1, 1, 1]}), ())[b""]
        >>> lowest = values.end(state, b"", moves, None, highest=False)
        >>> values.decoded([lowest, None]).to_pylist(), len(moves.new)
        ([3, None], 2)
    """

    space: str
    column: pa.Field

    def changed(self, state: State, rows: pa.Table, by: tuple[str, ...]) -> dict[bytes, Moves]:
        """Take changes; for each group that changes, which values are new and which are gone."""
        keys, names, weights = self._delta(rows, by)
        before = [weight_of(value) for value in state.values(self.space, keys, names)]
        after = [old + more for old, more in zip(before, weights, strict=True)]
        kinds = kinds_of([rows.column(each) for each in by])
        state.put(self.space, keys, names, [weight_to(weight) for weight in after], kinds=kinds)
        moves = {key: Moves() for key in keys}
        for key, name, old, new in zip(keys, names, before, after, strict=True):
            if not old:
                moves[key].new.append(name)
            elif not new:
                moves[key].gone.append(name)
        return moves

    def end(
        self, state: State, key: bytes, moves: Moves, old: bytes | None, *, highest: bool
    ) -> bytes | None:
        """The lowest or highest value of a group after changes; the state is asked only if the old one is gone."""
        if old in moves.gone:
            found = state.entries(self.space, key, most=1, backwards=highest)
            return found[0][0] if found else None
        values = moves.new if old is None else [*moves.new, old]
        return (max if highest else min)(values, default=None)

    def decoded(self, values: list[bytes | None]) -> pa.Array:
        """Values that slots keep as bytes, as a column."""
        there = [value for value in values if value is not None]
        if pa.types.is_signed_integer(self.column.type) or pa.types.is_timestamp(self.column.type):
            column = _numbers(there, self.column.type)
        else:
            (column,) = decode_keys(there, pa.schema([self.column]))
        if len(there) == len(values):
            return column
        places = iter(range(len(there)))
        return column.take(
            pa.array([None if value is None else next(places) for value in values], pa.int64())
        )

    def _delta(self, rows: pa.Table, by: tuple[str, ...]) -> tuple[list[bytes], list[bytes], list[int]]:
        """Keys, values and weights of what changes."""
        name, weight = quoted(self.column.name), quoted(WEIGHT)
        columns = ", ".join([*(quoted(each) for each in by), name])
        total = f"cast(sum({weight}) as bigint) as {weight}"
        where = f"where {name} is not null group by {columns} having sum({weight}) <> 0"
        delta = evaluated(f"select {columns}, {total} from t {where}", {"t": rows})
        keys = encode_keys([delta.column(each) for each in by]) if by else [b""] * len(delta)
        value = delta.column(self.column.name).cast(self.column.type)
        return keys, encode_keys([value]), delta.column(WEIGHT).to_pylist()


def _numbers(values: list[bytes], kind: pa.DataType) -> pa.Array:
    """What `encode_keys` made of whole numbers, at once: a byte, and eight with the sign turned over."""
    wide = np.frombuffer(b"".join(values), np.uint8).reshape(-1, 9)
    numbers = np.ascontiguousarray(wide[:, 1:]).view(">u8").astype(np.uint64).reshape(-1) ^ _SIGN
    return pa.array(numbers.view(np.int64)).cast(kind)
