"""An input that a function uses twice, as in a join of a stream with itself: Spark reads it twice, and the same twice.

Spark asks every use of an input by itself how far the next batch goes. Whichever is asked first decides and writes it
down; the others read it, so that all have the same range in every batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

__all__ = ["Lockstep"]

Offset = dict[str, int]


class _Decided(msgspec.Struct, frozen=True):
    by: str
    start: Offset
    end: Offset


class Lockstep:
    """One use of an input.

    Args:
        path: The file that all uses share; empty at first.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "decided")
        >>> first, second = Lockstep(path), Lockstep(path)
        >>> first.decide({"p0": 0}, lambda: {"p0": 5}), second.decide({"p0": 0}, lambda: {"p0": 9})
        ({'p0': 5}, {'p0': 5})
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._me = os.urandom(8).hex()

    def decide(self, start: Offset, plan: Callable[[], Offset]) -> Offset:
        """Where the batch from `start` ends, for all uses alike."""
        known = self._known()
        if known is not None and known.start == start:
            mine_and_empty = known.by == self._me and known.end == start
            if not mine_and_empty:
                return known.end
        end = plan()
        beside = self._path.with_suffix(f".{self._me}")
        beside.write_bytes(msgspec.json.encode(_Decided(self._me, start, end)))
        beside.replace(self._path)
        return end

    def _known(self) -> _Decided | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Decided)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
