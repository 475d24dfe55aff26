"""What an operator remembers: entries of bytes, in named spaces, below keys; and a state that is all in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

__all__ = ["DUE", "Entry", "MemoryState", "State", "after"]

Entry = tuple[bytes, bytes]
"""What is below a key: a name, by whose bytes entries are in order, and a value."""
DUE: Final = "due"
"""The space of deadlines, below the key b"": the first 8 bytes of a name are a time (see `headwater.engine.keyed.due`).

Whoever runs an operator looks at the first entry there, and calls it again when the watermark has passed that time.
"""


class State(Protocol):
    """The state of one operator.

    An entry is found by its space, its key and its name below the key. Operators that keep one value for a key give it
    the name b"".
    """

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        """The values of many entries, in the order asked for; None where there is none.

        Args:
            space: Where to look.
            keys: The key of each entry.
            names: Its name below the key; b"" for all, if left out.
        """

    def load(self, space: str, keys: Iterable[bytes]) -> None:
        """All entries of these keys will be asked for: one look for all is cheaper than one for each."""

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        most: int | None = None,
        backwards: bool = False,
    ) -> list[Entry]:
        """The entries below a key whose names are from `low` up to, not including, `high`, in the order of names.

        Args:
            space: Where to look.
            key: The key.
            low: The lowest name.
            high: The first name that is too high; None for no limit.
            most: How many at most.
            backwards: From the highest name down.
        """

    def put(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None, values: Sequence[bytes | None]
    ) -> None:
        """Set many entries; None takes an entry away, whether it is there or not. `names` as in `values`."""


def after(prefix: bytes) -> bytes | None:
    r"""The first name that does not begin with these bytes and is above all that do; None when there is none.

    Example:
        >>> after(b"ab"), after(b"a\xff"), after(b"\xff")
        (b'ac', b'b', None)
    """
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None


class MemoryState:
    r"""A state that is all in memory: what a packed bucket is between two batches, and what tests use.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k"], [b"\x02", b"\x01"], [b"two", b"one"])
        >>> state.entries("seen", b"k", most=1), state.values("seen", [b"k", b"j"], [b"\x02", b"\x02"])
        ([(b'\x01', b'one')], [b'two', None])
    """

    def __init__(self) -> None:
        self._spaces: dict[str, dict[bytes, _Below]] = {}

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        """The values of many entries; None where there is none."""
        found = self._spaces.get(space)
        if not found:
            return [None] * len(keys)
        if names is None:
            return [below.values.get(b"") if (below := found.get(key)) else None for key in keys]
        pairs = zip(keys, names, strict=True)
        return [below.values.get(name) if (below := found.get(key)) else None for key, name in pairs]

    def load(self, space: str, keys: Iterable[bytes]) -> None:
        """Nothing to do: all is there."""

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        most: int | None = None,
        backwards: bool = False,
    ) -> list[Entry]:
        """The entries below a key, in the order of names."""
        below = self._spaces.get(space, {}).get(key)
        return [] if below is None else below.between(low, high, most, backwards)

    def put(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None, values: Sequence[bytes | None]
    ) -> None:
        """Set many entries; None takes an entry away."""
        below = self._spaces.setdefault(space, {})
        for key, name, value in zip(keys, names or [b""] * len(keys), values, strict=True):
            mine = below.get(key)
            if value is not None:
                if mine is None:
                    mine = below[key] = _Below()
                mine.put(name, value)
            elif mine is not None and mine.take(name):
                del below[key]

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes, bytes]]:
        """All entries: space, key, name, value."""
        for space, keys in self._spaces.items():
            for key, below in keys.items():
                for name, value in below.values.items():
                    yield space, key, name, value

    def __len__(self) -> int:
        return sum(len(below.values) for keys in self._spaces.values() for below in keys.values())


class _Below:
    """The entries of one key: by name, and the names in order once somebody asked for an order."""

    __slots__ = ("_order", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None

    def put(self, name: bytes, value: bytes) -> None:
        if self._order is not None and name not in self.values:
            insort(self._order, name)
        self.values[name] = value

    def take(self, name: bytes) -> bool:
        """Take an entry away; True when it was the last."""
        if self.values.pop(name, None) is not None and self._order is not None:
            del self._order[bisect_left(self._order, name)]
        return not self.values

    def between(self, low: bytes, high: bytes | None, most: int | None, backwards: bool) -> list[Entry]:
        if self._order is None:
            self._order = sorted(self.values)
        first = bisect_left(self._order, low)
        last = len(self._order) if high is None else max(first, bisect_left(self._order, high))
        if most is not None:
            first, last = (max(first, last - most), last) if backwards else (first, min(last, first + most))
        names = self._order[first:last]
        return [(name, self.values[name]) for name in (reversed(names) if backwards else names)]
