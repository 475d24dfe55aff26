"""Failpoints: named points in a batch at which a test ends the process or the query, to check crash recovery."""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["FAILPOINTS", "REPLAN_FAILPOINTS", "CrashError", "arm", "failpoint"]

FAILPOINTS: Final = (
    "before-offsets",
    "after-offsets",
    "in-read",
    "before-sink",
    "before-sink-commit",
    "in-sink-commit",
    "after-sink-commit",
    "in-publish",
    "after-publish",
)
"""In the order in which a batch reaches them. `HEADWATER_KILL_AT=NAME` kills the process group at a point.

The first three are reached in processes of Spark, so `arm` cannot reach them.
"""

REPLAN_FAILPOINTS: Final = ("before-discard", "after-discard")
"""Reached only when a planned batch is discarded, because it needed too much memory."""

_KILL_AT = os.environ.get("HEADWATER_KILL_AT")
_armed: set[str] = set()


class CrashError(BaseException):
    """Ends a query at a failpoint as if its process had died there.

    Only the supervisor and the query handle it; it is no `Exception`, so that no other handler does.
    """


def arm(point: str) -> None:
    """Arm a failpoint: the next query in this process that reaches it ends there.

    Raises:
        ValueError: There is no such point, or other processes reach it.
    """
    here = (*FAILPOINTS[3:], *REPLAN_FAILPOINTS)
    if point not in here:
        message = f"no point {point!r}; points: {', '.join(here)}"
        raise ValueError(message)
    _armed.add(point)


def failpoint(point: str) -> None:
    """Mark that a failpoint is reached."""
    if point == _KILL_AT:
        os.killpg(os.getsid(0), signal.SIGKILL)  # Spark's workers have a group of their own, in the same session
        os.killpg(0, signal.SIGKILL)
    if point in _armed:
        _armed.discard(point)
        raise CrashError(point)
