"""What runs after Spark: an operator whose state is in the store, committed with the rows it makes."""

from __future__ import annotations

import pyarrow as pa

from headwater.engine.building.after_spark import AfterSpark
from headwater.engine.keyed.at_sink import Recent, StoreState
from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import WEIGHT
from headwater.store import States, StateWrite

__all__ = ["Remembering", "settled"]


class Remembering:
    """One operator and its state, batch after batch.

    Args:
        after: The operator.
        states: What it has committed.
    """

    def __init__(self, after: AfterSpark, states: States) -> None:
        self._after = after
        self._states = states
        self._recent = Recent()
        self._state: StoreState | None = None

    def run(self, rows: pa.Table, watermark: int) -> tuple[pa.Table, tuple[StateWrite, ...]]:
        """What the operator makes of a batch, and what it remembers from then on; both are to be committed."""
        if self._state is not None:  # the batch before was never committed
            self._recent.clear()
        self._state = StoreState(self._states, self._recent)
        made = self._after.run(self._state, rows, watermark)
        return made, self._state.writes()

    def committed(self) -> None:
        """What `run` gave was committed."""
        if self._state is not None:
            self._state.committed()
            self._state = None


def settled(rows: pa.Table, key: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Of weighted rows, those that are now, and the keys of which none is any more.

    Example:
        >>> rows = pa.table({"k": [1, 1, 2], "n": [5, 6, 7], WEIGHT: [-1, 1, -1]})
        >>> now, gone = settled(rows, ("k",))
        >>> now.to_pylist(), gone.to_pylist()
        ([{'k': 1, 'n': 6}], [{'k': 2}])
    """
    shown, weights = rows.drop_columns([WEIGHT]), rows.column(WEIGHT).to_numpy()
    now = shown.take(pa.array((weights > 0).nonzero()[0].repeat(weights[weights > 0])))
    gone = shown.select(list(key)).filter(pa.array(weights < 0))
    there = set(encode_keys([now.column(name) for name in key]))
    keys = encode_keys([gone.column(name) for name in key])
    first = {found: place for place, found in enumerate(keys) if found not in there}
    return now, gone.take(pa.array(list(first.values()), pa.int64()))
