"""How many faults a run injects: the counts of the gate, or with HEADWATER_FAULTS=full many more."""

from __future__ import annotations

import os
from collections.abc import Callable

FULL = os.environ.get("HEADWATER_FAULTS") == "full"


def times(gate: int, full: int) -> int:
    """The number for this run."""
    return full if FULL else gate


def only_in_full_runs(test: Callable[..., None]) -> Callable[..., None] | None:
    """For tests that take minutes which the gate does not have."""
    return test if FULL else None
