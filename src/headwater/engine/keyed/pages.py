"""Values of keys in pages: one entry of the store has the values of several keys, so a batch writes fewer entries.

Which page a key is on follows from its hash and from how many pages there are. Pages become more as the state grows,
one at a time and each at the expense of one other (linear hashing), so no batch has to move the whole state. A batch
that touches few keys of very many writes them into a log first (`overlay.py`).

A space has an entry for each page, one for each log, and one under the empty key that says how many pages there are,
how many bytes they have, and which logs are needed. An empty page is there, too: so what was lost is noticed where it
is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.engine.keyed.keys import hashes_of
from headwater.engine.keyed.overlay import Changes, Overlay
from headwater.store import States, StateWrite

__all__ = ["MOST", "Pages"]

_SIZE: Final = 300
"""How many bytes a page has, on average: with more, batches that touch most keys are cheaper, others are dearer."""
MOST: Final = 32_000_000
"""How many bytes of pages are kept in memory; beyond it all are read anew, as after a restart."""
_FEW: Final = 10_000
"""Changes of more keys than this never go into a log: what logs say lies in memory."""
_SPARSE: Final = 4
"""Changes go into a log where there are so many pages for each changed key: nearly each is on a page of its own."""
_ABOUT: Final = b""
_LOG: Final = b"log"
_EMPTY: Final = msgspec.msgpack.encode({})
_REVERSED: Final = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)

Content = dict[bytes, bytes]
Numbers = npt.NDArray[np.uint32]


class Pages:
    """The single values of one space: what is committed, read page by page, and what the present batch changes.

    Pages that were read or written stay in memory, which is right as long as every commit of this process was taken;
    after one that was not, this object must be thrown away.

    Args:
        states: What is committed.
        space: The space.
        most: How many bytes of pages are kept in memory.
        size: How many bytes a page has, on average.
        few: Of how many keys changes may go into a log.

    Raises:
        msgspec.DecodeError: A page or a log is damaged, or gone.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.store import SqliteStore
        >>> pages = Pages(SqliteStore(Path(tempfile.mkdtemp())).states("seen@1"), "seen")
        >>> pages.put([b"ada"], [b"1"])
        >>> pages.values([b"ada", b"bob"]), pages.write().held
        ([b'1', None], [0, 1])
    """

    def __init__(
        self, states: States, space: str, *, most: int = MOST, size: int = _SIZE, few: int = _FEW
    ) -> None:
        self._states = states
        self._space = space
        self._most = most
        self._size = size
        self._few = few
        self._contents: dict[int, Content] = {}
        self._packed: dict[int, int] = {}
        self._touched: set[int] = set()
        self._changed: Changes = {}
        (about,) = self._read([_ABOUT])
        self._begun = about is not None
        known = msgspec.msgpack.decode(about, type=tuple[int, int, int, int]) if about else (1, 0, 0, 0)
        self._count, self._bytes, first, next_ = known
        self._lately = Overlay.read(first, next_, self._read([_log(n) for n in range(first, next_)]))

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key; None where there is none."""
        changed, lately = self._changed, self._lately.values
        if not changed and not lately:
            return self._on_pages(keys)
        older = [key for key in keys if key not in changed and key not in lately]
        found = dict(zip(older, self._on_pages(older), strict=True))
        return [
            changed[key] if key in changed else lately[key] if key in lately else found[key] for key in keys
        ]

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set values; None takes one away."""
        self._changed.update(zip(keys, values, strict=True))

    def write(self) -> StateWrite | None:
        """What the batch changes; None when nothing."""
        changed, self._changed = self._changed, {}
        if not changed:
            return None
        logs: Changes = {}
        if len(changed) <= min(self._few, self._count // _SPARSE):
            unknown = [key for key in changed if key not in self._lately.values]
            there = zip(unknown, self._on_pages(unknown), strict=True)
            logs[_log(self._lately.next)] = self._lately.add(changed, [k for k, v in there if v is None])
            moved, done = self._lately.take_turn()
        else:
            moved, done = self._lately.take_all()
            moved |= changed
        logs |= {_log(number): None for number in done}
        packed = self._moved_in(moved)
        about = (self._count, self._bytes, self._lately.first, self._lately.next)
        keys = [_ABOUT, *logs, *_entry_keys(packed)]
        values = [msgspec.msgpack.encode(about), *logs.values(), *packed.values()]
        held = [self._lately.held, *([0] * len(logs)), *(len(self._contents[page]) for page in packed)]
        return StateWrite(self._space, keys, [b""] * len(keys), values, held)

    def _moved_in(self, moved: Changes) -> dict[int, bytes]:
        """Pages as they are once these values are on them: those that are to be written."""
        contents, pages = self._contents, self._loaded(list(moved))
        self._touched.update(pages)
        for page, (key, value) in zip(pages, moved.items(), strict=True):
            if value is None:
                contents[page].pop(key, None)
            else:
                contents[page][key] = value
        packed = self._pack(self._touched)
        # Not once for all: a large page takes a few bytes by itself.
        while (wanted := -(-self._bytes // self._size)) > self._count:
            packed |= self._pack(self._grow(wanted))
        return packed

    def committed(self) -> None:
        """What `write` gave was committed."""
        self._begun = self._begun or bool(self._touched)
        self._touched.clear()
        if sum(self._packed.values()) > self._most:
            self._contents.clear()
            self._packed.clear()

    def _on_pages(self, keys: Sequence[bytes]) -> list[bytes | None]:
        contents, pages = self._contents, self._loaded(keys)
        return [contents[page].get(key) for page, key in zip(pages, keys, strict=True)]

    def _loaded(self, keys: Sequence[bytes]) -> list[int]:
        """The page of each key; all of them are in memory then."""
        pages: list[int] = _page(hashes_of(keys), self._count).tolist()
        self._load(set(pages))
        return pages

    def _load(self, pages: set[int]) -> None:
        missing = list(pages - self._contents.keys())
        by_entry = dict(sorted(zip(_entry_keys(missing), missing, strict=True)))  # neighbours share a page
        decode = msgspec.msgpack.Decoder(Content).decode
        for page, packed in zip(by_entry.values(), self._read(list(by_entry)), strict=True):
            if (packed is not None) is not self._begun:
                what = f"page {page} of {self._space!r}, or what is known of its pages, is gone"
                raise msgspec.DecodeError(what)
            self._contents[page] = {} if packed is None else decode(packed)
            self._packed[page] = len(packed or _EMPTY) - len(_EMPTY)

    def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._states.values(self._space, keys, [b""] * len(keys)) if keys else []

    def _pack(self, pages: Iterable[int]) -> dict[int, bytes]:
        """Pages as they are written."""
        encode = msgspec.msgpack.Encoder().encode
        packed = {page: encode(self._contents[page]) for page in pages}
        sizes = {page: len(content) - len(_EMPTY) for page, content in packed.items()}
        self._bytes += sum(sizes.values()) - sum(self._packed.get(page, 0) for page in sizes)
        self._packed |= sizes
        return packed

    def _grow(self, count: int) -> set[int]:
        """Have so many pages; those that are no longer the same."""
        new = np.arange(self._count, count, dtype=np.uint32)
        old = set(_page(new, self._count).tolist())
        self._load(old)
        moved = {key: value for page in old for key, value in self._contents[page].items()}
        changed = old | set(new.tolist())
        self._contents |= {page: {} for page in changed}
        for page, (key, value) in zip(_page(hashes_of(moved), count).tolist(), moved.items(), strict=True):
            self._contents[page][key] = value
        self._count = count
        self._touched |= changed
        return changed


def _log(number: int) -> bytes:
    return _LOG + number.to_bytes(8, "big")


def _entry_keys(pages: Iterable[int]) -> list[bytes]:
    r"""The key of each page's entry: its number, last bit first, so that the pages of a slot are neighbours.

    Example:
        >>> _entry_keys([1, 2, 3])
        [b'\x80\x00\x00\x00', b'@\x00\x00\x00', b'\xc0\x00\x00\x00']
    """
    text = _REVERSED[np.fromiter(pages, "<u4").view(np.uint8)].tobytes()
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _page(hashes: Numbers, count: int) -> Numbers:
    """Of so many pages, the one that each hash belongs to: by its last bits, by one bit fewer if that page is not yet.

    Example:
        >>> _page(np.array([0, 1, 2, 3, 4, 5, 6, 7], np.uint32), 5).tolist()
        [0, 1, 2, 3, 4, 1, 2, 3]
    """
    bits = (count - 1).bit_length()
    page = hashes & np.uint32((1 << bits) - 1)
    return np.where(page < count, page, hashes & np.uint32((1 << bits) // 2 - 1 if bits else 0))
