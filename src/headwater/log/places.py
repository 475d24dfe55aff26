"""Which log stands behind a text: a folder, or an engine by its URL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from headwater.events import Clock
from headwater.log.event_log import EventLog
from headwater.log.protocol import TimedLog
from headwater.log.survey import FolderSurvey, LogSurvey

__all__ = ["open_log", "require_log", "survey_log"]

_GLANCE: Final = timedelta(seconds=5)  # how long brokers have for an answer to somebody who only looks


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


def survey_log(where: str) -> LogSurvey:
    """Look at the log of a folder or a URL; nothing is made or changed.

    Example:
        >>> survey_log("nowhere").standing("orders").partitions
        0
    """
    if where.startswith("kafka://"):
        from headwater.log.kafka.survey import KafkaSurvey

        return KafkaSurvey(where, patience=_GLANCE)
    return FolderSurvey(Path(where))


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
