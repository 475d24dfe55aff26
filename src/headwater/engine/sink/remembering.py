"""What runs after Spark: an operator whose state is in the store, committed with the rows it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.building.after_spark import AfterSpark
from headwater.engine.building.places import HIDDEN_PREFIX
from headwater.engine.keyed.at_sink import Recent, StoreState
from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import OFFSET, PARTITION, REFUSED, SINCE, WEIGHT
from headwater.errors import DamagedError
from headwater.store import States, StateWrite

__all__ = ["STATE_LOST", "Made", "Remembering", "settled"]


STATE_LOST: Final = "the state of an operator is gone or damaged"
"""What is said then; whoever runs the pipeline makes it anew from the log."""
_MARK: Final = "mark"
"""A space with one entry, which is there as soon as a batch is committed; its name says how state is laid out."""
_LAYOUT: Final = b"pages and logs"


@dataclass(frozen=True)
class Made:
    """What an operator made of a batch.

    Attributes:
        rows: Its result.
        states: What it remembers from then on.
        refused: Events that it gives back, to be quarantined: partition, offset and reason.
    """

    rows: pa.Table
    states: tuple[StateWrite, ...] = ()
    refused: tuple[tuple[int, int, str], ...] = ()


class Remembering:
    """One operator and its state, batch after batch.

    Args:
        after: The operator.
        states: What it has committed.
        begun: Whether the query has committed a batch.

    Raises:
        DamagedError: It has, and what it remembers is gone.
    """

    def __init__(self, after: AfterSpark, states: States, *, begun: bool = False) -> None:
        self._after = after
        self._states = states
        self._recent = Recent()
        self._state: StoreState | None = None
        self._marked = states.values(_MARK, [b""], [_LAYOUT]) != [None]
        if begun and not self._marked:
            raise DamagedError(
                STATE_LOST, detail="the store has the view's rows, and no state that this version reads"
            )

    def run(self, rows: pa.Table, watermark: int) -> Made:
        """What the operator makes of a batch; all of it is to be committed.

        Raises:
            DamagedError: What it remembers cannot be read.
        """
        if self._state is not None:  # the batch before was never committed
            self._recent.clear()
        self._state = StoreState(self._states, self._recent)
        try:
            made = self._after.run(self._state, rows, watermark)
        except msgspec.DecodeError as error:
            raise DamagedError(STATE_LOST, detail=str(error)) from error
        refused: tuple[tuple[int, int, str], ...] = ()
        if REFUSED in made.column_names:
            given_back = made.filter(pc.is_valid(made.column(REFUSED)))
            refused = tuple(
                zip(*(given_back.column(n).to_pylist() for n in (PARTITION, OFFSET, REFUSED)), strict=True)
            )
            made = made.filter(pc.is_null(made.column(REFUSED)))
        hidden = {name for name in made.column_names if name.startswith(HIDDEN_PREFIX)} - {WEIGHT, SINCE}
        mark = (
            () if self._marked else (StateWrite(_MARK, [b""], [_LAYOUT], [self._after.steps.form.encode()]),)
        )
        return Made(made.drop_columns(sorted(hidden)), (*self._state.writes(), *mark), refused)

    def committed(self) -> None:
        """What `run` gave was committed."""
        if self._state is not None:
            self._state.committed()
            self._state = None
            self._marked = True


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
