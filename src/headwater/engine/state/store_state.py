"""State at the sink: the committed entries of the store, overlaid with the changes of the current batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwater.engine.state.hash_pages import CACHE_BYTES, HashPages
from headwater.engine.state.state import Entry, MemoryState
from headwater.store import StateStore, StateWrite

__all__ = ["PageCache", "StoreState"]


class PageCache:
    """The hash pages that earlier batches have read or written, by space.

    Args:
        cache_bytes: The maximum bytes of each space that stay in memory.
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
        """Discard all pages; required after a batch that was not committed."""
        self._spaces.clear()


class StoreState:
    """The state of one operator during one batch; implements `State`.

    Entries named b"" are in hash pages (`HashPages`), all others are entries of the store. Nothing is written before
    the commit: `build_writes` returns the changes, which commit in one transaction with the rows of the batch.

    Args:
        states: The committed state.
        page_cache: The pages that earlier batches have read or written.
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
        changes, loaded = self._map_changes.get(space, {}), self._prefetched_keys.get(space, set())
        unknown = [(key, name) for key, name in pairs if key not in loaded and name not in changes.get(key, {})]
        read = self._states.values(space, [key for key, _ in unknown], [name for _, name in unknown]) if unknown else []
        stored = dict(zip(unknown, read, strict=True))
        prefetched = self._prefetched.values(space, keys, names) if loaded else [None] * len(keys)
        return [
            changes[key][name] if name in changes.get(key, {}) else stored.get((key, name), value)
            for (key, name), value in zip(pairs, prefetched, strict=True)
        ]

    def prefetch(self, space: str, keys: Iterable[bytes]) -> None:
        """Read all entries of these keys with one query."""
        loaded = self._prefetched_keys.setdefault(space, set())
        missing = [key for key in dict.fromkeys(keys) if key not in loaded]
        stored = self._states.entries(space, missing) if missing else {}
        for key in missing:
            # The changes of the batch so far win over the store.
            entries = {**stored.get(key, {}), **self._map_changes.get(space, {}).get(key, {})}
            self._prefetched.put(space, [key] * len(entries), list(entries), list(entries.values()))
        loaded.update(missing)

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
        if key in self._prefetched_keys.get(space, ()):
            return self._prefetched.entries(space, key, low, high, limit=limit, reverse=reverse)
        changes = {
            name: value
            for name, value in self._map_changes.get(space, {}).get(key, {}).items()
            if low <= name and (high is None or name < high)
        }
        # Each change may delete one of the entries read, so as many more are read.
        enough = None if limit is None else limit + len(changes)
        found = self._states.scan(space, key, low, high, enough, backwards=reverse)
        if changes:
            merged = (dict(found) | changes).items()
            found = sorted([(name, value) for name, value in merged if value is not None], reverse=reverse)
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
        if names is None:
            self._page_cache.pages(self._states, space).put(keys, values)
            return
        if kinds:
            self._kinds[space] = kinds
        changes, loaded = self._map_changes.setdefault(space, {}), self._prefetched_keys.get(space, ())
        for key, name, value in zip(keys, names, values, strict=True):
            changes.setdefault(key, {})[name] = value  # None stays here: it deletes the entry with the commit
            if key in loaded:
                self._prefetched.put(space, [key], [name], [value])

    def build_writes(self) -> tuple[StateWrite, ...]:
        """Returns the changes of the batch, to be committed with its rows."""
        writes = [write for pages in self._page_cache if (write := pages.build_write())]
        for space, by_key in self._map_changes.items():
            entries = [(key, name, value) for key, changes in by_key.items() for name, value in changes.items()]
            if entries:
                keys, names, values = map(list, zip(*entries, strict=True))
                writes.append(StateWrite(space, keys, names, values, kinds=self._kinds.get(space, "")))
        return tuple(writes)

    def on_commit(self) -> None:
        """Record that the writes were committed; the next batch reads them."""
        for pages in self._page_cache:
            pages.on_commit()
