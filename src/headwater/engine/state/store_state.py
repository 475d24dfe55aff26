"""State at the sink: the committed entries of the store, overlaid with the changes of the current batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwater.engine.state.hash_pages import CACHE_BYTES, HashPages
from headwater.engine.state.state import Entry, MemoryState
from headwater.store import StateStore, StateWrite

__all__ = ["PageCache", "StoreState"]


class PageCache:
    """Hash pages that earlier batches have read or written, by space.

    Args:
        cache_bytes: How many bytes of each space are kept in memory.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._cache_bytes = cache_bytes
        self._spaces: dict[str, HashPages] = {}

    def pages(self, states: StateStore, space: str) -> HashPages:
        """Returns the pages of one space."""
        if space not in self._spaces:
            self._spaces[space] = HashPages(states, space, cache_bytes=self._cache_bytes)
        return self._spaces[space]

    def __iter__(self) -> Iterator[HashPages]:
        return iter(self._spaces.values())

    def clear(self) -> None:
        """Discard all pages, because a batch was not committed."""
        self._spaces.clear()


class StoreState:
    """The state of one operator during one batch; implements `State`.

    Args:
        states: What is committed.
        page_cache: What earlier batches have read or written.
    """

    def __init__(self, states: StateStore, page_cache: PageCache) -> None:
        self._states = states
        self._page_cache = page_cache
        self._map_changes: dict[str, dict[bytes, dict[bytes, bytes | None]]] = {}
        self._prefetched = MemoryState()
        self._prefetched_keys: dict[str, set[bytes]] = {}
        self._kinds: dict[str, str] = {}

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry."""
        if names is None:
            return self._page_cache.pages(self._states, space).values(keys)
        pairs = list(zip(keys, names, strict=True))
        mine, loaded = self._map_changes.get(space, {}), self._prefetched_keys.get(space, set())
        asked = [pair for pair in pairs if pair[0] not in loaded and pair[1] not in mine.get(pair[0], {})]
        read = self._states.values(space, [key for key, _ in asked], [name for _, name in asked]) if asked else []
        found = dict(zip(asked, read, strict=True))
        there = iter(self._prefetched.values(space, keys, names)) if loaded else iter([None] * len(keys))
        return [
            mine[key][name] if name in mine.get(key, {}) else found.get((key, name), whole)
            for (key, name), whole in zip(pairs, there, strict=True)
        ]

    def prefetch(self, space: str, keys: Iterable[bytes]) -> None:
        """Read all entries of these keys with one query."""
        loaded = self._prefetched_keys.setdefault(space, set())
        missing = [key for key in dict.fromkeys(keys) if key not in loaded]
        for key, below in self._states.entries(space, missing).items() if missing else ():
            self._prefetched.put(space, [key] * len(below), list(below), list(below.values()))
        loaded.update(missing)
        for key in missing:
            mine = self._map_changes.get(space, {}).get(key)
            if mine:
                self._prefetched.put(space, [key] * len(mine), list(mine), list(mine.values()))

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
        if key in self._prefetched_keys.get(space, ()):
            return self._prefetched.entries(space, key, low, high, limit=limit, reverse=reverse)
        mine = {
            name: value
            for name, value in self._map_changes.get(space, {}).get(key, {}).items()
            if low <= name and (high is None or name < high)
        }
        enough = None if limit is None else limit + len(mine)
        found = self._states.scan(space, key, low, high, enough, backwards=reverse)
        if mine:
            merged = dict(found) | mine
            kept = [(name, value) for name, value in merged.items() if value is not None]
            found = sorted(kept, reverse=reverse)
        return found if limit is None else found[:limit]

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
        if names is None:
            self._page_cache.pages(self._states, space).put(keys, values)
            return
        if kinds:
            self._kinds[space] = kinds
        mine, loaded = self._map_changes.setdefault(space, {}), self._prefetched_keys.get(space, ())
        for key, name, value in zip(keys, names, values, strict=True):
            mine.setdefault(key, {})[name] = value
            if key in loaded:
                self._prefetched.put(space, [key], [name], [value])

    def build_writes(self) -> tuple[StateWrite, ...]:
        """Returns the changes of the batch, which are committed with its rows."""
        single = [write for pages in self._page_cache if (write := pages.build_write())]
        named = []
        for space, below in self._map_changes.items():
            entries = [(key, name, value) for key, mine in below.items() for name, value in mine.items()]
            if entries:
                keys, names, values = map(list, zip(*entries, strict=True))
                named.append(StateWrite(space, keys, names, values, kinds=self._kinds.get(space, "")))
        return (*single, *named)

    def on_commit(self) -> None:
        """Record that the batch was committed: its writes become the base of the next batch."""
        for pages in self._page_cache:
            pages.on_commit()
