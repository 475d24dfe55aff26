"""What all queries of a process share: log, store, clock, and how they take turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from headwater.engine.folder import Folder
from headwater.engine.home import Home
from headwater.errors import FencedError
from headwater.events import Clock
from headwater.log.protocol import TimedLog
from headwater.store import Store

__all__ = ["Surroundings"]

_OWNER: Final = "@driver"
"""What a driver takes in the store, as if it were a query, before it takes the queries one by one."""


@dataclass(frozen=True)
class Surroundings:
    """What all queries of a process share.

    Args:
        data: The folder of this engine's own files.
        log: Where events come from.
        store: Where results go.
        clock: What time it is.
        rows: About how many events a batch takes while catching up.
        stage_above: Results that are expected to have more rows than this are staged by the workers.
        cores: Into how many tasks a batch is cut.
        wait: The longest wait of an input for events, in seconds.
        shared: A folder that driver and workers both reach, for checkpoints; the data folder, if left out.
        rehearsed: Where the log would be, if this is a rehearsal over nothing.
        jars: A folder with the jars of Spark's Kafka connector; they are fetched, if left out.
        realtime_batch: How long a batch of a real-time query is: what it may do again after a crash.
        scratch: A folder for queries that are run apart from everything: what they make goes nowhere else.
        owner: The epoch under which this process has taken all pipelines (see `owned`); None, when it needs none.
    """

    data: Path
    log: TimedLog
    store: Store
    clock: Clock
    rows: int = 1_000_000
    stage_above: int = 200_000
    cores: int = 2
    wait: float = 1.0
    shared: Folder | None = None
    rehearsed: str = ""
    jars: str | None = None
    realtime_batch: timedelta = timedelta(seconds=30)
    scratch: Path | None = None
    owner: int | None = None

    def owned(self) -> Surroundings:
        """The same for a driver that takes all pipelines from the one before, wherever that one is."""
        return replace(self, owner=self.store.take(_OWNER))

    def require_owner(self) -> None:
        """Go on only as long as no other driver has taken the pipelines.

        Raises:
            FencedError: One has.
        """
        if self.owner is None:
            return
        try:
            self.store.require(_OWNER, self.owner)
        except FencedError as newer:
            what, fix = "another driver runs these pipelines now", "end this one; the other goes on"
            raise FencedError(what, detail=newer.detail, fix=fix, **newer.data) from None

    @property
    def kafka(self) -> str | None:
        """The address of the log, if it is a Kafka."""
        where = self.rehearsed or self.log.where
        return where if where.startswith("kafka://") else None

    def home(self, name: str, version: int) -> Home:
        """The folder of a query."""
        return Home(self.scratch or self.data, name, version, self.shared if self.scratch is None else None)
