"""Read-only inspection of the topics of a log, for `headwater plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from headwater.errors import RefusedError
from headwater.events import to_ddl
from headwater.log.open_topic import load_topic
from headwater.log.storage import Disk
from headwater.log.topic import Retention, Topic, merge_definition
from headwater.units import format_duration

__all__ = ["FolderInspector", "LogInspector", "TopicInspection", "TopicVerdict", "compare_topic"]

TopicVerdict: TypeAlias = Literal["create", "declare", "kept", "change", "refused"]


@dataclass(frozen=True)
class TopicInspection:
    """What a log has under a topic name.

    Attributes:
        definition: The definition; None when the topic was never declared.
        partitions: How many it has; 0 when there is no such topic.
        settings: The backend's own settings of the topic, or those that a new one would get.
    """

    definition: Topic | None = None
    partitions: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


class LogInspector(Protocol):
    """Inspects a log without changing it."""

    def inspect_topic(self, name: str) -> TopicInspection:
        """Returns what the log has under this name."""

    def settings_for(self, topic: Topic) -> dict[str, str]:
        """Returns the backend's settings for a definition."""

    def side_topics(self, read: Sequence[str]) -> list[str]:
        """Returns the names of the internal topics the log needs when pipelines read these topics."""

    def close(self) -> None:
        """Close connections."""


class FolderInspector:
    """Inspects the folder of an embedded log; the folder may be missing.

    Args:
        folder: The data folder.

    Example:
        >>> FolderInspector(Path("nowhere")).inspect_topic("orders")
        TopicInspection(definition=None, partitions=0, settings={})
    """

    def __init__(self, folder: Path) -> None:
        self._topics = folder / "topics"

    def inspect_topic(self, name: str) -> TopicInspection:
        """Returns what the folder has under this name."""
        topic = load_topic(Disk(), self._topics / name)
        return TopicInspection() if topic is None else TopicInspection(topic, topic.partitions)

    def settings_for(self, topic: Topic) -> dict[str, str]:
        """Returns nothing: a folder has no settings of its own."""
        return {}

    def side_topics(self, read: Sequence[str]) -> list[str]:
        """Returns none: the embedded log keeps everything in the files of each topic."""
        return []

    def close(self) -> None:
        """Do nothing: no files are open."""


_HISTORY = ("schema", "version", "first_version")  # not options that a user can change


def compare_topic(wanted: Topic, existing: TopicInspection) -> tuple[TopicVerdict, list[str]]:
    """Returns what creating a topic would do, and what would change.

    Example:
        >>> orders = Topic.declare("orders", "id int", retention="7 days")
        >>> compare_topic(orders, TopicInspection())
        ('create', ['1 partition', 'kept for 7 days'])
        >>> compare_topic(orders, TopicInspection(Topic.declare("orders", "id int"), 1))
        ('change', ['retention: was for ever, would be for 7 days'])
    """
    if not existing.partitions:
        return "create", [
            _format_partitions(wanted.partitions),
            f"kept {_format_retention(wanted.retention)}",
            *(["compacted by key"] if wanted.compact else []),
        ]
    known = existing.definition or replace(wanted, partitions=existing.partitions)
    try:
        new = merge_definition(known, wanted)
    except RefusedError as error:
        return "refused", [error.what, *str(error.detail or "").splitlines()]
    if existing.definition is None:
        return "declare", [_format_partitions(existing.partitions)]
    options = [option.name for option in fields(Topic) if option.compare and option.name not in _HISTORY]
    changes = [
        f"{name}: was {_format_value(was)}, would be {_format_value(now)}"
        for name in options
        if (was := getattr(known, name)) != (now := getattr(new, name))
    ]
    if new.version != known.version:
        changes.append(f"type: was {to_ddl(known.schema)}, would be {to_ddl(new.schema)}")
    return ("change" if changes else "kept"), changes


def _format_value(value: Any) -> str:
    return _format_retention(value) if isinstance(value, Retention) else str(value)


def _format_retention(retention: Retention) -> str:
    limits = [f"for {format_duration(retention.time)}"] if retention.time is not None else []
    limits += [f"up to {retention.size:,} bytes a partition"] if retention.size is not None else []
    return " and ".join(limits) or "for ever"


def _format_partitions(number: int) -> str:
    return f"{number} partition{'s' * (number != 1)}"
