"""Runs all pipelines of an app in this process, each with its own query, checkpoint and supervisor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyspark.sql import SparkSession

from headwater.engine.build.inputs import Input
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import EngineContext
from headwater.engine.realtime.realtime_query import TaskSlots
from headwater.engine.supervisor import PipelineSupervisor
from headwater.errors import RefusedError, UnknownViewError, near_names
from headwater.pipelines import Graph, PipelineKind

__all__ = ["Engine"]


class Engine:
    """All pipelines of an app. A new engine fences every earlier engine on the same store.

    Args:
        graph: The app's topics and pipelines.
        spark: Returns the session; called from the pipelines' threads.
        context: The engine context.
        rebuild: The views to rebuild; all pipelines downstream of them are rebuilt, too.

    Raises:
        UnknownViewError: The app has no view of a name in `rebuild`.
        RefusedError: A pipeline to rebuild is not a view.
    """

    def __init__(
        self,
        graph: Graph,
        spark: Callable[[], SparkSession],
        context: EngineContext,
        rebuild: Mapping[str, Rebuild] | None = None,
    ) -> None:
        _require_views(graph, rebuild or ())
        downstream = {name: Rebuild() for view in rebuild or () for name in graph.downstream(view)}
        rebuilds = {**(rebuild or {}), **downstream}
        self._graph = graph
        self.context = context = context.claim_ownership()
        slots = TaskSlots(spare=int(any(not pipeline.realtime for pipeline in graph.pipelines)))
        self.supervisors = {
            pipeline.name: PipelineSupervisor(
                spark,
                pipeline,
                self._resolve_input,
                context,
                rebuilds.get(pipeline.name),
                is_leaf=not list(graph.downstream(pipeline.name)),
                slots=slots,
            )
            for pipeline in graph.pipelines
        }

    def _resolve_input(self, name: str) -> Input:
        """Returns the input of this name; waits until the pipeline that produces it runs."""
        if name not in self.supervisors:
            return Input(name, self.context.log.topic(name))
        query = self.supervisors[name].wait_until_running()
        assert query.topic is not None
        topic = self.context.log.topic(query.topic.name)
        if query.pipeline.kind is not PipelineKind.VIEW:
            return Input(name, topic)
        return Input.of_view(name, topic, query.built.row_behaviour, query.pipeline.key)

    def start(self) -> None:
        """Create the app's topics and start all pipelines in the background."""
        for topic in self._graph.topics:
            self.context.log.create(topic)
        for supervisor in self.supervisors.values():
            supervisor.start()

    def catch_up(self) -> None:
        """Return when every pipeline has committed all available events, downstream pipelines last.

        Raises:
            HeadwaterError: A pipeline was given up.
        """
        self.take_retries()
        for pipeline in self._graph.pipelines:
            query = self.supervisors[pipeline.name].wait_until_running()
            for input_ in query.built.inputs:
                self.context.log.await_event_time(input_.topic.name)
            self.supervisors[pipeline.name].catch_up()

    def take_retries(self) -> None:
        """Pass new requests to retry quarantined events to the running queries."""
        newest = self.context.store.newest_retries()
        for supervisor in self.supervisors.values():
            supervisor.take_retries(newest)

    def stop(self) -> None:
        """Stop all queries."""
        for supervisor in self.supervisors.values():
            supervisor.stop()


def _require_views(graph: Graph, names: Iterable[str]) -> None:
    known = {pipeline.name: pipeline for pipeline in graph.pipelines}
    for name in names:
        if name not in known:
            views = [one.name for one in graph.pipelines if one.kind is PipelineKind.VIEW]
            near = near_names(name, views, 1)
            detail = f"views: {', '.join(views) or 'none'}"
            raise UnknownViewError(f'no view "{name}"', detail=detail, fix=near[0] if near else None, view=name)
        if known[name].kind is not PipelineKind.VIEW:
            what = f"{known[name]} cannot be rebuilt"
            detail = "rows that it has written stay; under another name it reads the log from its start"
            raise RefusedError(what, detail=detail, fix="give it another name", pipeline=name)
