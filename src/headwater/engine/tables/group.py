"""GROUP BY over Z-set rows: each change is added to, or subtracted from, the accumulators of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.engine.state.encoding import decode_columns, encode_keys
from headwater.engine.state.state import WEIGHT, State
from headwater.engine.tables.accumulators import OrderedValues, Total, total_of
from headwater.engine.tables.evaluation import evaluate
from headwater.engine.tables.zset import build_zset, describe_columns
from headwater.pipelines.tables.relation import Aggregate
from headwater.sql.identifiers import quote

__all__ = ["ZSetGroup"]

_GROUPS: Final = "groups"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
Slots = list[list[Any]]
"""What is kept of groups, column by column: for each slot, its value in each group."""


@dataclass(frozen=True)
class ZSetGroup:
    """Emits one row per key: counts, sums and averages are accumulated; min, max and distinct keep their values.

    Sums are exact, of floats too, so that what was added can be taken away again. Without key columns there is always
    one row, also of no rows at all.

    Args:
        rows: The columns of the input.
        by: The columns of the key.
        aggregates: What is computed of each group.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> rows = pa.schema([("k", pa.string()), ("x", pa.int64())])
        >>> group = ZSetGroup(rows, ("k",), (Aggregate("n", "count"), Aggregate("top", "max", "x")))
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
        return f"groups of ({describe_columns(self.rows)}) by ({', '.join(self.by)}): {kept}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes; see `Operator`."""
        (rows,) = inputs
        if not len(rows) and self.by:
            return self.schema.empty_table()
        delta = self._delta(rows)
        keys = encode_keys([delta.column(name) for name in self.by]) if self.by else [b""]
        found = state.values(_GROUPS, keys)
        old = self._slots(found)
        new = [self._add_delta(slots, number, delta) for number, slots in enumerate(old)]
        self._update_values(state, rows, keys, new)
        alive = [bool(count) or not self.by for count in new[0]]
        packed = [_ENCODE(slots) if there else None for there, slots in zip(alive, zip(*new, strict=True), strict=True)]
        state.put(_GROUPS, keys, None, packed)
        moved = [before != after for before, after in zip(found, packed, strict=True)]
        before = [there is not None and differs for there, differs in zip(found, moved, strict=True)]
        after = [there and differs for there, differs in zip(alive, moved, strict=True)]
        return build_zset(
            [(self._build_rows(delta, old, before), -1), (self._build_rows(delta, new, after), 1)], self.schema
        )

    @cached_property
    def _totals(self) -> dict[str, Total]:
        """For each column that is added up, how."""
        summed = [each.column for each in self.aggregates if each.kind in ("sum", "avg") and each.column]
        return {name: total_of(name, self.rows.field(name).type) for name in dict.fromkeys(summed)}

    @cached_property
    def _value_indexes(self) -> dict[str, OrderedValues]:
        """For each column whose values are kept, where."""
        kinds = ("min", "max", "distinct")
        kept = dict.fromkeys(each.column for each in self.aggregates if each.kind in kinds and each.column)
        return {name: OrderedValues(f"values.{name}", self.rows.field(name)) for name in kept}

    @cached_property
    def _slot_plan(self) -> list[tuple[str, str | None]]:
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
        """Returns one row per changed key: the additions to its slots, in columns named by slot number."""
        by, weight = ", ".join(quote(name) for name in self.by), quote(WEIGHT)
        items = [quote(name) for name in self.by]
        for number, (what, name) in enumerate(self._slot_plan):
            if what == "count":
                only = f" filter ({quote(name)} is not null)" if name else ""
                items.append(f'cast(coalesce(sum({weight}){only}, 0) as bigint) as "{number}"')
            elif what == "sum" and name:
                items += [f'{text} as "{number}.{place}"' for place, text in enumerate(self._totals[name].sql)]
        input_rows = rows
        for total in self._totals.values():
            input_rows = total.prepare(input_rows)
        sql = f"select {', '.join(items)} from t" + (f" group by {by}" if by else "")
        return evaluate(sql, {"t": input_rows})

    def _slots(self, found: list[bytes | None]) -> Slots:
        fresh = _ENCODE([self._initial_value(what, name) for what, name in self._slot_plan])
        return decode_columns([fresh if value is None else value for value in found], len(self._slot_plan))

    def _initial_value(self, what: str, name: str | None) -> Any:
        if what == "sum" and name:
            return self._totals[name].zero
        return None if what in ("min", "max") else 0

    def _add_delta(self, old: list[Any], number: int, delta: pa.Table) -> list[Any]:
        what, name = self._slot_plan[number]
        if what == "count":
            return [one + more for one, more in zip(old, delta.column(str(number)).to_pylist(), strict=True)]
        if what == "sum" and name:
            total = self._totals[name]
            return total.add(old, [delta.column(f"{number}.{place}") for place in range(len(total.sql))])
        return list(old)

    def _update_values(self, state: State, rows: pa.Table, keys: list[bytes], new: Slots) -> None:
        """Update stored values, and the slots that are derived from them."""
        places = {key: number for number, key in enumerate(keys)}
        for name, values in self._value_indexes.items():
            mine = [(number, what) for number, (what, column) in enumerate(self._slot_plan) if column == name]
            for key, moves in values.apply(state, rows, self.by).items():
                place = places[key]
                for number, what in mine:
                    old = new[number][place]
                    if what == "distinct":
                        new[number][place] = old + len(moves.added) - len(moves.removed)
                    elif what in ("min", "max"):
                        new[number][place] = values.find_extreme(state, key, moves, old, highest=what == "max")

    def _build_rows(self, delta: pa.Table, slots: Slots, chosen: list[bool]) -> pa.Table:
        """Returns the rows of the chosen groups."""
        mask = pa.array(chosen, pa.bool_())
        kept = [[value for value, there in zip(slot, chosen, strict=True) if there] for slot in slots]
        columns = [delta.column(name).filter(mask).cast(self.rows.field(name).type) for name in self.by]
        columns += [self._result(each, kept) for each in self.aggregates]
        schema = pa.schema([field for field in self.schema if field.name != WEIGHT])
        return pa.Table.from_arrays(columns, schema=schema)

    def _result(self, each: Aggregate, slots: Slots) -> pa.Array:
        if each.kind in ("sum", "avg") and each.column:
            count = slots[self._slot_plan.index(("count", each.column))]
            total = slots[self._slot_plan.index(("sum", each.column))]
            return self._totals[each.column].result(each.kind, total, count)
        values = slots[self._slot_plan.index((each.kind, each.column))]
        if each.kind in ("min", "max") and each.column:
            return self._value_indexes[each.column].decode(values)
        return pa.array(values, pa.int64())
