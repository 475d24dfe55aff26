"""Sliding windows: for each event, aggregates over the events of its key in the time span before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.operators.aggregates import WindowAggregate, compute_aggregates, input_columns, output_fields
from headwater.engine.operators.arguments import require_distinct, require_duration, require_key
from headwater.engine.operators.reorder_buffer import diff_rows, read_affected, release_complete, track_emitted
from headwater.engine.operators.timelines import (
    count_before,
    insert_entries,
    pop_expired,
    read_timelines,
    rewrite_timelines,
    search_times,
    set_expiry,
)
from headwater.engine.state.encoding import decode_rows, encode_rows, encode_time
from headwater.engine.state.grouping import (
    RowsByKey,
    encode_positions,
    event_times,
    group_by_key,
    select_events,
    with_position,
)
from headwater.engine.state.state import WEIGHT, State, pop_timers

__all__ = ["SlidingWindows"]

_EVENTS: Final = "events"
"""The space of timelines; the contents of an event are the columns that aggregates read."""
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class SlidingWindows:
    """Emits each event with aggregates over the events of its key in the time span that ends with it.

    The window of an event at t is (t - over, t]: it includes all events of time t, whenever they arrive. Without the
    event itself it is [t - over, t), a baseline to compare the event with. A null in the key equals itself. The result
    is final once the watermark is above t.

    State: for each key the events that are in the window of a possible later event, and the events whose result is not
    final.

    Args:
        events: The event's columns.
        key: The key columns.
        length: The length of the window, in microseconds of event time.
        aggregates: The aggregates.
        itself: Whether the window includes the event and other events of its time.
        final: Whether an event is emitted once, when its result is final. Otherwise it is emitted at once with weight
            1, and corrected by rows of weight -1 and 1 when an event arrives that changes the result.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> schema, count = pa.schema([("id", pa.int64())]), WindowAggregate("count", None, "n")
        >>> sliding = SlidingWindows(schema, ("id",), 10, (count,))
        >>> place = {"_hw_time": [0, 9, 10], "_hw_partition": [0, 0, 0], "_hw_offset": [0, 1, 2]}
        >>> rows = pa.table({"id": [1, 1, 1], **place})
        >>> sliding.step(MemoryState(), [rows], watermark=11)["n"].to_pylist()
        [1, 2, 2]
    """

    events: pa.Schema
    key: tuple[str, ...]
    length: int
    aggregates: tuple[WindowAggregate, ...]
    itself: bool = True
    final: bool = True

    def __post_init__(self) -> None:
        require_key("sliding", self.events, self.key)
        require_duration("sliding", "length", self.length)
        fields = output_fields("sliding", self.aggregates, self.events)
        require_distinct("sliding", [*self.events.names, *(field.name for field in fields)])

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def uses_event_time(self) -> bool:
        """Always: events that no window in time can need are deleted."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the aggregates, the event's position; `WEIGHT` unless final."""
        fields = output_fields("sliding", self.aggregates, self.events)
        columns = with_position(pa.schema([*self.events, *fields]))
        return columns if self.final else columns.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"sliding 1: {self._aggregate_columns.to_string()} by {self.key}; events {self.events.to_string()}"

    @property
    def _aggregate_columns(self) -> pa.Schema:
        return input_columns(self.aggregates, self.events)

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process events; emit what is final now, or what is new or changed."""
        pop_timers(state, watermark)
        events = select_events(inputs[0], self.events)
        by_key = group_by_key(events, self.key)
        if self.final:
            self._insert(state, events, by_key)
            result = self._aggregate_rows(state, release_complete(state, _WAITING, events, watermark), 1)
        else:
            affected = read_affected(state, by_key, event_times(events), with_position(self.events))
            before = self._aggregate_rows(state, affected, -1)  # as emitted: the state must not have changed yet
            self._insert(state, events, by_key)
            after = self._aggregate_rows(state, affected, 1)
            result = pa.concat_tables([diff_rows(before, after), self._aggregate_rows(state, events, 1)])
            track_emitted(state, by_key, events, watermark)
        self._expire(state, watermark)
        return result

    def _insert(self, state: State, events: pa.Table, by_key: RowsByKey) -> None:
        keys = by_key.row_keys()
        insert_entries(state, _EVENTS, keys, encode_positions(events), encode_rows(self._aggregate_columns, events))
        # An event at t - length is outside of (t - length, t] and inside of [t - length, t).
        set_expiry(state, keys, event_times(events) + self.length - self.itself)

    def _aggregate_rows(self, state: State, events: pa.Table, weight: int) -> pa.Table:
        by_key, times = group_by_key(events, self.key), event_times(events)
        timelines = read_timelines(state, _EVENTS, by_key.keys)
        # (t - length, t] with the event itself, [t - length, t) without.
        side = "right" if self.itself else "left"
        low, high = search_times(timelines, by_key.codes, (times - self.length, side), (times, side))
        contents = decode_rows(self._aggregate_columns, timelines.contents)
        columns = compute_aggregates(self.aggregates, contents, low, high)
        for aggregate, column in zip(self.aggregates, columns, strict=True):
            events = events.append_column(aggregate.name, column)
        if not self.final:
            events = events.append_column(WEIGHT, pa.array(np.full(len(events), weight, np.int64)))
        return events.select(self.schema.names).cast(self.schema)

    def _expire(self, state: State, watermark: int) -> None:
        """Delete events that are in no window of an event at or after the watermark."""
        limit = encode_time(watermark - self.length + self.itself)
        rewrite_timelines(
            state, _EVENTS, pop_expired(state, watermark), lambda _, events: events[2 * count_before(events, limit) :]
        )
