"""A topic that feeds a queue, or a queue that feeds a topic, as the user declares it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.errors import BadSettingError, Place
from headwater.log import Topic
from headwater.queues.declared import DeclaredQueue

__all__ = ["Feed"]


@dataclass(frozen=True)
class Feed:
    """What goes from where to where. Made by `app.feed`.

    Args:
        topic: The topic.
        queue: The queue.
        into_queue: Events become messages; otherwise messages become events.
        group: The group of the queue whose messages become events.
        place: Where the user wrote it.

    Example:
        >>> str(Feed("orders", "parcels", True))
        'orders (topic) feeds parcels (queue)'
    """

    topic: str
    queue: str
    into_queue: bool
    group: str = ""
    place: Place | None = field(default=None, compare=False)

    def __str__(self) -> str:
        ends = (f"{self.topic} (topic)", f"{self.queue} (queue)")
        return " feeds ".join(ends if self.into_queue else reversed(ends))

    @classmethod
    def of(
        cls,
        source: Topic | DeclaredQueue,
        target: Topic | DeclaredQueue,
        group: str | None,
        place: Place | None,
    ) -> Feed:
        """Check what the user wrote.

        Raises:
            BadSettingError: It is not from a topic to a queue or from a queue to a topic, or there is no such group.
        """
        if isinstance(source, Topic) and isinstance(target, DeclaredQueue):
            if source.compact:
                what = (
                    f'the table "{source.name}" cannot feed a queue: a deleted row has no value to hand out'
                )
                raise BadSettingError(what, fix="feed it from a topic", place=place)
            return cls(source.name, target.name, True, place=place)
        if isinstance(source, DeclaredQueue) and isinstance(target, Topic):
            return cls(target.name, source.name, False, source.taken_by(group), place)
        what = "a feed goes from a topic to a queue, or from a queue to a topic"
        raise BadSettingError(what, fix="app.feed(orders, parcels)", place=place)
