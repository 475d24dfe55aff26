"""What happened to a key, in the order of time: of each key one value, its places, each with some contents.

A key's timeline is read and written as a whole. It is short: what no record can need any more is taken off its front
when the watermark passes the times that `ends` were set for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from headwater.engine.keyed.operator import TIME
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import Numbers, times_at
from headwater.engine.operators.slices import hold, release

__all__ = ["Flat", "Timelines", "insert", "over", "places_before", "read", "rewrite", "set_ends", "sought"]

Flat = list[bytes]
"""One timeline: a place, its contents, the next place, its contents, and so on."""
_ENDS: Final = "ends"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


@dataclass(frozen=True)
class Timelines:
    """Timelines of several keys, one after the other."""

    counts: list[int]
    """How many places each key has."""
    places: list[bytes]
    contents: list[bytes]

    @property
    def owners(self) -> Numbers:
        """For each place the number of its key."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def times(self) -> Numbers:
        """The time of each place."""
        return times_at(self.places)


def insert(
    state: State, space: str, owners: Sequence[bytes], places: Sequence[bytes], contents: Sequence[bytes]
) -> dict[bytes, tuple[Flat, Flat]]:
    r"""Put contents at their places; a place that is there already gets the new contents.

    Args:
        state: Where timelines are.
        space: Their space.
        owners: For each place its key.
        places: In order for each key.
        contents: What is there.

    Returns:
        For each key its timeline before and after.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state, late, early = MemoryState(), b"\x02" * 24, b"\x01" * 24
        >>> _ = insert(state, "seen", [b"k"], [late], [b"two"])
        >>> insert(state, "seen", [b"k"], [early], [b"one"])[b"k"][1][1::2]
        [b'one', b'two']
    """
    arrived: dict[bytes, Flat] = {}
    for owner, place, content in zip(owners, places, contents, strict=True):
        arrived.setdefault(owner, []).extend((place, content))
    keys = list(arrived)
    stored = [_decode(packed) if packed else [] for packed in state.values(space, keys)]
    merged = [_merged(was, new) for was, new in zip(stored, arrived.values(), strict=True)]
    state.put(space, keys, None, [_encode(timeline) for timeline in merged])
    return dict(zip(keys, zip(stored, merged, strict=True), strict=True))


def read(state: State, space: str, keys: Sequence[bytes]) -> Timelines:
    """The timelines of keys."""
    counts: list[int] = []
    found = Timelines(counts, [], [])
    for packed in state.values(space, keys):
        timeline = _decode(packed) if packed else []
        counts.append(len(timeline) >> 1)
        found.places.extend(timeline[::2])
        found.contents.extend(timeline[1::2])
    return found


def rewrite(state: State, space: str, keys: Sequence[bytes], change: Callable[[bytes, Flat], Flat]) -> None:
    """Give each key the timeline that a function makes of it; a key without places is forgotten."""
    stored = state.values(space, keys)
    left = [change(key, _decode(packed)) if packed else [] for key, packed in zip(keys, stored, strict=True)]
    state.put(space, keys, None, [_encode(timeline) if timeline else None for timeline in left])


def set_ends(state: State, owners: Sequence[bytes], times: Numbers) -> None:
    """Look at keys again once the watermark is above times."""
    hold(state, _ENDS, pa.table({"key": pa.array(owners, pa.binary()), TIME: pa.array(times, pa.int64())}))


def over(state: State, watermark: int) -> list[bytes]:
    """The keys with such a time below the watermark, each once.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state = MemoryState()
        >>> set_ends(state, [b"a", b"b", b"a"], np.array([3, 5, 4]))
        >>> over(state, 5), over(state, 5), over(state, 6)
        ([b'a'], [], [b'b'])
    """
    found = release(state, _ENDS, watermark)
    return [] if found is None else found.column("key").unique().to_pylist()


def places_before(timeline: Flat, limit: bytes) -> int:
    """How many places of a timeline are below a limit."""
    return bisect_left(timeline[::2], limit)


def sought(timelines: Timelines, codes: Numbers, *asked: tuple[Numbers, str]) -> list[Numbers]:
    """Where times stand among the places of their keys.

    Args:
        timelines: Of all keys.
        codes: For each time the number of its key.
        asked: Times, each with "left" for the first place that is not before it, or "right" for the first after it.

    Example:
        >>> from headwater.engine.operators.arrivals import mark
        >>> two = Timelines([2, 1], [mark(time) + bytes(16) for time in (3, 5, 4)], [b""] * 3)
        >>> times = np.array([5, 5])
        >>> [found.tolist() for found in sought(two, np.array([0, 1]), (times, "left"), (times, "right"))]
        [[1, 3], [2, 3]]
    """
    when, owners = timelines.times, timelines.owners
    every = np.concatenate([when, *(times for times, _ in asked)])
    if not len(every):
        return [np.zeros(0, np.int64) for _ in asked]
    low, high = int(every.min()), int(every.max())
    if (len(timelines.counts) + 1) * (high - low + 1) < 1 << 62:
        ranks, width = every - low, high - low + 1
    else:
        distinct, ranks = np.unique(every, return_inverse=True)
        width = len(distinct)
    stand, start, found = owners * width + ranks[: len(when)], len(when), []
    for times, side in asked:
        wanted = codes * width + ranks[start : start + len(times)]
        found.append(np.searchsorted(stand, wanted, side=side))  # type: ignore[call-overload]
        start += len(times)
    return found


def _merged(old: Flat, new: Flat) -> Flat:
    """Both in order: mostly the new places are the later ones."""
    if not old or old[-2] < new[0]:
        return old + new
    every = dict(zip(old[::2], old[1::2], strict=True)) | dict(zip(new[::2], new[1::2], strict=True))
    return [part for place in sorted(every) for part in (place, every[place])]
