"""The operator interface, its state, and timers.

`State` stores entries of bytes in named spaces, by key and name; `MemoryState` keeps them in memory. Timers
(`set_timers`, `pop_timers`) let an operator see a key again when the watermark has passed a time. `Operator` is the
protocol of an operator with state per key, wherever it runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from headwater.engine.state.encoding import decode_time, encode_time

__all__ = [
    "DELETED",
    "INPUT_SHIFT",
    "LOCATION_MARK",
    "OFFSET",
    "PARTITION",
    "QUARANTINE_REASON",
    "QUARANTINE_SCHEMA",
    "SINCE",
    "TABLE_INPUT",
    "TIME",
    "TIMERS",
    "TIMESTAMP",
    "WEIGHT",
    "Entry",
    "MapValues",
    "MemoryState",
    "Operator",
    "SingleValues",
    "State",
    "StatefulStep",
    "TableJoin",
    "delete_timers",
    "describe_columns",
    "first_open_time",
    "next_timer",
    "pop_timers",
    "set_timers",
]

Entry = tuple[bytes, bytes]
"""One entry of a key: name and value. The entries of a key are sorted by the bytes of their names."""
SingleValues = dict[str, dict[bytes, bytes]]
"""Values by space and key."""
MapValues = dict[str, dict[bytes, dict[bytes, bytes]]]
"""Values by space, key and name."""
TIMERS: Final = "due"
"""The space of timers, under the key b"". The first 8 bytes of a name are the time of the timer.

The host of an operator reads the first entry, and calls the operator when the watermark has reached that time.
"""


class State(Protocol):
    """The state of one operator.

    An entry is found by its space, its key and its name below the key. Operators that keep one value for a key give it
    the name b"".
    """

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry.

        Args:
            space: The space of the entries.
            keys: The key of each entry.
            names: The name of each entry below its key; b"" for all if None.
        """

    def prefetch(self, space: str, keys: Iterable[bytes]) -> None:
        """Load all entries of these keys with one query, because they will be read."""

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
        """Returns the entries of a key with names in `[low, high)`, in order of name.

        Args:
            space: The space of the entries.
            key: Their key.
            low: The lowest name, inclusive.
            high: The highest name, exclusive; None for no limit.
            limit: The maximum number of entries.
            reverse: Whether the order is from the highest name down.
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
            space: The space of the entries.
            keys: The key of each entry.
            names: The name of each entry, as in `values`.
            values: The value of each entry.
            kinds: The type letters of the key columns (`kinds_of`), for spaces with many entries per key. With them
                `hw_state` can show the largest key.
        """


