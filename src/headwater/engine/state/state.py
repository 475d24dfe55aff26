"""The operator interface, its state, and timers.

`State` stores entries of bytes in named spaces, by key and name; `MemoryState` keeps them in memory. Timers
(`set_timers`, `pop_timers`) let an operator see a key again when the watermark has passed a time. `Operator` is the
protocol of a stateful operator, wherever it runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

__all__ = [
    "DELETED",
    "INPUT_SHIFT",
    "OFFSET",
    "PARTITION",
    "QUARANTINE_REASON",
    "SINCE",
    "TIME",
    "TIMERS",
    "WEIGHT",
    "Entry",
    "MapValues",
    "MemoryState",
    "Operator",
    "SingleValues",
    "State",
    "delete_timers",
    "next_timer",
    "pop_timers",
    "prefix_end",
    "set_timers",
]

Entry = tuple[bytes, bytes]
"""An entry of a key: a name, by whose bytes entries are sorted, and a value."""
SingleValues = dict[str, dict[bytes, bytes]]
"""Values by space and key."""
MapValues = dict[str, dict[bytes, dict[bytes, bytes]]]
"""Values by space, key and name."""
TIMERS: Final = "due"
"""The space of timers, under the key b"": the first 8 bytes of a name are a time.

The host of an operator reads the first entry there, and calls the operator when the watermark has passed that time.
"""


class State(Protocol):
    """The state of one operator.

    An entry is found by its space, its key and its name below the key. Operators that keep one value for a key give it
    the name b"".
    """

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry.

        Args:
            space: Where to look.
            keys: The key of each entry.
            names: Its name below the key; b"" for all, if omitted.
        """

    def prefetch(self, space: str, keys: Iterable[bytes]) -> None:
        """Announce that all entries of these keys will be read, so that one query reads them all."""

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Entry]:
        """Yields the entries of a key with names in `[low, high)`, in order of name.

        Args:
            space: Where to look.
            key: The key.
            low: The lowest name.
            high: The first name that is too high; None for no limit.
            limit: How many at most.
            reverse: From the highest name down.
        """

    def put(
        self,
        space: str,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        values: Sequence[bytes | None],
        *,
        kinds: str = "",
    ) -> None:
        """Set many entries; None deletes an entry, whether or not it exists.

        Args:
            space: Where to.
            keys: The key of each entry.
            names: As in `values`.
            values: Its value.
            kinds: What the columns of the keys are (`kinds_of`), where keys have many entries: so that people can be
                told which key has most.
        """


def prefix_end(prefix: bytes) -> bytes | None:
    r"""Returns the first name above all names with this prefix; None if there is none.

    Example:
        >>> prefix_end(b"ab"), prefix_end(b"a\xff"), prefix_end(b"\xff")
        (b'ac', b'b', None)
    """
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None


class MemoryState:
    r"""A state in memory: an unpacked key group during a batch, or the state of a test.

    Values without a name are in plain dicts: of an operator that has one value for each key, millions may come and go.

    Args:
        single_values: Values without a name, by space and key.
        map_values: Values with one, by space, key and name.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k"], [b"\x02", b"\x01"], [b"two", b"one"])
        >>> state.entries("seen", b"k", limit=1), state.values("seen", [b"k", b"j"], [b"\x02", b"\x02"])
        ([(b'\x01', b'one')], [b'two', None])
    """

    def __init__(self, single_values: SingleValues | None = None, map_values: MapValues | None = None) -> None:
        self._single_values: SingleValues = single_values or {}
        self._map_values: dict[str, dict[bytes, _MapEntries]] = {
            space: {key: _MapEntries(values) for key, values in keys.items()}
            for space, keys in (map_values or {}).items()
        }
        self.kinds: dict[str, str] = dict.fromkeys([*self._single_values, *self._map_values], "")
        """The type letters of key columns by space, where known; includes spaces that are empty now."""

    @property
    def single_values(self) -> SingleValues:
        """Returns all values without a name; empty spaces are omitted."""
        return {space: keys for space, keys in self._single_values.items() if keys}

    @property
    def map_values(self) -> MapValues:
        """Returns all values with a name; empty spaces are omitted."""
        return {
            space: {key: below.values for key, below in keys.items()}
            for space, keys in self._map_values.items()
            if keys
        }

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        """Returns the values of many entries; None for a missing entry."""
        plain, named = self._single_values.get(space, {}), self._map_values.get(space, {})
        if names is None:
            return list(map(plain.get, keys))
        return [
            plain.get(key) if not name else below.values.get(name) if (below := named.get(key)) else None
            for key, name in zip(keys, names, strict=True)
        ]

    def prefetch(self, space: str, keys: Iterable[bytes]) -> None:
        """Do nothing: everything is in memory."""

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Entry]:
        """Yields the entries of a key, in order of name."""
        below = self._map_values.get(space, {}).get(key)
        found = [] if below is None else below.scan(low, high, limit, reverse)
        value = self._single_values.get(space, {}).get(key)
        if value is not None and not low and high != b"":
            # The empty name is before all others.
            found = [*found, (b"", value)] if reverse else [(b"", value), *found]
        return found[:limit]

    def put(
        self,
        space: str,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        values: Sequence[bytes | None],
        *,
        kinds: str = "",
    ) -> None:
        """Set many entries; None deletes an entry."""
        self.kinds[space] = kinds or self.kinds.get(space, "")
        plain = self._single_values.setdefault(space, {})
        if names is None:
            for key, value in zip(keys, values, strict=True):
                _set_or_delete(plain, key, value)
            return
        named = self._map_values.setdefault(space, {})
        for key, name, value in zip(keys, names, values, strict=True):
            mine = named.get(key)
            if not name:
                _set_or_delete(plain, key, value)
            elif value is not None:
                if mine is None:
                    mine = named[key] = _MapEntries({})
                mine.put(name, value)
            elif mine is not None and mine.remove(name):
                del named[key]

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes, bytes]]:
        """Iterate over all entries: space, key, name, value."""
        for space, singles in self.single_values.items():
            yield from ((space, key, b"", value) for key, value in singles.items())
        for space, keys in self.map_values.items():
            for key, below in keys.items():
                yield from ((space, key, name, value) for name, value in below.items())

    def __len__(self) -> int:
        named = sum(len(below.values) for keys in self._map_values.values() for below in keys.values())
        return named + sum(map(len, self._single_values.values()))


