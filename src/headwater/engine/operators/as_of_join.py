"""As-of join: each event with the row that a table had at the event's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import pyarrow as pa

from headwater.engine.operators.arguments import (
    ColumnPairs,
    JoinType,
    require_choice,
    require_distinct,
    require_join_columns,
    value_columns,
)
from headwater.engine.operators.reorder_buffer import diff_rows, read_affected, release_complete, track_emitted
from headwater.engine.operators.timelines import find_versions, insert_versions, prune_versions
from headwater.engine.state.encoding import decode_rows, decode_time
from headwater.engine.state.grouping import event_times, group_by_key, join_by_index, select_events, with_position
from headwater.engine.state.state import TIMESTAMP, WEIGHT, State, pop_timers

__all__ = ["AsOfJoin"]

_WAITING: Final = "waiting"


@dataclass(frozen=True)
class AsOfJoin:
    """Joins each event with the version of the table's row that was valid at the event's time.

    That is the newest version whose time is not after the event's; among versions of one time, the last by partition
    and offset. From the time of a deletion on there is no row. A null equals nothing. Versions at or after the table's
    watermark may still arrive, so the result of an event is final once that is above its time. The watermark of all
    inputs, which also waits for late events, decides only how long versions are kept.

    State: for each key the versions that an event can still need (those after the watermark and the newest one not
    after it), and the events whose result is not final. The result does not depend on the order of arrival of versions
    and events, nor on how they are divided into batches.

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
        correction: How much longer the watermarks wait for late rows than the versions of the table may be late, in
            microseconds.

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
    correction: int = 0

    def __post_init__(self) -> None:
        require_choice("join_as_of", "how", self.how, get_args(JoinType))
        require_join_columns("join_as_of", self.events, self.table, self.on)
        if self.valid_from is not None:
            columns = [*{*self.events.names, *self.table.names}, self.valid_from]
            require_distinct("join_as_of", columns, "another name for valid_from")

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The join columns of the event and of the table."""
        return tuple(left for left, _ in self.on), tuple(right for _, right in self.on)

    @property
    def uses_event_time(self) -> bool:
        """Always: versions that no event in time can need are deleted."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The event's columns, the table's other columns, `valid_from`, the event's position; `WEIGHT` unless final."""
        valid_from = [] if self.valid_from is None else [pa.field(self.valid_from, TIMESTAMP)]
        columns = with_position(pa.schema([*self.events, *self._contents, *valid_from]))
        return columns if self.final else columns.append(pa.field(WEIGHT, pa.int64()))

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"as of 1: versions {self._contents.to_string()} by {self.keys}; events {self.events.to_string()}"

    @property
    def _contents(self) -> pa.Schema:
        return value_columns(self.table, self.on)

    def next_release(self, state: State) -> int | None:
        """Returns the time above which the table's watermark releases the next event; None if no event waits."""
        first = state.entries(_WAITING, b"", limit=1)
        return decode_time(first[0][0]) - self.correction if first else None

    def step(
        self, state: State, inputs: Sequence[pa.Table], watermark: int, table_watermark: int | None = None
    ) -> pa.Table:
        """Process versions and events; emit what is final now, or what is new or changed."""
        events, versions = select_events(inputs[0], self.events), inputs[1]
        pop_timers(state, watermark)
        complete = watermark if table_watermark is None else max(watermark, table_watermark + self.correction)
        if self.final:
            # Versions first: an event must find the versions of its own batch.
            insert_versions(state, versions, self.keys[1], self._contents)
            result = self._join(state, release_complete(state, _WAITING, events, complete), 1)
        else:
            by_key = group_by_key(versions, self.keys[1], nulls=False)
            affected = read_affected(state, by_key, event_times(versions), with_position(self.events))
            before = self._join(state, affected, -1)  # as emitted: the state must not have changed yet
            insert_versions(state, versions, self.keys[1], self._contents)
            after = self._join(state, affected, 1)
            result = pa.concat_tables([diff_rows(before, after), self._join(state, events, 1)])
            track_emitted(state, group_by_key(events, self.keys[0], nulls=False), events, complete)
        prune_versions(state, watermark)
        return result

    def _join(self, state: State, events: pa.Table, weight: int) -> pa.Table:
        """Returns events beside the contents of their versions."""
        by_key = group_by_key(events, self.keys[0], nulls=False)
        versions = find_versions(state, by_key.keys, by_key.codes, event_times(events))
        at, since = versions.at, versions.since
        if self.how == "inner":
            matched = np.flatnonzero(at >= 0)
            events, at, since = events.take(matched), at[matched], since[matched]
        # Each version is decoded once, however many events it has.
        used, indices = np.unique(at, return_inverse=True)
        if len(used) and used[0] < 0:
            used, indices = used[1:], indices - 1
        contents = decode_rows(self._contents, [versions.values[number] for number in used.tolist()])
        if self.valid_from is not None:
            events = events.append_column(self.valid_from, pa.array(since, TIMESTAMP, mask=at < 0))
        if not self.final:
            events = events.append_column(WEIGHT, pa.array(np.full(len(events), weight, np.int64)))
        return join_by_index(events, contents, indices, self.schema)
