"""The graph of an app's topics and pipelines, checked and in topological order.

The checks need neither Spark nor I/O. They include the checks of real-time mode that the app's file alone can answer;
`headwater.engine.realtime` makes the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError as FoundCycle
from graphlib import TopologicalSorter
from typing import NamedTuple

from headwater.errors import CycleError, HeadwaterError, NotRealtimeError, UnknownInputError, near_names
from headwater.log import Topic, ValueFormat
from headwater.pipelines.pipeline import KeepLate, Pipeline, PipelineKind

__all__ = ["Edge", "Graph", "faults", "not_realtime_error", "realtime_faults"]

_REALTIME_FIX = 'leave out latency="realtime"'


def realtime_faults(topics: Mapping[str, Topic], pipelines: Mapping[str, Pipeline]) -> Iterator[NotRealtimeError]:
    """Yields the reasons why pipelines cannot run in the real-time mode they request, each with the user's line.

    Example:
        >>> view = Pipeline(name="totals", kind=PipelineKind.VIEW, inputs=("orders",), sql="…", latency="realtime")
        >>> [fault.what for fault in realtime_faults({}, {"totals": view})]
        ['view "totals" cannot be real-time: it is kept in a store']
    """
    for pipeline in pipelines.values():
        if pipeline.realtime:
            yield from _pipeline_faults(pipeline, topics, pipelines)


def _pipeline_faults(
    pipeline: Pipeline, topics: Mapping[str, Topic], pipelines: Mapping[str, Pipeline]
) -> Iterator[NotRealtimeError]:
    views = [name for name in pipeline.inputs if name in pipelines and pipelines[name].kind is PipelineKind.VIEW]
    if pipeline.kind is PipelineKind.VIEW:
        detail = "rows of a view and its ledger commit together, in batches"
        yield not_realtime_error(pipeline, "it is kept in a store", detail, f"app.stream, or {_REALTIME_FIX}")
    if len(pipeline.inputs) > 1:
        inputs = ", ".join(pipeline.inputs)
        yield not_realtime_error(pipeline, f"it reads {inputs}", "real-time mode reads one topic")
    elif views:
        detail = "a view is published in batches; real-time mode reads one topic"
        yield not_realtime_error(pipeline, f'it reads view "{views[0]}"', detail)
    for name in pipeline.inputs:
        if name in topics and topics[name].value_format is not ValueFormat.JSON:
            detail = "real-time mode reads JSON, in Spark SQL"
            yield not_realtime_error(pipeline, f'values of "{name}" are {topics[name].value_format.value}', detail)
    if pipeline.late != KeepLate():
        detail = "real-time mode has no watermark, so no event is late"
        yield not_realtime_error(pipeline, f"it has late: {pipeline.late}", detail, "leave out late=…")


def not_realtime_error(
    pipeline: Pipeline, part: str, detail: str | None = None, fix: str = _REALTIME_FIX
) -> NotRealtimeError:
    """Returns the error for a pipeline that real-time mode cannot run, with the reason."""
    what = f"{pipeline} cannot be real-time: {part}"
    return NotRealtimeError(what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name)


class Edge(NamedTuple):
    """An edge of the graph: events of `source` reach `target`."""

    source: str
    target: str


@dataclass(frozen=True)
class Graph:
    """The topics and pipelines of an app, each after its inputs; create it with `Graph.of`.

    Args:
        topics: The topics and tables, in order of declaration.
        pipelines: The pipelines, each after its inputs.
        edges: One edge for every input of every pipeline, in the same order.
    """

    topics: tuple[Topic, ...]
    pipelines: tuple[Pipeline, ...]
    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, topics: Iterable[Topic], pipelines: Iterable[Pipeline]) -> Graph:
        """Check everything that needs no Spark, and return the graph.

        Raises:
            UnknownInputError: A pipeline reads an input that is not declared.
            CycleError: Pipelines read one another.
            NotRealtimeError: A pipeline requests real-time mode and cannot run in it.

        Example:
            >>> orders = Topic.declare("orders", "id int")
            >>> copy = Pipeline(name="copy", kind=PipelineKind.STREAM, inputs=("big",), sql="…")
            >>> big = Pipeline(name="big", kind=PipelineKind.STREAM, inputs=("orders",), sql="…")
            >>> [pipeline.name for pipeline in Graph.of([orders], [copy, big]).pipelines]
            ['big', 'copy']
        """
        topics, by_name = tuple(topics), {pipeline.name: pipeline for pipeline in pipelines}
        for fault in faults(topics, by_name.values()):
            raise fault
        ordered = tuple(by_name[name] for name in _topological_order(by_name))
        edges = tuple(Edge(source, pipeline.name) for pipeline in ordered for source in pipeline.inputs)
        return cls(topics, ordered, edges)

    def downstream(self, name: str) -> tuple[str, ...]:
        """Returns everything that events of `name` reach, nearest first.

        Example:
            >>> orders = Topic.declare("orders", "id int")
            >>> big = Pipeline(name="big", kind=PipelineKind.STREAM, inputs=("orders",), sql="…")
            >>> Graph.of([orders], [big]).downstream("orders")
            ('big',)
        """
        return _reach(name, self.edges)

    def upstream(self, name: str) -> tuple[str, ...]:
        """Returns all topics and pipelines whose events reach `name`, nearest first.

        Example:
            >>> orders = Topic.declare("orders", "id int")
            >>> big = Pipeline(name="big", kind=PipelineKind.STREAM, inputs=("orders",), sql="…")
            >>> Graph.of([orders], [big]).upstream("big")
            ('orders',)
        """
        return _reach(name, ((target, source) for source, target in self.edges))


def _reach(name: str, edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns all nodes that edges lead to from a node, nearest first."""
    targets: dict[str, list[str]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
    reached = [name]
    for source in reached:  # grows while it is read: a breadth-first search
        reached += [target for target in dict.fromkeys(targets.get(source, ())) if target not in reached]
    return tuple(reached[1:])


def faults(topics: Iterable[Topic], pipelines: Iterable[Pipeline]) -> list[HeadwaterError]:
    """Returns all errors of the graph, each with the user's line."""
    by_name = {pipeline.name: pipeline for pipeline in pipelines}
    topics_by_name = {topic.name: topic for topic in topics}
    files = {name for name, pipeline in by_name.items() if pipeline.kind is PipelineKind.FILES}
    readable = [*topics_by_name, *(name for name in by_name if name not in files)]
    found: list[HeadwaterError] = []
    for pipeline in by_name.values():
        for name in pipeline.inputs:
            if name in files:
                found.append(_unreadable_input_error(pipeline, by_name[name]))
            elif name not in readable:
                others = [other for other in readable if other != pipeline.name]
                found.append(_unknown_input_error(pipeline, name, others))
    found += realtime_faults(topics_by_name, by_name)
    try:
        _topological_order(by_name)
    except FoundCycle as cycle:
        found.append(_cycle_error([by_name[name] for name in cycle.args[1]]))
    return found


def _topological_order(pipelines: Mapping[str, Pipeline]) -> list[str]:
    """Returns the names of pipelines, each after its inputs; independent ones are in order of declaration."""
    sorter = TopologicalSorter(
        {name: [source for source in pipeline.inputs if source in pipelines] for name, pipeline in pipelines.items()}
    )
    sorter.prepare()  # raises graphlib's CycleError
    position = {name: number for number, name in enumerate(pipelines)}
    ordered: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=position.__getitem__)
        ordered.append(ready.pop(0))
        sorter.done(ordered[-1])
    return ordered


