"""Progress of pipelines that catch up with the log or are rebuilt from it, in events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from headwater.engine.engine import Engine
from headwater.engine.query import Query
from headwater.errors import HeadwaterError
from headwater.log.protocol import Log
from headwater.store import LedgerEntry
from headwater.store.status import WorkProgress

__all__ = ["CatchUp", "Positions", "count_left", "next_positions", "report_progress"]

logger = logging.getLogger("headwater.engine")
_INTERVAL: Final = 1.0  # seconds
Positions = Mapping[str, Mapping[int, int]]
"""The next offset of each partition, by topic."""


class CatchUp:
    """The progress of the pipelines of an engine, since the first look at each.

    Args:
        engine: The engine.
        rebuilds: Only pipelines that are rebuilt.
    """

    def __init__(self, engine: Engine, *, rebuilds: bool) -> None:
        self._engine = engine
        self._rebuilds = rebuilds
        self._starts: dict[str, Positions] = {}  # by query

    def read(self) -> WorkProgress | None:
        """Returns the events that were read and are left, over all pipelines; None before the first one runs."""
        log, store = self._engine.context.log, self._engine.context.store
        total, lefts, details = 0, {}, []
        for name, supervisor in self._engine.supervisors.items():
            query = supervisor.query
            if supervisor.detail:
                details.append(f"{name}: {supervisor.detail}")
            if query is None or query.pipeline.realtime or (self._rebuilds and not supervisor.rebuilding):
                continue
            positions = next_positions(query, store.last_entry(query.directory.query_id))
            lefts[name] = count_left(log, positions)
            total += count_left(log, self._starts.setdefault(query.directory.query_id, positions))
        if not lefts:
            return None
        slowest = max(lefts, key=lambda name: lefts[name])
        step = "rebuild" if self._rebuilds else "read"
        return WorkProgress(step, total - sum(lefts.values()), total, slowest, "; ".join(details))


def next_positions(query: Query, last: LedgerEntry | None) -> Positions:
    """Returns the next offsets of a query: those after its last batch, or those at which it begins."""
    topics = {input_.name: input_.topic.name for input_ in query.built.inputs}
    ends = {read.topic: read.end for read in last.inputs} if last else {}
    return {topic: ends.get(topic, query.starts[name]) for name, topic in topics.items()}


def count_left(log: Log, positions: Positions) -> int:
    """Returns the number of events in the log from these offsets on."""
    return sum(sum(log.count_events(topic, offsets).values()) for topic, offsets in positions.items())


def report_progress(work: CatchUp, send: Callable[[WorkProgress], None], ended: threading.Event) -> None:
    """Send the progress every second while it changes, in a thread."""

    def report() -> None:
        last = None
        while not ended.wait(_INTERVAL):
            try:
                progress = work.read()
            except (HeadwaterError, OSError):  # a server that does not answer: the pipelines report it themselves
                logger.debug("progress is unknown", exc_info=True)
                continue
            if progress is not None and progress != last:
                send(progress)
                last = progress

    threading.Thread(target=report, name="headwater-progress", daemon=True).start()
