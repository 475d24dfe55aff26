"""Timelines: time-ordered entries per key, and lookup of table versions by time.

The timeline of a key is one value, which is read and written as a whole. It stays short: entries that no record can
need any more are removed from its front when the watermark passes the expiry time set for them.

`find_versions` and the functions around it store the versions of a table's rows in timelines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from headwater.engine.operators.reorder_buffer import hold_rows, release_rows
from headwater.engine.state.grouping import (
    Numbers,
    decode_times,
    encode_positions,
    encode_rows,
    encode_time,
    event_times,
    factorize_keys,
)
from headwater.engine.state.state import DELETED, TIME, State

__all__ = [
    "TOMBSTONE",
    "VERSIONS",
    "Timeline",
    "Timelines",
    "VersionLookup",
    "count_before",
    "find_versions",
    "insert_entries",
    "insert_versions",
    "pop_expired",
    "prune_versions",
    "read_timelines",
    "rewrite_timelines",
    "search_times",
    "set_expiry",
]

Timeline = list[bytes]
"""One timeline: a place, its contents, the next place, its contents, and so on."""
_EXPIRY: Final = "ends"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


@dataclass(frozen=True)
class Timelines:
    """The timelines of several keys, one after another."""

    counts: list[int]
    """How many places each key has."""
    positions: list[bytes]
    contents: list[bytes]

    @property
    def owners(self) -> Numbers:
        """Returns the key number of each entry."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def times(self) -> Numbers:
        """Returns the time of each entry."""
        return decode_times(self.positions)


def insert_entries(
    state: State, space: str, owners: Sequence[bytes], positions: Sequence[bytes], contents: Sequence[bytes]
) -> dict[bytes, tuple[Timeline, Timeline]]:
    r"""Insert contents at their positions; an existing position gets the new contents.

    Args:
        state: Where timelines are.
        space: Their space.
        owners: For each place its key.
        positions: In order for each key.
        contents: What is there.

    Returns:
        For each key its timeline before and after.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state, late, early = MemoryState(), b"\x02" * 24, b"\x01" * 24
        >>> _ = insert_entries(state, "seen", [b"k"], [late], [b"two"])
        >>> insert_entries(state, "seen", [b"k"], [early], [b"one"])[b"k"][1][1::2]
        [b'one', b'two']
    """
    arrived: dict[bytes, Timeline] = {}
    for owner, place, content in zip(owners, positions, contents, strict=True):
        arrived.setdefault(owner, []).extend((place, content))
    keys = list(arrived)
    stored = [_decode(packed) if packed else [] for packed in state.values(space, keys)]
    merged = [_merge(was, new) for was, new in zip(stored, arrived.values(), strict=True)]
    state.put(space, keys, None, [_encode(timeline) for timeline in merged])
    return dict(zip(keys, zip(stored, merged, strict=True), strict=True))


def read_timelines(state: State, space: str, keys: Sequence[bytes]) -> Timelines:
    """Returns the timelines of keys."""
    counts: list[int] = []
    found = Timelines(counts, [], [])
    for packed in state.values(space, keys):
        timeline = _decode(packed) if packed else []
        counts.append(len(timeline) >> 1)
        found.positions.extend(timeline[::2])
        found.contents.extend(timeline[1::2])
    return found


def rewrite_timelines(
    state: State, space: str, keys: Sequence[bytes], change: Callable[[bytes, Timeline], Timeline]
) -> None:
    """Replace each key's timeline by a function of it; a key without entries is deleted."""
    stored = state.values(space, keys)
    left = [change(key, _decode(packed)) if packed else [] for key, packed in zip(keys, stored, strict=True)]
    state.put(space, keys, None, [_encode(timeline) if timeline else None for timeline in left])


def set_expiry(state: State, owners: Sequence[bytes], times: Numbers) -> None:
    """Set timers at which keys are examined again."""
    hold_rows(state, _EXPIRY, pa.table({"key": pa.array(owners, pa.binary()), TIME: pa.array(times, pa.int64())}))


def pop_expired(state: State, watermark: int) -> list[bytes]:
    """Remove the timers below the watermark and return their keys, each once.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> set_expiry(state, [b"a", b"b", b"a"], np.array([3, 5, 4]))
        >>> pop_expired(state, 5), pop_expired(state, 5), pop_expired(state, 6)
        ([b'a'], [], [b'b'])
    """
    found = release_rows(state, _EXPIRY, watermark)
    return [] if found is None else found.column("key").unique().to_pylist()


def count_before(timeline: Timeline, limit: bytes) -> int:
    """Returns how many entries of a timeline are below a limit."""
    return bisect_left(timeline[::2], limit)


