"""The rows of a table during a batch: what its state has, and what the batch has made of it so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headwater.engine.keyed.state import State

__all__ = ["KeptRows", "Version"]

_ROWS: Final = "rows"
_DISPLACED: Final = "displaced"
_LATEST: Final = "latest"
_ALL: Final = b""
"""The key that all rows are below, each under its own key as a name: so they can be listed."""
Version = tuple[bytes, int, int]
"""A row, the weight with which it comes or goes, and since when that holds, in microseconds since 1970."""


class KeptRows:
    r"""Rows as bytes, by key; every change of one is noted.

    Databases check that keys are unique when a statement ends, or a transaction. So a row may get a key that another
    row still has, which gets its own new key, or goes, a little later. Until then that other row is *displaced*: it is
    no row of the table, and it is remembered by the key it had.

    Changes follow one another in the order in which they are made, and so do versions by their time: one that should
    hold since a time before the latest version holds since the time of that one.

    Args:
        state: Where they are kept.
        keys: Those that may be asked for; more are read only by `clear`.
        leaving: Those of them that a row may leave.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state = MemoryState()
        >>> rows = KeptRows(state, [b"\x01"])
        >>> rows.put(b"\x01", b"pen", since=5)
        >>> rows.put(b"\x01", b"ink", since=7)
        >>> rows.save()
        >>> rows.versions, KeptRows(state, [b"\x01"]).get(b"\x01")
        ([(b'pen', 1, 5), (b'pen', -1, 7), (b'ink', 1, 7)], b'ink')
    """

    def __init__(self, state: State, keys: Iterable[bytes], leaving: Iterable[bytes] = ()) -> None:
        self._rows = _Space(state, _ROWS, keys)
        self._displaced = _Space(state, _DISPLACED, leaving)
        self._latest = _Latest(state)
        self.versions: list[Version] = []

    def get(self, key: bytes) -> bytes | None:
        """The row of a key."""
        return self._rows.now.get(key)

    def get_leaving(self, key: bytes) -> bytes | None:
        """The row that leaves a key, if one does: a displaced row, if there is one."""
        return self._displaced.now.get(key, self._rows.now.get(key))

    def put(self, key: bytes, row: bytes | None, since: int) -> None:
        """Replace the row of a key, or take it away; an equal one changes nothing."""
        old = self._rows.now.get(key)
        if old == row:
            return
        since = self._latest.raised(since)
        if old is not None:
            self.versions.append((old, -1, since))
        if row is not None:
            self.versions.append((row, 1, since))
            self._rows.now[key] = row
        else:
            del self._rows.now[key]

    def take(self, key: bytes, since: int) -> None:
        """Take away the row that leaves a key."""
        if self._displaced.now.pop(key, None) is None:
            self.put(key, None, since)

    def move(self, old: bytes, key: bytes, row: bytes, since: int) -> None:
        """Take away the row that leaves a key and put it under another one; a row that is there is displaced.

        The same move again finds nothing under the old key, and the row itself under the new one: that displaces none.
        """
        left, there = self.get_leaving(old), self.get(key)
        self.take(old, since)
        if there is not None and (left is not None or there != row):
            self._displaced.now[key] = there
        self.put(key, row, since)

    def clear(self, since: int) -> None:
        """Take all rows away."""
        for space in (self._rows, self._displaced):
            space.load()
        if self._rows.now:
            since = self._latest.raised(since)
        self.versions += [(row, -1, since) for _, row in sorted(self._rows.now.items())]
        self._rows.now.clear()
        self._displaced.now.clear()

    def save(self) -> None:
        """Put what has changed into the state."""
        for part in (self._rows, self._displaced, self._latest):
            part.save()


class _Space:
    """The entries of a space: those that were read as they were, and as they are now."""

    def __init__(self, state: State, space: str, names: Iterable[bytes]) -> None:
        self._state = state
        self._space = space
        read = list(dict.fromkeys(names))
        found = state.values(space, [_ALL] * len(read), read) if read else []
        self._before = dict(zip(read, found, strict=True))
        self._whole = False
        self.now = {name: row for name, row in self._before.items() if row is not None}

    def load(self) -> None:
        """Read all entries that have not been read, once."""
        if not self._whole:
            found = self._state.entries(self._space, _ALL)
            more = {name: row for name, row in found if name not in self._before}
            self._before |= more
            self.now = more | self.now
            self._whole = True

    def save(self) -> None:
        """Put what has changed into the state."""
        now = {name: self.now.get(name) for name in self._before.keys() | self.now.keys()}
        moved = sorted(name for name, row in now.items() if self._before.get(name) != row)
        if moved:
            self._state.put(self._space, [_ALL] * len(moved), moved, [now[name] for name in moved])


class _Latest:
    """The time of the latest version."""

    def __init__(self, state: State) -> None:
        self._state = state
        (found,) = state.values(_LATEST, [_ALL])
        self._before = None if found is None else int.from_bytes(found, signed=True)
        self._now = self._before

    def raised(self, since: int) -> int:
        """The time of one more version, which is now the latest."""
        self._now = since if self._now is None else max(since, self._now)
        return self._now

    def save(self) -> None:
        """Put it into the state, if it has changed."""
        if self._now is not None and self._now != self._before:
            self._state.put(_LATEST, [_ALL], None, [self._now.to_bytes(8, signed=True)])
