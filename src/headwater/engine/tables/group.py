"""GROUP BY over Z-set rows: each change is added to, or subtracted from, the accumulators of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.engine.state.encoding import decode_columns, encode_keys
from headwater.engine.state.state import WEIGHT, State, describe_columns
from headwater.engine.tables.accumulators import OrderedValues, Total, total_of
from headwater.engine.tables.evaluation import evaluate
from headwater.engine.tables.zset import build_zset, without_weight
from headwater.pipelines.tables.relation import Aggregate
from headwater.sql.identifiers import quote

__all__ = ["ZSetGroup"]

_GROUPS: Final = "groups"
_ENCODE: Final = msgspec.msgpack.Encoder().encode
Slots = list[list[Any]]
"""The stored values of groups, column by column: for each slot, its value in each group."""


@dataclass(frozen=True)
class ZSetGroup:
    """Emits one row per group: counts, sums and averages are accumulated; min, max and distinct store their values.

    Sums are exact, also of floats, so that subtracting a value leaves no rounding error. Without key columns there is
    always one row, even without input rows.

    Args:
        rows: The columns of the input.
        by: The key columns.
        aggregates: The aggregates of each group.

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
    def schema(self) -> pa.Schema:
        """The key, the aggregates and the weight."""
        fields = [self.rows.field(name) for name in self.by]
        results = [pa.field(each.name, self._type(each)) for each in self.aggregates]
        return pa.schema([*fields, *results, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """The description of its state: the aggregates of each group."""
        aggregates = "; ".join(f"{each.kind} of {each.column or 'rows'}" for each in self.aggregates)
        return f"groups of ({describe_columns(self.rows)}) by ({', '.join(self.by)}): {aggregates}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes; see `StatefulStep`."""
        (rows,) = inputs
        if not len(rows) and self.by:
            return self.schema.empty_table()
        delta = self._delta(rows)
        keys = encode_keys([delta.column(name) for name in self.by]) if self.by else [b""]
        stored = state.values(_GROUPS, keys)
        fresh = _ENCODE([self._initial_value(what, name) for what, name in self._slot_plan])
        old = decode_columns([fresh if value is None else value for value in stored], len(self._slot_plan))
        new = [self._add_delta(values, number, delta) for number, values in enumerate(old)]
        self._update_values(state, rows, keys, new)  # before the slots are encoded: min, max and distinct are slots
        # Slot 0 is the number of rows: a group without rows is deleted, except the only group of all rows.
        groups = zip(*new, strict=True)
        packed = [_ENCODE(slots) if slots[0] or not self.by else None for slots in groups]
        state.put(_GROUPS, keys, None, packed)
        # Equal bytes are equal groups, whose rows need not be retracted.
        changed = [
            (before, after) if before != after else (None, None) for before, after in zip(stored, packed, strict=True)
        ]
        removed = self._build_rows(delta, old, [before is not None for before, _ in changed])
        added = self._build_rows(delta, new, [after is not None for _, after in changed])
        return build_zset([(removed, -1), (added, 1)], self.schema)

    @cached_property
    def _totals(self) -> dict[str, Total]:
        """The totals of columns with a sum or average."""
        summed = [each.column for each in self.aggregates if each.kind in ("sum", "avg") and each.column]
        return {name: total_of(name, self.rows.field(name).type) for name in dict.fromkeys(summed)}

    @cached_property
    def _value_indexes(self) -> dict[str, OrderedValues]:
        """The stored values of columns with min, max or distinct."""
        kinds = ("min", "max", "distinct")
        names = dict.fromkeys(each.column for each in self.aggregates if each.kind in kinds and each.column)
        return {name: OrderedValues(f"values.{name}", self.rows.field(name)) for name in names}

    @cached_property
    def _slot_plan(self) -> list[tuple[str, str | None]]:
        """The slots of a group: aggregate and column; the first is the number of rows."""
        plan: dict[tuple[str, str | None], None] = {("count", None): None}
        for each in self.aggregates:
            if each.kind in ("count", "sum", "avg"):
                plan["count", each.column] = None
            if each.kind != "count":
                plan["sum" if each.kind == "avg" else each.kind, each.column] = None
        return list(plan)

    def _type(self, each: Aggregate) -> pa.DataType:
        if each.column is None or each.kind in ("count", "distinct"):
            return pa.int64()
        if each.kind in ("min", "max"):
            return self.rows.field(each.column).type
        total = self._totals[each.column]
        return total.type if each.kind == "sum" else total.average_type

    def _delta(self, rows: pa.Table) -> pa.Table:
        """Returns one row per changed group: the additions to its slots, in columns named by slot number."""
        weight, keys = quote(WEIGHT), [quote(name) for name in self.by]
        items = list(keys)
        for number, (what, name) in enumerate(self._slot_plan):
            if what == "count":
                only = f" filter ({quote(name)} is not null)" if name else ""
                items.append(f'cast(coalesce(sum({weight}){only}, 0) as bigint) as "{number}"')
            elif what == "sum" and name:
                items += [f'{text} as "{number}.{part}"' for part, text in enumerate(self._totals[name].sql)]
        for total in self._totals.values():
            rows = total.prepare(rows)
        return evaluate(
            f"select {', '.join(items)} from t" + (f" group by {', '.join(keys)}" if keys else ""), {"t": rows}
        )

    def _initial_value(self, what: str, name: str | None) -> Any:
        if what == "sum" and name:
            return self._totals[name].zero
        return None if what in ("min", "max") else 0

    def _add_delta(self, old: list[Any], number: int, delta: pa.Table) -> list[Any]:
        what, name = self._slot_plan[number]
        if what == "count":
            return [count + more for count, more in zip(old, delta.column(str(number)).to_pylist(), strict=True)]
        if what == "sum" and name:
            total = self._totals[name]
            return total.add(old, [delta.column(f"{number}.{part}") for part in range(len(total.sql))])
        return list(old)

    def _update_values(self, state: State, rows: pa.Table, keys: list[bytes], new: Slots) -> None:
        """Update the stored values of columns, and the slots that depend on them."""
        numbers = {key: number for number, key in enumerate(keys)}
        for name, values in self._value_indexes.items():
            slots = [(slot, what) for slot, (what, column) in enumerate(self._slot_plan) if column == name]
            for key, moves in values.apply(state, rows, self.by).items():
                group = numbers[key]
                for slot, what in slots:
                    old = new[slot][group]
                    if what == "distinct":
                        new[slot][group] = old + len(moves.added) - len(moves.removed)
                    elif what in ("min", "max"):
                        new[slot][group] = values.find_extreme(state, key, moves, old, highest=what == "max")

    def _build_rows(self, delta: pa.Table, slots: Slots, chosen: list[bool]) -> pa.Table:
        """Returns the rows of the chosen groups."""
        mask = pa.array(chosen, pa.bool_())
        values = [list(compress(slot, chosen)) for slot in slots]
        columns = [delta.column(name).filter(mask).cast(self.rows.field(name).type) for name in self.by]
        columns += [self._result(each, values) for each in self.aggregates]
        return pa.Table.from_arrays(columns, schema=without_weight(self.schema))

    def _result(self, each: Aggregate, slots: Slots) -> pa.Array:
        if each.kind in ("sum", "avg") and each.column:
            count = slots[self._slot_plan.index(("count", each.column))]
            total = slots[self._slot_plan.index(("sum", each.column))]
            return self._totals[each.column].result(each.kind, total, count)
        values = slots[self._slot_plan.index((each.kind, each.column))]
        if each.kind in ("min", "max") and each.column:
            return self._value_indexes[each.column].decode(values)
        return pa.array(values, pa.int64())
