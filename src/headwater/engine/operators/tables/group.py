"""Groups of a changing relation: each change adds to what is kept of its group, or takes away from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.rows import unpacked_columns
from headwater.engine.keyed.state import State
from headwater.engine.operators.scalars.evaluation import evaluated, quoted
from headwater.engine.operators.tables.changes import changes, described
from headwater.engine.operators.tables.ordered_values import OrderedValues
from headwater.engine.operators.tables.totals import Total, total_of
from headwater.pipelines.tables.relation import Aggregate

__all__ = ["Group"]

_GROUPS: Final = "groups"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
Slots = list[list[Any]]
"""What is kept of groups, column by column: for each slot, its value in each group."""


@dataclass(frozen=True)
class Group:
    """One row for each key: counts, sums and averages are added up; for min, max and distinct the values are kept.

    Sums are exact, of floats too, so that what was added can be taken away again. Without key columns there is always
    one row, also of no rows at all.

    Args:
        rows: The columns of the input.
        by: The columns of the key.
        aggregates: What is computed of each group.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> rows = pa.schema([("k", pa.string()), ("x", pa.int64())])
        >>> group = Group(rows, ("k",), (Aggregate("n", "count"), Aggregate("top", "max", "x")))
        >>> state = MemoryState()
        >>> group.step(state, [pa.table({"k": ["a", "a"], "x": [1, 5], WEIGHT: [1, 1]})], 0).to_pylist()
        [{'k': 'a', 'n': 2, 'top': 5, '_hw_weight': 1}]
        >>> group.step(state, [pa.table({"k": ["a"], "x": [5], WEIGHT: [-1]})], 0).to_pylist()[1]
        {'k': 'a', 'n': 1, 'top': 1, '_hw_weight': 1}
    """

    rows: pa.Schema
    by: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the key."""
        return (self.by,)

    @property
    def schema(self) -> pa.Schema:
        """The key, the aggregates and the weight."""
        fields = [self.rows.field(name) for name in self.by]
        return pa.schema([*fields, *self._results, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """What is kept for each group."""
        kept = "; ".join(f"{each.kind} of {each.column or 'rows'}" for each in self.aggregates)
        return f"groups of ({described(self.rows)}) by ({', '.join(self.by)}): {kept}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take changes; see `Operator`."""
        (rows,) = arrived
        if not len(rows) and self.by:
            return self.schema.empty_table()
        delta = self._delta(rows)
        keys = encode_keys([delta.column(name) for name in self.by]) if self.by else [b""]
        found = state.values(_GROUPS, keys)
        old = self._slots(found)
        new = [self._added(slots, number, delta) for number, slots in enumerate(old)]
        self._look_up(state, rows, keys, new)
        alive = [bool(count) or not self.by for count in new[0]]
        packed = [
            _ENCODE(slots) if there else None
            for there, slots in zip(alive, zip(*new, strict=True), strict=True)
        ]
        state.put(_GROUPS, keys, None, packed)
        moved = [before != after for before, after in zip(found, packed, strict=True)]
        before = [there is not None and differs for there, differs in zip(found, moved, strict=True)]
        after = [there and differs for there, differs in zip(alive, moved, strict=True)]
        return changes(
            [(self._shown(delta, old, before), -1), (self._shown(delta, new, after), 1)], self.schema
        )

    @cached_property
    def _totals(self) -> dict[str, Total]:
        """For each column that is added up, how."""
        summed = [each.column for each in self.aggregates if each.kind in ("sum", "avg") and each.column]
        return {name: total_of(name, self.rows.field(name).type) for name in dict.fromkeys(summed)}

    @cached_property
    def _ordered(self) -> dict[str, OrderedValues]:
        """For each column whose values are kept, where."""
        kinds = ("min", "max", "distinct")
        kept = dict.fromkeys(each.column for each in self.aggregates if each.kind in kinds and each.column)
        return {name: OrderedValues(f"values.{name}", self.rows.field(name)) for name in kept}

    @cached_property
    def _plan(self) -> list[tuple[str, str | None]]:
        """The slots: what is kept of each group, first of all its number of rows."""
        plan: dict[tuple[str, str | None], None] = {("count", None): None}
        for each in self.aggregates:
            if each.kind in ("count", "sum", "avg"):
                plan["count", each.column] = None
            if each.kind != "count":
                plan["sum" if each.kind == "avg" else each.kind, each.column] = None
        return list(plan)

    @cached_property
    def _results(self) -> list[pa.Field]:
        return [pa.field(each.name, self._type(each)) for each in self.aggregates]

    def _type(self, each: Aggregate) -> pa.DataType:
        if each.column is None or each.kind in ("count", "distinct"):
            return pa.int64()
        if each.kind in ("min", "max"):
            return self.rows.field(each.column).type
        total = self._totals[each.column]
        return total.type if each.kind == "sum" else total.average_type

    def _delta(self, rows: pa.Table) -> pa.Table:
        """One row for each key that changes: what is added to its slots, in columns named by their numbers."""
        by, weight = ", ".join(quoted(name) for name in self.by), quoted(WEIGHT)
        items = [quoted(name) for name in self.by]
        for number, (what, name) in enumerate(self._plan):
            if what == "count":
                only = f" filter ({quoted(name)} is not null)" if name else ""
                items.append(f'cast(coalesce(sum({weight}){only}, 0) as bigint) as "{number}"')
            elif what == "sum" and name:
                items += [
                    f'{text} as "{number}.{place}"' for place, text in enumerate(self._totals[name].sql)
                ]
        prepared = rows
        for total in self._totals.values():
            prepared = total.prepared(prepared)
        sql = f"select {', '.join(items)} from t" + (f" group by {by}" if by else "")
        return evaluated(sql, {"t": prepared})

    def _slots(self, found: list[bytes | None]) -> Slots:
        fresh = _ENCODE([self._fresh(what, name) for what, name in self._plan])
        return unpacked_columns([fresh if value is None else value for value in found], len(self._plan))

    def _fresh(self, what: str, name: str | None) -> Any:
        if what == "sum" and name:
            return self._totals[name].zero
        return None if what in ("min", "max") else 0

    def _added(self, old: list[Any], number: int, delta: pa.Table) -> list[Any]:
        what, name = self._plan[number]
        if what == "count":
            return [one + more for one, more in zip(old, delta.column(str(number)).to_pylist(), strict=True)]
        if what == "sum" and name:
            total = self._totals[name]
            return total.added(old, [delta.column(f"{number}.{place}") for place in range(len(total.sql))])
        return list(old)

    def _look_up(self, state: State, rows: pa.Table, keys: list[bytes], new: Slots) -> None:
        """Bring kept values up to date, and the slots that are read from them."""
        places = {key: number for number, key in enumerate(keys)}
        for name, values in self._ordered.items():
            mine = [(number, what) for number, (what, column) in enumerate(self._plan) if column == name]
            for key, moves in values.changed(state, rows, self.by).items():
                place = places[key]
                for number, what in mine:
                    old = new[number][place]
                    if what == "distinct":
                        new[number][place] = old + len(moves.new) - len(moves.gone)
                    elif what in ("min", "max"):
                        new[number][place] = values.end(state, key, moves, old, highest=what == "max")

    def _shown(self, delta: pa.Table, slots: Slots, chosen: list[bool]) -> pa.Table:
        """The rows of the chosen groups."""
        mask = pa.array(chosen, pa.bool_())
        kept = [[value for value, there in zip(slot, chosen, strict=True) if there] for slot in slots]
        columns = [delta.column(name).filter(mask).cast(self.rows.field(name).type) for name in self.by]
        columns += [self._result(each, kept) for each in self.aggregates]
        schema = pa.schema([field for field in self.schema if field.name != WEIGHT])
        return pa.Table.from_arrays(columns, schema=schema)

    def _result(self, each: Aggregate, slots: Slots) -> pa.Array:
        if each.kind in ("sum", "avg") and each.column:
            count = slots[self._plan.index(("count", each.column))]
            total = slots[self._plan.index(("sum", each.column))]
            return self._totals[each.column].result(each.kind, total, count)
        values = slots[self._plan.index((each.kind, each.column))]
        if each.kind in ("min", "max") and each.column:
            return self._ordered[each.column].decoded(values)
        return pa.array(values, pa.int64())
