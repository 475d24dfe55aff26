"""Which log stands behind a text: a folder, or an engine by its URL."""

from __future__ import annotations

from pathlib import Path

from headwater.events import Clock
from headwater.log.event_log import EventLog
from headwater.log.protocol import TimedLog

__all__ = ["open_log"]


def open_log(
    where: str, clock: Clock | None = None, *, keeps_time: bool = False, pages: Path | None = None
) -> TimedLog:
    """The log of a folder or a URL, for pipelines.

    Args:
        where: A folder, or `kafka://…`.
        clock: What time it is.
        keeps_time: Whether this process runs the pipelines, and so keeps the event time of what they read on Kafka.
        pages: Where it leaves what it read from Kafka, for the workers on this machine.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> open_log(folder).where == folder
        True
    """
    if where.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        return KafkaLog(where, clock=clock, keeps_time=keeps_time, pages=pages)
    return EventLog(Path(where), clock=clock)
