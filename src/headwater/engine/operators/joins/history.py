"""A table's past as rows: each version with the time since when it holds, and until when it held."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headwater.engine.keyed.due import due
from headwater.engine.keyed.keys import decode_keys
from headwater.engine.keyed.operator import DELETED, WEIGHT
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    decode_rows,
    encode_rows,
    grouped,
    places,
    times_at,
    times_of,
)
from headwater.engine.operators.joins.sides import refuse, require_key, require_time
from headwater.engine.operators.joins.timelines import Flat, insert, over, rewrite, set_ends
from headwater.engine.operators.joins.versions import GONE, VERSIONS

__all__ = ["History"]

_MOMENT: Final = pa.timestamp("us", "UTC")
Span = tuple[bytes, int, int | None]
"""The contents of a version, since when it holds, until when it held."""
_Change = tuple[bytes, Span, int]


@dataclass(frozen=True)
class History:
    """Gives a table's versions as rows that say since when and until when they held: a slowly changing dimension.

    The present version has no end. A version that arrives out of order goes into its place. Of versions of one time the
    last by partition and offset counts. Versions that follow one another with equal contents are one. A null in the key
    equals itself.

    State: of each key the versions that may still be corrected or that are kept.

    Args:
        table: The table's columns, key among them.
        key: The columns of the key.
        keep: For how long the state keeps a version that has ended, in microseconds of event time.
        forget: Whether the view forgets it then too; otherwise it stays there for ever.
        valid_from: The name of the column that says since when.
        valid_to: The name of the column that says until when, not including that time.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> history = History(pa.schema([("id", pa.int64()), ("price", pa.int64())]), key=("id",))
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
    forget: bool = False
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"

    def __post_init__(self) -> None:
        require_key("history", self.table, self.key)
        require_time("history", "keep", self.keep, lowest=0)
        names = [*self.table.names, self.valid_from, self.valid_to]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            what = f"history would give two columns named {', '.join(twice)}"
            refuse(what, "other names for valid_from and valid_to", columns=twice)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The table's key."""
        return (self.key,)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, `valid_from`, `valid_to`, `WEIGHT`."""
        spans = [pa.field(self.valid_from, _MOMENT), pa.field(self.valid_to, _MOMENT)]
        return pa.schema([*self.table, *spans, pa.field(WEIGHT, pa.int64())])

    @property
    def form(self) -> str:
        """What its state looks like."""
        return f"history 1: versions {self._contents.to_string()} by {self.key}"

    @property
    def _contents(self) -> pa.Schema:
        return pa.schema([field for field in self.table if field.name not in self.key])

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take versions; give out the rows that are no longer and those that are now."""
        due(state, watermark)
        rows = arrived[0]
        owners = grouped(rows, self.key, nulls=True).of_rows
        gone, bare = rows.column(DELETED).to_pylist(), encode_rows(self._contents, rows)
        values = [GONE if dead else row for dead, row in zip(gone, bare, strict=True)]
        touched = insert(state, VERSIONS, owners, places(rows), values)
        changes = [
            change
            for key, (before, after) in touched.items()
            for change in _differences(key, _spans(before), _spans(after))
        ]
        set_ends(state, owners, times_of(rows) + self.keep)
        changes += self._ended(state, watermark)
        return self._rows(changes)

    def _ended(self, state: State, watermark: int) -> list[_Change]:
        """Take versions out of the state that have ended long enough ago; returns what the view forgets with them."""
        found: list[_Change] = []

        def needed(key: bytes, versions: Flat) -> Flat:
            limit = watermark - self.keep
            old = [span for span in _spans(versions) if span[2] is not None and span[2] < limit]
            found.extend((key, span, -1) for span in old if self.forget)
            return _without(versions, old[-1][2] if old else None, limit)

        rewrite(state, VERSIONS, over(state, watermark), needed)
        return found

    def _rows(self, changes: list[_Change]) -> pa.Table:
        key = decode_keys(
            [key for key, _, _ in changes], pa.schema([self.table.field(name) for name in self.key])
        )
        contents = decode_rows(self._contents, [span[0] for _, span, _ in changes])
        columns = dict(zip(self.key, key, strict=True))
        columns |= {name: contents.column(name) for name in contents.column_names}
        columns[self.valid_from] = pa.array([span[1] for _, span, _ in changes], _MOMENT)
        columns[self.valid_to] = pa.array([span[2] for _, span, _ in changes], _MOMENT)
        columns[WEIGHT] = pa.array([weight for _, _, weight in changes], pa.int64())
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _spans(versions: Flat) -> list[Span]:
    """The versions that held for some time, in order."""
    times, contents = times_at(versions[::2]).tolist(), versions[1::2]
    found: list[Span] = []
    present: tuple[bytes, int] | None = None
    for number, (time, content) in enumerate(zip(times, contents, strict=True)):
        if number + 1 < len(times) and times[number + 1] == time:
            continue
        if present is not None and present[0] != content:
            found.append((*present, time))
            present = None
        if present is None and content != GONE:
            present = content, time
    return found if present is None else [*found, (*present, None)]


def _without(versions: Flat, ended: int | None, limit: int) -> Flat:
    """The versions since those that have ended; what held for no time says nothing, nor do deletions in front."""
    times = times_at(versions[::2]).tolist()
    first = 0 if ended is None else bisect_left(times, ended)
    while (
        first < len(times)
        and times[first] < limit
        and _empty(versions[2 * first + 1], times[first : first + 2])
    ):
        first += 1
    return versions[2 * first :]


def _empty(content: bytes, times: list[int]) -> bool:
    """Whether a version with this time and this next time says nothing, being the first."""
    return content == GONE or (times[0] == times[-1] and len(times) > 1)


def _differences(key: bytes, before: list[Span], after: list[Span]) -> Iterable[_Change]:
    was, now = set(before), set(after)
    yield from ((key, span, -1) for span in before if span not in now)
    yield from ((key, span, 1) for span in after if span not in was)
