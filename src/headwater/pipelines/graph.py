"""How the topics and pipelines of an app hang together: checked, and in an order in which everything can run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError as FoundCycle
from graphlib import TopologicalSorter
from typing import NamedTuple

from headwater.errors import CycleError, HeadwaterError, UnknownInputError
from headwater.log.definition import Topic
from headwater.pipelines.pipeline import Kind, Pipeline
from headwater.pipelines.realtime import realtime_faults

__all__ = ["Edge", "Graph", "faults"]


class Edge(NamedTuple):
    """Events of `source` reach `target`."""

    source: str
    target: str


@dataclass(frozen=True)
class Graph:
    """The topics of an app and its pipelines, each behind those it reads; make one with `Graph.of`.

    Args:
        topics: Topics and tables, as they were declared.
        pipelines: Pipelines in an order in which each comes after its inputs.
        edges: One for every input of every pipeline, in the same order.
    """

    topics: tuple[Topic, ...]
    pipelines: tuple[Pipeline, ...]
    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, topics: Iterable[Topic], pipelines: Iterable[Pipeline]) -> Graph:
        """Check everything that can be checked without Spark.

        Raises:
            UnknownInputError: A pipeline reads what is not declared.
            CycleError: Pipelines read one another.
            NotRealtimeError: A pipeline asks for real-time mode and could never have it.

        Example:
            >>> orders = Topic.declare("orders", "id int")
            >>> copy = Pipeline(name="copy", kind=Kind.STREAM, inputs=("big",), sql="…")
            >>> big = Pipeline(name="big", kind=Kind.STREAM, inputs=("orders",), sql="…")
            >>> [pipeline.name for pipeline in Graph.of([orders], [copy, big]).pipelines]
            ['big', 'copy']
        """
        known, asked = tuple(topics), {pipeline.name: pipeline for pipeline in pipelines}
        for fault in _faults(known, asked):
            raise fault
        ordered = tuple(asked[name] for name in _ordered(asked))
        edges = tuple(Edge(source, pipeline.name) for pipeline in ordered for source in pipeline.inputs)
        return cls(known, ordered, edges)

    def upstream(self, name: str) -> tuple[str, ...]:
        """Everything whose events reach `name`, nearest first."""
        return tuple(
            self._reached(name, {edge: Edge(edge.target, edge.source) for edge in self.edges}.values())
        )

    def downstream(self, name: str) -> tuple[str, ...]:
        """Everything that events of `name` reach, nearest first.

        Example:
            >>> orders = Topic.declare("orders", "id int")
            >>> big = Pipeline(name="big", kind=Kind.STREAM, inputs=("orders",), sql="…")
            >>> Graph.of([orders], [big]).downstream("orders")
            ('big',)
        """
        return tuple(self._reached(name, self.edges))

    @staticmethod
    def _reached(name: str, edges: Iterable[Edge]) -> Iterator[str]:
        steps: dict[str, list[str]] = {}
        for source, target in edges:
            steps.setdefault(source, []).append(target)
        seen, waiting = {name}, [name]
        while waiting:
            for step in steps.get(waiting.pop(0), ()):
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
                    yield step


def faults(topics: Iterable[Topic], pipelines: Iterable[Pipeline]) -> list[HeadwaterError]:
    """All that is wrong with the graph, each with the user's line; empty when nothing is."""
    return list(_faults(tuple(topics), {pipeline.name: pipeline for pipeline in pipelines}))


def _faults(topics: tuple[Topic, ...], pipelines: Mapping[str, Pipeline]) -> Iterator[HeadwaterError]:
    readable = [topic.name for topic in topics]
    readable += [name for name, pipeline in pipelines.items() if pipeline.kind is not Kind.FILES]
    for pipeline in pipelines.values():
        for name in pipeline.inputs:
            if name in pipelines and pipelines[name].kind is Kind.FILES:
                yield _not_readable(pipeline, pipelines[name])
            elif name not in readable:
                yield _unknown(pipeline, name, [other for other in readable if other != pipeline.name])
    yield from realtime_faults({topic.name: topic for topic in topics}, pipelines)
    try:
        _ordered(pipelines)
    except FoundCycle as found:
        yield _cycle([pipelines[name] for name in found.args[1]])


def _ordered(pipelines: Mapping[str, Pipeline]) -> list[str]:
    """Pipelines behind their inputs; those that could stand in any order, as they were declared."""
    sorter = TopologicalSorter(
        {
            name: [source for source in pipeline.inputs if source in pipelines]
            for name, pipeline in pipelines.items()
        }
    )
    sorter.prepare()
    place = {name: number for number, name in enumerate(pipelines)}
    ordered: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
        ordered.append(ready.pop(0))
        sorter.done(ordered[-1])
    return ordered


def _unknown(pipeline: Pipeline, name: str, readable: list[str]) -> UnknownInputError:
    near = difflib.get_close_matches(name, readable, n=3, cutoff=0.5)
    near += [other for other in readable if other.casefold() == name.casefold() and other not in near]
    detail = f"the app declares: {', '.join(readable)}" if readable else "the app declares nothing to read"
    if pipeline.sql is None:
        what = f'parameter "{name}" of {pipeline} names nothing'
        detail += "\na parameter is an input; with a default value it is a setting"
    else:
        what = f'{pipeline} reads "{name}", which the app does not declare'
    fix = near[0] if near else f'{name} = app.topic("{name}", …)'
    return UnknownInputError(
        what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name, input=name, near=near
    )


def _not_readable(pipeline: Pipeline, output: Pipeline) -> UnknownInputError:
    what = f'{pipeline} reads "{output.name}", which writes files and cannot be read by a pipeline'
    detail = f'"{output.name}" at {output.place} reads {", ".join(output.inputs)}'
    return UnknownInputError(
        what,
        detail=detail,
        fix="read the same input",
        place=pipeline.place,
        pipeline=pipeline.name,
        input=output.name,
    )


def _cycle(members: list[Pipeline]) -> CycleError:
    names = [pipeline.name for pipeline in members]
    if len(members) == 2 and names[0] == names[1]:
        what = f"{members[0]} reads itself"
    else:
        what = f"pipelines read one another: {' → '.join(names)}"
    detail = "\n".join(f"{pipeline.name} at {pipeline.place}" for pipeline in members[:-1])
    fix = "let one of them read a topic instead"
    return CycleError(what, detail=detail, fix=fix, place=members[0].place, cycle=names)
