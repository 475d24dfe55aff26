"""Tells the log how far a query has come, as a consumer group does: retention waits for it, other tools see it."""

from __future__ import annotations

from typing import Final

from headwater.engine.surroundings import Surroundings
from headwater.store import LedgerEntry

__all__ = ["Hold", "group_of"]

_EVERY: Final = 10.0


def group_of(pipeline: str) -> str:
    """The consumer group under which a pipeline reads.

    Example:
        >>> group_of("revenue")
        'hw.pipeline.revenue'
    """
    return f"hw.pipeline.{pipeline}"


class Hold:
    """How far one pipeline has come; written down now and then, since being behind only keeps events longer.

    Args:
        around: The log, and the clock.
        pipeline: Its name.
    """

    def __init__(self, around: Surroundings, pipeline: str) -> None:
        self._around = around
        self._group = group_of(pipeline)
        self._written_at: float | None = None

    def note(self, entry: LedgerEntry) -> None:
        """Events below the ends of this entry are no longer needed."""
        now = self._around.clock.monotonic()
        if self._written_at is not None and now - self._written_at < _EVERY:
            return
        self._written_at = now
        for read in entry.inputs:
            self._around.log.groups.reset(self._group, read.topic, read.end)
