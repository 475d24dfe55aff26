"""Versions of a table's rows in the order of time: which one held when, and which no event can need any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.operator import DELETED
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import Numbers, encode_rows, grouped, mark, places, times_of
from headwater.engine.operators.joins.timelines import (
    Flat,
    insert,
    over,
    places_before,
    read,
    rewrite,
    set_ends,
    sought,
)

__all__ = ["GONE", "VERSIONS", "Held", "held_at", "prune", "take_versions"]

VERSIONS: Final = "versions"
"""The space: the timeline of each key, whose contents are the row's other columns, or `GONE`."""
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


def take_versions(state: State, rows: pa.Table, key: Sequence[str], contents: pa.Schema) -> None:
    """Put versions into their places.

    Args:
        state: Where to.
        rows: The table's rows that arrived; those with a null in the key are left out.
        key: The columns of the key.
        contents: The other columns.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state, place = MemoryState(), {"_hw_time": [5], "_hw_partition": [0], "_hw_offset": [0]}
        >>> rows = pa.table({"id": [1], "price": [10], "_hw_deleted": [False], **place})
        >>> take_versions(state, rows, ["id"], pa.schema([("price", pa.int64())]))
        >>> keys = grouped(rows, ["id"]).keys
        >>> held_at(state, keys, np.array([0, 0]), np.array([4, 5])).at.tolist()
        [-1, 0]
    """
    found = grouped(rows, key)
    known = np.flatnonzero(found.codes >= 0)
    if len(known) < len(rows):
        rows = rows.take(known)
    owners = [found.keys[code] for code in found.codes[known].tolist()]
    gone, bare = rows.column(DELETED).to_pylist(), encode_rows(contents, rows)
    values = [GONE if dead else row for dead, row in zip(gone, bare, strict=True)]
    insert(state, VERSIONS, owners, places(rows), values)
    # What stands before a version is over once the watermark is at its time; a deletion, once it is above.
    times, dead = times_of(rows), [number for number, is_gone in enumerate(gone) if is_gone]
    ends = owners + [owners[number] for number in dead]
    set_ends(state, ends, np.concatenate([times - 1, times[dead]]))


def held_at(state: State, keys: list[bytes], codes: Numbers, times: Numbers) -> Held:
    """The version that held at each time: the last whose time is not after it, unless it says that the row is gone.

    Args:
        state: Where versions are.
        keys: Keys, each once.
        codes: For each time, the number of its key; -1 for no key.
        times: The times.
    """
    at, since = np.full(len(codes), -1, np.int64), np.zeros(len(codes), np.int64)
    known = np.flatnonzero(codes >= 0)
    versions = read(state, VERSIONS, keys)
    if not len(known) or not versions.places:
        return Held([], at, since)
    (after,) = sought(versions, codes[known], (times[known], "right"))
    found, owners = after - 1, versions.owners
    found[(found >= 0) & (owners[found] != codes[known])] = -1
    there = np.fromiter(map(len, versions.contents), np.int64, len(versions.contents)) > 0
    found[~there[found]] = -1
    at[known], since[known] = found, versions.times[found]
    return Held(versions.contents, at, since)


def prune(state: State, watermark: int) -> None:
    """Forget versions that no event at the watermark or after it can need.

    Of those not after the watermark, the last is needed. A deletion before the watermark is as good as nothing; one at
    the watermark is not, because a version of the same time may still come that stands before it.
    """
    high, limit = mark(watermark + 1), mark(watermark)

    def needed(_: bytes, versions: Flat) -> Flat:
        last = places_before(versions, high) - 1
        if last >= 0 and versions[2 * last + 1] == GONE and versions[2 * last] < limit:
            last += 1
        return versions[2 * max(last, 0) :]

    rewrite(state, VERSIONS, over(state, watermark), needed)
