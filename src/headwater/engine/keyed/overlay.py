"""Values that were changed lately and lie in logs of batches: what pages do not say yet.

A batch that touches few of very many keys touches nearly as many pages, and with each a page of the database. So it
writes its changes as one entry, its log, and brings a share of all keys up to date in the pages: those of one slot,
which are neighbours in the store. After as many batches as there are slots, all that a log says is in the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headwater.engine.keyed.keys import hash_of

__all__ = ["SLOTS", "Changes", "Overlay", "slot_of"]

SLOTS: Final = 32
"""In so many turns all keys come up to date: with more, fewer pages are written, and more lies in memory."""

Changes = dict[bytes, bytes | None]
_Log = tuple[Changes, list[bytes]]


def slot_of(key: bytes) -> int:
    """The share of all keys that a key is in; by the hash that also tells its page."""
    return hash_of(key) % SLOTS


class Overlay:
    """What the logs say that is not in the pages.

    Attributes:
        values: The value of each key that has one here; None where it was taken away.
        first: The number of the first log that is still needed.
        next: The number of the next one.

    Example:
        >>> overlay = Overlay()
        >>> log = overlay.add({b"a": b"1", b"b": b"2"}, new=[b"b"])
        >>> overlay.held, overlay.values[b"a"], Overlay.read(0, 1, [log]).values == overlay.values
        (1, b'1', True)
    """

    def __init__(self, first: int = 0, next_: int = 0) -> None:
        self.values: Changes = {}
        self.first, self.next = first, next_
        self._slots: list[list[bytes]] = [[] for _ in range(SLOTS)]
        self._new: set[bytes] = set()
        self._gone: set[bytes] = set()

    @property
    def held(self) -> int:
        """How many more keys have a value by the logs than by the pages alone; negative, if fewer."""
        return len(self._new) - len(self._gone)

    @classmethod
    def read(cls, first: int, next_: int, logs: Sequence[bytes | None]) -> Overlay:
        """What logs say, in the order of their numbers; without what has come into the pages since.

        Raises:
            msgspec.DecodeError: One is damaged, or gone.
        """
        overlay = cls(first, next_)
        for number, log in enumerate(logs, first):
            if log is None:
                message = f"log {number} of the state is gone"
                raise msgspec.DecodeError(message)
            changes, new = msgspec.msgpack.decode(log, type=_Log)
            later = {key: value for key, value in changes.items() if _last_turn(slot_of(key), next_) < number}
            overlay._put(later, [key for key in new if key in later])
        return overlay

    def add(self, changes: Changes, new: Sequence[bytes]) -> bytes:
        """Take the changes of a batch; returns its log.

        Args:
            changes: By key; None takes a value away.
            new: Those of them that are neither here nor in the pages.
        """
        self._put(changes, new)
        return msgspec.msgpack.encode((changes, new))

    def take_turn(self) -> tuple[Changes, range]:
        """What comes into the pages with this batch, and the numbers of logs that nobody needs any more."""
        keys, self._slots[self.next % SLOTS] = self._slots[self.next % SLOTS], []
        moved = {key: self.values.pop(key) for key in keys}
        self._new.difference_update(keys)
        self._gone.difference_update(keys)
        self.next += 1
        return moved, self._forget_before(max(self.first, self.next - SLOTS + 1))

    def take_all(self) -> tuple[Changes, range]:
        """The same for all that is here."""
        moved, self.values = self.values, {}
        self._new.clear()
        self._gone.clear()
        self._slots = [[] for _ in range(SLOTS)]
        return moved, self._forget_before(self.next)

    def _forget_before(self, number: int) -> range:
        gone, self.first = range(self.first, number), number
        return gone

    def _put(self, changes: Changes, new: Sequence[bytes]) -> None:
        for key in changes:
            if key not in self.values:
                self._slots[slot_of(key)].append(key)
        self.values |= changes
        self._new.update(new)
        self._gone.difference_update(changes)
        self._gone.update(key for key, value in changes.items() if value is None)


def _last_turn(slot: int, next_: int) -> int:
    """The number of the last batch in which a slot came into the pages; below 0 if none did."""
    return next_ - 1 - (next_ - 1 - slot) % SLOTS
