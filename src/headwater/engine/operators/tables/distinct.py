"""Each row of a changing relation once: how often it is there is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.state import State
from headwater.engine.operators.scalars.evaluation import net
from headwater.engine.operators.tables.changes import changes, described, weight_of, weight_to

__all__ = ["Distinct"]

_ROWS = "rows"


@dataclass(frozen=True)
class Distinct:
    """Rows appear with their first copy and go with their last.

    Args:
        rows: The columns.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> distinct, state = Distinct(pa.schema([("x", pa.int64())])), MemoryState()
        >>> distinct.step(state, [pa.table({"x": [1, 1, 2], WEIGHT: [1, 1, 1]})], 0).num_rows
        2
        >>> distinct.step(state, [pa.table({"x": [1, 2], WEIGHT: [-1, -1]})], 0).to_pylist()
        [{'x': 2, '_hw_weight': -1}]
    """

    rows: pa.Schema

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """All columns."""
        return (tuple(self.rows.names),)

    @property
    def schema(self) -> pa.Schema:
        """The columns and the weight."""
        return self.rows.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """What is kept for each row."""
        return f"number of copies of ({described(self.rows)})"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take changes; see `Operator`."""
        changed = net(arrived[0].select(self.schema.names))
        if not len(changed):
            return self.schema.empty_table()
        keys = encode_keys([changed.column(name) for name in self.rows.names])
        before = [weight_of(value) for value in state.values(_ROWS, keys)]
        after = [old + more for old, more in zip(before, changed.column(WEIGHT).to_pylist(), strict=True)]
        state.put(_ROWS, keys, None, [weight_to(weight) for weight in after])
        turned = [bool(new) - bool(old) for old, new in zip(before, after, strict=True)]
        places = [number for number, weight in enumerate(turned) if weight]
        rows = changed.select(self.rows.names).take(pa.array(places, pa.int64()))
        return changes([(rows, [turned[number] for number in places])], self.schema)
