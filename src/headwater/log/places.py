"""Which log stands behind a text: a folder, or an engine by its URL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from headwater.events import Clock
from headwater.log.event_log import EventLog
from headwater.log.protocol import TimedLog

__all__ = ["open_log", "require_log"]


def open_log(where: str, clock: Clock | None = None, *, keeps_time: bool = False) -> TimedLog:
    """The log of a folder or a URL, for pipelines.

    Args:
        where: A folder, or `kafka://…`.
        clock: What time it is.
        keeps_time: Whether this process runs the pipelines, and so keeps the event time of what they read on Kafka.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> open_log(folder).where == folder
        True
    """
    if where.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        return KafkaLog(where, clock=clock, keeps_time=keeps_time)
    return EventLog(Path(where), clock=clock)


def require_log(where: str) -> None:
    """Come back if the brokers of a URL answer; a folder always does.

    Raises:
        UnreachableError: They do not, within a moment.
        BadCredentialsError: They do not accept us.
    """
    if where.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        with KafkaLog(where, patience=timedelta(seconds=2)) as log:
            log.kafka_topics.partitions()
