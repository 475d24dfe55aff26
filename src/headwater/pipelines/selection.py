"""Selection of an app's pipelines by name: `NAME`, `+NAME`, `NAME+`, `+NAME+`.

A plus sign in front adds everything that the pipeline reads, one behind it everything that reads the pipeline. A
topic selects nothing itself, but the pipelines that read it: `orders+`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.errors import UsageError, near_names
from headwater.pipelines.graph import Graph

__all__ = ["ALL", "Selection"]


@dataclass(frozen=True)
class Selection:
    """Which pipelines of an app run.

    Args:
        select: Selectors of the pipelines to take; all, if empty.
        exclude: Selectors of the pipelines to leave out.
    """

    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def names(self, graph: Graph) -> tuple[str, ...]:
        """Returns the names of the selected pipelines, each after its inputs.

        Raises:
            UsageError: A selector matches no pipeline, or nothing is left.

        Example:
            >>> from headwater.pipelines import Pipeline, PipelineKind
            >>> from headwater.log import Topic
            >>> big = Pipeline(name="big", kind=PipelineKind.STREAM, inputs=("orders",), sql="…")
            >>> huge = Pipeline(name="huge", kind=PipelineKind.STREAM, inputs=("big",), sql="…")
            >>> graph = Graph.of([Topic.declare("orders", "id int")], [big, huge])
            >>> Selection(("+huge",)).names(graph), Selection(("orders+",), ("huge",)).names(graph)
            (('big', 'huge'), ('big',))
        """
        names = [pipeline.name for pipeline in graph.pipelines]
        taken = _match(graph, self.select, names) if self.select else set(names)
        selected = tuple(name for name in names if name in taken - _match(graph, self.exclude, names))
        if not selected and names:
            what = "no pipeline is selected"
            raise UsageError(what, detail=f"pipelines: {', '.join(names)}", fix=f"--select {names[0]}")
        return selected


ALL: Final = Selection()
"""All pipelines."""


def _match(graph: Graph, selectors: Sequence[str], names: Collection[str]) -> set[str]:
    """Returns all pipelines that a selector matches."""
    found: set[str] = set()
    for selector in selectors:
        name = selector.removeprefix("+").removesuffix("+")
        matched = {name}
        if selector.startswith("+"):
            matched.update(graph.upstream(name))
        if selector.endswith("+"):
            matched.update(graph.downstream(name))
        if name not in names and name not in {topic.name for topic in graph.topics}:
            near = near_names(name, names, 1)
            detail = f"pipelines: {', '.join(names) or 'none'}"
            raise UsageError(f'the app has no pipeline "{name}"', detail=detail, fix=near[0] if near else None)
        if matched.isdisjoint(names):
            what = f'"{name}" is a topic, not a pipeline'
            fix = f"{name}+" if graph.downstream(name) else None
            raise UsageError(what, detail=None if fix else "no pipeline reads it", fix=fix)
        found |= matched
    return found
