"""Which log stands behind a text: a folder, or an engine by its URL."""

from __future__ import annotations

from pathlib import Path

from headwater.events import Clock
from headwater.log.event_log import EventLog
from headwater.log.protocol import TimedLog

__all__ = ["open_log"]


def open_log(where: str, clock: Clock | None = None) -> TimedLog:
    """The log of a folder or a URL, for pipelines.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> open_log(folder).where == folder
        True
    """
    return EventLog(Path(where), clock=clock)
