"""Sliding windows: for each event, aggregates over the events of its key in the time span before it.

Emitted rows are tracked by key and position until the watermark passes their time, because a late event can still
correct them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.operators.aggregates import WindowAggregate, compute_aggregates, input_columns, output_fields
from headwater.engine.operators.arguments import refuse, require_duration, require_key
from headwater.engine.operators.reorder_buffer import hold_rows, release_rows
from headwater.engine.operators.timelines import (
    Timeline,
    count_before,
    insert_entries,
    pop_expired,
    read_timelines,
    rewrite_timelines,
    search_times,
    set_expiry,
)
from headwater.engine.state.grouping import (
    KeyCodes,
    Numbers,
    decode_rows,
    encode_positions,
    encode_rows,
    encode_time,
    encode_times,
    event_times,
    factorize_keys,
    select_and_cast,
    with_position,
)
from headwater.engine.state.state import TIME, WEIGHT, State, pop_timers

__all__ = ["SlidingWindows", "read_affected", "track_emitted"]

_EMITTED: Final = "given"
_FINALITY: Final = "known"
_FINALITY_SCHEMA: Final = pa.schema([("key", pa.binary()), ("name", pa.binary()), (TIME, pa.int64())])


def track_emitted(state: State, found: KeyCodes, events: pa.Table, watermark: int) -> None:
    """Store emitted events whose result may still change, and delete those that are final now.

    Args:
        state: Where to.
        found: Their keys; an event without a key is not remembered.
        events: What was emitted.
        watermark: Events below it are final.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> from headwater.engine.state.grouping import factorize_keys
        >>> state = MemoryState()
        >>> rows = pa.table({"id": [1, 1], "_hw_time": [5, 7], "_hw_partition": [0, 0], "_hw_offset": [0, 1]})
        >>> track_emitted(state, factorize_keys(rows, ["id"]), rows, watermark=5)
        >>> later = factorize_keys(rows.slice(1), ["id"])
        >>> read_affected(state, later, np.array([6]), rows.schema)["_hw_offset"].to_pylist()
        [1]
    """
    later = np.flatnonzero((event_times(events) >= watermark) & (found.codes >= 0))
    rows, keys = events.take(later), [found.keys[code] for code in found.codes[later].tolist()]
    names = encode_positions(rows)
    state.put(_EMITTED, keys, names, encode_rows(rows.schema, rows), kinds=found.kinds)
    hold_rows(state, _FINALITY, pa.table({"key": keys, "name": names, TIME: rows.column(TIME)}, _FINALITY_SCHEMA))
    over = release_rows(state, _FINALITY, watermark)
    if over is not None:
        owners, names = over.column("key").to_pylist(), over.column("name").to_pylist()
        state.put(_EMITTED, owners, names, [None] * len(owners))


def read_affected(state: State, found: KeyCodes, times: Numbers, schema: pa.Schema) -> pa.Table:
    """Returns emitted events at or after the first of some records of their key.

    Args:
        state: Where events are.
        found: Keys of the records.
        times: Their times.
        schema: What events look like.
    """
    first = np.full(len(found.keys) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, found.codes, times)
    state.prefetch(_EMITTED, found.keys)
    since = zip(found.keys, encode_times(first[:-1]), strict=True)
    return decode_rows(schema, [row for key, low in since for _, row in state.entries(_EMITTED, key, low)])


_EVENTS: Final = "events"
"""The space: the timeline of each key, whose contents are the columns that aggregates look at."""
_WAITING: Final = "waiting"


@dataclass(frozen=True)
class SlidingWindows:
    """Emits each event with aggregates over the events of its key in the time span that ends with it.

    The window of an event at t is (t - over, t]: it includes all events of time t, whenever they arrive. Without the
    event itself it is [t - over, t), a baseline to compare the event with. A null in the key equals itself. The result
    is final once the watermark is above t.

    State: for each key the events that a later one can still look back at, and the events whose result is not final.

    Args:
        events: The event's columns.
        key: The key columns.
        length: The length of the window, in microseconds of event time.
        aggregates: The aggregates.
        itself: Whether the window includes the event and others of its time.
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
        names = [*self.events.names, *(field.name for field in fields)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            refuse(f"sliding would give two columns named {', '.join(twice)}", "another name", columns=twice)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the aggregates, the event's position; `WEIGHT` unless final."""
        found = output_fields("sliding", self.aggregates, self.events)
        joined = with_position(pa.schema([*self.events, *found]))
        return joined if self.final else joined.append(pa.field(WEIGHT, pa.int64()))

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
        events = select_and_cast(inputs[0], with_position(self.events))
        if self.final:
            self._insert(state, events)
            result = self._aggregate_rows(state, self._pop_ready(state, events, watermark), 1)
        else:
            changed = read_affected(
                state, factorize_keys(events, self.key, nulls=True), event_times(events), with_position(self.events)
            )
            before = self._aggregate_rows(state, changed, -1)
            self._insert(state, events)
            after = self._aggregate_rows(state, changed, 1)
            result = pa.concat_tables([_diff_rows(before, after), self._aggregate_rows(state, events, 1)])
            track_emitted(state, factorize_keys(events, self.key, nulls=True), events, watermark)
        self._expire(state, watermark)
        return result

    def _insert(self, state: State, events: pa.Table) -> None:
        owners = factorize_keys(events, self.key, nulls=True).row_keys
        insert_entries(state, _EVENTS, owners, encode_positions(events), encode_rows(self._aggregate_columns, events))
        set_expiry(state, owners, event_times(events) + self.length - self.itself)

    def _pop_ready(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        waited = release_rows(state, _WAITING, watermark)
        later = event_times(events) >= watermark
        hold_rows(state, _WAITING, events.take(np.flatnonzero(later)))
        ready = events.take(np.flatnonzero(~later))
        return ready if waited is None else pa.concat_tables([waited, ready])

    def _aggregate_rows(self, state: State, events: pa.Table, weight: int) -> pa.Table:
        found, times = factorize_keys(events, self.key, nulls=True), event_times(events)
        timelines = read_timelines(state, _EVENTS, found.keys)
        side = "right" if self.itself else "left"
        low, high = search_times(timelines, found.codes, (times - self.length, side), (times, side))
        contents = decode_rows(self._aggregate_columns, timelines.contents)
        for aggregate, column in zip(
            self.aggregates, compute_aggregates(self.aggregates, contents, low, high), strict=True
        ):
            events = events.append_column(aggregate.name, column)
        if not self.final:
            events = events.append_column(WEIGHT, pa.array(np.full(len(events), weight, np.int64)))
        return events.select(self.schema.names).cast(self.schema)

    def _expire(self, state: State, watermark: int) -> None:
        """Delete events that no event at or after the watermark can look back at."""
        limit = encode_time(watermark - self.length + self.itself)

        def trim(_: bytes, timeline: Timeline) -> Timeline:
            return timeline[2 * count_before(timeline, limit) :]

        rewrite_timelines(state, _EVENTS, pop_expired(state, watermark), trim)


def _diff_rows(before: pa.Table, after: pa.Table) -> pa.Table:
    """Returns the changed rows, old and new."""
    old, new = (rows.drop_columns([WEIGHT]).to_pylist() for rows in (before, after))
    which = pa.array(
        [at for at, (was, now) in enumerate(zip(old, new, strict=True)) if repr(was) != repr(now)], pa.int64()
    )
    return pa.concat_tables([before.take(which), after.take(which)])