class MemoryState:
    r"""A state in memory: an unpacked key group during a batch, or the state of a test.

    Entries with the name b"" are stored in one dict per space, because an operator with one value per key may have
    millions of them.

    Args:
        single_values: The values of entries named b"", by space and key.
        map_values: The values of all other entries, by space, key and name.

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
        """The type letters of the key columns by space, "" if unknown; includes spaces that are empty now."""

    @property
    def single_values(self) -> SingleValues:
        """Returns the values of entries named b""; empty spaces are omitted."""
        return {space: keys for space, keys in self._single_values.items() if keys}

    @property
    def map_values(self) -> MapValues:
        """Returns the values of all other entries; empty spaces are omitted."""
        return {
            space: {key: below.values for key, below in keys.items()}
            for space, keys in self._map_values.items()
            if keys
        }

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        """Returns the values of many entries; None for a missing entry."""
        singles, maps = self._single_values.get(space, {}), self._map_values.get(space, {})
        if names is None:
            return list(map(singles.get, keys))
        return [
            singles.get(key) if not name else entries.values.get(name) if (entries := maps.get(key)) else None
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
        """Returns the entries of a key, in order of name."""
        entries = self._map_values.get(space, {}).get(key)
        found = [] if entries is None else entries.scan(low, high, limit, reverse)
        value = self._single_values.get(space, {}).get(key)
        if value is not None and not low and high != b"":  # the empty name sorts before all others
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
        singles, maps = self._single_values.setdefault(space, {}), self._map_values.setdefault(space, {})
        for key, name, value in zip(keys, [b""] * len(keys) if names is None else names, values, strict=True):
            if not name:
                if value is None:
                    singles.pop(key, None)
                else:
                    singles[key] = value
                continue
            entries = maps.get(key)
            if value is not None:
                if entries is None:
                    entries = maps[key] = _MapEntries({})
                entries.put(name, value)
            elif entries is not None and entries.remove(name):
                # A key without entries must not stay: the keys of a space would grow for ever.
                del maps[key]

    def __len__(self) -> int:
        named = sum(len(entries.values) for maps in self._map_values.values() for entries in maps.values())
        return named + sum(map(len, self._single_values.values()))


class _MapEntries:
    """The entries of one key by name. Names are sorted by the first scan, and kept sorted from then on."""

    __slots__ = ("_order", "values")

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = values
        self._order: list[bytes] | None = None

    def put(self, name: bytes, value: bytes) -> None:
        if self._order is not None and name not in self.values:
            insort(self._order, name)
        self.values[name] = value

    def remove(self, name: bytes) -> bool:
        """Delete an entry; returns whether none is left."""
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


def set_timers(state: State, times: Iterable[int], names: Iterable[bytes]) -> None:
    """Set timers with a time and a name; idempotent."""
    _put_timers(state, times, names, b"")


def delete_timers(state: State, times: Iterable[int], names: Iterable[bytes]) -> None:
    """Delete timers."""
    _put_timers(state, times, names, None)


def _put_timers(state: State, times: Iterable[int], names: Iterable[bytes], value: bytes | None) -> None:
    timers = [encode_time(time) + name for time, name in zip(times, names, strict=True)]
    state.put(TIMERS, [b""] * len(timers), timers, [value] * len(timers))


def pop_timers(state: State, watermark: int) -> list[tuple[int, bytes]]:
    """Remove the timers at or before the watermark; returns their times and names, in order.

    Example:
        >>> state = MemoryState()
        >>> set_timers(state, [30, 10, 20], [b"c", b"a", b"b"])
        >>> pop_timers(state, 20), next_timer(state)
        ([(10, b'a'), (20, b'b')], 30)
    """
    # A timer at t fires when the watermark reaches t; `high` is exclusive.
    timers = [timer for timer, _ in state.entries(TIMERS, b"", high=encode_time(watermark + 1))]
    state.put(TIMERS, [b""] * len(timers), timers, [None] * len(timers))
    return [(decode_time(timer), timer[8:]) for timer in timers]


def first_open_time(watermark: int) -> int:
    """Returns the earliest time that a later record may have: records at the watermark have all come.

    The hosts of operators pass this time to `StatefulStep.step`.
    """
    return watermark + 1


def next_timer(state: State) -> int | None:
    """Returns the time of the next timer; None if there is none."""
    first = state.entries(TIMERS, b"", limit=1)
    return decode_time(first[0][0]) if first else None


TIMESTAMP: Final = pa.timestamp("us", "UTC")
"""The type of every visible time column."""
TIME: Final = "_hw_time"
"""The event time of a row: microseconds since 1970, an int64 that is never null."""
PARTITION: Final = "_hw_partition"
OFFSET: Final = "_hw_offset"
"""The position of a row in its topic. Rows with equal event times are processed in order of partition and offset."""
INPUT_SHIFT: Final = 32
"""The bits of `PARTITION` from this one up hold the number of the query's input."""
DELETED: Final = "_hw_deleted"
"""Whether a table's row is deleted; if so, only its key columns are filled."""
SINCE: Final = "_hw_since"
"""The time from which a table's row is valid; for a late row, the time up to which its topic was already complete.

An operator whose result has this column beside `WEIGHT` emits every version of every row, in order. Other operators
emit the net change of a batch.
"""
WEIGHT: Final = "_hw_weight"
"""The weight of a Z-set row, an int64: +1 adds the row, -1 removes it; other numbers stand for several copies."""
QUARANTINE_REASON: Final = "_hw_refused"
"""The reason why an operator rejects an event, which is then quarantined; null for every other row."""
LOCATION_MARK: Final = "\n  at "
"""The text in such a reason before the line of the user's code that failed."""
QUARANTINE_SCHEMA: Final = pa.schema([(PARTITION, pa.int64()), (OFFSET, pa.int64()), (QUARANTINE_REASON, pa.string())])
"""The columns of a rejected event: its position and the reason."""


class StatefulStep(Protocol):
    """A step with state.

    It is deterministic: the same state, rows and watermark give the same new state and result.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result, including hidden ones such as `WEIGHT`."""

    @property
    def form(self) -> str:
        """The description of the state, stored with it. State with another description cannot be read."""

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process new rows and the timers that the watermark has reached.

        Args:
            state: The state; changed in place.
            inputs: One table for each input, possibly empty; its rows are in order of time, partition and offset.
            watermark: Event time below which all inputs are complete (`first_open_time`), in microseconds since 1970.

        Returns:
            Rows of exactly `schema`.
        """


class Operator(StatefulStep, Protocol):
    """A step with state per key, which can run on several hosts.

    It is pickled into Spark's workers, so it holds plain data only.
    """

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns of each input.

        Rows of one key are always processed together. `step` may read and write only the state of the keys of its rows
        and of its expired timers, because the state of other keys may be on another host.
        """

    @property
    def uses_event_time(self) -> bool:
        """Whether its result depends on the watermark. If so, late events are left out before they reach it."""


TABLE_INPUT: Final = 1
"""The number of the table among the inputs of a `TableJoin`."""


@runtime_checkable
class TableJoin(Operator, Protocol):
    """An operator that joins events with a table, and whose events wait until the table is complete at their time.

    A table is often complete long before the watermark, which also waits for late events. So its hosts pass the
    watermark of the table, too.
    """

    def next_release(self, state: State) -> int | None:
        """Returns the time above which the table's watermark releases the next event; None if no event waits."""

    def step(
        self, state: State, inputs: Sequence[pa.Table], watermark: int, table_watermark: int | None = None
    ) -> pa.Table:
        """Process new rows, and the events for which the table is complete now.

        Args:
            state: The state; changed in place.
            inputs: The events and the table's rows.
            watermark: Event time below which all inputs are complete.
            table_watermark: The same of the table alone; None if it is not known.

        Returns:
            Rows of exactly `schema`.
        """


def describe_columns(schema: pa.Schema) -> str:
    """Returns names and types of columns as text, for the `form` of an operator.

    Example:
        >>> describe_columns(pa.schema([("x", pa.int64()), ("y", pa.string())]))
        'x int64, y string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema)
