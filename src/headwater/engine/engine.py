"""Runs all pipelines of an app in this process, each with its own query, checkpoint and supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait

from pyspark.sql import SparkSession

from headwater.engine.build.inputs import Input
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import EngineContext
from headwater.engine.expiry import apply_side_retention, expire_pipelines
from headwater.engine.realtime.realtime_query import TaskSlots
from headwater.engine.stored_inputs import find_input
from headwater.engine.supervisor import PipelineSupervisor
from headwater.errors import RefusedError, UnknownViewError, near_names
from headwater.pipelines import Graph, Pipeline, PipelineKind
from headwater.store.retention import SideRetention

__all__ = ["Engine"]


class Engine:
    """All pipelines of an app. A new engine fences every earlier engine on the same store.

    Args:
        graph: The app's topics and pipelines.
        spark: Returns the session; called from the pipelines' threads.
        context: The engine context.
        rebuild: The views to rebuild; all pipelines downstream of them are rebuilt, too.
        names: The pipelines to run; all, if None. They read what the others have committed before.
        app: The name of the app, under which its pipelines are recorded; empty for a dry run.

    Raises:
        UnknownViewError: The app has no view of a name in `rebuild`.
        RefusedError: A pipeline to rebuild is not a view, or does not run.
    """

    def __init__(
        self,
        graph: Graph,
        spark: Callable[[], SparkSession],
        context: EngineContext,
        rebuild: Mapping[str, Rebuild] | None = None,
        names: Collection[str] | None = None,
        app: str = "",
    ) -> None:
        _require_views(graph, rebuild or ())
        rebuilds = _with_downstream(graph, rebuild or {})
        pipelines = [each for each in graph.pipelines if names is None or each.name in names]
        _require_selected(rebuilds, [each.name for each in pipelines])
        self._graph = graph
        self._spark = spark
        self._app = app
        self.context = context.claim_ownership()
        self._slots = TaskSlots(spare=int(any(not pipeline.realtime for pipeline in pipelines)))
        self.supervisors: Mapping[str, PipelineSupervisor] = {
            each.name: self.make_supervisor(each, rebuilds.get(each.name)) for each in pipelines
        }
        """By name of the pipeline; replaced, never changed, so that any thread may iterate over it."""

    def make_supervisor(self, pipeline: Pipeline, rebuild: Rebuild | None = None) -> PipelineSupervisor:
        """Returns a supervisor that is not started and not yet one of the engine's."""
        return PipelineSupervisor(
            self._spark,
            pipeline,
            self._resolve_input,
            self.context,
            rebuild,
            is_leaf=not list(self._graph.downstream(pipeline.name)),
            slots=self._slots,
            waits_for_upstream=lambda: any(
                self.supervisors[name].rebuilding
                for name in self._graph.upstream(pipeline.name)
                if name in self.supervisors
            ),
        )

    def adopt(self, graph: Graph, names: Collection[str]) -> list[str]:
        """Take the graph of an edited app; stop the pipelines that it no longer has, or that are not selected.

        The other pipelines keep running as they are, until they are replaced.

        Args:
            graph: The app's topics and pipelines.
            names: The pipelines to run.

        Returns:
            The names of the pipelines that were stopped.
        """
        self._graph = graph
        self._create_topics()
        removed = [name for name in self.supervisors if name not in names]
        for name in reversed(removed):
            self.supervisors[name].stop()
        self.supervisors = {name: one for name, one in self.supervisors.items() if name not in removed}
        for name, supervisor in self.supervisors.items():
            supervisor.is_leaf = not list(graph.downstream(name))
        return removed

    def replace(self, supervisor: PipelineSupervisor) -> None:
        """Stop the query of a pipeline, if it runs, and start this supervisor in its place."""
        name = supervisor.pipeline.name
        if name in self.supervisors:
            self.supervisors[name].stop()
        self.supervisors = {**self.supervisors, name: supervisor}
        supervisor.start()

    def _resolve_input(self, name: str) -> Input:
        """Returns the input of this name; waits until the pipeline that produces it runs, if it is selected."""
        if name not in self.supervisors:
            return find_input(name, self._graph, self.context)
        query = self.supervisors[name].wait_until_running()
        assert query.topic is not None
        topic = self.context.log.topic(query.topic.name)
        if query.pipeline.kind is not PipelineKind.VIEW:
            return Input(name, topic)
        return Input.of_view(name, topic, query.built.row_behaviour, query.pipeline.key)

    def start(self) -> None:
        """Create the app's topics and start all pipelines in the background."""
        self._create_topics()
        for supervisor in self.supervisors.values():
            supervisor.start()

    def _create_topics(self) -> None:
        for topic in self._graph.topics:
            self.context.log.create(topic)
        if self._app:
            self.context.store.record_pipelines(self._app, [pipeline.name for pipeline in self._graph.pipelines])

    def catch_up(self) -> None:
        """Return when every pipeline has committed all available events, downstream pipelines last.

        Raises:
            HeadwaterError: A pipeline was given up.
        """
        self.take_retries()
        for caught_up in self.begin_catch_up().values():
            caught_up.result()

    def begin_catch_up(self) -> dict[str, Future[None]]:
        """Begin to catch up in the background, each pipeline after those that it reads.

        Returns:
            A future for each pipeline. It is done when the pipeline has committed all available events, or was given up
            with the error that is its exception.
        """
        futures: dict[str, Future[None]] = {}
        for name in self.supervisors:  # pipelines upstream come first
            upstream = [futures[each] for each in self._graph.upstream(name) if each in futures]
            future: Future[None] = Future()
            futures[name] = future
            thread = threading.Thread(
                target=self._catch_up_after, args=[name, upstream, future], name=f"headwater-catch-up-{name}"
            )
            thread.daemon = True  # another pipeline may have failed, and nobody waits for this one
            thread.start()
        return futures

    def _catch_up_after(self, name: str, upstream: Sequence[Future[None]], future: Future[None]) -> None:
        wait(upstream)
        supervisor = self.supervisors[name]
        try:
            for input_ in supervisor.wait_until_running().built.inputs:
                self.context.log.await_event_time(input_.topic.name)
            supervisor.catch_up()
            supervisor.finish_rebuild()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def take_retries(self) -> None:
        """Pass new requests to retry quarantined events to the running queries."""
        newest = self.context.store.newest_retries()
        for supervisor in self.supervisors.values():
            supervisor.take_retries(newest)

    def finish_rebuilds(self) -> None:
        """Let readers see the rebuilt views that have caught up."""
        for supervisor in self.supervisors.values():
            supervisor.finish_rebuild()

    def remove_expired(self) -> None:
        """Remove what missing pipelines have left, and side data whose retention is over."""
        self.context.check_owner()
        expire_pipelines(self.context)
        apply_side_retention(self.context, SideRetention.read())

    def stop(self) -> None:
        """Stop all queries."""
        for supervisor in self.supervisors.values():
            supervisor.stop()


def _with_downstream(graph: Graph, rebuild: Mapping[str, Rebuild]) -> dict[str, Rebuild]:
    """Returns the requests, with one for each pipeline that reads a view to rebuild."""
    downstream = {
        name: Rebuild(resume=request.resume) for view, request in rebuild.items() for name in graph.downstream(view)
    }
    return {**rebuild, **downstream}


def _require_selected(rebuilds: Collection[str], selected: Collection[str]) -> None:
    missing = [name for name in rebuilds if name not in selected]
    if missing:
        what = f"{', '.join(missing)} would be rebuilt, but is not selected"
        raise RefusedError(
            what, detail="pipelines downstream of a view are rebuilt with it", fix=f"--select {missing[0]}"
        )


def _require_views(graph: Graph, names: Collection[str]) -> None:
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
