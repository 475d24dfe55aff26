"""Deadlines: what an operator wants to look at again once the watermark has passed a time."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.engine.keyed.state import DUE, State

__all__ = ["due", "earliest", "forget", "remind"]

_SHIFT = 1 << 63


def remind(state: State, times: Iterable[int], names: Iterable[bytes]) -> None:
    """Set deadlines: at each time, for what the name says; setting one again changes nothing."""
    marks = [_mark(time) + name for time, name in zip(times, names, strict=True)]
    state.put(DUE, [b""] * len(marks), marks, [b""] * len(marks))


def forget(state: State, times: Iterable[int], names: Iterable[bytes]) -> None:
    """Take deadlines back."""
    marks = [_mark(time) + name for time, name in zip(times, names, strict=True)]
    state.put(DUE, [b""] * len(marks), marks, [None] * len(marks))


def due(state: State, watermark: int) -> list[tuple[int, bytes]]:
    """The deadlines that lie before the watermark or at it, with their times, in order; they are taken away.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state = MemoryState()
        >>> remind(state, [30, 10, 20], [b"c", b"a", b"b"])
        >>> due(state, 20), earliest(state)
        ([(10, b'a'), (20, b'b')], 30)
    """
    found = [name for name, _ in state.entries(DUE, b"", high=_mark(watermark + 1))]
    state.put(DUE, [b""] * len(found), found, [None] * len(found))
    return [(_time(mark), mark[8:]) for mark in found]


def earliest(state: State) -> int | None:
    """The next deadline; None when there is none."""
    first = state.entries(DUE, b"", most=1)
    return _time(first[0][0]) if first else None


def _mark(time: int) -> bytes:
    return (time + _SHIFT).to_bytes(8, "big")


def _time(mark: bytes) -> int:
    return int.from_bytes(mark[:8], "big") - _SHIFT
