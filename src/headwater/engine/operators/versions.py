"""Versions of a table's rows in the order of time: which one held when, and which no event can need any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.operator import DELETED
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    Numbers,
    encode_rows,
    grouped,
    mark,
    marks,
    places,
    times_at,
    times_of,
)

__all__ = ["GONE", "VERSIONS", "Held", "held_at", "prune", "take_versions"]

VERSIONS: Final = "versions"
"""The space: below a key, places of versions, each with the row's contents, or `GONE`."""
GONE: Final = b""
"""The contents of a version that says that there is no row."""


@dataclass(frozen=True)
class Held:
    """For each of some times: the number of the version that held among `values`, -1 for none, and since when."""

    values: list[bytes]
    at: Numbers
    since: Numbers

    def of(self, which: Numbers) -> Held:
        """The same for some of them."""
        return Held(self.values, self.at[which], self.since[which])


def take_versions(
    state: State, rows: pa.Table, key: Sequence[str], contents: pa.Schema
) -> tuple[list[bytes], list[int]]:
    """Put versions into their places.

    A deletion is marked twice: it can be forgotten one microsecond after others.

    Args:
        state: Where to.
        rows: The table's rows that arrived; those with a null in the key are left out.
        key: The columns of the key.
        contents: The other columns.

    Returns:
        Keys, and beside each a watermark from which on there may be something to forget.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state, place = MemoryState(), {"_hw_time": [5], "_hw_partition": [0], "_hw_offset": [0]}
        >>> rows = pa.table({"id": [1], "price": [10], "_hw_deleted": [False], **place})
        >>> keys, ends = take_versions(state, rows, ["id"], pa.schema([("price", pa.int64())]))
        >>> ends, held_at(state, keys, np.array([0, 0]), np.array([4, 5])).at.tolist()
        ([5], [-1, 0])
    """
    found = grouped(rows, key)
    if (found.codes < 0).any():
        rows = rows.take(np.flatnonzero(found.codes >= 0))
        found = grouped(rows, key)
    keys, times, gone = found.of_rows, times_of(rows).tolist(), rows.column(DELETED).to_pylist()
    values = [GONE if dead else row for dead, row in zip(gone, encode_rows(contents, rows), strict=True)]
    state.put(VERSIONS, keys, places(rows), values)
    dead = [number for number, is_dead in enumerate(gone) if is_dead]
    return keys + [keys[number] for number in dead], times + [times[number] + 1 for number in dead]


def held_at(state: State, keys: list[bytes], codes: Numbers, times: Numbers) -> Held:
    """The version that held at each time: the last whose time is not after it, unless it says that the row is gone.

    Args:
        state: Where versions are.
        keys: Keys, each once.
        codes: For each time, the number of its key; -1 for no key.
        times: The times.
    """
    asked = np.flatnonzero(codes >= 0)
    at, since = np.full(len(codes), -1, np.int64), np.zeros(len(codes), np.int64)
    if not len(asked):
        return Held([], at, since)
    owners, names, values = _versions_for(state, keys, codes[asked], times[asked])
    if names:
        when = times_at(names)
        found = _last_not_after(owners, when, codes[asked], times[asked])
        there = np.array([value != GONE for value in values], bool)
        found[~there[found]] = -1
        at[asked], since[asked] = found, when[found]
    return Held(values, at, since)


def prune(state: State, keys: list[bytes], watermark: int) -> None:
    """Forget versions that no event at the watermark or after it can need.

    Of those not after the watermark, the last is needed. A deletion before the watermark is as good as nothing; one at
    the watermark is not, because a version of the same time may still come that stands before it.
    """
    state.load(VERSIONS, keys)
    high, limit = mark(watermark + 1), mark(watermark)
    owners: list[bytes] = []
    names: list[bytes] = []
    for key in keys:
        found = state.entries(VERSIONS, key, high=high)
        if not found:
            continue
        name, value = found[-1]
        over = found if value == GONE and name[:8] < limit else found[:-1]
        owners += [key] * len(over)
        names += [name for name, _ in over]
    state.put(VERSIONS, owners, names, [None] * len(owners))


def _versions_for(
    state: State, keys: list[bytes], codes: Numbers, times: Numbers
) -> tuple[Numbers, list[bytes], list[bytes]]:
    """The versions that can be asked for, in order of key and place: owners, names, values."""
    order = np.lexsort((times, codes))
    ordered, when = codes[order], times[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    ends = np.append(starts[1:], len(ordered)) - 1
    touched = ordered[starts].tolist()
    state.load(VERSIONS, [keys[code] for code in touched])
    several = (when[starts] != when[ends]).tolist()
    counts: list[int] = []
    found: list[tuple[bytes, bytes]] = []
    for code, low, high, more in zip(
        touched, marks(when[starts] + 1), marks(when[ends] + 1), several, strict=True
    ):
        some = state.entries(VERSIONS, keys[code], high=low, most=1, backwards=True)
        if more:
            some += state.entries(VERSIONS, keys[code], low, high)
        counts.append(len(some))
        found += some
    return np.repeat(ordered[starts], counts), [name for name, _ in found], [value for _, value in found]


def _last_not_after(owners: Numbers, when: Numbers, codes: Numbers, times: Numbers) -> Numbers:
    """For each code and time, the number of the last version of that owner that is not after it; -1 for none."""
    distinct, ranks = np.unique(np.concatenate([when, times]), return_inverse=True)
    versions = owners * len(distinct) + ranks[: len(when)]
    asked = codes * len(distinct) + ranks[len(when) :]
    found: Numbers = np.searchsorted(versions, asked, side="right") - 1
    found[(found >= 0) & (owners[found] != codes)] = -1
    return found