def _set_or_delete(values: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


class _MapEntries:
    """The entries of one key by name; the names are sorted on first use."""

    __slots__ = ("_order", "values")

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = values
        self._order: list[bytes] | None = None

    def put(self, name: bytes, value: bytes) -> None:
        if self._order is not None and name not in self.values:
            insort(self._order, name)
        self.values[name] = value

    def remove(self, name: bytes) -> bool:
        """Delete an entry; returns True if it was the last."""
        if self.values.pop(name, None) is not None and self._order is not None:
            del self._order[bisect_left(self._order, name)]
        return not self.values

    def scan(self, low: bytes, high: bytes | None, limit: int | None, reverse: bool) -> list[Entry]:
        if self._order is None:
            self._order = sorted(self.values)
        first = bisect_left(self._order, low)
        last = len(self._order) if high is None else max(first, bisect_left(self._order, high))
        if limit is not None:
            first, last = (max(first, last - limit), last) if reverse else (first, min(last, first + limit))
        names = self._order[first:last]
        return [(name, self.values[name]) for name in (reversed(names) if reverse else names)]


_SHIFT = 1 << 63


def set_timers(state: State, times: Iterable[int], names: Iterable[bytes]) -> None:
    """Set timers with a time and a name; idempotent."""
    timers = [_encode_time(time) + name for time, name in zip(times, names, strict=True)]
    state.put(TIMERS, [b""] * len(timers), timers, [b""] * len(timers))


def delete_timers(state: State, times: Iterable[int], names: Iterable[bytes]) -> None:
    """Delete timers."""
    timers = [_encode_time(time) + name for time, name in zip(times, names, strict=True)]
    state.put(TIMERS, [b""] * len(timers), timers, [None] * len(timers))


def pop_timers(state: State, watermark: int) -> list[tuple[int, bytes]]:
    """Remove and return the timers at or before the watermark, with their times, in order.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> set_timers(state, [30, 10, 20], [b"c", b"a", b"b"])
        >>> pop_timers(state, 20), next_timer(state)
        ([(10, b'a'), (20, b'b')], 30)
    """
    found = [name for name, _ in state.entries(TIMERS, b"", high=_encode_time(watermark + 1))]
    state.put(TIMERS, [b""] * len(found), found, [None] * len(found))
    return [(_decode_time(mark), mark[8:]) for mark in found]


def next_timer(state: State) -> int | None:
    """Returns the next timer; None if there is none."""
    first = state.entries(TIMERS, b"", limit=1)
    return _decode_time(first[0][0]) if first else None


def _encode_time(time: int) -> bytes:
    return (time + _SHIFT).to_bytes(8, "big")


def _decode_time(timer: bytes) -> int:
    return int.from_bytes(timer[:8], "big") - _SHIFT


TIME: Final = "_hw_time"
"""The event time of a row that arrived: microseconds since 1970, an int64 that is never null."""
PARTITION: Final = "_hw_partition"
OFFSET: Final = "_hw_offset"
"""The position of a row in its topic; rows of one time are processed in order of partition and offset."""
INPUT_SHIFT: Final = 32
"""The bits of a partition above this one have the number of the query's input."""
DELETED: Final = "_hw_deleted"
"""Whether a table's row is deleted; then only its key columns are filled."""
SINCE: Final = "_hw_since"
"""The time from which a table's row is valid; for a late row, the time up to which its topic was already complete.

An operator whose result has this column and weights emits every version of every row, in order; other operators emit
the net change of a batch.
"""
WEIGHT: Final = "_hw_weight"
"""The weight of a Z-set row, an int64: -1 for a removed row, +1 for an added one; other numbers for several."""
QUARANTINE_REASON: Final = "_hw_refused"
"""The reason why an operator rejects an event, which is then quarantined; null for every other row."""


class Operator(Protocol):
    """A step with state per key.

    It is pure: of equal states, equal rows and an equal watermark it makes equal states and equal rows. It is pickled
    into Spark's workers, so it holds plain data only.
    """

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns of each input.

        Rows of one key reach one place; `step` may touch state of the keys of the rows it was given, and of those that
        are due, and no other.
        """

    @property
    def schema(self) -> pa.Schema:
        """The columns of its result, hidden ones (`WEIGHT`) among them."""

    @property
    def form(self) -> str:
        """The description of its state; state that was written under another description cannot be read."""

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process new rows and the timers that the watermark has reached.

        Args:
            state: The state; changed in place.
            inputs: One table for each input, perhaps empty; its rows in the order of time, partition and offset.
            watermark: Event time up to which all inputs are complete, in microseconds since 1970.

        Returns:
            Rows of exactly `schema`.
        """
