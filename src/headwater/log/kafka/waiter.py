"""Waiting for appends to a topic: the brokers are asked now and then where it ends, as no call of theirs waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["GroupWaiter", "TopicWaiter"]

_EVERY: Final = 0.2  # seconds between two questions


class GroupWaiter:
    """Changes of one group, as the members of this process hear of them.

    Args:
        end: Called with this waiter when it is closed.
    """

    def __init__(self, end: Callable[[GroupWaiter], None]) -> None:
        self._end = end
        self._changed = threading.Event()

    def notify(self) -> None:
        """The group changed."""
        self._changed.set()

    @property
    def changed(self) -> bool:
        """Whether the group changed since the last wait."""
        return self._changed.is_set()

    def wait(self, timeout: float | None) -> bool:
        """True as soon as the group changed since the last wait."""
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    def close(self) -> None:
        """Stop waiting."""
        self._end(self)


class TopicWaiter:
    """Waits for appends to one topic, or for a change of a group. `fetch` needs no waiting: the brokers push to it.

    Args:
        ends: Where the partitions end.
        changes: Changes of the group; None without one.
    """

    def __init__(self, ends: Callable[[], dict[int, int]], changes: GroupWaiter | None) -> None:
        self._ends = ends
        self._known = ends()
        self._changes = changes

    def group_changed(self) -> bool:
        """Whether the group changed; told once."""
        return self._changes is not None and self._changes.changed and self._changes.wait(0)

    def wait(self, timeout: float | None) -> bool:
        """True as soon as the topic grew, or the group changed, since the last wait."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            before, self._known = self._known, self._ends()
            if before != self._known or self.group_changed():
                return True
            left = _EVERY if deadline is None else min(_EVERY, deadline - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)

    def close(self) -> None:
        """Stop waiting."""
        if self._changes is not None:
            self._changes.close()
