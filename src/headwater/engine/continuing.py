"""Whether the events that a query reads next are still in the log. A query never goes on over a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.engine.building.inputs import Input
from headwater.engine.sink.checkpoint import Offsets
from headwater.errors import DataGoneError
from headwater.log.event_log import PartitionRange
from headwater.log.protocol import TimedLog
from headwater.pipelines import Kind, Pipeline

__all__ = ["require_events"]


def require_events(
    log: TimedLog,
    pipeline: Pipeline,
    inputs: Sequence[Input],
    positions: Mapping[str, Offsets],
    incarnations: Mapping[str, str],
) -> None:
    """Refuse to start a query that would leave events out without a word.

    Args:
        log: Where the events are.
        pipeline: Whose query it is.
        inputs: What it reads.
        positions: The next offset of each partition, by name of the input.
        incarnations: Which topic it has read under the name of each input; see `TimedLog.incarnation`.

    Raises:
        DataGoneError: Retention has removed events that it has not read; or the topic is another one by now.
    """
    for input_ in inputs:
        topic = input_.topic.name
        if incarnations.get(input_.name) not in (None, log.incarnation(topic)):
            what = f'topic "{topic}" was deleted and made again since {pipeline} read it'
            raise _gone(pipeline, what, "what the old one had and was not read is gone", topic=topic)
        held = {part.partition: part for part in log.ends(topic)}
        for number, at in sorted(positions[input_.name].items()):
            if number not in held or at > held[number].end:
                end = held[number].end if number in held else 0
                what = f'partition {number} of topic "{topic}" ends at {end}, and {pipeline} has read it up to {at}'
                raise _gone(pipeline, what, "the log has lost events", topic=topic, partition=number)
        missed = [(part, at) for part, at in _next(held, positions[input_.name]) if at < part.start]
        if missed:
            raise _missed(pipeline, topic, missed)


def _next(held: Mapping[int, PartitionRange], positions: Offsets) -> list[tuple[PartitionRange, int]]:
    return [(held[number], positions.get(number, 0)) for number in sorted(held)]


def _missed(pipeline: Pipeline, topic: str, missed: Sequence[tuple[PartitionRange, int]]) -> DataGoneError:
    part, at = missed[0]
    ranges = [f"{at} to {part.start - 1} of partition {part.partition}" for part, at in missed]
    return _gone(
        pipeline,
        f'offsets {", ".join(ranges)} of topic "{topic}" are gone, and {pipeline} has not read them',
        "retention removed them before the pipeline came to them",
        topic=topic,
        partition=part.partition,
        first=at,
        last=part.start - 1,
        start=part.start,
        events=sum(part.start - at for part, at in missed),
    )


def _gone(pipeline: Pipeline, what: str, why: str, **data: object) -> DataGoneError:
    view = pipeline.kind is Kind.VIEW
    left = (
        "a rebuild makes the view from what is left"
        if view
        else "what it has written stays; under another name it reads what is left"
    )
    return DataGoneError(
        what,
        detail=f"{why}; {left}",
        fix=f"headwater run --rebuild {pipeline.name}" if view else "give it another name",
        place=pipeline.place,
        pipeline=pipeline.name,
        **data,
    )
