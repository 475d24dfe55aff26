"""Sessions: the events of a key that follow one another closely, as one row that is corrected while they arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.due import due
from headwater.engine.keyed.keys import decode_keys
from headwater.engine.keyed.operator import WEIGHT
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    decode_rows,
    encode_rows,
    fitted,
    grouped,
    numbers,
    places,
    times_at,
    times_of,
    with_order,
)
from headwater.engine.operators.joins.sides import refuse, require_key, require_time
from headwater.engine.operators.joins.timelines import Flat, insert, over, rewrite, set_ends
from headwater.engine.operators.past.aggregates import Aggregate, aggregated, columns_of, fields_of

__all__ = ["Sessions"]

_EVENTS: Final = "events"
"""The space: the timeline of each key, whose contents are the gap and the columns that aggregates look at."""
_GAP: Final = "_hw_gap"
_MOMENT: Final = pa.timestamp("us", "UTC")
_SPAN: Final = pa.struct([("start", _MOMENT), ("end", _MOMENT)])
_Session = tuple[int, int, int, int]
"""The first event, the event behind the last one, start and end."""


@dataclass(frozen=True)
class Sessions:
    """Gives one row for each session: its key, its start and end, and aggregates over its events.

    An event lasts from its time for a gap. Events of a key whose times touch are one session, which ends with the last
    of them to end; that is how Spark's `session_window` merges. A session that would become longer than `longest` ends
    there, and the next event begins another one. Open sessions are shown at once; when an event arrives, rows of weight
    -1 and 1 say what changes. Once the watermark is above its end, a session is final. A null in the key equals itself;
    an event whose gap is null or not above zero is in no session.

    State: of each key the events of sessions that are not final.

    Args:
        events: The event's columns.
        key: The columns of the key.
        gap: How long an event lasts, in microseconds; or a column that says so, of whole numbers or durations.
        aggregates: What to compute.
        longest: How long a session may be, in microseconds; None for no limit.
        session: The name of the column with start and end.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> sessions = Sessions(pa.schema([("id", pa.int64())]), ("id",), 10, (Aggregate("count", None, "n"),))
        >>> place = {"_hw_time": [0, 9, 30], "_hw_partition": [0, 0, 0], "_hw_offset": [0, 1, 2]}
        >>> rows = pa.table({"id": [1, 1, 1], **place})
        >>> result = sessions.step(MemoryState(), [rows], watermark=0)
        >>> result["n"].to_pylist(), [span["end"].microsecond for span in result["session"].to_pylist()]
        ([2, 1], [19, 40])
    """

    events: pa.Schema
    key: tuple[str, ...]
    gap: int | str
    aggregates: tuple[Aggregate, ...]
    longest: int | None = None
    session: str = "session"

    def __post_init__(self) -> None:
        require_key("sessions", self.events, self.key)
        if isinstance(self.gap, int):
            require_time("sessions", "gap", self.gap)
        else:
            self._require_gap(self.gap)
        if self.longest is not None:
            require_time("sessions", "longest", self.longest)
        names = [*self.key, self.session, *(one.name for one in self.aggregates)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            refuse(f"sessions would give two columns named {', '.join(twice)}", "another name", columns=twice)
        fields_of("sessions", self.aggregates, self.events)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The event's key."""
        return (self.key,)

    @property
    def schema(self) -> pa.Schema:
        """The key, start and end, the aggregates, `WEIGHT`."""
        key = [self.events.field(name) for name in self.key]
        found = fields_of("sessions", self.aggregates, self.events)
        return pa.schema([*key, pa.field(self.session, _SPAN), *found, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """What its state looks like."""
        return f"sessions 1: {self._contents.to_string()} by {self.key}"

    @property
    def _contents(self) -> pa.Schema:
        return pa.schema([pa.field(_GAP, pa.int64()), *columns_of(self.aggregates, self.events)])

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take events; give out the sessions that are no longer as they were, and those that are now."""
        due(state, watermark)
        events = self._with_gap(fitted(arrived[0], with_order(self.events)))
        owners = grouped(events, self.key, nulls=True).of_rows
        touched = insert(state, _EVENTS, owners, places(events), encode_rows(self._contents, events))
        set_ends(state, owners, times_of(events) + numbers(events.column(_GAP)))
        before = self._rows({key: was for key, (was, _) in touched.items()}, -1)
        after = self._rows({key: now for key, (_, now) in touched.items()}, 1)
        self._forget(state, watermark)
        return _different(before, after)

    def _require_gap(self, gap: str) -> None:
        if gap not in self.events.names:
            what = f"sessions have their gap from {gap}, which the event does not have"
            refuse(what, f"one of: {', '.join(self.events.names)}", column=gap)
        kind = self.events.field(gap).type
        if not (pa.types.is_integer(kind) or pa.types.is_duration(kind)):
            refuse(f"sessions have their gap from {gap}, which is of type {kind}", "microseconds", column=gap)

    def _with_gap(self, events: pa.Table) -> pa.Table:
        if isinstance(self.gap, int):
            return events.append_column(_GAP, pa.array(np.full(len(events), self.gap, np.int64)))
        gap = events.column(self.gap)
        if pa.types.is_duration(gap.type):
            gap = gap.cast(pa.duration("us"))
        events = events.append_column(_GAP, gap.cast(pa.int64()))
        return events.filter(pc.greater(events.column(_GAP), 0))

    def _rows(self, timelines: dict[bytes, Flat], weight: int) -> pa.Table:
        """The sessions of keys."""
        contents = decode_rows(self._contents, [row for events in timelines.values() for row in events[1::2]])
        gaps, at = contents.column(_GAP).to_pylist(), 0
        owners: list[bytes] = []
        found: list[_Session] = []
        for key, events in timelines.items():
            size = len(events) // 2
            mine = _sessions(times_at(events[::2]).tolist(), gaps[at : at + size], self.longest)
            found += [(first + at, last + at, start, end) for first, last, start, end in mine]
            owners += [key] * len(mine)
            at += size
        low, high, start, end = np.array(found, np.int64).reshape(-1, 4).T
        spans = pa.StructArray.from_arrays(
            [pa.array(start, _MOMENT), pa.array(end, _MOMENT)], fields=list(_SPAN)
        )
        key_schema = pa.schema([self.events.field(name) for name in self.key])
        weights = pa.array(np.full(len(found), weight, np.int64))
        columns = [
            *decode_keys(owners, key_schema),
            spans,
            *aggregated(self.aggregates, contents, low, high),
            weights,
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _forget(self, state: State, watermark: int) -> None:
        """Forget sessions that no event at the watermark or after it touches."""

        def needed(_: bytes, events: Flat) -> Flat:
            gaps = decode_rows(self._contents, events[1::2]).column(_GAP).to_pylist()
            found = _sessions(times_at(events[::2]).tolist(), gaps, self.longest)
            first = max((last for _, last, _, end in found if end < watermark), default=0)
            return events[2 * first :]

        rewrite(state, _EVENTS, over(state, watermark), needed)


def _sessions(times: list[int], gaps: list[int], longest: int | None) -> list[_Session]:
    """The sessions of one key, its events being in order."""
    found: list[_Session] = []
    for number, (time, gap) in enumerate(zip(times, gaps, strict=True)):
        end = time + gap
        if found:
            first, _, start, until = found[-1]
            if time <= until and (longest is None or time < start + longest):
                limit = max(until, end) if longest is None else min(max(until, end), start + longest)
                found[-1] = first, number + 1, start, limit
                continue
        found.append((number, number + 1, time, end if longest is None else min(end, time + longest)))
    return found


def _different(before: pa.Table, after: pa.Table) -> pa.Table:
    """What is not in both."""
    was, now = _told(before), _told(after)
    both = Counter(was) & Counter(now)
    old = pa.array([at for at, row in enumerate(was) if row not in both], pa.int64())
    new = pa.array([at for at, row in enumerate(now) if row not in both], pa.int64())
    return pa.concat_tables([before.take(old), after.take(new)])


def _told(rows: pa.Table) -> list[Any]:
    return [repr(row) for row in rows.drop_columns([WEIGHT]).to_pylist()]
