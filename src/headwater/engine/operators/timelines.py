"""Timelines: time-ordered entries per key, and lookup of table versions by time.

The timeline of a key is one state value, which is read and written as a whole. It stays short: when the watermark
passes the expiry time of an entry (`set_expiry`), entries that no record can need any more are removed from the front.

`insert_versions`, `find_versions` and `prune_versions` keep the versions of a table's rows in timelines.
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
from headwater.engine.state.encoding import encode_rows, encode_time
from headwater.engine.state.grouping import Numbers, decode_times, encode_positions, event_times, group_by_key
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
"""The entries of one key in order: position, contents, position, contents, and so on."""
_EXPIRY: Final = "ends"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


@dataclass(frozen=True)
class Timelines:
    """The timelines of several keys, one after another."""

    counts: list[int]
    """The number of entries of each key."""
    positions: list[bytes]
    contents: list[bytes]

    @property
    def owners(self) -> Numbers:
        """The number of the key of each entry."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def times(self) -> Numbers:
        """The time of each entry."""
        return decode_times(self.positions)


def insert_entries(
    state: State, space: str, keys: Sequence[bytes], positions: Sequence[bytes], contents: Sequence[bytes]
) -> dict[bytes, tuple[Timeline, Timeline]]:
    r"""Insert entries at their positions; an entry at an existing position replaces it.

    Args:
        state: The state.
        space: The space of the timelines.
        keys: The key of each entry.
        positions: The position of each entry; in order among the entries of one key.
        contents: The contents of each entry.

    Returns:
        For each key its timeline before and after.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state, late, early = MemoryState(), b"\x02" * 24, b"\x01" * 24
        >>> _ = insert_entries(state, "seen", [b"k"], [late], [b"two"])
        >>> insert_entries(state, "seen", [b"k"], [early], [b"one"])[b"k"][1][1::2]
        [b'one', b'two']
    """
    added: dict[bytes, Timeline] = {}
    for key, position, content in zip(keys, positions, contents, strict=True):
        added.setdefault(key, []).extend((position, content))
    changed = list(added)
    stored = [_decode(packed) if packed else [] for packed in state.values(space, changed)]
    merged = [_merge(old, new) for old, new in zip(stored, added.values(), strict=True)]
    state.put(space, changed, None, [_encode(timeline) for timeline in merged])
    return dict(zip(changed, zip(stored, merged, strict=True), strict=True))


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
    """Replace each key's timeline by the result of a function; a key without entries is deleted."""
    stored = state.values(space, keys)
    left = [change(key, _decode(packed)) if packed else [] for key, packed in zip(keys, stored, strict=True)]
    state.put(space, keys, None, [_encode(timeline) if timeline else None for timeline in left])


def set_expiry(state: State, keys: Sequence[bytes], times: Numbers) -> None:
    """Set for each key a time after which `pop_expired` returns it."""
    # As rows of the reorder buffer, thousands to an entry: a timer per key and event would cost an entry each.
    hold_rows(state, _EXPIRY, pa.table({"key": pa.array(keys, pa.binary()), TIME: pa.array(times, pa.int64())}))


def pop_expired(state: State, watermark: int) -> list[bytes]:
    """Remove the expiry times below the watermark; returns their keys, each once.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> set_expiry(state, [b"a", b"b", b"a"], np.array([3, 5, 4]))
        >>> pop_expired(state, 5), pop_expired(state, 5), pop_expired(state, 6)
        ([b'a'], [], [b'b'])
    """
    expired = release_rows(state, _EXPIRY, watermark)
    return [] if expired is None else expired.column("key").unique().to_pylist()


def count_before(timeline: Timeline, limit: bytes) -> int:
    """Returns the number of entries with a position below a limit."""
    return bisect_left(timeline[::2], limit)


def search_times(timelines: Timelines, codes: Numbers, *bounds: tuple[Numbers, str]) -> list[Numbers]:
    """Returns the index of each time among the entries of its key; vectorized over all keys.

    Args:
        timelines: The timelines of all keys.
        codes: For each time the number of its key.
        bounds: Arrays of times, each with "left" for the first entry not before the time, or "right" for the first
            entry after it.

    Example:
        >>> two = Timelines([2, 1], [encode_time(time) + bytes(16) for time in (3, 5, 4)], [b""] * 3)
        >>> times = np.array([5, 5])
        >>> [found.tolist() for found in search_times(two, np.array([0, 1]), (times, "left"), (times, "right"))]
        [[1, 3], [2, 3]]
    """
    entry_times = timelines.times
    every = np.concatenate([entry_times, *(times for times, _ in bounds)])
    if not len(every):
        return [np.zeros(0, np.int64) for _ in bounds]
    # Key number and time become one sorted number, so that one binary search serves all keys. If the product does not
    # fit into 63 bits, the rank of a time stands for the time.
    low, high = int(every.min()), int(every.max())
    if (len(timelines.counts) + 1) * (high - low + 1) < 1 << 62:
        ranks, width = every - low, high - low + 1
    else:
        distinct, ranks = np.unique(every, return_inverse=True)
        width = len(distinct)
    start = len(entry_times)
    entries, found = timelines.owners * width + ranks[:start], []
    for times, side in bounds:
        wanted = codes * width + ranks[start : start + len(times)]
        found.append(np.searchsorted(entries, wanted, side=side))  # type: ignore[call-overload]
        start += len(times)
    return found


