"""Of equal events the first within a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.due import due
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import ORDER, fitted, grouped, mark, times_of, with_order
from headwater.engine.operators.joins.sides import require_key, require_time
from headwater.engine.operators.joins.timelines import over, set_ends
from headwater.engine.operators.slices import hold, release

__all__ = ["Deduplicate"]

_KEPT: Final = "kept"
"""The space: of each key the time of the event that was given out last."""
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class Deduplicate:
    """Gives out the first of events with an equal key, and leaves out those that follow it within a time.

    Events are taken in the order of time, partition and offset, once the watermark is above their time; so what is left
    does not depend on when they arrive. An event is left out when one of its key was given out less than `within`
    before. A null in the key equals itself.

    Args:
        events: The event's columns.
        key: Columns whose values are equal in equal events.
        within: For how long after an event that was given out others are left out, in microseconds of event time.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> first = Deduplicate(pa.schema([("id", pa.int64())]), key=("id",), within=10)
        >>> rows = pa.table({"id": [1, 1, 2, 1], "_hw_time": [0, 9, 9, 10],
        ...                  "_hw_partition": [0, 0, 0, 0], "_hw_offset": [0, 1, 2, 3]})
        >>> first.step(MemoryState(), [rows], watermark=11)["_hw_offset"].to_pylist()
        [0, 2, 3]
    """

    events: pa.Schema
    key: tuple[str, ...]
    within: int

    def __post_init__(self) -> None:
        require_key("deduplicate", self.events, self.key)
        require_time("deduplicate", "within", self.within)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def schema(self) -> pa.Schema:
        """The event's columns and its place."""
        return with_order(self.events)

    @property
    def form(self) -> str:
        """What its state looks like."""
        return f"deduplicate 1: times by {self.key}; events {self.events.to_string()}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take events; give out the first ones among those below the watermark."""
        due(state, watermark)
        events = fitted(arrived[0], self.schema)
        waited = release(state, _WAITING, watermark)
        later = times_of(events) >= watermark
        hold(state, _WAITING, events.take(np.flatnonzero(later)))
        ready = events.take(np.flatnonzero(~later))
        if waited is not None:
            ready = pa.concat_tables([waited, ready])
        result = self._first(state, ready.sort_by([(name, "ascending") for name in ORDER.names]))
        self._forget(state, watermark)
        return result

    def _first(self, state: State, ready: pa.Table) -> pa.Table:
        found = grouped(ready, self.key, nulls=True)
        stored = state.values(_KEPT, found.keys)
        known = {code: _time(time) for code, time in enumerate(stored) if time is not None}
        last = dict(known)
        kept: list[int] = []
        for number, (code, time) in enumerate(
            zip(found.codes.tolist(), times_of(ready).tolist(), strict=True)
        ):
            if code not in last or time >= last[code] + self.within:
                last[code] = time
                kept.append(number)
        changed = [code for code, time in last.items() if known.get(code) != time]
        keys = [found.keys[code] for code in changed]
        state.put(_KEPT, keys, None, [mark(last[code]) for code in changed])
        set_ends(state, keys, np.array([last[code] for code in changed], np.int64) + self.within - 1)
        return ready.take(pa.array(kept, pa.int64()))

    def _forget(self, state: State, watermark: int) -> None:
        keys = over(state, watermark)
        stored = state.values(_KEPT, keys)
        pairs = zip(keys, stored, strict=True)
        old = [key for key, time in pairs if time is not None and _time(time) + self.within <= watermark]
        state.put(_KEPT, old, None, [None] * len(old))


def _time(stored: bytes) -> int:
    return int.from_bytes(stored, "big") - (1 << 63)
