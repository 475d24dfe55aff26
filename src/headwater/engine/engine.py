"""All pipelines of an app in this process, each with its own query, checkpoint and fate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from headwater.engine.building.inputs import Input
from headwater.engine.keeper import Keeper
from headwater.engine.realtime.slots import Slots
from headwater.engine.surroundings import Surroundings
from headwater.engine.versions import Rebuild
from headwater.pipelines import Graph, Kind

__all__ = ["Engine"]


class Engine:
    """Runs a graph of pipelines.

    Args:
        graph: The app's topics and pipelines.
        spark: Gives the session; asked for in the background.
        around: What all queries share.
        rebuild: Views that are to be made anew, and how; what stands behind them is, too.
    """

    def __init__(
        self,
        graph: Graph,
        spark: Callable[[], SparkSession],
        around: Surroundings,
        rebuild: Mapping[str, Rebuild] | None = None,
    ) -> None:
        anew = dict(rebuild or {})
        anew.update({name: Rebuild() for view in rebuild or () for name in graph.downstream(view)})
        self._graph = graph
        self._around = around = around.owned()
        slots = Slots(spare=int(any(not pipeline.realtime for pipeline in graph.pipelines)))
        self.keepers = {
            pipeline.name: Keeper(
                spark,
                pipeline,
                lambda names=pipeline.inputs: tuple(self._input(name) for name in names),  # type: ignore[misc]
                around,
                anew.get(pipeline.name),
                alone=not list(graph.downstream(pipeline.name)),
                slots=slots,
            )
            for pipeline in graph.pipelines
        }

    def _input(self, name: str) -> Input:
        """What a pipeline sees under this name; waits for the pipeline that makes it."""
        if name not in self.keepers:
            return Input(name, self._around.log.topic(name))
        query = self.keepers[name].ready()
        assert query.topic is not None
        topic = self._around.log.topic(query.topic.name)
        if query.pipeline.kind is not Kind.VIEW:
            return Input(name, topic)
        return Input.of_view(name, topic, query.built.rows, query.pipeline.key)

    def start(self) -> None:
        """Create the app's topics and start all pipelines in the background."""
        for topic in self._graph.topics:
            self._around.log.create(topic)
        for keeper in self.keepers.values():
            keeper.start()

    def settle(self) -> None:
        """Return when every pipeline has committed all there is, those behind others last.

        Raises:
            HeadwaterError: A pipeline has failed for good.
        """
        for pipeline in self._graph.pipelines:
            query = self.keepers[pipeline.name].ready()
            for input_ in query.built.inputs:
                self._around.log.settle(input_.topic.name)
            self.keepers[pipeline.name].catch_up()

    def require_owner(self) -> None:
        """Go on only as long as no other driver has taken the pipelines.

        Raises:
            FencedError: One has.
        """
        self._around.require_owner()

    def stop(self) -> None:
        """End all queries."""
        for keeper in self.keepers.values():
            keeper.stop()
