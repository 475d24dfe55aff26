"""Joins of changing relations: each side is kept by key, and a change of one side meets what the other side is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.keys import encode_keys, kinds_of
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.rows import RowCodec
from headwater.engine.keyed.state import State
from headwater.engine.operators.scalars.evaluation import net
from headwater.engine.operators.tables.changes import changes, described, weight_of, weight_to

__all__ = ["Join"]

_ONE: Final = weight_to(1) or b""
_SIDES: Final = ("left", "right")
_ALONE: Final = {"left": (0,), "right": (1,), "full": (0, 1), "anti": (0,), "semi": (0,), "inner": ()}
"""Of which sides rows appear without a partner; of a semi join they appear where there is one."""


@dataclass(frozen=True)
class Join:
    """Pairs of rows with equal keys, and, of an outer join, rows that have no partner.

    A key with a null is equal to no key. Weights of partners are multiplied.

    Args:
        how: Which rows without a partner are kept too.
        left: The columns of the left side that are in the result.
        right: The columns of the right side that are in the result.
        on: For each side, the columns of its key.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> join = Join("left", pa.schema([("id", pa.int64())]), pa.schema([("name", pa.string())]), (("a",), ("b",)))
        >>> state = MemoryState()
        >>> posts = pa.table({"id": [1], "a": [7], WEIGHT: [1]})
        >>> nobody = pa.schema([("b", pa.int64()), ("name", pa.string()), (WEIGHT, pa.int64())]).empty_table()
        >>> join.step(state, [posts, nobody], 0).to_pylist()
        [{'id': 1, 'name': None, '_hw_weight': 1}]
        >>> somebody = pa.table({"b": [7], "name": ["Ada"], WEIGHT: [1]})
        >>> [row["name"] for row in join.step(state, [posts.slice(0, 0), somebody], 0).to_pylist()]
        ['Ada', None]
    """

    how: Literal["inner", "left", "right", "full", "semi", "anti"]
    left: pa.Schema
    right: pa.Schema
    on: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the keys, left and right."""
        return self.on

    @property
    def schema(self) -> pa.Schema:
        """The columns of both sides (of a semi or anti join, of the left side) and the weight."""
        fields = [*self.left, *(() if self._half else self.right)]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """What is kept of both sides."""
        by = " = ".join("(" + ", ".join(names) + ")" for names in self.on)
        return (
            f"{self.how} join by {by}: rows of left ({described(self.left)}), right ({described(self.right)})"
        )

    @property
    def _half(self) -> bool:
        return self.how in ("semi", "anti")

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take changes of both sides; see `Operator`."""
        sides = [_Side(self, number, rows) for number, rows in enumerate(arrived)]
        touched = list(dict.fromkeys([*sides[0].unique, *sides[1].unique]))
        parts: list[pa.Table] = []
        alone = [_Alone(self, number, sides, state) for number in _ALONE[self.how]]
        for each in alone:
            each.before(touched)
        if not self._half:
            parts.append(self._met(sides[0], sides[1].kept(state, sides[0].unique)))
        for side in sides:
            side.put(state)
        if not self._half:
            parts.append(self._met(sides[1], sides[0].kept(state, sides[1].unique)))
        parts += [each.after(touched) for each in alone]
        return pa.concat_tables(parts)

    def _met(self, side: _Side, kept: _Kept) -> pa.Table:
        """The pairs of changes of one side with rows of the other."""
        mine, theirs = side.pairs(kept)
        if not len(mine):
            return self.schema.empty_table()
        columns = [side.rows.take(mine), kept.rows.take(theirs)]
        first, second = columns if side.number == 0 else columns[::-1]
        weights = side.weights[mine] * kept.weights[theirs]
        both = [*first.columns, *second.columns, pa.array(weights)]
        return pa.Table.from_arrays(both, schema=self.schema)

    def lonely(self, side: int, parts: Sequence[tuple[pa.Table, Sequence[int]]]) -> pa.Table:
        """Rows of one side, with nulls for the other."""
        rows = pa.concat_tables([rows for rows, _ in parts])
        weights = np.concatenate([np.asarray(weights, np.int64) for _, weights in parts])
        if not self._half:
            other = (self.right, self.left)[side]
            nulls = pa.Table.from_arrays([pa.nulls(len(rows), each.type) for each in other], schema=other)
            first, second = (rows, nulls) if side == 0 else (nulls, rows)
            rows = pa.Table.from_arrays(
                [*first.columns, *second.columns], schema=pa.schema([*self.left, *self.right])
            )
        return changes([(rows, weights)], self.schema)


class _Kept:
    """Rows that the state has for some keys, and where those of each key begin."""

    def __init__(self, found: list[list[tuple[bytes, bytes]]], schema: pa.Schema) -> None:
        self.counts = np.fromiter(map(len, found), np.int64, len(found))
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = RowCodec(schema).decode([name for entries in found for name, _ in entries])
        values = [value for entries in found for _, value in entries]
        several = values.count(_ONE) < len(values)
        self.weights = np.array([weight_of(value) for value in values] if several else 1, np.int64)
        self.weights = np.broadcast_to(self.weights, len(values))


class _Side:
    """The changes of one side, without those that have a null in the key."""

    def __init__(self, join: Join, number: int, arrived: pa.Table) -> None:
        self.number = number
        self.space = _SIDES[number]
        self.schema = (join.left, join.right)[number]
        self.codec = RowCodec(self.schema)
        names = list(dict.fromkeys([*self.schema.names, *join.on[number]]))
        changed = net(arrived.select([*names, WEIGHT]))
        valid = _valid(changed, join.on[number])
        self.without_key = changed.filter(pc.invert(valid)) if changed.num_rows else changed
        changed = changed.filter(valid) if len(self.without_key) else changed
        self.rows = changed.select(self.schema.names)
        self.weights = changed.column(WEIGHT).to_numpy()
        columns = [changed.column(name) for name in join.on[number]]
        self.keys, self.kinds = encode_keys(columns), kinds_of(columns)
        places = {key: place for place, key in enumerate(dict.fromkeys(self.keys))}
        self.unique = list(places)
        self.at = np.fromiter((places[key] for key in self.keys), np.int64, len(self.keys))

    def kept(self, state: State, keys: list[bytes]) -> _Kept:
        """The rows of this side that the state has for keys."""
        state.load(self.space, keys)
        return _Kept([state.entries(self.space, key) for key in keys], self.schema)

    def pairs(self, kept: _Kept) -> tuple[np.ndarray, np.ndarray]:
        """For each pair of a change and a row kept for its key, the place of both."""
        counts = kept.counts[self.at]
        mine = np.repeat(np.arange(len(self.at)), counts)
        within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
        return mine, np.repeat(kept.starts[self.at], counts) + within

    def put(self, state: State) -> None:
        """Add the changes to the state."""
        rows = self.codec.encode(self.rows)
        before = state.values(self.space, self.keys, rows)
        added = zip(before, self.weights.tolist(), strict=True)
        after = [weight_to(more if old is None else weight_of(old) + more) for old, more in added]
        state.put(self.space, self.keys, rows, after, kinds=self.kinds)

    def there(self, state: State, keys: list[bytes]) -> list[bool]:
        """Whether the state has a row of this side for each key."""
        return [bool(state.entries(self.space, key, most=1)) for key in keys]


class _Alone:
    """Rows of one side whose place in the result depends on whether the other side has the key at all."""

    def __init__(self, join: Join, number: int, sides: list[_Side], state: State) -> None:
        self.join = join
        self.side, self.other = sides[number], sides[1 - number]
        self.state = state
        self.wanted = join.how == "semi"
        self.was: list[bool] = []
        self.lost: _Kept

    def before(self, touched: list[bytes]) -> None:
        """Look at the state before the changes."""
        if self.join.how not in ("semi", "anti"):  # the partners of these rows are wanted all the same
            self.state.load(self.other.space, self.side.unique)
        self.was = self.other.there(self.state, touched)
        changed = set(self.other.unique)
        self.old = {
            key: self.state.entries(self.side.space, key)
            for key, there in zip(touched, self.was, strict=True)
            if there is self.wanted and key in changed
        }

    def after(self, touched: list[bytes]) -> pa.Table:
        """The changes: rows that were shown and are no more, rows that are shown now."""
        now = self.other.there(self.state, touched)
        turned = {key for key, was, there in zip(touched, self.was, now, strict=True) if was is not there}
        shown = {key for key, there in zip(touched, now, strict=True) if there is self.wanted}
        gone = _Kept(
            [self.old[key] for key in touched if key in turned and key in self.old], self.side.schema
        )
        back = self.side.kept(self.state, [key for key in touched if key in turned and key in shown])
        still = np.array([key in shown and key not in turned for key in self.side.keys], bool)
        stay = self.side.rows.filter(pa.array(still, pa.bool_()))
        parts = [(gone.rows, -gone.weights), (back.rows, back.weights), (stay, self.side.weights[still])]
        if not self.wanted:
            bare = self.side.without_key
            parts.append((bare.select(self.side.schema.names), bare.column(WEIGHT).to_numpy()))
        return self.join.lonely(self.side.number, parts)


def _valid(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray | pa.Array:
    valid = pc.is_valid(rows.column(names[0]))
    for name in names[1:]:
        valid = pc.and_(valid, pc.is_valid(rows.column(name)))
    return valid
