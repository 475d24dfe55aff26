"""Topics that pipelines wait for, although they have no events that would advance them.

A topic that never had an event has no event time, and a pipeline that also reads others would wait for it for ever.
Such a topic follows the watermark of the other inputs while these are live. Which topics a pipeline reads together is
known from its committed offsets, the first of which it reports when it starts: it is the consumer group
`hw.pipeline.NAME` of each of them. So the log needs no store for it.

If the pipelines that read the topic have no other input, those that read their output wait for it, too: the topic then
follows the other inputs of these.

A table whose versions are history, or that never had one, is complete up to the present only for live inputs: while
history is loaded, older versions may still come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headwater.log.protocol import PartitionEnd
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.topic import Topic
from headwater.log.watermark import watermark_at

__all__ = ["InputTime", "find_awaited_time", "has_live_readers"]

_CHANGES: Final = re.compile(r"\.changes(\.\d+)?$")  # the topic of a view's changes; that of a stream has its name


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
        watermark = watermark_at((end.max_event_time for end in ends), topic.lateness // topic.lateness.resolution)
        return cls(watermark, None if topic.is_table or topic.external_time else is_live())


def find_awaited_time(
    topic: str, inputs: Mapping[str, Iterable[str]], time_of: Callable[[str], InputTime | None]
) -> int | None:
    """Returns the time to which a topic without events is raised; None if no pipeline waits for it, or must wait.

    That is the lowest watermark of the other inputs, over all pipelines that read the topic. If one of these inputs is
    not live, nothing is raised: events of the same time may still be loaded into this topic.

    Args:
        topic: The topic.
        inputs: The topics that each pipeline reads, by the name of the pipeline.
        time_of: Returns the time of a topic; None if it does not exist any more, or never had an event either.

    Example:
        >>> times = {"orders": InputTime(70, True), "products": InputTime(90, None), "archive": InputTime(5, False)}
        >>> find_awaited_time("refunds", {"open": ["orders", "refunds", "products"]}, times.__getitem__)
        70
        >>> find_awaited_time("refunds", {"all": ["archive", "refunds"]}, times.__getitem__)
        >>> find_awaited_time("refunds", {"large": ["refunds"], "both": ["large", "orders"]}, times.__getitem__)
        70
    """
    lowest = min((each.watermark for each in _find_live_inputs(topic, inputs, time_of)), default=LOWEST_TIME)
    return None if lowest == LOWEST_TIME else lowest


def has_live_readers(
    topic: str, inputs: Mapping[str, Iterable[str]], time_of: Callable[[str], InputTime | None]
) -> bool:
    """Returns whether pipelines read a topic together with others, and all of these are live; as above.

    Example:
        >>> times = {"orders": InputTime(70, True), "archive": InputTime(5, False)}
        >>> has_live_readers("prices", {"priced": ["orders", "prices"]}, times.__getitem__)
        True
        >>> has_live_readers("prices", {"priced": ["archive", "prices"]}, times.__getitem__)
        False
    """
    return bool(_find_live_inputs(topic, inputs, time_of))


def _find_live_inputs(
    topic: str, inputs: Mapping[str, Iterable[str]], time_of: Callable[[str], InputTime | None]
) -> list[InputTime]:
    """Returns the other inputs of the pipelines that wait for a topic; none unless all of them are live."""
    read = {pipeline: set(names) for pipeline, names in inputs.items()}
    others = _find_other_inputs(topic, read)
    found = {name: time for name in sorted(others) if (time := time_of(name)) is not None}
    # A topic that a pipeline writes is as live as what the pipeline reads.
    sources = _find_sources(others, read) - others - {topic}
    live = [each.live for each in found.values()]
    live += [time.live for name in sorted(sources) if (time := time_of(name)) is not None]
    return list(found.values()) if any(live) and False not in live else []


def _find_other_inputs(topic: str, read: Mapping[str, set[str]]) -> set[str]:
    """Returns the other inputs of the pipelines that read the topic; if there are none, of those further down."""
    waiting, reached = {topic}, {topic}
    while reached:
        readers = {pipeline for pipeline, names in read.items() if names & reached}
        others = {name for pipeline in readers for name in read[pipeline]} - waiting
        reached = {name for names in read.values() for name in names if _writer(name) in readers} - waiting
        if others - reached:
            return others - reached
        waiting |= reached
    return set()


def _find_sources(topics: set[str], read: Mapping[str, set[str]]) -> set[str]:
    """Returns everything that pipelines read to write these topics, directly or not."""
    found: set[str] = set()
    reached = topics
    while reached:
        reached = {name for topic in reached for name in read.get(_writer(topic), ())} - found
        found |= reached
    return found


def _writer(topic: str) -> str:
    """Returns the name that the pipeline would have that writes a topic."""
    return _CHANGES.sub("", topic)
