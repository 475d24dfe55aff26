"""Versions of a table's rows in the order of time: which one held when, and which no event can need any more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from headwater.engine.keyed.operator import DELETED, TIME
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    Numbers,
    encode_rows,
    grouped,
    mark,
    places,
    times_at,
    times_of,
)
from headwater.engine.operators.slices import hold, release

__all__ = ["Held", "held_at", "prune", "take_versions"]

_VERSIONS: Final = "versions"
"""The space: of each key one value, its versions in order, each a place and contents."""
_ENDS: Final = "ends"
"""The space of times from which on a key has something to forget."""
_GONE: Final = b""
"""The contents of a version that says that there is no row."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


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
    if not len(known):
        return
    if len(known) < len(rows):
        rows = rows.take(known)
    codes, gone = found.codes[known].tolist(), rows.column(DELETED).to_pylist()
    bare = encode_rows(contents, rows)
    arrived: dict[int, list[bytes]] = {}
    for code, place, dead, row in zip(codes, places(rows), gone, bare, strict=True):
        arrived.setdefault(code, []).extend((place, _GONE if dead else row))
    keys = [found.keys[code] for code in arrived]
    stored = state.values(_VERSIONS, keys)
    merged = [_merged(was, new) for was, new in zip(stored, arrived.values(), strict=True)]
    state.put(_VERSIONS, keys, None, [_encode(versions) for versions in merged])
    _hold_ends(state, [found.keys[code] for code in codes], times_of(rows), np.array(gone, bool))


def held_at(state: State, keys: list[bytes], codes: Numbers, times: Numbers) -> Held:
    """The version that held at each time: the last whose time is not after it, unless it says that the row is gone.

    Args:
        state: Where versions are.
        keys: Keys, each once.
        codes: For each time, the number of its key; -1 for no key.
        times: The times.
    """
    at, since = np.full(len(codes), -1, np.int64), np.zeros(len(codes), np.int64)
    counts, names, values = _versions_of(state, keys)
    asked = np.flatnonzero(codes >= 0)
    if not names or not len(asked):
        return Held([], at, since)
    when = times_at(names)
    found = _last_not_after(np.repeat(np.arange(len(keys)), counts), when, codes[asked], times[asked])
    there = np.fromiter(map(len, values), np.int64, len(values)) > 0
    found[~there[found]] = -1
    at[asked], since[asked] = found, when[found]
    return Held(values, at, since)


def prune(state: State, watermark: int) -> None:
    """Forget versions that no event at the watermark or after it can need.

    Of those not after the watermark, the last is needed. A deletion before the watermark is as good as nothing; one at
    the watermark is not, because a version of the same time may still come that stands before it.
    """
    over = release(state, _ENDS, watermark)
    if over is None:
        return
    keys = over.column("key").unique().to_pylist()
    stored = state.values(_VERSIONS, keys)
    high, limit = mark(watermark + 1), mark(watermark)
    left = [_needed(_decode(packed), high, limit) if packed else [] for packed in stored]
    state.put(_VERSIONS, keys, None, [_encode(versions) if versions else None for versions in left])


def _merged(stored: bytes | None, new: list[bytes]) -> list[bytes]:
    """Versions in order: mostly the new ones are the later ones."""
    if stored is None:
        return new
    old = _decode(stored)
    if old[-2] < new[0]:
        return old + new
    every = dict(zip(old[::2], old[1::2], strict=True)) | dict(zip(new[::2], new[1::2], strict=True))
    return [part for name in sorted(every) for part in (name, every[name])]


def _needed(versions: list[bytes], high: bytes, limit: bytes) -> list[bytes]:
    """Without versions that are followed by one below `high`; a deletion below the limit is needed by nobody."""
    names = versions[::2]
    last = bisect_left(names, high) - 1
    if last < 0:
        return versions
    if versions[2 * last + 1] == _GONE and names[last] < limit:
        last += 1
    return versions[2 * last :]


def _hold_ends(state: State, keys: list[bytes], times: Numbers, gone: Numbers) -> None:
    """What stands before a version can be forgotten once the watermark is at its time; a deletion, when it is above."""
    dead = np.flatnonzero(gone)
    every = pa.array(keys + [keys[number] for number in dead.tolist()], pa.binary())
    hold(state, _ENDS, pa.table({"key": every, TIME: np.concatenate([times - 1, times[dead]])}))


def _versions_of(state: State, keys: list[bytes]) -> tuple[list[int], list[bytes], list[bytes]]:
    """How many versions each key has, and places and contents of all."""
    counts: list[int] = []
    names: list[bytes] = []
    values: list[bytes] = []
    for packed in state.values(_VERSIONS, keys):
        if packed is None:
            counts.append(0)
            continue
        versions = _decode(packed)
        counts.append(len(versions) >> 1)
        names += versions[::2]
        values += versions[1::2]
    return counts, names, values


def _last_not_after(owners: Numbers, when: Numbers, codes: Numbers, times: Numbers) -> Numbers:
    """For each code and time, the number of the last version of that owner that is not after it; -1 for none."""
    every = np.concatenate([when, times])
    low, high = int(every.min()), int(every.max())
    if (int(codes.max()) + 2) * (high - low + 1) < 1 << 62:
        ranks, width = every - low, high - low + 1
    else:
        distinct, ranks = np.unique(every, return_inverse=True)
        width = len(distinct)
    versions = owners * width + ranks[: len(when)]
    found: Numbers = np.searchsorted(versions, codes * width + ranks[len(when) :], side="right") - 1
    found[(found >= 0) & (owners[found] != codes)] = -1
    return found
