"""Joins of Z-set rows: both sides are kept by key, and a change on one side is joined with the rows of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import RowCodec, encode_keys, kinds_of
from headwater.engine.state.state import WEIGHT, State
from headwater.engine.tables.evaluation import consolidate
from headwater.engine.tables.zset import build_zset, decode_weight, describe_columns, encode_weight

__all__ = ["ZSetJoin"]

_WEIGHT_ONE: Final = encode_weight(1) or b""
_SIDES: Final = ("left", "right")
_UNMATCHED_SIDES: Final = {"left": (0,), "right": (1,), "full": (0, 1), "anti": (0,), "semi": (0,), "inner": ()}
"""Of which sides rows appear without a partner; of a semi join they appear where there is one."""


@dataclass(frozen=True)
class ZSetJoin:
    """Emits pairs of rows with equal keys and, for an outer join, rows without a partner.

    A key with a null is equal to no key. Weights of partners are multiplied.

    Args:
        how: Which rows without a partner are kept too.
        left: The columns of the left side that are in the result.
        right: The columns of the right side that are in the result.
        on: For each side, the columns of its key.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> left, right = pa.schema([("id", pa.int64())]), pa.schema([("name", pa.string())])
        >>> join = ZSetJoin("left", left, right, (("a",), ("b",)))
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
        fields = [*self.left, *(() if self._is_half_join else self.right)]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """What is kept of both sides."""
        by = " = ".join("(" + ", ".join(names) + ")" for names in self.on)
        left, right = describe_columns(self.left), describe_columns(self.right)
        return f"{self.how} join by {by}: rows of left ({left}), right ({right})"

    @property
    def _is_half_join(self) -> bool:
        return self.how in ("semi", "anti")

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes of both sides; see `Operator`."""
        sides = [_JoinSide(self, number, rows) for number, rows in enumerate(inputs)]
        touched = list(dict.fromkeys([*sides[0].unique, *sides[1].unique]))
        parts: list[pa.Table] = []
        alone = [_UnmatchedRows(self, number, sides, state) for number in _UNMATCHED_SIDES[self.how]]
        for each in alone:
            each.read_before(touched)
        if not self._is_half_join:
            parts.append(self._match(sides[0], sides[1].read_rows(state, sides[0].unique)))
        for side in sides:
            side.put(state)
        if not self._is_half_join:
            parts.append(self._match(sides[1], sides[0].read_rows(state, sides[1].unique)))
        parts += [each.changes_after(touched) for each in alone]
        return pa.concat_tables(parts)

    def _match(self, side: _JoinSide, kept: _StoredRows) -> pa.Table:
        """Returns the pairs of changes of one side with rows of the other."""
        mine, theirs = side.pairs(kept)
        if not len(mine):
            return self.schema.empty_table()
        columns = [side.rows.take(mine), kept.rows.take(theirs)]
        first, second = columns if side.number == 0 else columns[::-1]
        weights = side.weights[mine] * kept.weights[theirs]
        both = [*first.columns, *second.columns, pa.array(weights)]
        return pa.Table.from_arrays(both, schema=self.schema)

    def pad_with_nulls(self, side: int, parts: Sequence[tuple[pa.Table, Sequence[int]]]) -> pa.Table:
        """Returns rows of one side, with nulls for the other."""
        rows = pa.concat_tables([rows for rows, _ in parts])
        weights = np.concatenate([np.asarray(weights, np.int64) for _, weights in parts])
        if not self._is_half_join:
            other = (self.right, self.left)[side]
            nulls = pa.Table.from_arrays([pa.nulls(len(rows), each.type) for each in other], schema=other)
            first, second = (rows, nulls) if side == 0 else (nulls, rows)
            rows = pa.Table.from_arrays([*first.columns, *second.columns], schema=pa.schema([*self.left, *self.right]))
        return build_zset([(rows, weights)], self.schema)


class _StoredRows:
    """Stored rows of some keys, and where the rows of each key begin."""

    def __init__(self, found: list[list[tuple[bytes, bytes]]], schema: pa.Schema) -> None:
        self.counts = np.fromiter(map(len, found), np.int64, len(found))
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = RowCodec(schema).decode([name for entries in found for name, _ in entries])
        values = [value for entries in found for _, value in entries]
        several = values.count(_WEIGHT_ONE) < len(values)
        self.weights = np.array([decode_weight(value) for value in values] if several else 1, np.int64)
        self.weights = np.broadcast_to(self.weights, len(values))


class _JoinSide:
    """The changes of one side, without those that have a null in the key."""

    def __init__(self, join: ZSetJoin, number: int, arrived: pa.Table) -> None:
        self.number = number
        self.space = _SIDES[number]
        self.schema = (join.left, join.right)[number]
        self.codec = RowCodec(self.schema)
        names = list(dict.fromkeys([*self.schema.names, *join.on[number]]))
        changed = consolidate(arrived.select([*names, WEIGHT]))
        valid = _has_key(changed, join.on[number])
        self.without_key = changed.filter(pc.invert(valid)) if changed.num_rows else changed
        changed = changed.filter(valid) if len(self.without_key) else changed
        self.rows = changed.select(self.schema.names)
        self.weights = changed.column(WEIGHT).to_numpy()
        columns = [changed.column(name) for name in join.on[number]]
        self.keys, self.kinds = encode_keys(columns), kinds_of(columns)
        places = {key: place for place, key in enumerate(dict.fromkeys(self.keys))}
        self.unique = list(places)
        self.at = np.fromiter((places[key] for key in self.keys), np.int64, len(self.keys))

    def read_rows(self, state: State, keys: list[bytes]) -> _StoredRows:
        """Returns the rows of this side that the state has for keys."""
        state.prefetch(self.space, keys)
        return _StoredRows([state.entries(self.space, key) for key in keys], self.schema)

    def pairs(self, kept: _StoredRows) -> tuple[np.ndarray, np.ndarray]:
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
        after = [encode_weight(more if old is None else decode_weight(old) + more) for old, more in added]
        state.put(self.space, self.keys, rows, after, kinds=self.kinds)

    def has_rows(self, state: State, keys: list[bytes]) -> list[bool]:
        """Returns whether the state has a row of this side for each key."""
        return [bool(state.entries(self.space, key, limit=1)) for key in keys]


class _UnmatchedRows:
    """Rows of one side that are emitted depending on whether the other side has the key."""

    def __init__(self, join: ZSetJoin, number: int, sides: list[_JoinSide], state: State) -> None:
        self.join = join
        self.side, self.other = sides[number], sides[1 - number]
        self.state = state
        self.wanted = join.how == "semi"
        self.was: list[bool] = []
        self.lost: _StoredRows

    def read_before(self, touched: list[bytes]) -> None:
        """Read the state before the changes."""
        if self.join.how not in ("semi", "anti"):  # the partners of these rows are wanted all the same
            self.state.prefetch(self.other.space, self.side.unique)
        self.was = self.other.has_rows(self.state, touched)
        changed = set(self.other.unique)
        self.old = {
            key: self.state.entries(self.side.space, key)
            for key, there in zip(touched, self.was, strict=True)
            if there is self.wanted and key in changed
        }

    def changes_after(self, touched: list[bytes]) -> pa.Table:
        """Returns the changes: retracted and newly emitted rows."""
        now = self.other.has_rows(self.state, touched)
        turned = {key for key, was, there in zip(touched, self.was, now, strict=True) if was is not there}
        shown = {key for key, there in zip(touched, now, strict=True) if there is self.wanted}
        gone = _StoredRows([self.old[key] for key in touched if key in turned and key in self.old], self.side.schema)
        back = self.side.read_rows(self.state, [key for key in touched if key in turned and key in shown])
        still = np.array([key in shown and key not in turned for key in self.side.keys], bool)
        stay = self.side.rows.filter(pa.array(still, pa.bool_()))
        parts = [(gone.rows, -gone.weights), (back.rows, back.weights), (stay, self.side.weights[still])]
        if not self.wanted:
            bare = self.side.without_key
            parts.append((bare.select(self.side.schema.names), bare.column(WEIGHT).to_numpy()))
        return self.join.pad_with_nulls(self.side.number, parts)


def _has_key(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray | pa.Array:
    valid = pc.is_valid(rows.column(names[0]))
    for name in names[1:]:
        valid = pc.and_(valid, pc.is_valid(rows.column(name)))
    return valid
