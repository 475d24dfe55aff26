"""Session windows: events of a key with gaps below a limit form one row, which is corrected as events arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.operators.aggregates import WindowAggregate, compute_aggregates, input_columns, output_fields
from headwater.engine.operators.arguments import refuse, require_distinct, require_duration, require_key
from headwater.engine.operators.reorder_buffer import diff_rows
from headwater.engine.operators.timelines import Timeline, insert_entries, pop_expired, rewrite_timelines, set_expiry
from headwater.engine.state.encoding import decode_keys, decode_rows, encode_rows
from headwater.engine.state.grouping import (
    decode_times,
    encode_positions,
    event_times,
    group_by_key,
    select_events,
    to_int64,
)
from headwater.engine.state.state import TIMESTAMP, WEIGHT, State, pop_timers

__all__ = ["SessionWindows"]

_EVENTS: Final = "events"
"""The space of timelines; the contents of an event are its gap and the columns that aggregates read."""
_GAP: Final = "_hw_gap"
_WINDOW_TYPE: Final = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
_Session = tuple[int, int, int, int]
"""The index of the first event, the index after the last event, start and end."""


@dataclass(frozen=True)
class SessionWindows:
    """Emits one row for each session: its key, its start and end, and aggregates over its events.

    An event lasts from its time for one gap. Events of a key whose spans touch form one session, which ends with the
    last span; Spark's `session_window` merges in the same way. A session that would exceed `longest` ends there, and
    the next event begins another one. Open sessions are emitted at once; later events correct them with rows of weight
    -1 and 1. A session is final once the watermark is above its end. A null in the key equals itself. An event whose
    gap is null or not positive is in no session.

    State: for each key the events of sessions that are not final.

    Args:
        events: The event's columns.
        key: The key columns.
        gap: The span of an event, in microseconds; or a column with it, of integers or durations.
        aggregates: The aggregates.
        longest: The maximum length of a session, in microseconds; None for no limit.
        session: The name of the column with start and end.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> schema, count = pa.schema([("id", pa.int64())]), WindowAggregate("count", None, "n")
        >>> sessions = SessionWindows(schema, ("id",), 10, (count,))
        >>> place = {"_hw_time": [0, 9, 30], "_hw_partition": [0, 0, 0], "_hw_offset": [0, 1, 2]}
        >>> rows = pa.table({"id": [1, 1, 1], **place})
        >>> result = sessions.step(MemoryState(), [rows], watermark=0)
        >>> result["n"].to_pylist(), [span["end"].microsecond for span in result["session"].to_pylist()]
        ([2, 1], [19, 40])
    """

    events: pa.Schema
    key: tuple[str, ...]
    gap: int | str
    aggregates: tuple[WindowAggregate, ...]
    longest: int | None = None
    session: str = "session"

    def __post_init__(self) -> None:
        require_key("sessions", self.events, self.key)
        if isinstance(self.gap, int):
            require_duration("sessions", "gap", self.gap)
        else:
            self._require_gap(self.gap)
        if self.longest is not None:
            require_duration("sessions", "longest", self.longest)
        fields = output_fields("sessions", self.aggregates, self.events)
        require_distinct("sessions", [*self.key, self.session, *(field.name for field in fields)])

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def uses_event_time(self) -> bool:
        """Always: a session ends when the watermark has passed its gap."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The key, start and end, the aggregates, `WEIGHT`."""
        key = [self.events.field(name) for name in self.key]
        fields = output_fields("sessions", self.aggregates, self.events)
        return pa.schema([*key, pa.field(self.session, _WINDOW_TYPE), *fields, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"sessions 1: {self._contents.to_string()} by {self.key}"

    @property
    def _contents(self) -> pa.Schema:
        return pa.schema([pa.field(_GAP, pa.int64()), *input_columns(self.aggregates, self.events)])

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process events; emit retractions of changed sessions and their new rows."""
        pop_timers(state, watermark)
        events = self._add_gap(select_events(inputs[0], self.events))
        keys = group_by_key(events, self.key).row_keys()
        touched = insert_entries(state, _EVENTS, keys, encode_positions(events), encode_rows(self._contents, events))
        # The session of an event ends at this time or later; `_expire` checks again.
        set_expiry(state, keys, event_times(events) + to_int64(events.column(_GAP)))
        # All sessions of a touched key are built again; `diff_rows` keeps those that changed.
        before = self._session_rows({key: old for key, (old, _) in touched.items()}, -1)
        after = self._session_rows({key: new for key, (_, new) in touched.items()}, 1)
        self._expire(state, watermark)
        return diff_rows(before, after)

    def _require_gap(self, gap: str) -> None:
        if gap not in self.events.names:
            what = f"sessions take their gap from {gap}, which the event does not have"
            refuse(what, f"one of: {', '.join(self.events.names)}", column=gap)
        kind = self.events.field(gap).type
        if not (pa.types.is_integer(kind) or pa.types.is_duration(kind)):
            refuse(f"sessions take their gap from {gap}, which is of type {kind}", "microseconds", column=gap)

    def _add_gap(self, events: pa.Table) -> pa.Table:
        if isinstance(self.gap, int):
            return events.append_column(_GAP, pa.array(np.full(len(events), self.gap, np.int64)))
        gap = events.column(self.gap)
        if pa.types.is_duration(gap.type):
            gap = gap.cast(pa.duration("us"))
        events = events.append_column(_GAP, gap.cast(pa.int64()))
        return events.filter(pc.greater(events.column(_GAP), 0))

    def _session_rows(self, timelines: dict[bytes, Timeline], weight: int) -> pa.Table:
        """Returns the sessions of keys as rows."""
        contents = decode_rows(self._contents, [row for events in timelines.values() for row in events[1::2]])
        gaps, at = contents.column(_GAP).to_pylist(), 0
        keys: list[bytes] = []
        sessions: list[_Session] = []
        for key, events in timelines.items():
            size = len(events) // 2
            merged = _merge_sessions(decode_times(events[::2]).tolist(), gaps[at : at + size], self.longest)
            sessions += [(first + at, last + at, start, end) for first, last, start, end in merged]
            keys += [key] * len(merged)
            at += size
        low, high, *bounds = np.array(sessions, np.int64).reshape(-1, 4).T
        windows = pa.StructArray.from_arrays([pa.array(each, TIMESTAMP) for each in bounds], fields=list(_WINDOW_TYPE))
        key_columns = decode_keys(keys, pa.schema([self.events.field(name) for name in self.key]))
        aggregates = compute_aggregates(self.aggregates, contents, low, high)
        weights = pa.array(np.full(len(sessions), weight, np.int64))
        return pa.Table.from_arrays([*key_columns, windows, *aggregates, weights], schema=self.schema)

    def _expire(self, state: State, watermark: int) -> None:
        """Delete sessions that no event at or after the watermark can extend."""

        def trim(_: bytes, events: Timeline) -> Timeline:
            gaps = decode_rows(self._contents, events[1::2]).column(_GAP).to_pylist()
            sessions = _merge_sessions(decode_times(events[::2]).tolist(), gaps, self.longest)
            # A span that begins at the end of a session still touches it: the watermark must be above the end.
            first = max((last for _, last, _, end in sessions if end < watermark), default=0)
            return events[2 * first :]

        rewrite_timelines(state, _EVENTS, pop_expired(state, watermark), trim)


def _merge_sessions(times: list[int], gaps: list[int], longest: int | None) -> list[_Session]:
    """Returns the sessions of one key; its events are in order of time."""
    sessions: list[_Session] = []
    for number, (time, gap) in enumerate(zip(times, gaps, strict=True)):
        first, start, end = number, time, time + gap
        if sessions:
            last_first, _, last_start, last_end = sessions[-1]
            if time <= last_end and (longest is None or time < last_start + longest):
                sessions.pop()
                first, start, end = last_first, last_start, max(last_end, end)
        sessions.append((first, number + 1, start, end if longest is None else min(end, start + longest)))
    return sessions