def _unknown_input_error(pipeline: Pipeline, name: str, readable: list[str]) -> UnknownInputError:
    near = near_names(name, readable)
    detail = f"the app declares: {', '.join(readable)}" if readable else "the app declares nothing to read"
    if pipeline.sql is None:
        what = f'parameter "{name}" of {pipeline} names no input'
        detail += "\na parameter without a default value names an input"
    else:
        what = f'{pipeline} reads "{name}", which the app does not declare'
    fix = near[0] if near else f'{name} = app.topic("{name}", …)'
    return UnknownInputError(
        what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name, input=name, near=near
    )


def _unreadable_input_error(pipeline: Pipeline, output: Pipeline) -> UnknownInputError:
    what = f'{pipeline} reads "{output.name}", which writes files and cannot be read by a pipeline'
    detail, fix = f'"{output.name}" at {output.location} reads {", ".join(output.inputs)}', "read the same input"
    return UnknownInputError(
        what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name, input=output.name
    )


def _cycle_error(members: list[Pipeline]) -> CycleError:
    names = [pipeline.name for pipeline in members]
    if len(members) == 2 and names[0] == names[1]:
        what = f"{members[0]} reads itself"
    else:
        what = f"pipelines read one another: {' → '.join(names)}"
    detail = "\n".join(f"{pipeline.name} at {pipeline.location}" for pipeline in members[:-1])
    fix = "let one of them read a topic instead"
    return CycleError(what, detail=detail, fix=fix, location=members[0].location, cycle=names)
