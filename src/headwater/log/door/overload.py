"""What happens when producers are faster than the disk: the choice, as data.

Events wait in a bounded buffer in front of the append, before they have an offset. These functions say how large
it is and what to do with the next event when it is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from headwater.errors import BadSettingError
from headwater.units import duration

__all__ = ["Overload", "WhenFull", "backpressure", "buffer", "drop", "overload_named"]


class WhenFull(StrEnum):
    """What a full buffer does with the next event."""

    WAIT = "wait"
    """The caller waits for room, up to a time; then OVERLOADED (429 over HTTP)."""
    DROP_NEWEST = "drop newest"
    """The new event is dropped and counted."""
    DROP_OLDEST = "drop oldest"
    """The event that has waited longest is dropped and counted; the new one is taken."""
    DROP_SAMPLED = "drop sampled"
    """From half full on, only one event in so many is taken; the others are dropped and counted."""


@dataclass(frozen=True)
class Overload:
    """A topic's overload policy."""

    when_full: WhenFull = WhenFull.WAIT
    events: int = 10_000
    timeout: timedelta | None = None
    one_in: int = 10

    def __post_init__(self) -> None:
        if self.events < 1 or self.one_in < 1:
            what = f"a buffer of {self.events} events, one in {self.one_in}, cannot hold anything"
            raise BadSettingError(what, fix="use numbers from 1 up")

    def __str__(self) -> str:
        limit = f"after {self.events:,} events"
        if self.when_full is WhenFull.WAIT:
            return f"backpressure {limit}"
        return f"{self.when_full.value} {limit}"


def drop(
    which: Literal["newest", "oldest", "sampled"] = "newest", *, events: int = 10_000, one_in: int = 10
) -> Overload:
    """Lose events on purpose, counted, rather than make anyone wait.

    Args:
        which: Which events to lose.
        events: How many may wait before any is lost.
        one_in: For "sampled": of so many events one is kept while the buffer is more than half full.

    Example:
        >>> str(drop("oldest", events=500))
        'drop oldest after 500 events'
    """
    known = {kind.value.removeprefix("drop "): kind for kind in WhenFull if kind is not WhenFull.WAIT}
    if which not in known:
        what = f"cannot drop {which!r}"
        raise BadSettingError(what, detail=f"it can be: {', '.join(known)}", fix='hw.drop("oldest")')
    return Overload(known[which], events, one_in=one_in)


def backpressure(timeout: str | timedelta | None = None, *, events: int = 10_000) -> Overload:
    """Make the caller wait for room; with a timeout, raise `OverloadedError` when it is over.

    Example:
        >>> backpressure("5 seconds").timeout
        datetime.timedelta(seconds=5)
    """
    return Overload(WhenFull.WAIT, events, None if timeout is None else duration(timeout))


def buffer(events: int, *, then: Overload | None = None) -> Overload:
    """Let this many events wait, then go on with the second choice (backpressure if none is given).

    Example:
        >>> str(buffer(100_000, then=drop("newest")))
        'drop newest after 100,000 events'
    """
    return replace(then or backpressure(), events=events)


def overload_named(policy: Overload | str) -> Overload:
    """A policy from its one word.

    Example:
        >>> overload_named("drop").when_full.value
        'drop newest'
    """
    if isinstance(policy, Overload):
        return policy
    words = {"drop": drop(), "buffer": buffer(100_000), "backpressure": backpressure()}
    if policy not in words:
        what = f"unknown overload policy {policy!r}"
        raise BadSettingError(what, detail=f"it can be: {', '.join(words)}", fix='overload="backpressure"')
    return words[policy]
