"""Values of keys in pages: one entry of the store has the values of several keys, so a batch writes fewer entries.

Which page a key is on follows from its hash and from how many pages there are. Pages become more as the state grows,
one at a time and each at the expense of one other (linear hashing), so no batch has to move the whole state.

A space has an entry for each page, under its number, and one under the empty key that says how many pages there are and
how many bytes they have. An empty page is there, too: so one that was lost is noticed where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.store import States, StateWrite

__all__ = ["MOST", "Pages"]

_SIZE: Final = 300
"""How many bytes a page has, on average: with more, batches that touch most keys are cheaper, others are dearer."""
MOST: Final = 32_000_000
"""How many bytes of pages are kept in memory; beyond it all are read anew, as after a restart."""
_ABOUT: Final = b""
_EMPTY: Final = msgspec.msgpack.encode({})

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

    Raises:
        msgspec.DecodeError: A page is damaged, or gone.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from headwater.store import SqliteStore
        >>> pages = Pages(SqliteStore(Path(tempfile.mkdtemp())).states("seen@1"), "seen")
        >>> pages.put([b"ada"], [b"1"])
        >>> pages.values([b"ada", b"bob"]), pages.write().held
        ([b'1', None], [0, 1])
    """

    def __init__(self, states: States, space: str, *, most: int = MOST, size: int = _SIZE) -> None:
        self._states = states
        self._space = space
        self._most = most
        self._size = size
        self._contents: dict[int, Content] = {}
        self._packed: dict[int, int] = {}
        self._touched: set[int] = set()
        (about,) = states.values(space, [_ABOUT], [b""])
        self._begun = about is not None
        self._count, self._bytes = msgspec.msgpack.decode(about, type=tuple[int, int]) if about else (1, 0)

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key; None where there is none."""
        contents, pages = self._contents, self._loaded(keys)
        return [contents[page].get(key) for page, key in zip(pages, keys, strict=True)]

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set values; None takes one away."""
        contents, pages = self._contents, self._loaded(keys)
        self._touched.update(pages)
        for page, key, value in zip(pages, keys, values, strict=True):
            if value is None:
                contents[page].pop(key, None)
            else:
                contents[page][key] = value

    def write(self) -> StateWrite | None:
        """What the batch changes; None when nothing."""
        if not self._touched:
            return None
        packed = self._pack(self._touched)
        # Not once for all: a large page takes a few bytes by itself.
        while (wanted := -(-self._bytes // self._size)) > self._count:
            packed |= self._pack(self._grow(wanted))
        about = msgspec.msgpack.encode((self._count, self._bytes))
        keys = [_ABOUT, *(page.to_bytes(4, "big") for page in packed)]
        held = [0, *(len(self._contents[page]) for page in packed)]
        return StateWrite(self._space, keys, [b""] * len(keys), [about, *packed.values()], held)

    def committed(self) -> None:
        """What `write` gave was committed."""
        self._begun = self._begun or bool(self._touched)
        self._touched.clear()
        if sum(self._packed.values()) > self._most:
            self._contents.clear()
            self._packed.clear()

    def _loaded(self, keys: Sequence[bytes]) -> list[int]:
        """The page of each key; all of them are in memory then."""
        pages: list[int] = _page(_hashes(keys), self._count).tolist()
        self._load(set(pages))
        return pages

    def _load(self, pages: set[int]) -> None:
        missing = sorted(pages - self._contents.keys())
        keys = [page.to_bytes(4, "big") for page in missing]
        read = self._states.values(self._space, keys, [b""] * len(keys)) if keys else []
        decode = msgspec.msgpack.Decoder(Content).decode
        for page, packed in zip(missing, read, strict=True):
            if (packed is not None) is not self._begun:
                what = f"page {page} of {self._space!r}, or what is known of its pages, is gone"
                raise msgspec.DecodeError(what)
            self._contents[page] = {} if packed is None else decode(packed)
            self._packed[page] = len(packed or _EMPTY) - len(_EMPTY)

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
        for page, (key, value) in zip(_page(_hashes(moved), count).tolist(), moved.items(), strict=True):
            self._contents[page][key] = value
        self._count = count
        self._touched |= changed
        return changed


def _hashes(keys: Iterable[bytes]) -> Numbers:
    return np.fromiter(map(crc32, keys), np.uint32)


def _page(hashes: Numbers, count: int) -> Numbers:
    """Of so many pages, the one that each hash belongs to: by its last bits, by one bit fewer if that page is not yet.

    Example:
        >>> _page(np.array([0, 1, 2, 3, 4, 5, 6, 7], np.uint32), 5).tolist()
        [0, 1, 2, 3, 4, 1, 2, 3]
    """
    bits = (count - 1).bit_length()
    page = hashes & np.uint32((1 << bits) - 1)
    return np.where(page < count, page, hashes & np.uint32((1 << bits) // 2 - 1 if bits else 0))
