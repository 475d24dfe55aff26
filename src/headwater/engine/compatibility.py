"""Compatibility of an edited pipeline with its running version.

`check_compatibility` compares the recorded definition of a query with the new one. The query continues, is rebuilt
beside the current version, or is refused. `ViewVersions` records which version of each pipeline runs, and which one
replaces the current version when it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headwater.engine.build.build import BuiltQuery
from headwater.engine.build.inputs import Input
from headwater.engine.context import EngineContext, QueryManifest
from headwater.engine.query import OffsetBounds, Query
from headwater.errors import StateChangedError
from headwater.log import Start
from headwater.pipelines import Pipeline, PipelineKind

__all__ = ["Compatibility", "Rebuild", "ViewVersions", "check_compatibility", "require_compatible"]


@dataclass(frozen=True)
class Compatibility:
    """The effect of a start on an existing query.

    `verdict` is "new" (starts from nothing), "kept" (continues), "rebuild" (needs `--rebuild`) or "refused" (cannot
    continue in place).
    """

    verdict: Literal["new", "kept", "rebuild", "refused"]
    notes: tuple[str, ...] = ()


def check_compatibility(before: QueryManifest | None, now: QueryManifest, built: BuiltQuery) -> Compatibility:
    """Compare two definitions of a query and decide whether its state can be kept."""
    if before is None:
        return Compatibility("new")
    changed = [name for name in sorted(before.facts.keys() | now.facts.keys())
               if before.facts.get(name) != now.facts.get(name)]  # fmt: skip
    shape = [
        f"{what} was {old or 'none'}, is {new or 'none'}"
        for what, old, new in (
            ("columns", before.schema, now.schema),
            ("output", before.mode, now.mode),
            ("state", before.state, now.state),
        )
        if old != new
    ]
    if not changed and not shape:
        return Compatibility("kept")
    notes = tuple([f"changed: {', '.join(changed)}"] * bool(changed) + shape)
    if (
        not shape
        and not built.stateful
        and set(changed) <= _COMPATIBLE_CHANGES | {c for c in changed if c.startswith("uses.")}
    ):
        return Compatibility("kept", (*notes, "rows made before keep their values"))
    return Compatibility("refused" if built.pipeline.kind is not PipelineKind.VIEW else "rebuild", notes)


_COMPATIBLE_CHANGES = {"code", "sql"}


def require_compatible(pipeline: Pipeline, compatibility: Compatibility) -> None:
    """Check that the query may continue.

    Raises:
        StateChangedError: What is kept does not fit the app's file.
    """
    if compatibility.verdict in ("new", "kept"):
        return
    if compatibility.verdict == "rebuild":
        fix = f"headwater run --rebuild {pipeline.name}"
        detail = "\n".join(
            (
                *compatibility.notes,
                "a rebuild reads the log from its start, beside the present view, then takes its place",
            )
        )
    else:
        fix = "give it another name"
        detail = "\n".join((*compatibility.notes, "what a stream has written stays written"))
    what = f"{pipeline} has changed since it ran, and what it kept does not fit"
    raise StateChangedError(what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name)


QueryFactory = Callable[[int, OffsetBounds | None], Query]
TargetOffsets = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Rebuild:
    """A request to rebuild a view from the log: from its start, or from a time or offset."""

    since: Start = "earliest"


class ViewVersions:
    """The versions of one pipeline.

    Args:
        context: Log and store.
        name: The pipeline.
        make_query: Makes the query of a version.
        rebuild: Given when the view is to be rebuilt.
    """

    def __init__(self, context: EngineContext, name: str, make_query: QueryFactory, rebuild: Rebuild | None) -> None:
        current = context.store.current_table(name)
        self.version = current.version if current else 1
        self.rebuild = rebuild
        self._context = context
        self._name = name
        self._make_query = make_query
        self._target: TargetOffsets | None = None

    @property
    def rebuilding(self) -> bool:
        """Whether a new version is catching up beside the one that readers see."""
        return self._target is not None

    def next_query(self) -> Query:
        """Returns the query to run: one that continues, or one that rebuilds the view beside the current version.

        A rebuild that a crash interrupted goes on by itself.

        Raises:
            StateChangedError: What is there does not fit, and nobody asked for a rebuild.
        """
        query = self._make_query(self.version, None)
        compatibility = check_compatibility(query.directory.load_manifest(), query.manifest(), query.built)
        compatible = compatibility.verdict in ("new", "kept")
        if self._target is not None or compatibility.verdict == "new" or query.pipeline.kind is not PipelineKind.VIEW:
            require_compatible(query.pipeline, compatibility)
            return query
        interrupted = self._context.query_directory(self._name, self.version + 1).load_manifest()
        if self.rebuild is None and (compatible or interrupted is None):
            require_compatible(query.pipeline, compatibility)
            return query
        return self._start_rebuild(query.built.inputs)

    def _start_rebuild(self, inputs: tuple[Input, ...]) -> Query:
        log = self._context.log
        since = self.rebuild.since if self.rebuild else "earliest"
        starts = {
            input_.name: {p: log.find_offset(input_.topic.name, p, since) for p in range(input_.topic.partitions)}
            for input_ in inputs
        }
        query = self._make_query(self.version + 1, OffsetBounds(starts))
        require_compatible(
            query.pipeline, check_compatibility(query.directory.load_manifest(), query.manifest(), query.built)
        )
        self.version += 1
        topics = [input_.topic.name for input_ in inputs]
        self._target = {topic: {end.partition: end.end for end in log.ends(topic)} for topic in topics}
        return query

    def on_commit(self) -> bool:
        """Record a commit; returns True when the new version has just replaced the old one."""
        if self._target is None or not self._has_reached(self._target):
            return False
        self._context.store.make_current(self._name, self.version)
        self._target = self.rebuild = None
        return True

    def _has_reached(self, target: TargetOffsets) -> bool:
        entry = self._context.store.last_entry(f"{self._name}@{self.version}")
        return entry is not None and all(
            read.end.get(partition, 0) >= end for read in entry.inputs for partition, end in target[read.topic].items()
        )
