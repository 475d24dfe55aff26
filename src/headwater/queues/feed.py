"""What an app says about a topic that feeds a queue, or a queue that feeds a topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headwater.errors import Place

__all__ = ["Feed", "Into"]


class Into(StrEnum):
    """Where a feed leads."""

    QUEUE = "queue"
    TOPIC = "topic"


@dataclass(frozen=True)
class Feed:
    """Carries what comes into the source on to the target. Made by `app.feed`.

    Args:
        source: The topic's name, or the queue's.
        target: The queue's name, or the topic's.
        into: Which of the two the target is.
        place: The line of the app.

    Example:
        >>> Feed("orders", "parcels", Into.QUEUE).name
        'orders to parcels'
    """

    source: str
    target: str
    into: Into
    place: Place | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.source} to {self.target}"

    @property
    def group(self) -> str:
        """As whom it reads: a consumer group of the topic, or a group of the queue that gets every message."""
        return f"hw.feed.{self.target}" if self.into is Into.QUEUE else f"to-{self.target}"
