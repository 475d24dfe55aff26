"""What a log has under the names of topics, looked at and not touched: for the plan of an app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from headwater.errors import RefusedError
from headwater.events import to_ddl
from headwater.log.definition import Retention, Topic, brought_up
from headwater.log.schemas import read_topic
from headwater.log.storage import Disk
from headwater.units import spoken

__all__ = ["FolderSurvey", "LogSurvey", "Standing", "TopicVerdict", "compared"]

TopicVerdict: TypeAlias = Literal["create", "declare", "kept", "change", "refused"]


@dataclass(frozen=True)
class Standing:
    """What there is under a name.

    Attributes:
        known: The definition; None when nobody has declared the topic.
        partitions: How many it has; 0 when there is no such topic.
        settings: What the place it is kept in says of it, or would say of a new one, in that place's words.
    """

    known: Topic | None = None
    partitions: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


class LogSurvey(Protocol):
    """Looks at a log without changing it."""

    def standing(self, name: str) -> Standing:
        """What there is under this name."""

    def meant(self, topic: Topic) -> dict[str, str]:
        """What a definition means where it would be kept, in that place's words."""

    def side_topics(self, read: Sequence[str]) -> list[str]:
        """Names of what the log keeps for itself when pipelines read these topics."""

    def close(self) -> None:
        """Let go of connections."""


class FolderSurvey:
    """Looks at the folder of an embedded log; it need not be there.

    Args:
        folder: The data folder.

    Example:
        >>> FolderSurvey(Path("nowhere")).standing("orders")
        Standing(known=None, partitions=0, settings={})
    """

    def __init__(self, folder: Path) -> None:
        self._topics = folder / "topics"

    def standing(self, name: str) -> Standing:
        """What there is under this name."""
        topic = read_topic(Disk(), self._topics / name)
        return Standing() if topic is None else Standing(topic, topic.partitions)

    def meant(self, topic: Topic) -> dict[str, str]:
        """Nothing: a folder has no words of its own."""
        return {}

    def side_topics(self, read: Sequence[str]) -> list[str]:
        """None: what the log needs besides is in the files of each topic."""
        return []

    def close(self) -> None:
        """Nothing is held."""


def compared(wanted: Topic, there: Standing) -> tuple[TopicVerdict, list[str]]:
    """What creating a topic would do to what is there, and what would change.

    Example:
        >>> orders = Topic.declare("orders", "id int", retention="7 days")
        >>> compared(orders, Standing())
        ('create', ['1 partition', 'kept for 7 days'])
        >>> compared(orders, Standing(Topic.declare("orders", "id int"), 1))
        ('change', ['retention: was for ever, would be for 7 days'])
    """
    if not there.partitions:
        return "create", [
            _partitions(wanted.partitions),
            f"kept {_kept(wanted.retention)}",
            *_compacted(wanted),
        ]
    known = there.known or replace(wanted, partitions=there.partitions)
    try:
        new = brought_up(known, wanted)
    except RefusedError as error:
        return "refused", [error.what, *str(error.detail or "").splitlines()]
    if there.known is None:
        return "declare", [_partitions(there.partitions)]
    changes = [f"{name}: was {was}, would be {now}" for name, was, now in _changes(known, new)]
    return ("change" if changes else "kept"), changes


def _changes(known: Topic, new: Topic) -> list[tuple[str, str, str]]:
    found = [
        (one.name, _shown(getattr(known, one.name)), _shown(getattr(new, one.name)))
        for one in fields(Topic)
        if one.compare
        and one.name not in ("schema", "version")
        and getattr(known, one.name) != getattr(new, one.name)
    ]
    if new.version != known.version:
        found.append(("type", to_ddl(known.schema), to_ddl(new.schema)))
    return found


def _shown(value: Any) -> str:
    return _kept(value) if isinstance(value, Retention) else str(value)


def _kept(retention: Retention) -> str:
    limits = [f"for {spoken(retention.time)}"] if retention.time is not None else []
    limits += [f"up to {retention.size:,} bytes a partition"] if retention.size is not None else []
    return " and ".join(limits) or "for ever"


def _partitions(number: int) -> str:
    return f"{number} partition{'s' * (number != 1)}"


def _compacted(topic: Topic) -> list[str]:
    return ["compacted by key"] if topic.compact else []
