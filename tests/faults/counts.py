"""How many faults a run injects: the counts of the gate, or with HEADWATER_FAULTS=full many more."""

from __future__ import annotations

import os

FULL = os.environ.get("HEADWATER_FAULTS") == "full"


def times(gate: int, full: int) -> int:
    """The number for this run."""
    return full if FULL else gate
