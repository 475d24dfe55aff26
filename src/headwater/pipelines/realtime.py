"""Which pipelines can be real-time, as far as the app's file tells; what only Spark knows is in `engine/realtime/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headwater.errors import NotRealtimeError
from headwater.log import Topic, Values
from headwater.pipelines.late import Keep
from headwater.pipelines.pipeline import Kind, Pipeline

__all__ = ["not_realtime", "realtime_faults"]

_WITHOUT = 'leave out latency="realtime"'


def realtime_faults(
    topics: Mapping[str, Topic], pipelines: Mapping[str, Pipeline]
) -> Iterator[NotRealtimeError]:
    """What keeps pipelines that ask for it from being real-time, each with the user's line.

    Example:
        >>> view = Pipeline(name="totals", kind=Kind.VIEW, inputs=("orders",), sql="…", latency="realtime")
        >>> [fault.what for fault in realtime_faults({}, {"totals": view})]
        ['view "totals" cannot be real-time: it is kept in a store']
    """
    for pipeline in pipelines.values():
        if pipeline.realtime:
            yield from _faults(pipeline, topics, pipelines)


def _faults(
    pipeline: Pipeline, topics: Mapping[str, Topic], pipelines: Mapping[str, Pipeline]
) -> Iterator[NotRealtimeError]:
    views = [name for name in pipeline.inputs if name in pipelines and pipelines[name].kind is Kind.VIEW]
    if pipeline.kind is Kind.VIEW:
        detail = "rows of a view and its ledger commit together, in batches"
        yield not_realtime(pipeline, "it is kept in a store", detail, f"app.stream, or {_WITHOUT}")
    if len(pipeline.inputs) > 1:
        inputs = ", ".join(pipeline.inputs)
        yield not_realtime(pipeline, f"it reads {inputs}", "real-time mode reads one topic")
    elif views:
        detail = "a view is published in batches; real-time mode reads one topic"
        yield not_realtime(pipeline, f'it reads view "{views[0]}"', detail)
    for name in pipeline.inputs:
        if name in topics and topics[name].values is not Values.JSON:
            detail = "real-time mode reads JSON, in Spark SQL"
            yield not_realtime(pipeline, f'values of "{name}" are {topics[name].values.value}', detail)
    if pipeline.late != Keep():
        detail = "every event counts whenever it comes: no watermark tells late ones apart"
        yield not_realtime(pipeline, f"it says late: {pipeline.late}", detail, "leave out late=…")


def not_realtime(
    pipeline: Pipeline, part: str, detail: str | None = None, fix: str = _WITHOUT
) -> NotRealtimeError:
    """The error that says which part of a pipeline real-time mode cannot run."""
    what = f"{pipeline} cannot be real-time: {part}"
    return NotRealtimeError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)
