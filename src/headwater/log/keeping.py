"""How the events of a topic are kept: what an acknowledgement means, for how long, and in which form others read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from headwater.errors import BadSettingError
from headwater.units import duration, size

__all__ = ["CHOICES", "Durability", "Retention", "Values", "chosen"]


class Durability(StrEnum):
    """What an acknowledgement means."""

    DURABLE = "durable"
    """On stable storage: survives kill -9 and a power cut."""
    FAST = "fast"
    """Handed to the operating system: survives kill -9; a power cut may lose the last seconds."""
    MEMORY = "memory"
    """In shared memory: survives kill -9; a restart of the machine loses everything."""


class Values(StrEnum):
    """What the values of a topic are where others read them, on Kafka; a folder keeps typed columns either way."""

    JSON = "json"
    """Objects that every tool reads."""
    AVRO = "avro"
    """Avro in binary form; its schema is with the topic's definition."""
    ARROW = "arrow"
    """An Arrow stream of one row in each record, schema included."""


@dataclass(frozen=True)
class Retention:
    """How long events are kept; no limit means for ever.

    Args:
        time: Segments whose newest event arrived longer ago than this are removed.
        size: Oldest segments of a partition are removed while it is larger than this.
        force: Remove even what a consumer group has not read yet; without it, such segments wait for the group.
    """

    time: timedelta | None = None
    size: int | None = None
    force: bool = False

    @classmethod
    def of(
        cls, time: str | timedelta | None = None, size_: str | int | None = None, *, force: bool = False
    ) -> Retention:
        """From text such as "7 days" and "10 GB"."""
        return cls(None if time is None else duration(time), None if size_ is None else size(size_), force)


CHOICES: Final[dict[str, type[StrEnum]]] = {"durability": Durability, "values": Values}
"""Options of a topic that are one of several words."""


def chosen(name: str, kind: type[StrEnum], word: object) -> StrEnum:
    """The choice of a word.

    Raises:
        BadSettingError: It is none.

    Example:
        >>> chosen("values", Values, "avro").value
        'avro'
    """
    words = [choice.value for choice in kind]
    if word not in words:
        what = f"unknown {name} {word!r}"
        raise BadSettingError(what, detail=f"it can be: {', '.join(words)}", fix=f'{name}="{words[0]}"')
    return kind(word)
