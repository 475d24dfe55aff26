"""Joins of Z-set rows: both sides are stored by key, and a change on one side is joined with the rows of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from headwater.engine.state.encoding import decode_rows, encode_rows
from headwater.engine.state.grouping import Numbers, group_by_key
from headwater.engine.state.state import WEIGHT, State, describe_columns
from headwater.engine.tables.evaluation import consolidate
from headwater.engine.tables.zset import add_weights, build_zset, decode_weight, encode_weight

__all__ = ["ZSetJoin"]

_WEIGHT_ONE: Final = encode_weight(1) or b""
_SIDES: Final = ("left", "right")
_UNMATCHED_SIDES: Final = {"left": (0,), "right": (1,), "full": (0, 1), "anti": (0,), "semi": (0,), "inner": ()}
"""The sides whose rows the result shows alone: rows without a partner; of a semi join, rows with one."""


@dataclass(frozen=True)
class ZSetJoin:
    """Emits pairs of rows with equal keys and, for an outer join, rows without a partner.

    A key with a null equals no key. The weight of a pair is the product of the weights of its rows.

    Args:
        how: The type of the join.
        left: The columns of the left side that are in the result.
        right: The columns of the right side that are in the result.
        on: The key columns of each side.

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
    def schema(self) -> pa.Schema:
        """The columns of both sides (of a semi or anti join, of the left side) and the weight."""
        fields = [*self.left, *(() if self._is_half_join else self.right)]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """The description of its state: the rows of both sides."""
        by = " = ".join("(" + ", ".join(names) + ")" for names in self.on)
        left, right = describe_columns(self.left), describe_columns(self.right)
        return f"{self.how} join by {by}: rows of left ({left}), right ({right})"

    @property
    def _is_half_join(self) -> bool:
        return self.how in ("semi", "anti")

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes of both sides; see `StatefulStep`."""
        sides = [_JoinSide(self, number, rows) for number, rows in enumerate(inputs)]
        touched = list(dict.fromkeys([*sides[0].unique, *sides[1].unique]))
        parts: list[pa.Table] = []
        unmatched = [_UnmatchedRows(self, number, sides, state) for number in _UNMATCHED_SIDES[self.how]]
        for each in unmatched:
            each.read_before(touched)
        # d(L x R) = dL x R + (L + dL) x dR: left changes are joined with the old right rows, right changes with the
        # new left rows.
        if not self._is_half_join:
            parts.append(self._match(sides[0], sides[1].read_rows(state, sides[0].unique)))
        for side in sides:
            side.put(state)
        if not self._is_half_join:
            parts.append(self._match(sides[1], sides[0].read_rows(state, sides[1].unique)))
        parts += [each.changes_after(touched) for each in unmatched]
        return pa.concat_tables(parts)

    def _match(self, side: _JoinSide, stored: _StoredRows) -> pa.Table:
        """Returns the pairs of changes of one side with stored rows of the other; `stored` is by `side.unique`."""
        counts = stored.counts[side.at]
        mine = np.repeat(np.arange(len(side.at)), counts)
        if not len(mine):
            return self.schema.empty_table()
        within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
        theirs = np.repeat(stored.starts[side.at], counts) + within
        tables = [side.rows.take(mine), stored.rows.take(theirs)]
        first, second = tables if side.number == 0 else tables[::-1]
        weights = side.weights[mine] * stored.weights[theirs]
        return pa.Table.from_arrays([*first.columns, *second.columns, pa.array(weights)], schema=self.schema)

    def pad_with_nulls(self, side: int, parts: Sequence[tuple[pa.Table, Sequence[int]]]) -> pa.Table:
        """Returns rows of one side with their weights, and nulls for the other side."""
        rows = pa.concat_tables([rows for rows, _ in parts])
        weights = np.concatenate([np.asarray(weights, np.int64) for _, weights in parts])
        if not self._is_half_join:
            other = (self.right, self.left)[side]
            nulls = pa.Table.from_arrays([pa.nulls(len(rows), each.type) for each in other], schema=other)
            first, second = (rows, nulls) if side == 0 else (nulls, rows)
            rows = pa.Table.from_arrays([*first.columns, *second.columns], schema=pa.schema([*self.left, *self.right]))
        return build_zset([(rows, weights)], self.schema)


class _StoredRows:
    """Stored rows of some keys, and the number and first index of the rows of each key."""

    def __init__(self, found: list[list[tuple[bytes, bytes]]], schema: pa.Schema) -> None:
        self.counts = np.fromiter(map(len, found), np.int64, len(found))
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = decode_rows(schema, [name for entries in found for name, _ in entries])
        values = [value for entries in found for _, value in entries]
        several = values.count(_WEIGHT_ONE) < len(values)
        weights = np.array([decode_weight(value) for value in values] if several else 1, np.int64)
        self.weights: Numbers = np.broadcast_to(weights, len(values))


class _JoinSide:
    """The changes of one side, without those that have a null in the key."""

    def __init__(self, join: ZSetJoin, number: int, arrived: pa.Table) -> None:
        self.number = number
        self.space = _SIDES[number]
        self.schema = (join.left, join.right)[number]
        names = list(dict.fromkeys([*self.schema.names, *join.on[number]]))
        changed = consolidate(arrived.select([*names, WEIGHT]))
        by_key = group_by_key(changed, join.on[number], nulls=False)
        has_key = by_key.codes >= 0
        self.without_key = changed.filter(pa.array(~has_key)) if not has_key.all() else changed.slice(0, 0)
        changed = changed.filter(pa.array(has_key)) if len(self.without_key) else changed
        self.rows = changed.select(self.schema.names)
        self.weights = changed.column(WEIGHT).to_numpy()
        self.unique, self.kinds, self.at = by_key.keys, by_key.kinds, by_key.codes[has_key]
        self.keys = [self.unique[code] for code in self.at.tolist()]

    def read_rows(self, state: State, keys: list[bytes]) -> _StoredRows:
        """Returns the stored rows of this side, by key."""
        state.prefetch(self.space, keys)
        return _StoredRows([state.entries(self.space, key) for key in keys], self.schema)

    def put(self, state: State) -> None:
        """Add the changes to the state."""
        rows = encode_rows(self.schema, self.rows)
        add_weights(state, self.space, self.keys, rows, self.weights.tolist(), self.kinds)

    def has_rows(self, state: State, keys: list[bytes]) -> list[bool]:
        """Returns for each key whether a row of this side is stored."""
        return [bool(state.entries(self.space, key, limit=1)) for key in keys]


class _UnmatchedRows:
    """The rows of one side that the result shows alone, depending on whether the other side has their key."""

    def __init__(self, join: ZSetJoin, number: int, sides: list[_JoinSide], state: State) -> None:
        self.join = join
        self.side, self.other = sides[number], sides[1 - number]
        self.state = state
        self.wanted = join.how == "semi"
        """Whether the other side must have the key, or must not."""
        self.was: list[bool] = []

    def read_before(self, touched: list[bytes]) -> None:
        """Read from the state what the changes may retract."""
        if self.join.how not in ("semi", "anti"):  # these rows are read anyway, to be joined
            self.state.prefetch(self.other.space, self.side.unique)
        self.was = self.other.has_rows(self.state, touched)
        changed = set(self.other.unique)
        self.old = {
            key: self.state.entries(self.side.space, key)
            for key, present in zip(touched, self.was, strict=True)
            if present is self.wanted and key in changed
        }

    def changes_after(self, touched: list[bytes]) -> pa.Table:
        """Returns the retracted and the newly shown rows."""
        now = self.other.has_rows(self.state, touched)
        turned = {key for key, was, is_now in zip(touched, self.was, now, strict=True) if was is not is_now}
        shown = {key for key, is_now in zip(touched, now, strict=True) if is_now is self.wanted}
        gone = _StoredRows([self.old[key] for key in touched if key in turned and key in self.old], self.side.schema)
        back = self.side.read_rows(self.state, [key for key in touched if key in turned and key in shown])
        still = np.array([key in shown and key not in turned for key in self.side.keys], bool)
        stay = self.side.rows.filter(pa.array(still, pa.bool_()))
        parts = [(gone.rows, -gone.weights), (back.rows, back.weights), (stay, self.side.weights[still])]
        if not self.wanted:
            bare = self.side.without_key
            parts.append((bare.select(self.side.schema.names), bare.column(WEIGHT).to_numpy()))
        return self.join.pad_with_nulls(self.side.number, parts)
