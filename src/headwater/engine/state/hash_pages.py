"""Hash pages and delta logs: state values of many keys in few entries of the store.

A page holds the values of several keys, so a batch writes fewer entries. The page of a key follows from its hash and
the number of pages. Pages are split one at a time as the state grows (linear hashing), so no batch moves the whole
state.

A batch that touches few of very many keys would touch almost as many pages. Such a batch writes its changes as one
entry, its delta log (`DeltaLog`), and flushes to the pages only the changes of one slot of keys, whose pages are
neighbours in the store. After as many batches as there are slots, every change of a log is in the pages.

A space has one entry per page, one per log, and one header under the empty key: the number of pages, their size in
bytes, and the range of logs still needed. Empty pages are stored too, so that a lost page is detected when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.engine.state.encoding import hash_key, hash_keys, split_bytes
from headwater.store import StateStore, StateWrite

__all__ = ["CACHE_BYTES", "SLOTS", "Changes", "DeltaLog", "HashPages", "slot_of"]

SLOTS: Final = 32
"""The number of slots. With more slots, a batch writes fewer pages, and more changes stay in memory."""

Changes = dict[bytes, bytes | None]
"""Changed values by key; None for a deleted key."""
_LogRecord = tuple[Changes, list[bytes]]


def slot_of(key: bytes) -> int:
    """Returns the slot of a key, from the same hash that selects its page."""
    return hash_key(key) % SLOTS


class DeltaLog:
    """The changes in delta logs that are not in the pages yet.

    Logs are numbered, one for each batch. The batch of log n flushes slot n % `SLOTS`, so a log is needed for as many
    batches as there are slots.

    Attributes:
        values: The changes by key; None for a deleted key.
        first_log: The number of the first log that is still needed.
        next_log: The number of the next log.

    Example:
        >>> deltas = DeltaLog()
        >>> log = deltas.append({b"a": b"1", b"b": b"2"}, new=[b"b"])
        >>> deltas.key_count_delta, deltas.values[b"a"], DeltaLog.read(0, 1, [log]).values == deltas.values
        (1, b'1', True)
    """

    def __init__(self, first_log: int = 0, next_log: int = 0) -> None:
        self.values: Changes = {}
        self.first_log, self.next_log = first_log, next_log
        self._slots: list[list[bytes]] = [[] for _ in range(SLOTS)]
        self._new_keys: set[bytes] = set()
        self._deleted_keys: set[bytes] = set()

    @property
    def key_count_delta(self) -> int:
        """The number of keys that the logs add to those in the pages; negative if they delete more than they add."""
        return len(self._new_keys) - len(self._deleted_keys)

    @classmethod
    def read(cls, first_log: int, next_log: int, logs: Sequence[bytes | None]) -> DeltaLog:
        """Decodes the logs of a range; leaves out changes that later batches have flushed.

        Raises:
            msgspec.DecodeError: A log is damaged or missing.
        """
        deltas, last = cls(first_log, next_log), next_log - 1
        for number, log in enumerate(logs, first_log):
            if log is None:
                message = f"delta log {number} of the state is missing"
                raise msgspec.DecodeError(message)
            changes, new = msgspec.msgpack.decode(log, type=_LogRecord)
            # `last - (last - slot) % SLOTS` is the last batch that flushed a slot; below 0 if none has.
            kept = {key: value for key, value in changes.items() if last - (last - slot_of(key)) % SLOTS < number}
            deltas._record(kept, [key for key in new if key in kept])
        return deltas

    def append(self, changes: Changes, new: Sequence[bytes]) -> bytes:
        """Add the changes of a batch; returns its encoded log.

        Args:
            changes: The changes.
            new: The keys among them that have no value yet, neither in the logs nor in the pages.
        """
        self._record(changes, new)
        return msgspec.msgpack.encode((changes, new))

    def flush_slot(self) -> tuple[Changes, range]:
        """Remove the changes of this batch's slot; returns them, and the numbers of logs that are no longer needed."""
        slot = self.next_log % SLOTS
        keys, self._slots[slot] = self._slots[slot], []
        moved = {key: self.values.pop(key) for key in keys}
        self._new_keys.difference_update(keys)
        self._deleted_keys.difference_update(keys)
        self.next_log += 1
        first, self.first_log = self.first_log, max(self.first_log, self.next_log - SLOTS + 1)
        return moved, range(first, self.first_log)

    def flush_all(self) -> tuple[Changes, range]:
        """Remove all changes; returns them, and the numbers of all logs."""
        moved, self.values = self.values, {}
        first, self.first_log = self.first_log, self.next_log
        self._slots, self._new_keys, self._deleted_keys = [[] for _ in range(SLOTS)], set(), set()
        return moved, range(first, self.first_log)

    def _record(self, changes: Changes, new: Sequence[bytes]) -> None:
        for key in changes:
            if key not in self.values:
                self._slots[slot_of(key)].append(key)
        self.values |= changes
        # A new key that is deleted again is in both sets, and so does not count.
        self._new_keys.update(new)
        self._deleted_keys.difference_update(changes)
        self._deleted_keys.update(key for key, value in changes.items() if value is None)


