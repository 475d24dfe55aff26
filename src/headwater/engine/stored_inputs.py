"""Inputs from pipelines that do not run: a pipeline reads what they have committed."""

from __future__ import annotations

from headwater.engine.build.inputs import Input, RowBehaviour
from headwater.engine.context import EngineContext
from headwater.errors import RefusedError, UnknownTopicError
from headwater.pipelines import Graph, Pipeline, PipelineKind
from headwater.store.changelog import changelog_topic

__all__ = ["current_version", "find_input"]


def current_version(name: str, context: EngineContext) -> int:
    """Returns the version of a pipeline that readers see; 1 for a stream, which has no other."""
    current = context.store.current_table(name)
    return current.version if current else 1


def find_input(name: str, graph: Graph, context: EngineContext) -> Input:
    """Returns the input of this name, as its last run has left it.

    Raises:
        RefusedError: It is the result of a pipeline that has never run.
    """
    source = {pipeline.name: pipeline for pipeline in graph.pipelines}.get(name)
    if source is None:
        return Input(name, context.log.topic(name))
    if source.kind is not PipelineKind.VIEW:
        try:
            return Input(name, context.log.topic(name))
        except UnknownTopicError:
            raise _never_run(source) from None
    version = current_version(name, context)
    manifest = context.query_directory(name, version).load_manifest()
    if manifest is None:
        raise _never_run(source)
    topic = context.log.topic(changelog_topic(name, version))
    return Input.of_view(name, topic, RowBehaviour(manifest.rows), source.key)


def _never_run(source: Pipeline) -> RefusedError:
    what = f"{source} is not selected, and it has never run: its rows are unknown"
    return RefusedError(what, fix=f"--select {source.name}", location=source.location, pipeline=source.name)
