"""What a pipeline does with an event that comes later than its topic's lateness allows: the choice, as data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from headwater.errors import BadSettingError, Place
from headwater.units import duration, spoken

__all__ = ["Correct", "Drop", "Keep", "Late", "correct", "late_named"]


@dataclass(frozen=True)
class Keep:
    """A late event does not count; it is kept beside the result with its reason, and can be replayed."""

    def __str__(self) -> str:
        return "keep"


@dataclass(frozen=True)
class Drop:
    """A late event does not count and is not kept; it is counted as dropped."""

    def __str__(self) -> str:
        return "drop"


@dataclass(frozen=True)
class Correct:
    """A late event still counts for this much longer, and changes rows that were already shown.

    Args:
        for_: How much later than the topic's lateness an event may come.
    """

    for_: timedelta

    def __post_init__(self) -> None:
        if self.for_ <= timedelta(0):
            what = f"a correction for {spoken(self.for_)} changes nothing"
            raise BadSettingError(what, detail="it needs a length of time", fix='hw.correct(for_="1 hour")')

    def __str__(self) -> str:
        return f"correct for {spoken(self.for_)}"


Late: TypeAlias = Keep | Drop | Correct


def correct(*, for_: str | timedelta) -> Correct:
    """Let late events change results that were already shown; rows stay marked as open until then.

    Args:
        for_: How much later than the topic's lateness an event may come, such as "1 hour".

    Example:
        >>> correct(for_="1 hour").for_
        datetime.timedelta(seconds=3600)
    """
    return Correct(duration(for_))


def late_named(policy: Late | str, *, place: Place | None = None) -> Late:
    """A policy from its one word, or itself.

    Example:
        >>> late_named("drop"), late_named(correct(for_="5 minutes"))
        (Drop(), Correct(for_=datetime.timedelta(seconds=300)))
    """
    if isinstance(policy, Keep | Drop | Correct):
        return policy
    words: dict[object, Late] = {"keep": Keep(), "drop": Drop()}
    found = words.get(policy) if isinstance(policy, str) else None
    if found is None:
        what = f"unknown late policy {policy!r}"
        detail = 'it can be: "keep", "drop", hw.correct(for_="1 hour")'
        raise BadSettingError(what, detail=detail, fix='late="keep"', place=place)
    return found
