"""What an operator remembers: entries of bytes, in named spaces, below keys; and a state that is all in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

__all__ = ["DUE", "Entry", "MemoryState", "Named", "Plain", "State", "after"]

Entry = tuple[bytes, bytes]
"""What is below a key: a name, by whose bytes entries are in order, and a value."""
Plain = dict[str, dict[bytes, bytes]]
"""Values by space and key."""
Named = dict[str, dict[bytes, dict[bytes, bytes]]]
"""Values by space, key and name."""
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
        self,
        space: str,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        values: Sequence[bytes | None],
        *,
        kinds: str = "",
    ) -> None:
        """Set many entries; None takes an entry away, whether it is there or not.

        Args:
            space: Where to.
            keys: The key of each entry.
            names: As in `values`.
            values: Its value.
            kinds: What the columns of the keys are (`kinds_of`), where keys have many entries: so that people can be
                told which key has most.
        """


def after(prefix: bytes) -> bytes | None:
    r"""The first name that does not begin with these bytes and is above all that do; None when there is none.

    Example:
        >>> after(b"ab"), after(b"a\xff"), after(b"\xff")
        (b'ac', b'b', None)
    """
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None


class MemoryState:
    r"""A state that is all in memory: what a packed bucket is during a batch, and what tests use.

    Values without a name are in plain dicts: of an operator that has one value for each key, millions may come and go.

    Args:
        plain: Values without a name, by space and key.
        named: Values with one, by space, key and name.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k"], [b"\x02", b"\x01"], [b"two", b"one"])
        >>> state.entries("seen", b"k", most=1), state.values("seen", [b"k", b"j"], [b"\x02", b"\x02"])
        ([(b'\x01', b'one')], [b'two', None])
    """

    def __init__(self, plain: Plain | None = None, named: Named | None = None) -> None:
        self._plain: Plain = plain or {}
        self._named: dict[str, dict[bytes, _Below]] = {
            space: {key: _Below(values) for key, values in keys.items()}
            for space, keys in (named or {}).items()
        }
        self.kinds: dict[str, str] = dict.fromkeys([*self._plain, *self._named], "")
        """By space, also of those that are empty by now, what the columns of its keys are, as far as that was told."""

    @property
    def plain(self) -> Plain:
        """All values without a name; spaces that have none are left out."""
        return {space: keys for space, keys in self._plain.items() if keys}

    @property
    def named(self) -> Named:
        """All values with a name; spaces that have none are left out."""
        return {
            space: {key: below.values for key, below in keys.items()}
            for space, keys in self._named.items()
            if keys
        }

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        """The values of many entries; None where there is none."""
        plain, named = self._plain.get(space, {}), self._named.get(space, {})
        if names is None:
            return list(map(plain.get, keys))
        return [
            plain.get(key) if not name else below.values.get(name) if (below := named.get(key)) else None
            for key, name in zip(keys, names, strict=True)
        ]

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
        below = self._named.get(space, {}).get(key)
        found = [] if below is None else below.between(low, high, most, backwards)
        value = self._plain.get(space, {}).get(key)
        if value is not None and not low and high != b"":
            # The empty name is before all others.
            found = [*found, (b"", value)] if backwards else [(b"", value), *found]
        return found[:most]

    def put(
        self,
        space: str,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        values: Sequence[bytes | None],
        *,
        kinds: str = "",
    ) -> None:
        """Set many entries; None takes an entry away."""
        self.kinds[space] = kinds or self.kinds.get(space, "")
        plain = self._plain.setdefault(space, {})
        if names is None:
            for key, value in zip(keys, values, strict=True):
                _set(plain, key, value)
            return
        named = self._named.setdefault(space, {})
        for key, name, value in zip(keys, names, values, strict=True):
            mine = named.get(key)
            if not name:
                _set(plain, key, value)
            elif value is not None:
                if mine is None:
                    mine = named[key] = _Below({})
                mine.put(name, value)
            elif mine is not None and mine.take(name):
                del named[key]

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes, bytes]]:
        """All entries: space, key, name, value."""
        for space, singles in self.plain.items():
            yield from ((space, key, b"", value) for key, value in singles.items())
        for space, keys in self.named.items():
            for key, below in keys.items():
                yield from ((space, key, name, value) for name, value in below.items())

    def __len__(self) -> int:
        named = sum(len(below.values) for keys in self._named.values() for below in keys.values())
        return named + sum(map(len, self._plain.values()))


def _set(values: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


class _Below:
    """The entries of one key: by name, and the names in order once somebody asked for an order."""

    __slots__ = ("_order", "values")

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = values
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