def _merge(old: Timeline, new: Timeline) -> Timeline:
    """Merge two sorted lists; usually all new entries are the later ones."""
    if not old or old[-2] < new[0]:
        return old + new
    every = dict(zip(old[::2], old[1::2], strict=True)) | dict(zip(new[::2], new[1::2], strict=True))
    return [part for entry in sorted(every.items()) for part in entry]


VERSIONS: Final = "versions"
"""The space of versions: their contents are the columns outside of the key, or `TOMBSTONE`."""
TOMBSTONE: Final = b""
"""The contents of a version that deletes the row."""


@dataclass(frozen=True)
class VersionLookup:
    """For each requested time: the index of the valid version in `values`, or -1, and its valid-from time."""

    values: list[bytes]
    at: Numbers
    since: Numbers


def insert_versions(state: State, rows: pa.Table, key: Sequence[str], contents: pa.Schema) -> None:
    """Insert versions into the timelines of their keys.

    Args:
        state: The state.
        rows: New versions of the table's rows; those with a null in the key are left out.
        key: The key columns.
        contents: The other columns.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state, place = MemoryState(), {"_hw_time": [5], "_hw_partition": [0], "_hw_offset": [0]}
        >>> rows = pa.table({"id": [1], "price": [10], "_hw_deleted": [False], **place})
        >>> insert_versions(state, rows, ["id"], pa.schema([("price", pa.int64())]))
        >>> keys = group_by_key(rows, ["id"]).keys
        >>> find_versions(state, keys, np.array([0, 0]), np.array([4, 5])).at.tolist()
        [-1, 0]
    """
    by_key = group_by_key(rows, key, nulls=False)
    known = np.flatnonzero(by_key.codes >= 0)
    if len(known) < len(rows):
        rows = rows.take(known)
    keys, deleted = by_key.row_keys(known), rows.column(DELETED).to_pylist()
    pairs = zip(deleted, encode_rows(contents, rows), strict=True)
    insert_entries(state, VERSIONS, keys, encode_positions(rows), [TOMBSTONE if gone else row for gone, row in pairs])
    # The versions before a version expire once the watermark reaches its time; a deletion, once it is above.
    times, tombstones = event_times(rows), [number for number, gone in enumerate(deleted) if gone]
    expiring = keys + [keys[number] for number in tombstones]
    set_expiry(state, expiring, np.concatenate([times - 1, times[tombstones]]))


def find_versions(state: State, keys: list[bytes], codes: Numbers, times: Numbers) -> VersionLookup:
    """Returns the version valid at each time: the last one not after it, unless it is a deletion.

    Args:
        state: The state.
        keys: The distinct keys.
        codes: For each time the number of its key; -1 for no key.
        times: The times.
    """
    at, since = np.full(len(codes), -1, np.int64), np.zeros(len(codes), np.int64)
    known = np.flatnonzero(codes >= 0)
    versions = read_timelines(state, VERSIONS, keys)
    if not len(known) or not versions.positions:
        return VersionLookup([], at, since)
    (after,) = search_times(versions, codes[known], (times[known], "right"))
    found = after - 1
    # An index before the first entry of a key belongs to the key before it.
    found[(found >= 0) & (versions.owners[found] != codes[known])] = -1
    deleted = np.fromiter(map(len, versions.contents), np.int64, len(versions.contents)) == len(TOMBSTONE)
    found[deleted[found]] = -1
    at[known], since[known] = found, versions.times[found]
    return VersionLookup(versions.contents, at, since)


def prune_versions(state: State, watermark: int) -> None:
    """Delete versions that no event at or after the watermark can need.

    Of the versions at or before the watermark, the last is needed. A deletion before the watermark is not needed. A
    deletion at the watermark is, because a version with the same time and an earlier position may still arrive.
    """
    high, limit = encode_time(watermark + 1), encode_time(watermark)

    def trim(_: bytes, versions: Timeline) -> Timeline:
        last = count_before(versions, high) - 1
        if last >= 0 and versions[2 * last + 1] == TOMBSTONE and versions[2 * last] < limit:
            last += 1
        return versions[2 * max(last, 0) :]

    rewrite_timelines(state, VERSIONS, pop_expired(state, watermark), trim)
