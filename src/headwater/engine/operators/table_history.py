"""History of a table as rows: each version with the time from which and until which it was valid."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.engine.operators.arguments import require_distinct, require_duration, require_key
from headwater.engine.operators.timelines import (
    TOMBSTONE,
    VERSIONS,
    Timeline,
    insert_entries,
    pop_expired,
    rewrite_timelines,
    set_expiry,
)
from headwater.engine.state.encoding import decode_keys, decode_rows, encode_rows
from headwater.engine.state.grouping import decode_times, encode_positions, event_times, group_by_key
from headwater.engine.state.state import DELETED, TIMESTAMP, WEIGHT, State, pop_timers

__all__ = ["TableHistory"]

VersionSpan = tuple[bytes, int, int | None]
"""The contents of a version, the start of its validity, and the exclusive end; None for the current version."""
_Change = tuple[bytes, VersionSpan, int]
"""A key, a version and its weight."""


@dataclass(frozen=True)
class TableHistory:
    """Emits a table's versions as rows with their validity: a slowly changing dimension of type 2.

    The current version has no end. A version that arrives out of order is inserted at its time. Among versions of one
    time the last by partition and offset counts. Consecutive versions with equal contents are merged. A null in the key
    equals itself.

    State: for each key the versions that may still be corrected or that are kept.

    Args:
        table: The table's columns, including its key.
        key: The key columns.
        keep: How long the state keeps a version that has ended, in microseconds of event time.
        delete_expired: Whether the view then deletes the version too. Otherwise it stays in the view for ever.
        valid_from: The name of the column with the start of the validity.
        valid_to: The name of the column with the exclusive end of the validity.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> history = TableHistory(pa.schema([("id", pa.int64()), ("price", pa.int64())]), key=("id",))
        >>> rows = pa.table({"id": [1, 1], "price": [10, 20], "_hw_deleted": [False, False],
        ...                  "_hw_time": [3, 8], "_hw_partition": [0, 0], "_hw_offset": [0, 1]})
        >>> result = history.step(MemoryState(), [rows], watermark=0)
        >>> result.select(["price", "valid_from", "valid_to"]).cast(
        ...     pa.schema([("price", pa.int64()), ("valid_from", pa.int64()), ("valid_to", pa.int64())])).to_pylist()
        [{'price': 10, 'valid_from': 3, 'valid_to': 8}, {'price': 20, 'valid_from': 8, 'valid_to': None}]
    """

    table: pa.Schema
    key: tuple[str, ...]
    keep: int = 0
    delete_expired: bool = False
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"

    def __post_init__(self) -> None:
        require_key("history", self.table, self.key)
        require_duration("history", "keep", self.keep, lowest=0)
        names = [*self.table.names, self.valid_from, self.valid_to]
        require_distinct("history", names, "other names for valid_from and valid_to")

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The table's key."""
        return (self.key,)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, `valid_from`, `valid_to`, `WEIGHT`."""
        spans = [pa.field(self.valid_from, TIMESTAMP), pa.field(self.valid_to, TIMESTAMP)]
        return pa.schema([*self.table, *spans, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"history 1: versions {self._contents.to_string()} by {self.key}"

    @property
    def _contents(self) -> pa.Schema:
        return pa.schema([field for field in self.table if field.name not in self.key])

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process versions; emit retractions of changed rows and the new rows."""
        pop_timers(state, watermark)
        rows = inputs[0]
        keys = group_by_key(rows, self.key).row_keys()
        pairs = zip(rows.column(DELETED).to_pylist(), encode_rows(self._contents, rows), strict=True)
        contents = [TOMBSTONE if deleted else row for deleted, row in pairs]
        touched = insert_entries(state, VERSIONS, keys, encode_positions(rows), contents)
        changes: list[_Change] = []
        for key, timelines in touched.items():
            old, new = (dict.fromkeys(_version_spans(timeline)) for timeline in timelines)
            changes += [(key, span, -1) for span in old if span not in new]
            changes += [(key, span, 1) for span in new if span not in old]
        set_expiry(state, keys, event_times(rows) + self.keep)
        changes += self._expire(state, watermark)
        return self._rows(changes)

    def _expire(self, state: State, watermark: int) -> list[_Change]:
        """Delete versions that ended long enough ago; returns the rows that the view deletes with them."""
        deleted: list[_Change] = []
        limit = watermark - self.keep

        def trim(key: bytes, versions: Timeline) -> Timeline:
            old = [span for span in _version_spans(versions) if span[2] is not None and span[2] < limit]
            deleted.extend((key, span, -1) for span in old if self.delete_expired)
            return _trim_versions(versions, old[-1][2] if old else None, limit)

        rewrite_timelines(state, VERSIONS, pop_expired(state, watermark), trim)
        return deleted

    def _rows(self, changes: list[_Change]) -> pa.Table:
        key = decode_keys([key for key, _, _ in changes], pa.schema([self.table.field(name) for name in self.key]))
        contents = decode_rows(self._contents, [span[0] for _, span, _ in changes])
        columns = dict(zip(self.key, key, strict=True))
        columns |= {name: contents.column(name) for name in contents.column_names}
        columns[self.valid_from] = pa.array([span[1] for _, span, _ in changes], TIMESTAMP)
        columns[self.valid_to] = pa.array([span[2] for _, span, _ in changes], TIMESTAMP)
        columns[WEIGHT] = pa.array([weight for _, _, weight in changes], pa.int64())
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _version_spans(versions: Timeline) -> list[VersionSpan]:
    """Returns the versions that were valid for some time, in order."""
    times, contents = decode_times(versions[::2]).tolist(), versions[1::2]
    spans: list[VersionSpan] = []
    current: tuple[bytes, int] | None = None
    for number, (time, content) in enumerate(zip(times, contents, strict=True)):
        if number + 1 < len(times) and times[number + 1] == time:
            continue  # of versions with equal times, the last counts
        if current is not None and current[0] != content:
            spans.append((*current, time))
            current = None
        if current is None and content != TOMBSTONE:
            current = content, time
    return spans if current is None else [*spans, (*current, None)]


def _trim_versions(versions: Timeline, ended: int | None, limit: int) -> Timeline:
    """Returns the versions after the expired ones, without leading deletions and versions that were never valid."""
    times = decode_times(versions[::2]).tolist()
    first = 0 if ended is None else bisect_left(times, ended)
    while first < len(times) and times[first] < limit:
        never_valid = times[first] in times[first + 1 : first + 2]
        if versions[2 * first + 1] != TOMBSTONE and not never_valid:
            break
        first += 1
    return versions[2 * first :]
