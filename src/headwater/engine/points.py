"""Named instants of a batch at which tests end a process or a query, to see what is left after a crash."""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["POINTS", "CrashError", "arm", "reach"]

POINTS: Final = (
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
"""In the order in which a batch reaches them; `HEADWATER_KILL_AT=NAME` kills the process group at one."""

_KILL_AT = os.environ.get("HEADWATER_KILL_AT")
_armed: set[str] = set()


class CrashError(BaseException):
    """Ends a query at a point, as if its process had died there; no code of ours catches it."""


def arm(point: str) -> None:
    """Let the next query that reaches this point in this process end there.

    Raises:
        ValueError: There is no such point, or it is reached in another process.
    """
    here = POINTS[3:]
    if point not in here:
        message = f"no point {point!r}; points: {', '.join(here)}"
        raise ValueError(message)
    _armed.add(point)


def reach(point: str) -> None:
    """Say that a point is reached."""
    if point == _KILL_AT:
        os.killpg(
            os.getsid(0), signal.SIGKILL
        )  # Spark's workers have a group of their own, in the same session
        os.killpg(0, signal.SIGKILL)
    if point in _armed:
        _armed.discard(point)
        raise CrashError(point)
