"""Which changes of the stream are delivered, when a restart may come between the records of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Delivered", "Place"]

Place = tuple[int, int]
"""The commit position of a transaction, and the index of the next change in it."""


class Delivered:
    """What is delivered beyond the resume position, of all tables and of single ones.

    A group of transactions gives one record for each table. After a restart behind one of them the stream repeats the
    whole group, perhaps in smaller groups, and what that record had is left out.

    Args:
        places: What a resume point says: by table, "" for all.

    Example:
        >>> delivered = Delivered({"public.a": [500, 2]})
        >>> delivered.lacks("public.a", np.array([400, 500, 500]), np.array([0, 1, 2])).tolist()
        [False, False, True]
        >>> delivered.advance((400, 7)); delivered.to_json()
        {'': [400, 7], 'public.a': [500, 2]}
    """

    def __init__(self, places: Mapping[str, Sequence[int]] | None = None) -> None:
        self._before: dict[str, Place] = {table: (place[0], place[1]) for table, place in (places or {}).items()}
        self._now = dict(self._before)

    def __bool__(self) -> bool:
        return bool(self._now)

    def advance(self, place: Place) -> None:
        """Note that everything before a place is delivered; index 0 stands for whole transactions."""
        # A table may be further: another restart must not deliver its changes again.
        ahead = {table: mark for table, mark in self._before.items() if mark > place}
        self._now = ({"": place} if place[1] else {}) | ahead

    def advance_table(self, table: str, place: Place) -> None:
        """Note that everything of a table before a place is delivered."""
        self._now = {**self._now, table: max(place, self._before.get(table, place))}

    def forget_before(self, commit: int) -> None:
        """Note that the stream has passed a commit position, so nothing before it comes again."""
        if self._before and commit > max(place[0] for place in self._before.values()):
            self._before = {}

    def lacks(self, table: str, commit: npt.NDArray[Any], index: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Returns which changes of a table were not delivered before a restart."""
        lacking = np.ones(len(commit), np.bool_)
        for name in ("", table):
            if name in self._before:
                at, following = self._before[name]
                lacking &= (commit > at) | ((commit == at) & (index >= following))
        return lacking

    def to_json(self) -> dict[str, list[int]]:
        """Returns it as it stands in a resume point."""
        return {table: list(place) for table, place in self._now.items()}
