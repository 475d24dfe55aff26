"""As-of join: each event with the row that a table had at the event's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.operators.arguments import ColumnPairs, JoinType, refuse, require_join_columns, value_columns
from headwater.engine.operators.reorder_buffer import hold_rows, release_rows
from headwater.engine.operators.sliding_windows import read_affected, track_emitted
from headwater.engine.operators.timelines import VersionLookup, find_versions, insert_versions, prune_versions
from headwater.engine.state.grouping import (
    Numbers,
    decode_rows,
    event_times,
    factorize_keys,
    join_by_index,
    select_and_cast,
    with_position,
)
from headwater.engine.state.state import WEIGHT, State, pop_timers

__all__ = ["AsOfJoin"]

_WAITING: Final = "waiting"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class AsOfJoin:
    """Joins each event with the version of the table's row that was valid at the event's time.

    That is the newest version whose time is not after the event's; among versions of one time, the last by partition
    and offset. From the time of a deletion on there is no row. A null equals nothing. Records at or after the watermark
    may still arrive, so the result of an event is final once the watermark is above its time.

    State: for each key the versions that an event can still need (those after the watermark and the newest one not
    after it), and the events whose result is not final. The result does not depend on how versions and events are
    interleaved and divided into batches.

    The end of a version is not in the result, because it can become known long after the result is final.
    `TableHistory` has it.

    Args:
        events: The event's columns.
        table: The table's columns, including its key.
        on: Pairs of equal columns, of the event and of the table; all columns of the table's key.
        how: The handling of an event without a row: "left" gives nulls, "inner" drops it.
        final: Whether an event is emitted once, when its result is final. Otherwise it is emitted at once with weight
            1, and corrected by rows of weight -1 and 1 when a version arrives that changes the result.
        valid_from: The name of a column with the time from which the version is valid; none if omitted.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> sales, prices = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("price", pa.int64())])
        >>> as_of = AsOfJoin(sales, prices, on=(("id", "id"),))
        >>> place = {"_hw_partition": [0, 0], "_hw_offset": [0, 1]}
        >>> inputs = [pa.table({"id": [1, 1], "_hw_time": [5, 9], **place}),
        ...            pa.table({"id": [1, 1], "price": [10, 20], "_hw_deleted": [False, False],
        ...                      "_hw_time": [3, 8], **place})]
        >>> as_of.step(MemoryState(), inputs, watermark=10).select(["id", "price"]).to_pylist()
        [{'id': 1, 'price': 10}, {'id': 1, 'price': 20}]
    """

    events: pa.Schema
    table: pa.Schema
    on: ColumnPairs
    how: JoinType = "left"
    final: bool = True
    valid_from: str | None = None

    def __post_init__(self) -> None:
        require_join_columns("join_as_of", self.events, self.table, self.on)
        taken = [*self.events.names, *self.table.names]
        if self.valid_from in taken:
            what = f"join_as_of would give two columns named {self.valid_from}"
            refuse(what, "another name for valid_from", columns=[self.valid_from])

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The paired columns, of the event and of the table."""
        return tuple(left for left, _ in self.on), tuple(right for _, right in self.on)

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the table's other columns, `valid_from`, the event's position; `WEIGHT` unless final."""
        since = [] if self.valid_from is None else [pa.field(self.valid_from, _TIMESTAMP)]
        joined = with_position(pa.schema([*self.events, *value_columns(self.table, self.on), *since]))
        return joined if self.final else joined.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """The description of its state."""
        contents = value_columns(self.table, self.on)
        return f"as of 1: versions {contents.to_string()} by {self.keys}; events {self.events.to_string()}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process versions and events; emit what is final now, or what is new or changed."""
        events = select_and_cast(inputs[0], with_position(self.events))
        pop_timers(state, watermark)
        if self.final:
            insert_versions(state, inputs[1], self.keys[1], value_columns(self.table, self.on))
            ready = self._pop_ready(state, events, watermark)
            result = self._join(ready, self._look_up(state, ready), 1)
        else:
            found = factorize_keys(inputs[1], self.keys[1])
            changed = read_affected(state, found, event_times(inputs[1]), with_position(self.events))
            before = self._look_up(state, changed)
            insert_versions(state, inputs[1], self.keys[1], value_columns(self.table, self.on))
            result = self._corrections(state, changed, before, events)
            track_emitted(state, factorize_keys(events, self.keys[0]), events, watermark)
        prune_versions(state, watermark)
        return result

    def _pop_ready(self, state: State, events: pa.Table, watermark: int) -> pa.Table:
        """Returns the events whose result is final now; the others wait."""
        over = release_rows(state, _WAITING, watermark)
        later = event_times(events) >= watermark
        if later.any():
            hold_rows(state, _WAITING, events.take(np.flatnonzero(later)))
            events = events.take(np.flatnonzero(~later))
        return events if over is None else pa.concat_tables([over, events])

    def _corrections(self, state: State, given: pa.Table, before: VersionLookup, events: pa.Table) -> pa.Table:
        now = self._look_up(state, given)
        changed = np.array(
            [old != new for old, new in zip(self._answers(before), self._answers(now), strict=True)], bool
        )
        which = np.flatnonzero(changed)
        rows = given.take(which)
        return pa.concat_tables(
            [
                self._join(rows, before.select(which), -1),
                self._join(rows, now.select(which), 1),
                self._join(events, self._look_up(state, events), 1),
            ]
        )

    def _answers(self, versions: VersionLookup) -> list[tuple[bytes | None, int]]:
        """Returns the columns of the version found for each event."""
        since = versions.since.tolist() if self.valid_from else [0] * len(versions.at)
        return [
            (versions.values[at], time) if at >= 0 else (None, 0)
            for at, time in zip(versions.at.tolist(), since, strict=True)
        ]

    def _look_up(self, state: State, events: pa.Table) -> VersionLookup:
        found = factorize_keys(events, self.keys[0])
        return find_versions(state, found.keys, found.codes, event_times(events))

    def _join(self, events: pa.Table, versions: VersionLookup, weight: int) -> pa.Table:
        """Returns events beside the contents of their versions."""
        at, since = versions.at, versions.since
        if self.how == "inner":
            kept = np.flatnonzero(at >= 0)
            events, at, since = events.take(kept), at[kept], since[kept]
        used, where = _compact_indices(at)
        contents = decode_rows(value_columns(self.table, self.on), [versions.values[number] for number in used])
        if self.valid_from is not None:
            events = events.append_column(self.valid_from, pa.array(since, _TIMESTAMP, mask=at < 0))
        if not self.final:
            events = events.append_column(WEIGHT, pa.array(np.full(len(events), weight, np.int64)))
        return join_by_index(events, contents, where, self.schema)


def _compact_indices(at: Numbers) -> tuple[list[int], Numbers]:
    """Returns the distinct numbers, and for each element the index of its number; -1 stays."""
    used, where = np.unique(at, return_inverse=True)
    if len(used) and used[0] < 0:
        used, where = used[1:], where - 1
    return used.tolist(), where
