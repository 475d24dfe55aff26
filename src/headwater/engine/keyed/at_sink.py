"""State at the sink: what the store has committed, and on top of it what the present batch changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from headwater.engine.keyed.state import Entry, MemoryState
from headwater.store import States, StateWrite

__all__ = ["Recent", "StoreState"]

_MOST: Final = 1_000_000
"""How many single values are kept in memory; beyond it all are read anew, as after a restart."""


class Recent:
    """Single values that were read or written lately; valid as long as every commit of this process was taken.

    Example:
        >>> recent = Recent(most=2)
        >>> recent.keep("seen", {b"a": b"1", b"b": None})
        >>> recent.space("seen")[b"a"]
        b'1'
        >>> recent.keep("seen", {b"c": b"3"})
        >>> list(recent.space("seen"))
        [b'c']
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._spaces: dict[str, dict[bytes, bytes | None]] = {}

    def space(self, space: str) -> dict[bytes, bytes | None]:
        """What is known of a space; None for a key that is known to have no value."""
        return self._spaces.setdefault(space, {})

    def keep(self, space: str, values: dict[bytes, bytes | None]) -> None:
        """Remember what was read or committed; when that is too much, nothing but it."""
        known = self.space(space)
        if len(known) + len(values) > self._most:
            known.clear()
        known.update(islice(values.items(), self._most))

    def clear(self) -> None:
        """Forget everything: a batch was not committed."""
        self._spaces.clear()


class StoreState:
    """The state of one operator during one batch; implements `State`.

    Args:
        states: What is committed.
        recent: What earlier batches have read or written.
    """

    def __init__(self, states: States, recent: Recent) -> None:
        self._states = states
        self._recent = recent
        self._single: dict[str, dict[bytes, bytes | None]] = {}
        self._named: dict[str, dict[bytes, dict[bytes, bytes | None]]] = {}
        self._whole = MemoryState()
        self._loaded: dict[str, set[bytes]] = {}

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        """The values of many entries, in the order asked for; None where there is none."""
        if names is None:
            return self._singles(space, keys)
        pairs = list(zip(keys, names, strict=True))
        mine, loaded = self._named.get(space, {}), self._loaded.get(space, set())
        asked = [pair for pair in pairs if pair[0] not in loaded and pair[1] not in mine.get(pair[0], {})]
        read = (
            self._states.values(space, [key for key, _ in asked], [name for _, name in asked])
            if asked
            else []
        )
        found = dict(zip(asked, read, strict=True))
        there = iter(self._whole.values(space, keys, names)) if loaded else iter([None] * len(keys))
        return [
            mine[key][name] if name in mine.get(key, {}) else found.get((key, name), whole)
            for (key, name), whole in zip(pairs, there, strict=True)
        ]

    def _singles(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        mine, known = self._single.get(space, {}), self._recent.space(space)
        unknown = [key for key in keys if key not in known and key not in mine]
        if unknown:
            unknown = list(dict.fromkeys(unknown))
            read = self._states.values(space, unknown, [b""] * len(unknown))
            found = dict(zip(unknown, read, strict=True))
            if len(found) == len(keys):
                self._recent.keep(space, found)
                return [found[key] for key in keys]
            known = known | found
            self._recent.keep(space, found)
        if not mine:
            return [known[key] for key in keys]
        return [mine[key] if key in mine else known[key] for key in keys]

    def load(self, space: str, keys: Iterable[bytes]) -> None:
        """All entries of these keys will be asked for: one look for all is cheaper than one for each."""
        loaded = self._loaded.setdefault(space, set())
        missing = [key for key in dict.fromkeys(keys) if key not in loaded]
        for key, below in self._states.below(space, missing).items() if missing else ():
            self._whole.put(space, [key] * len(below), list(below), list(below.values()))
        loaded.update(missing)
        for key in missing:
            mine = self._named.get(space, {}).get(key)
            if mine:
                self._whole.put(space, [key] * len(mine), list(mine), list(mine.values()))

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
        if key in self._loaded.get(space, ()):
            return self._whole.entries(space, key, low, high, most=most, backwards=backwards)
        mine = {
            name: value
            for name, value in self._named.get(space, {}).get(key, {}).items()
            if low <= name and (high is None or name < high)
        }
        enough = None if most is None else most + len(mine)
        found = self._states.scan(space, key, low, high, enough, backwards=backwards)
        if mine:
            merged = dict(found) | mine
            kept = [(name, value) for name, value in merged.items() if value is not None]
            found = sorted(kept, reverse=backwards)
        return found if most is None else found[:most]

    def put(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None, values: Sequence[bytes | None]
    ) -> None:
        """Set many entries; None takes an entry away."""
        if names is None:
            self._single.setdefault(space, {}).update(zip(keys, values, strict=True))
            return
        mine, loaded = self._named.setdefault(space, {}), self._loaded.get(space, ())
        for key, name, value in zip(keys, names, values, strict=True):
            mine.setdefault(key, {})[name] = value
            if key in loaded:
                self._whole.put(space, [key], [name], [value])

    def writes(self) -> tuple[StateWrite, ...]:
        """What the batch changes, to be committed with its rows."""
        single = [
            StateWrite(space, list(values), [b""] * len(values), list(values.values()))
            for space, values in self._single.items()
            if values
        ]
        named = []
        for space, below in self._named.items():
            entries = [(key, name, value) for key, mine in below.items() for name, value in mine.items()]
            if entries:
                named.append(StateWrite(space, *map(list, zip(*entries, strict=True))))
        return (*single, *named)

    def committed(self) -> None:
        """The batch was taken: what it wrote is what the next one will read."""
        for space, values in self._single.items():
            self._recent.keep(space, values)