_PAGE_BYTES: Final = 300
"""The average page size in bytes. Larger pages suit batches that touch most keys, smaller pages all others."""
CACHE_BYTES: Final = 32_000_000
"""The size of the page cache in bytes. If a space exceeds it, its cache is emptied."""
_MAX_LOGGED_KEYS: Final = 10_000
"""A batch that changes more keys writes no log, because logged changes stay in memory."""
_MIN_PAGES_PER_KEY: Final = 4
"""A batch writes a log if there are this many pages per changed key: almost every key is then on a page of its own."""
_HEADER_KEY: Final = b""
_LOG_PREFIX: Final = b"log"
_EMPTY_PAGE: Final = msgspec.msgpack.encode({})
_REVERSED_BITS: Final = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)

PageContent = dict[bytes, bytes]
Numbers = npt.NDArray[np.uint32]


class HashPages:
    """The single values of one space: committed pages, and the changes of the current batch.

    Pages that were read or written stay in memory. They are right only while every commit succeeds; after a failed
    commit the object must be discarded.

    Args:
        states: The committed state.
        space: The space.
        cache_bytes: The size of the page cache in bytes.
        page_bytes: The average size of a page in bytes.
        max_logged_keys: The maximum number of changed keys of a batch that writes a log.

    Raises:
        msgspec.DecodeError: A page or a log is damaged or missing.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.store import SqlStore, SqliteDialect
        >>> pages = HashPages(SqlStore(SqliteDialect(Path(tempfile.mkdtemp()))).state_store("seen@1"), "seen")
        >>> pages.put([b"ada"], [b"1"])
        >>> pages.values([b"ada", b"bob"]), pages.build_write().key_counts
        ([b'1', None], [0, 1])
    """

    def __init__(
        self,
        states: StateStore,
        space: str,
        *,
        cache_bytes: int = CACHE_BYTES,
        page_bytes: int = _PAGE_BYTES,
        max_logged_keys: int = _MAX_LOGGED_KEYS,
    ) -> None:
        self._states = states
        self._space = space
        self._cache_bytes = cache_bytes
        self._page_bytes = page_bytes
        self._max_logged_keys = max_logged_keys
        self._contents: dict[int, PageContent] = {}
        self._page_sizes: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._changes: Changes = {}
        (header,) = self._read_entries([_HEADER_KEY])
        self._has_pages = header is not None
        known = msgspec.msgpack.decode(header, type=tuple[int, int, int, int]) if header else (1, 0, 0, 0)
        self._page_count, self._total_bytes, first, end = known
        self._delta_log = DeltaLog.read(first, end, self._read_entries(list(map(_log_key, range(first, end)))))

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the value of each key; None for a missing key."""
        changed, logged = self._changes, self._delta_log.values
        if not changed and not logged:
            return self._read_pages(keys)
        paged = [key for key in keys if key not in changed and key not in logged]
        found = dict(zip(paged, self._read_pages(paged), strict=True))
        return [changed[key] if key in changed else logged[key] if key in logged else found[key] for key in keys]

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set values; None deletes a key."""
        self._changes.update(zip(keys, values, strict=True))

    def build_write(self) -> StateWrite | None:
        """Returns the write of the batch; None if nothing changed."""
        changed, self._changes = self._changes, {}
        if not changed:
            return None
        logs: Changes = {}
        deltas = self._delta_log
        if len(changed) <= min(self._max_logged_keys, self._page_count // _MIN_PAGES_PER_KEY):
            unlogged = [key for key in changed if key not in deltas.values]
            new = [key for key, old in zip(unlogged, self._read_pages(unlogged), strict=True) if old is None]
            # Appended before the flush, which takes this batch's changes of the slot with it.
            logs[_log_key(deltas.next_log)] = deltas.append(changed, new)
            flushed, obsolete = deltas.flush_slot()
        else:
            flushed, obsolete = deltas.flush_all()
            flushed |= changed
        logs |= {_log_key(number): None for number in obsolete}
        packed = self._apply(flushed)
        header = msgspec.msgpack.encode((self._page_count, self._total_bytes, deltas.first_log, deltas.next_log))
        keys = [_HEADER_KEY, *logs, *_entry_keys(packed)]
        key_counts = [deltas.key_count_delta, *([0] * len(logs)), *(len(self._contents[page]) for page in packed)]
        values = [header, *logs.values(), *packed.values()]
        return StateWrite(self._space, keys, [b""] * len(keys), values, key_counts)

    def _apply(self, flushed: Changes) -> dict[int, bytes]:
        """Apply changes to their pages; returns the encoded pages to write."""
        contents, pages = self._contents, self._load_pages_of(list(flushed))
        self._dirty.update(pages)
        for page, (key, value) in zip(pages, flushed.items(), strict=True):
            if value is None:
                contents[page].pop(key, None)
            else:
                contents[page][key] = value
        packed = self._encode_pages(self._dirty)
        # Repeated, because each new page adds a few bytes of its own to the total.
        while (wanted := -(-self._total_bytes // self._page_bytes)) > self._page_count:
            packed |= self._encode_pages(self._split_pages(wanted))
        return packed

    def on_commit(self) -> None:
        """Record that the result of `build_write` was committed."""
        self._has_pages = self._has_pages or bool(self._dirty)
        self._dirty.clear()
        if sum(self._page_sizes.values()) > self._cache_bytes:
            self._contents.clear()
            self._page_sizes.clear()

    def _read_pages(self, keys: Sequence[bytes]) -> list[bytes | None]:
        contents, pages = self._contents, self._load_pages_of(keys)
        return [contents[page].get(key) for page, key in zip(pages, keys, strict=True)]

    def _load_pages_of(self, keys: Sequence[bytes]) -> list[int]:
        """Load the page of each key into memory and return their numbers."""
        pages: list[int] = _page_of(hash_keys(keys), self._page_count).tolist()
        self._load_pages(set(pages))
        return pages

    def _load_pages(self, pages: set[int]) -> None:
        missing = list(pages - self._contents.keys())
        # In the order of the store, so that neighbouring entries are read from one database page.
        by_entry = dict(sorted(zip(_entry_keys(missing), missing, strict=True)))
        decode = msgspec.msgpack.Decoder(PageContent).decode
        for page, packed in zip(by_entry.values(), self._read_entries(list(by_entry)), strict=True):
            # Before the first commit of pages no page has an entry; after it, every page has one.
            if (packed is None) is self._has_pages:
                message = f"page {page} of {self._space!r}, or the header of the space, is missing"
                raise msgspec.DecodeError(message)
            self._contents[page] = {} if packed is None else decode(packed)
            self._page_sizes[page] = len(packed or _EMPTY_PAGE) - len(_EMPTY_PAGE)

    def _read_entries(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._states.values(self._space, keys, [b""] * len(keys)) if keys else []

    def _encode_pages(self, pages: Iterable[int]) -> dict[int, bytes]:
        """Encode pages and update the sizes."""
        encode = msgspec.msgpack.Encoder().encode
        packed = {page: encode(self._contents[page]) for page in pages}
        sizes = {page: len(content) - len(_EMPTY_PAGE) for page, content in packed.items()}
        self._total_bytes += sum(sizes.values()) - sum(self._page_sizes.get(page, 0) for page in sizes)
        self._page_sizes |= sizes
        return packed

    def _split_pages(self, count: int) -> set[int]:
        """Split pages until there are this many; returns the changed pages."""
        new = np.arange(self._page_count, count, dtype=np.uint32)
        # Linear hashing: only these pages have keys that belong to the new pages.
        old = set(_page_of(new, self._page_count).tolist())
        self._load_pages(old)
        moved = {key: value for page in old for key, value in self._contents[page].items()}
        changed = old | set(new.tolist())
        self._contents |= {page: {} for page in changed}
        for page, (key, value) in zip(_page_of(hash_keys(moved), count).tolist(), moved.items(), strict=True):
            self._contents[page][key] = value
        self._page_count = count
        self._dirty |= changed
        return changed


def _log_key(number: int) -> bytes:
    return _LOG_PREFIX + number.to_bytes(8, "big")


def _entry_keys(pages: Iterable[int]) -> list[bytes]:
    r"""Returns the entry key of each page: its number with bits reversed, so that pages of a slot are adjacent.

    Example:
        >>> _entry_keys([1, 2, 3])
        [b'\x80\x00\x00\x00', b'@\x00\x00\x00', b'\xc0\x00\x00\x00']
    """
    return split_bytes(_REVERSED_BITS[np.fromiter(pages, "<u4").view(np.uint8)].tobytes(), 4)


def _page_of(hashes: Numbers, count: int) -> Numbers:
    """Returns the page of each hash: its last bits, or one bit less if there is no such page yet.

    Example:
        >>> _page_of(np.array([0, 1, 2, 3, 4, 5, 6, 7], np.uint32), 5).tolist()
        [0, 1, 2, 3, 4, 1, 2, 3]
    """
    bits = (count - 1).bit_length()
    page = hashes & np.uint32((1 << bits) - 1)
    return np.where(page < count, page, hashes & np.uint32((1 << bits) // 2 - 1 if bits else 0))
