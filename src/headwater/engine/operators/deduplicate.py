"""Drops repeats of an event within a time span; keeps the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.operators.arguments import require_duration, require_key
from headwater.engine.operators.reorder_buffer import release_complete
from headwater.engine.operators.timelines import pop_expired, set_expiry
from headwater.engine.state.encoding import decode_time, encode_time
from headwater.engine.state.grouping import event_times, group_by_key, select_events, sort_by_event_time, with_position
from headwater.engine.state.state import State, pop_timers

__all__ = ["Deduplicate"]

_LAST_TIMES: Final = "kept"
"""The space with the time of the last emitted event of each key."""
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class Deduplicate:
    """Emits the first of events with an equal key, and drops those that follow it within a time span.

    Events are processed in order of time, partition and offset once the watermark is above their time, so the result
    does not depend on the order of arrival. An event is dropped if one of its key was emitted less than `within`
    before. A null in the key equals itself.

    Args:
        events: The event's columns.
        key: The columns in which repeats agree.
        within: How long after an emitted event repeats are dropped, in microseconds of event time.

    Example:
        >>> from headwater.engine.state.state import MemoryState
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
        require_duration("deduplicate", "within", self.within)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def uses_event_time(self) -> bool:
        """Always: an event is emitted when no earlier one can arrive."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The event's columns and its position."""
        return with_position(self.events)

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"deduplicate 1: times by {self.key}; events {self.events.to_string()}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process events; emit those below the watermark that are no repeats."""
        pop_timers(state, watermark)
        ready = release_complete(state, _WAITING, select_events(inputs[0], self.events), watermark)
        result = self._drop_repeats(state, sort_by_event_time(ready))
        keys = pop_expired(state, watermark)
        pairs = zip(keys, state.values(_LAST_TIMES, keys), strict=True)
        old = [key for key, time in pairs if time is not None and decode_time(time) + self.within <= watermark]
        state.put(_LAST_TIMES, old, None, [None] * len(old))
        return result

    def _drop_repeats(self, state: State, events: pa.Table) -> pa.Table:
        by_key = group_by_key(events, self.key)
        stored = state.values(_LAST_TIMES, by_key.keys)
        known = {code: decode_time(time) for code, time in enumerate(stored) if time is not None}
        last = dict(known)
        kept: list[int] = []
        for number, (code, time) in enumerate(zip(by_key.codes.tolist(), event_times(events).tolist(), strict=True)):
            if code not in last or time >= last[code] + self.within:
                last[code] = time
                kept.append(number)
        changed = [code for code, time in last.items() if known.get(code) != time]
        keys = [by_key.keys[code] for code in changed]
        state.put(_LAST_TIMES, keys, None, [encode_time(last[code]) for code in changed])
        # `pop_expired` returns keys below the watermark: this key when the watermark reaches its last time + `within`.
        set_expiry(state, keys, np.array([last[code] for code in changed], np.int64) + self.within - 1)
        return events.take(pa.array(kept, pa.int64()))
