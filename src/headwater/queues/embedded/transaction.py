"""One transaction on a queue's file: what time it is, what the queue is, what was counted, and who must hear of it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from headwater.queues.definition import Queue
from headwater.queues.embedded.tables import BEHIND, DELAYED, FLIGHT, READY

__all__ = ["COUNTED", "Transaction"]

COUNTED = (
    "waiting",
    "delayed",
    "in_flight",
    "dead",
    "published",
    "acked",
    "redelivered",
    "expired",
    "dropped",
)
_COUNTED_AS = {READY: "waiting", BEHIND: "waiting", DELAYED: "delayed", FLIGHT: "in_flight"}


class Transaction:
    """What the steps of one transaction share.

    Args:
        connection: Inside a transaction.
        queue: The queue's definition, as it is now.
        groups: Their numbers by name, those that are no longer declared included.
        now: The queue's time in microseconds.
        wall: The wall clock's.
    """

    def __init__(
        self, connection: sqlite3.Connection, queue: Queue, groups: dict[str, int], now: int, wall: int
    ) -> None:
        self.queue = queue
        self.groups = groups
        self.now = now
        self.wall = wall
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.rings = False
        """Receivers that wait must look again: there is something to take, or a timer they do not know of."""
        self.roomier = False
        """Publishers that wait for room must look again."""
        self._changes: Counter[tuple[int, str]] = Counter()

    def row(self, question: str, values: tuple[Any, ...]) -> Any:
        """The first row of an answer, or None."""
        return self.execute(question, values).fetchone()

    def count(self, group: int, name: str, by: int = 1) -> None:
        """Add to a count of a group; written when the transaction ends."""
        self._changes[group, name] += by

    def moved(self, group: int, before: int | None, after: int | None, number: int = 1) -> None:
        """Count that deliveries went from one state to another; None is outside the queue."""
        if before is not None:
            self._changes[group, _COUNTED_AS[before]] -= number
            self.roomier = self.roomier or before != FLIGHT
        if after is not None:
            self._changes[group, _COUNTED_AS[after]] += number
            self.rings = self.rings or after != FLIGHT

    def standing(self, group: int) -> int:
        """How many messages wait in a group, delayed ones included."""
        stored: int = self.row("SELECT waiting + delayed FROM grp WHERE number = ?", (group,))[0]
        return stored + self._changes[group, "waiting"] + self._changes[group, "delayed"]

    def write_counts(self) -> None:
        """Write what was counted."""
        changed: dict[int, dict[str, int]] = {}
        for (group, name), by in self._changes.items():
            if by:
                changed.setdefault(group, {})[name] = by
        for group, names in changed.items():
            sets = ", ".join(f"{name} = {name} + ?" for name in names)
            values = (*names.values(), self.now, group)
            self.execute(f"UPDATE grp SET {sets}, changed = ? WHERE number = ?", values)
        self._changes.clear()
