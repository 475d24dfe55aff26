"""Runs all pipelines of an app in this process, each with its own query, checkpoint and supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from headwater.engine.build.inputs import Input
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import EngineContext
from headwater.engine.realtime.realtime_query import TaskSlots
from headwater.engine.supervisor import PipelineSupervisor
from headwater.pipelines import Graph, PipelineKind

__all__ = ["Engine"]


class Engine:
    """Runs a graph of pipelines.

    Args:
        graph: The app's topics and pipelines.
        spark: Gives the session; asked for in the background.
        context: The engine context.
        rebuild: Views that are to be rebuilt, and how; what stands behind them is, too.
    """

    def __init__(
        self,
        graph: Graph,
        spark: Callable[[], SparkSession],
        context: EngineContext,
        rebuild: Mapping[str, Rebuild] | None = None,
    ) -> None:
        rebuilds = dict(rebuild or {})
        rebuilds.update({name: Rebuild() for view in rebuild or () for name in graph.downstream(view)})
        self._graph = graph
        self._context = context = context.claim_ownership()
        slots = TaskSlots(spare=int(any(not pipeline.realtime for pipeline in graph.pipelines)))
        self.supervisors = {
            pipeline.name: PipelineSupervisor(
                spark,
                pipeline,
                lambda names=pipeline.inputs: tuple(self._resolve_input(name) for name in names),  # type: ignore[misc]
                context,
                rebuilds.get(pipeline.name),
                is_leaf=not list(graph.downstream(pipeline.name)),
                slots=slots,
            )
            for pipeline in graph.pipelines
        }

    def _resolve_input(self, name: str) -> Input:
        """Returns the input of this name; waits for the pipeline that makes it."""
        if name not in self.supervisors:
            return Input(name, self._context.log.topic(name))
        query = self.supervisors[name].wait_until_running()
        assert query.topic is not None
        topic = self._context.log.topic(query.topic.name)
        if query.pipeline.kind is not PipelineKind.VIEW:
            return Input(name, topic)
        return Input.of_view(name, topic, query.built.row_behaviour, query.pipeline.key)

    def start(self) -> None:
        """Create the app's topics and start all pipelines in the background."""
        for topic in self._graph.topics:
            self._context.log.create(topic)
        for supervisor in self.supervisors.values():
            supervisor.start()

    def catch_up(self) -> None:
        """Return when every pipeline has committed all available events, downstream pipelines last.

        Raises:
            HeadwaterError: A pipeline has failed for good.
        """
        for pipeline in self._graph.pipelines:
            query = self.supervisors[pipeline.name].wait_until_running()
            for input_ in query.built.inputs:
                self._context.log.await_event_time(input_.topic.name)
            self.supervisors[pipeline.name].catch_up()

    def check_owner(self) -> None:
        """Check that no other driver has taken over the pipelines.

        Raises:
            FencedError: One has.
        """
        self._context.check_owner()

    def stop(self) -> None:
        """Stop all queries."""
        for supervisor in self.supervisors.values():
            supervisor.stop()
