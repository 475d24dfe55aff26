"""What all queries of a process share: log, store, clock, and how they take turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwater.events import Clock
from headwater.log import EventLog
from headwater.store import Store

__all__ = ["Surroundings"]


@dataclass(frozen=True)
class Surroundings:
    """What all queries of a process share.

    Args:
        log: Where events come from.
        store: Where results go.
        clock: What time it is.
        rows: About how many events a batch takes while catching up.
        cores: Into how many tasks a batch is cut.
        wait: The longest wait of an input for events, in seconds.
    """

    log: EventLog
    store: Store
    clock: Clock
    rows: int = 400_000
    cores: int = 2
    wait: float = 1.0

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.log.folder
