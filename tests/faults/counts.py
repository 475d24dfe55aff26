"""How many faults a run injects: few by default, many with HEADWATER_FAULTS=full."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.fault_parts import injected

__all__ = ["FULL", "injected", "only_in_full_runs", "times"]

FULL = os.environ.get("HEADWATER_FAULTS") == "full"


def times(gate: int, full: int) -> int:
    """The number for this run."""
    return full if FULL else gate


def only_in_full_runs(test: Callable[..., None]) -> Callable[..., None] | None:
    """Marks tests that take minutes: they run only with HEADWATER_FAULTS=full."""
    return test if FULL else None
