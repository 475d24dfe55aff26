"""Drops repeats of an event within a time span; keeps the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.operators.arguments import require_duration, require_key
from headwater.engine.operators.reorder_buffer import hold_rows, release_rows
from headwater.engine.operators.timelines import pop_expired, set_expiry
from headwater.engine.state.grouping import (
    POSITION_SCHEMA,
    encode_time,
    event_times,
    factorize_keys,
    select_and_cast,
    with_position,
)
from headwater.engine.state.state import State, pop_timers

__all__ = ["Deduplicate"]

_LAST_TIMES: Final = "kept"
"""The space: of each key the time of the event that was given out last."""
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class Deduplicate:
    """Emits the first of events with an equal key, and drops those that follow it within a time span.

    Events are processed in order of time, partition and offset once the watermark is above their time, so the result
    does not depend on the order of arrival. An event is dropped if one of its key was emitted less than `within`
    before. A null in the key equals itself.

    Args:
        events: The event's columns.
        key: The columns in which repeats are equal.
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
    def schema(self) -> pa.Schema:
        """The event's columns and its position."""
        return with_position(self.events)

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"deduplicate 1: times by {self.key}; events {self.events.to_string()}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process events; emit the first ones among those below the watermark."""
        pop_timers(state, watermark)
        events = select_and_cast(inputs[0], self.schema)
        waited = release_rows(state, _WAITING, watermark)
        later = event_times(events) >= watermark
        hold_rows(state, _WAITING, events.take(np.flatnonzero(later)))
        ready = events.take(np.flatnonzero(~later))
        if waited is not None:
            ready = pa.concat_tables([waited, ready])
        result = self._drop_repeats(state, ready.sort_by([(name, "ascending") for name in POSITION_SCHEMA.names]))
        self._expire(state, watermark)
        return result

    def _drop_repeats(self, state: State, ready: pa.Table) -> pa.Table:
        found = factorize_keys(ready, self.key, nulls=True)
        stored = state.values(_LAST_TIMES, found.keys)
        known = {code: _decode_time(time) for code, time in enumerate(stored) if time is not None}
        last = dict(known)
        kept: list[int] = []
        for number, (code, time) in enumerate(zip(found.codes.tolist(), event_times(ready).tolist(), strict=True)):
            if code not in last or time >= last[code] + self.within:
                last[code] = time
                kept.append(number)
        changed = [code for code, time in last.items() if known.get(code) != time]
        keys = [found.keys[code] for code in changed]
        state.put(_LAST_TIMES, keys, None, [encode_time(last[code]) for code in changed])
        set_expiry(state, keys, np.array([last[code] for code in changed], np.int64) + self.within - 1)
        return ready.take(pa.array(kept, pa.int64()))

    def _expire(self, state: State, watermark: int) -> None:
        keys = pop_expired(state, watermark)
        stored = state.values(_LAST_TIMES, keys)
        pairs = zip(keys, stored, strict=True)
        old = [key for key, time in pairs if time is not None and _decode_time(time) + self.within <= watermark]
        state.put(_LAST_TIMES, old, None, [None] * len(old))


def _decode_time(stored: bytes) -> int:
    return int.from_bytes(stored, "big") - (1 << 63)
