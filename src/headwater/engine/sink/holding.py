"""Tells the log how far a query has come, as a consumer group does: retention waits for it, other tools see it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from headwater.errors import HeadwaterError
from headwater.log.protocol import Log
from headwater.store import LedgerEntry

__all__ = ["Hold", "group_of"]

logger = logging.getLogger("headwater.engine")
_EVERY: Final = 2.0


def group_of(pipeline: str) -> str:
    """The consumer group under which a pipeline reads.

    Example:
        >>> group_of("revenue")
        'hw.pipeline.revenue'
    """
    return f"hw.pipeline.{pipeline}"


class Hold:
    """How far one pipeline has come; written down every two seconds at most, and always in the end.

    Being behind only keeps events longer. So does a failure to write: it is no reason to stop a pipeline.

    Args:
        log: Whose group it is.
        pipeline: Its name.
    """

    def __init__(self, log: Log, pipeline: str) -> None:
        self._log = log
        self._group = group_of(pipeline)
        self._lock = threading.Lock()
        self._newest: LedgerEntry | None = None
        self._written_at = 0.0
        self._timer: threading.Timer | None = None

    def note(self, entry: LedgerEntry) -> None:
        """Events below the ends of this entry are no longer needed."""
        with self._lock:
            self._newest = entry
            left = self._written_at + _EVERY - time.monotonic()
            if left > 0 and self._timer is None:
                self._timer = threading.Timer(left, self.write)
                self._timer.daemon = True
                self._timer.start()
        if left <= 0:
            self.write()

    def write(self) -> None:
        """Write down what was noted last, if it is not yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            entry, self._newest, self._timer = self._newest, None, None
            self._written_at = time.monotonic()
            try:
                for read in entry.inputs if entry else ():
                    self._log.groups.reset(self._group, read.topic, read.end)
            except HeadwaterError as error:
                logger.warning("%s: how far it is cannot be written down: %s", self._group, error)
