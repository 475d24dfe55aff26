"""State at the sink: what the store has committed, and on top of it what the present batch changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwater.engine.keyed.pages import MOST, Pages
from headwater.engine.keyed.state import Entry, MemoryState
from headwater.store import States, StateWrite

__all__ = ["Recent", "StoreState"]


class Recent:
    """The pages of single values that earlier batches have read or written, by space.

    Args:
        most: How many bytes of each space are kept in memory.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._spaces: dict[str, Pages] = {}

    def pages(self, states: States, space: str) -> Pages:
        """Those of one space."""
        if space not in self._spaces:
            self._spaces[space] = Pages(states, space, most=self._most)
        return self._spaces[space]

    def __iter__(self) -> Iterator[Pages]:
        return iter(self._spaces.values())

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
        self._named: dict[str, dict[bytes, dict[bytes, bytes | None]]] = {}
        self._whole = MemoryState()
        self._loaded: dict[str, set[bytes]] = {}
        self._kinds: dict[str, str] = {}

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        """The values of many entries, in the order asked for; None where there is none."""
        if names is None:
            return self._recent.pages(self._states, space).values(keys)
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
        self,
        space: str,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        values: Sequence[bytes | None],
        *,
        kinds: str = "",
    ) -> None:
        """Set many entries; None takes an entry away."""
        if names is None:
            self._recent.pages(self._states, space).put(keys, values)
            return
        if kinds:
            self._kinds[space] = kinds
        mine, loaded = self._named.setdefault(space, {}), self._loaded.get(space, ())
        for key, name, value in zip(keys, names, values, strict=True):
            mine.setdefault(key, {})[name] = value
            if key in loaded:
                self._whole.put(space, [key], [name], [value])

    def writes(self) -> tuple[StateWrite, ...]:
        """What the batch changes, to be committed with its rows."""
        single = [write for pages in self._recent if (write := pages.write())]
        named = []
        for space, below in self._named.items():
            entries = [(key, name, value) for key, mine in below.items() for name, value in mine.items()]
            if entries:
                keys, names, values = map(list, zip(*entries, strict=True))
                named.append(StateWrite(space, keys, names, values, kinds=self._kinds.get(space, "")))
        return (*single, *named)

    def committed(self) -> None:
        """The batch was taken: what it wrote is what the next one will read."""
        for pages in self._recent:
            pages.committed()
