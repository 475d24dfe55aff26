"""Hash pages and delta logs: state values of many keys in few entries of the store.

A page holds the values of several keys, so a batch writes fewer entries. The page of a key follows from its hash and
the number of pages. Pages are split one at a time as the state grows (linear hashing), so no batch moves the whole
state.

A batch that touches few of very many keys would touch almost as many pages. Such a batch writes its changes as one
entry, its delta log (`DeltaLog`), and flushes the changes of one slot of keys, which are neighbours in the store, to
their pages. After as many batches as there are slots, every change of a log is in the pages.

A space has one entry per page, one per log, and one under the empty key with the number of pages, their size in bytes
and the logs still needed. Empty pages are stored too, so that a lost page is detected when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.engine.state.encoding import hash_key, hash_keys
from headwater.store import StateStore, StateWrite

__all__ = ["CACHE_BYTES", "SLOTS", "Changes", "DeltaLog", "HashPages", "slot_of"]

SLOTS: Final = 32
"""The number of slots: with more, a batch writes fewer pages and more changes stay in memory."""

Changes = dict[bytes, bytes | None]
_LogRecord = tuple[Changes, list[bytes]]


def slot_of(key: bytes) -> int:
    """Returns the slot of a key, from the same hash that selects its page."""
    return hash_key(key) % SLOTS


class DeltaLog:
    """The changes in delta logs that are not in the pages yet.

    Attributes:
        values: The value of each key that has one here; None where it was taken away.
        first: The number of the first log that is still needed.
        next_: The number of the next one.

    Example:
        >>> overlay = DeltaLog()
        >>> log = overlay.append({b"a": b"1", b"b": b"2"}, new=[b"b"])
        >>> overlay.key_count_delta, overlay.values[b"a"], DeltaLog.read(0, 1, [log]).values == overlay.values
        (1, b'1', True)
    """

    def __init__(self, first: int = 0, next_: int = 0) -> None:
        self.values: Changes = {}
        self.first_log, self.next_log = first, next_
        self._slots: list[list[bytes]] = [[] for _ in range(SLOTS)]
        self._new_keys: set[bytes] = set()
        self._deleted_keys: set[bytes] = set()

    @property
    def key_count_delta(self) -> int:
        """Returns how many more keys have a value with the logs than in the pages alone; may be negative."""
        return len(self._new_keys) - len(self._deleted_keys)

    @classmethod
    def read(cls, first: int, next_: int, logs: Sequence[bytes | None]) -> DeltaLog:
        """Reads logs in order of their numbers, without the changes that were flushed since.

        Raises:
            msgspec.DecodeError: One is damaged, or gone.
        """
        overlay = cls(first, next_)
        for number, log in enumerate(logs, first):
            if log is None:
                message = f"log {number} of the state is gone"
                raise msgspec.DecodeError(message)
            changes, new = msgspec.msgpack.decode(log, type=_LogRecord)
            later = {key: value for key, value in changes.items() if _last_flush(slot_of(key), next_) < number}
            overlay._record(later, [key for key in new if key in later])
        return overlay

    def append(self, changes: Changes, new: Sequence[bytes]) -> bytes:
        """Add the changes of a batch; returns its log entry.

        Args:
            changes: By key; None takes a value away.
            new: Those of them that are neither here nor in the pages.
        """
        self._record(changes, new)
        return msgspec.msgpack.encode((changes, new))

    def flush_slot(self) -> tuple[Changes, range]:
        """Returns the changes to flush to pages with this batch, and the numbers of logs no longer needed."""
        keys, self._slots[self.next_log % SLOTS] = self._slots[self.next_log % SLOTS], []
        moved = {key: self.values.pop(key) for key in keys}
        self._new_keys.difference_update(keys)
        self._deleted_keys.difference_update(keys)
        self.next_log += 1
        return moved, self._drop_logs_before(max(self.first_log, self.next_log - SLOTS + 1))

    def flush_all(self) -> tuple[Changes, range]:
        """Returns all changes to flush, and the numbers of all logs."""
        moved, self.values = self.values, {}
        self._new_keys.clear()
        self._deleted_keys.clear()
        self._slots = [[] for _ in range(SLOTS)]
        return moved, self._drop_logs_before(self.next_log)

    def _drop_logs_before(self, number: int) -> range:
        gone, self.first_log = range(self.first_log, number), number
        return gone

    def _record(self, changes: Changes, new: Sequence[bytes]) -> None:
        for key in changes:
            if key not in self.values:
                self._slots[slot_of(key)].append(key)
        self.values |= changes
        self._new_keys.update(new)
        self._deleted_keys.difference_update(changes)
        self._deleted_keys.update(key for key, value in changes.items() if value is None)


def _last_flush(slot: int, next_: int) -> int:
    """Returns the last batch in which a slot was flushed; below 0 if none."""
    return next_ - 1 - (next_ - 1 - slot) % SLOTS


_PAGE_BYTES: Final = 300
"""The average page size in bytes: larger pages make batches that touch most keys cheaper, others dearer."""
CACHE_BYTES: Final = 32_000_000
"""The size of the page cache in bytes; if it is exceeded, all pages are read again, as after a restart."""
_MAX_LOGGED_KEYS: Final = 10_000
"""Changes of more keys than this are never logged, because logged changes stay in memory."""
_MIN_PAGES_PER_KEY: Final = 4
"""Changes are logged if there are this many pages per changed key: almost every key is then on its own page."""
_HEADER_KEY: Final = b""
_LOG_PREFIX: Final = b"log"
_EMPTY_PAGE: Final = msgspec.msgpack.encode({})
_REVERSED_BITS: Final = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)

PageContent = dict[bytes, bytes]
Numbers = npt.NDArray[np.uint32]


class HashPages:
    """The single values of one space: committed pages, and the changes of the current batch.

    Pages that were read or written stay in memory. This is correct only while every commit of this process succeeds;
    after a failed commit the object must be discarded.

    Args:
        states: The committed state.
        space: The space.
        cache_bytes: The size of the page cache in bytes.
        page_bytes: The average size of a page in bytes.
        max_logged_keys: The maximum number of keys whose changes are logged.

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
        self._page_count, self._total_bytes, first, next_ = known
        self._delta_log = DeltaLog.read(first, next_, self._read_entries([_log_key(n) for n in range(first, next_)]))

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the value of each key; None where there is none."""
        changed, lately = self._changes, self._delta_log.values
        if not changed and not lately:
            return self._read_pages(keys)
        older = [key for key in keys if key not in changed and key not in lately]
        found = dict(zip(older, self._read_pages(older), strict=True))
        return [changed[key] if key in changed else lately[key] if key in lately else found[key] for key in keys]

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set values; None deletes one."""
        self._changes.update(zip(keys, values, strict=True))

    def build_write(self) -> StateWrite | None:
        """Returns the write of the batch; None if nothing changed."""
        changed, self._changes = self._changes, {}
        if not changed:
            return None
        logs: Changes = {}
        if len(changed) <= min(self._max_logged_keys, self._page_count // _MIN_PAGES_PER_KEY):
            unknown = [key for key in changed if key not in self._delta_log.values]
            there = zip(unknown, self._read_pages(unknown), strict=True)
            logs[_log_key(self._delta_log.next_log)] = self._delta_log.append(
                changed, [k for k, v in there if v is None]
            )
            moved, done = self._delta_log.flush_slot()
        else:
            moved, done = self._delta_log.flush_all()
            moved |= changed
        logs |= {_log_key(number): None for number in done}
        packed = self._apply(moved)
        header = (self._page_count, self._total_bytes, self._delta_log.first_log, self._delta_log.next_log)
        keys = [_HEADER_KEY, *logs, *_entry_keys(packed)]
        values = [msgspec.msgpack.encode(header), *logs.values(), *packed.values()]
        key_counts = [
            self._delta_log.key_count_delta,
            *([0] * len(logs)),
            *(len(self._contents[page]) for page in packed),
        ]
        return StateWrite(self._space, keys, [b""] * len(keys), values, key_counts)

    def _apply(self, moved: Changes) -> dict[int, bytes]:
        """Apply values to their pages; returns the pages to write."""
        contents, pages = self._contents, self._load_pages_of(list(moved))
        self._dirty.update(pages)
        for page, (key, value) in zip(pages, moved.items(), strict=True):
            if value is None:
                contents[page].pop(key, None)
            else:
                contents[page][key] = value
        packed = self._encode_pages(self._dirty)
        # Not once for all: a large page takes a few bytes by itself.
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
        by_entry = dict(sorted(zip(_entry_keys(missing), missing, strict=True)))  # neighbours share a page
        decode = msgspec.msgpack.Decoder(PageContent).decode
        for page, packed in zip(by_entry.values(), self._read_entries(list(by_entry)), strict=True):
            if (packed is not None) is not self._has_pages:
                what = f"page {page} of {self._space!r}, or what is known of its pages, is gone"
                raise msgspec.DecodeError(what)
            self._contents[page] = {} if packed is None else decode(packed)
            self._page_sizes[page] = len(packed or _EMPTY_PAGE) - len(_EMPTY_PAGE)

    def _read_entries(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._states.values(self._space, keys, [b""] * len(keys)) if keys else []

    def _encode_pages(self, pages: Iterable[int]) -> dict[int, bytes]:
        """Returns pages in their stored form."""
        encode = msgspec.msgpack.Encoder().encode
        packed = {page: encode(self._contents[page]) for page in pages}
        sizes = {page: len(content) - len(_EMPTY_PAGE) for page, content in packed.items()}
        self._total_bytes += sum(sizes.values()) - sum(self._page_sizes.get(page, 0) for page in sizes)
        self._page_sizes |= sizes
        return packed

    def _split_pages(self, count: int) -> set[int]:
        """Split pages up to this number; returns the changed pages."""
        new = np.arange(self._page_count, count, dtype=np.uint32)
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
    text = _REVERSED_BITS[np.fromiter(pages, "<u4").view(np.uint8)].tobytes()
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _page_of(hashes: Numbers, count: int) -> Numbers:
    """Returns the page of each hash: by its last bits, or by one bit less if that page does not exist yet.

    Example:
        >>> _page_of(np.array([0, 1, 2, 3, 4, 5, 6, 7], np.uint32), 5).tolist()
        [0, 1, 2, 3, 4, 1, 2, 3]
    """
    bits = (count - 1).bit_length()
    page = hashes & np.uint32((1 << bits) - 1)
    return np.where(page < count, page, hashes & np.uint32((1 << bits) // 2 - 1 if bits else 0))
