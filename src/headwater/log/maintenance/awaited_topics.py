"""Topics without events that pipelines wait for.

A topic that never had an event has no event time, and a pipeline that also reads others would wait for it for ever.
Such a topic follows the watermark of the other inputs while these are live. Which topics a pipeline reads together is
known from its committed offsets: it is the consumer group `hw.pipeline.NAME` of each of them. So the log needs no store
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headwater.log.protocol import PartitionEnd
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.topic import Topic

__all__ = ["InputTime", "find_awaited_time"]


@dataclass(frozen=True)
class InputTime:
    """How far the event time of an input is, in microseconds since 1970, and whether the input is live.

    `live` is None where it does not matter: a table is complete up to the present, and a topic that a pipeline writes
    has the watermark of that pipeline.
    """

    watermark: int
    live: bool | None

    @classmethod
    def of(cls, topic: Topic, ends: Iterable[PartitionEnd], is_live: Callable[[], bool]) -> InputTime:
        """Returns the time of an input; calls `is_live` only if it matters."""
        lowest = min(end.max_event_time for end in ends)
        lateness = topic.lateness // topic.lateness.resolution
        watermark = lowest - lateness if lowest > LOWEST_TIME + lateness else LOWEST_TIME
        return cls(watermark, None if topic.is_table or topic.external_time else is_live())


def find_awaited_time(
    topic: str, inputs: Mapping[str, Iterable[str]], time_of: Callable[[str], InputTime | None]
) -> int | None:
    """Returns the time to which a topic without events is raised; None if no pipeline waits for it, or must wait.

    That is the lowest watermark of the other inputs, over all pipelines that read the topic. If one of these inputs is
    not live, nothing is raised: events of the same time may still be loaded into this topic.

    Args:
        topic: The topic.
        inputs: The topics that each pipeline reads.
        time_of: Returns the time of a topic; None if it does not exist any more.

    Example:
        >>> times = {"orders": InputTime(70, True), "products": InputTime(90, None), "archive": InputTime(5, False)}
        >>> find_awaited_time("refunds", {"open": ["orders", "refunds", "products"]}, times.__getitem__)
        70
        >>> find_awaited_time("refunds", {"all": ["archive", "refunds"]}, times.__getitem__)
    """
    others = {name for names in map(set, inputs.values()) if topic in names for name in names} - {topic}
    found = [time for name in sorted(others) if (time := time_of(name)) is not None]
    if not any(each.live for each in found) or any(each.live is False for each in found):
        return None
    lowest = min(each.watermark for each in found)
    return None if lowest == LOWEST_TIME else lowest