def search_times(timelines: Timelines, codes: Numbers, *bounds: tuple[Numbers, str]) -> list[Numbers]:
    """Returns the index of times among the entries of their keys.

    Args:
        timelines: Of all keys.
        codes: For each time the number of its key.
        bounds: Times, each with "left" for the first place that is not before it, or "right" for the first after it.

    Example:
        >>> from headwater.engine.state.grouping import encode_time
        >>> two = Timelines([2, 1], [encode_time(time) + bytes(16) for time in (3, 5, 4)], [b""] * 3)
        >>> times = np.array([5, 5])
        >>> [found.tolist() for found in search_times(two, np.array([0, 1]), (times, "left"), (times, "right"))]
        [[1, 3], [2, 3]]
    """
    when, owners = timelines.times, timelines.owners
    every = np.concatenate([when, *(times for times, _ in bounds)])
    if not len(every):
        return [np.zeros(0, np.int64) for _ in bounds]
    low, high = int(every.min()), int(every.max())
    if (len(timelines.counts) + 1) * (high - low + 1) < 1 << 62:
        ranks, width = every - low, high - low + 1
    else:
        distinct, ranks = np.unique(every, return_inverse=True)
        width = len(distinct)
    stand, start, found = owners * width + ranks[: len(when)], len(when), []
    for times, side in bounds:
        wanted = codes * width + ranks[start : start + len(times)]
        found.append(np.searchsorted(stand, wanted, side=side))  # type: ignore[call-overload]
        start += len(times)
    return found


def _merge(old: Timeline, new: Timeline) -> Timeline:
    """Merge two sorted lists; usually all new entries are the later ones."""
    if not old or old[-2] < new[0]:
        return old + new
    every = dict(zip(old[::2], old[1::2], strict=True)) | dict(zip(new[::2], new[1::2], strict=True))
    return [part for place in sorted(every) for part in (place, every[place])]


VERSIONS: Final = "versions"
"""The space: the timeline of each key, whose contents are the row's other columns, or `GONE`."""
TOMBSTONE: Final = b""
"""The contents of a version that says that there is no row."""


@dataclass(frozen=True)
class VersionLookup:
    """For each of some times: the index of the valid version in `values`, or -1, and its valid-from time."""

    values: list[bytes]
    at: Numbers
    since: Numbers

    def select(self, which: Numbers) -> VersionLookup:
        """Returns the lookup of some of the times."""
        return VersionLookup(self.values, self.at[which], self.since[which])


def insert_versions(state: State, rows: pa.Table, key: Sequence[str], contents: pa.Schema) -> None:
    """Insert versions into the timelines of their keys.

    Args:
        state: Where to.
        rows: The table's rows that arrived; those with a null in the key are left out.
        key: The columns of the key.
        contents: The other columns.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state, place = MemoryState(), {"_hw_time": [5], "_hw_partition": [0], "_hw_offset": [0]}
        >>> rows = pa.table({"id": [1], "price": [10], "_hw_deleted": [False], **place})
        >>> insert_versions(state, rows, ["id"], pa.schema([("price", pa.int64())]))
        >>> keys = factorize_keys(rows, ["id"]).keys
        >>> find_versions(state, keys, np.array([0, 0]), np.array([4, 5])).at.tolist()
        [-1, 0]
    """
    found = factorize_keys(rows, key)
    known = np.flatnonzero(found.codes >= 0)
    if len(known) < len(rows):
        rows = rows.take(known)
    owners = [found.keys[code] for code in found.codes[known].tolist()]
    gone, bare = rows.column(DELETED).to_pylist(), encode_rows(contents, rows)
    values = [TOMBSTONE if dead else row for dead, row in zip(gone, bare, strict=True)]
    insert_entries(state, VERSIONS, owners, encode_positions(rows), values)
    # The entries before a version expire once the watermark reaches its time; a deletion, once it is above.
    times, dead = event_times(rows), [number for number, is_gone in enumerate(gone) if is_gone]
    ends = owners + [owners[number] for number in dead]
    set_expiry(state, ends, np.concatenate([times - 1, times[dead]]))


def find_versions(state: State, keys: list[bytes], codes: Numbers, times: Numbers) -> VersionLookup:
    """Returns the version valid at each time: the last one not after it, unless it is a deletion.

    Args:
        state: Where versions are.
        keys: Keys, each once.
        codes: For each time, the number of its key; -1 for no key.
        times: The times.
    """
    at, since = np.full(len(codes), -1, np.int64), np.zeros(len(codes), np.int64)
    known = np.flatnonzero(codes >= 0)
    versions = read_timelines(state, VERSIONS, keys)
    if not len(known) or not versions.positions:
        return VersionLookup([], at, since)
    (after,) = search_times(versions, codes[known], (times[known], "right"))
    found, owners = after - 1, versions.owners
    found[(found >= 0) & (owners[found] != codes[known])] = -1
    there = np.fromiter(map(len, versions.contents), np.int64, len(versions.contents)) > 0
    found[~there[found]] = -1
    at[known], since[known] = found, versions.times[found]
    return VersionLookup(versions.contents, at, since)


def prune_versions(state: State, watermark: int) -> None:
    """Delete versions that no event at or after the watermark can need.

    Of those not after the watermark, the last is needed. A deletion before the watermark is as good as nothing; one at
    the watermark is not, because a version of the same time may still come that stands before it.
    """
    high, limit = encode_time(watermark + 1), encode_time(watermark)

    def trim(_: bytes, versions: Timeline) -> Timeline:
        last = count_before(versions, high) - 1
        if last >= 0 and versions[2 * last + 1] == TOMBSTONE and versions[2 * last] < limit:
            last += 1
        return versions[2 * max(last, 0) :]

    rewrite_timelines(state, VERSIONS, pop_expired(state, watermark), trim)
