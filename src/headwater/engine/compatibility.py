"""Compatibility of an edited pipeline with its previous run, and the versions of a view.

`check_compatibility` compares two manifests: the query continues, must be rebuilt, or is refused. `choose_start`
decides whether the next start continues the current version or builds another one beside it. `ViewVersions` carries
this out, and replaces the current version once the new one has caught up.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from headwater.engine.build.inputs import Input
from headwater.engine.context import EngineContext, QueryManifest
from headwater.engine.query import OffsetBounds, Query, rebuild_error
from headwater.engine.sink.sink import OffsetReport
from headwater.errors import DataGoneError, HeadwaterError, StateChangedError
from headwater.events.values import format_moment
from headwater.log import Start
from headwater.pipelines import Pipeline, PipelineKind
from headwater.plan import StateVerdict
from headwater.store.pipeline_registry import EXPIRY, PipelineRecord

__all__ = ["Compatibility", "Rebuild", "ViewVersions", "check_compatibility", "choose_start", "require_compatible"]

logger = logging.getLogger("headwater.engine")
_IN_PLACE: Final = re.compile(r"code|sql|uses\..*")
"""Facts that may change in place if no step keeps state: rows that exist do not depend on them."""
_LATENESS: Final = re.compile(r"lateness\.(.*)")
"""Facts that manifests of older versions lack; compared only if both manifests have them."""


@dataclass(frozen=True)
class Compatibility:
    """The effect of a start on an existing query.

    `verdict` is "new" (there is no earlier run), "kept" (the query continues), "rebuild" (the view must be rebuilt) or
    "refused" (the pipeline can neither continue nor be rebuilt). `notes` name the differences.
    """

    verdict: StateVerdict
    notes: tuple[str, ...] = ()

    @property
    def continues(self) -> bool:
        """Whether the query can run in place."""
        return self.verdict in ("new", "kept")


def check_compatibility(
    before: QueryManifest | None, now: QueryManifest, *, stateful: bool, kind: PipelineKind
) -> Compatibility:
    """Compare two definitions of a query and decide whether its state can be kept.

    Args:
        before: The manifest of the earlier run; None if there was none.
        now: The manifest of the current definition.
        stateful: Whether a step of the query keeps state.
        kind: The kind of the pipeline; only a view can be rebuilt.
    """
    if before is None:
        return Compatibility("new")
    changed = [name for name in sorted(before.facts.keys() | now.facts.keys())
               if before.facts.get(name) != now.facts.get(name) and not _LATENESS.fullmatch(name)]  # fmt: skip
    lateness = [
        (f"lateness of {match[1]}", before.facts[name], now.facts[name])
        for name in sorted(before.facts.keys() & now.facts.keys())
        if (match := _LATENESS.fullmatch(name))
    ]
    shape = [
        f"{what} was {old or 'none'}, is {new or 'none'}"
        for what, old, new in (
            ("columns", before.schema, now.schema),
            ("output", before.mode, now.mode),
            ("state", before.state, now.state),
            *lateness,
        )
        if old != new
    ]
    notes = (*([f"changed: {', '.join(changed)}"] if changed else []), *shape)
    if not notes:
        return Compatibility("kept")
    if not shape and not stateful and all(map(_IN_PLACE.fullmatch, changed)):
        return Compatibility("kept", (*notes, "rows that exist keep their values"))
    return Compatibility("rebuild" if kind is PipelineKind.VIEW else "refused", notes)


def require_compatible(pipeline: Pipeline, compatibility: Compatibility) -> None:
    """Check that the query may continue.

    Raises:
        StateChangedError: The state of the earlier run does not match the app's file.
    """
    if compatibility.continues:
        return
    rebuilt = "a rebuild reads the log from its start, beside the current view, and then replaces it"
    effect = rebuilt if pipeline.kind is PipelineKind.VIEW else "rows that a stream has written stay"
    what = f"{pipeline} has changed since its last run, and its state does not match"
    raise rebuild_error(StateChangedError, pipeline, what, "\n".join((*compatibility.notes, effect)))


def choose_start(
    compatibility: Compatibility, kind: PipelineKind, *, rebuilding: bool, requested: bool, interrupted: bool
) -> Literal["continue", "rebuild", "refuse"]:
    """Decide how the next query of a pipeline starts.

    Args:
        compatibility: The result of the comparison with the current version.
        kind: The kind of the pipeline.
        rebuilding: Whether the current version is itself a rebuild that has not caught up.
        requested: Whether a rebuild was requested.
        interrupted: Whether an unfinished version of the present definition exists, because a crash interrupted it.
    """
    needs_rebuild = requested or (interrupted and not compatibility.continues)
    if needs_rebuild and kind is PipelineKind.VIEW and not rebuilding and compatibility.verdict != "new":
        return "rebuild"
    return "continue" if compatibility.continues else "refuse"


QueryFactory = Callable[[int, OffsetBounds | None], Query]


@dataclass(frozen=True)
class Rebuild:
    """A request to rebuild a view from the log: from its start, or from a time or offset.

    With `resume` an engine that has ended may have begun it: the unfinished version continues, and a finished rebuild
    does not begin anew.
    """

    since: Start = "earliest"
    resume: bool = False


class ViewVersions:
    """The versions of one pipeline.

    Args:
        context: The engine context.
        name: The name of the pipeline.
        make_query: Creates the query of a version.
        rebuild: A request to rebuild the view.
        waits_for_upstream: Returns whether a view that it reads is rebuilt, too: its end is not known yet.
    """

    def __init__(
        self,
        context: EngineContext,
        name: str,
        make_query: QueryFactory,
        rebuild: Rebuild | None,
        waits_for_upstream: Callable[[], bool] = lambda: False,
    ) -> None:
        current = context.store.current_table(name)
        self.version = current.version if current else 1
        self.rebuild = rebuild
        self._context = context
        self._name = name
        self._make_query = make_query
        self._waits_for_upstream = waits_for_upstream
        self._read_upstream = False  # whether a view that it reads was rebuilt at the last look
        self._finishing = threading.Lock()
        self._target: dict[str, dict[int, int]] | None = None
        """End offsets by topic and partition at which a rebuild replaces the current version."""
        self._starts: dict[str, Mapping[int, int]] = {}
        """The offsets at which a rebuild begins, by topic and partition."""

    @property
    def rebuilding(self) -> bool:
        """Whether a new version is catching up beside the one that readers see."""
        return self._target is not None

    def next_query(self) -> Query:
        """Returns the query to run: it continues, or it rebuilds the view beside the current version.

        A rebuild that a crash interrupted continues without a request. A request begins anew, unless it says to
        resume: the unfinished version may come from a function that failed, or its state may be damaged.

        Raises:
            StateChangedError: The state does not match the definition, and no rebuild was requested.
        """
        query = self._make_query(self.version, None)
        compatibility = _compare_with_last_run(query)
        expired = next((r for r in self._context.store.pipelines() if r.pipeline == self._name and r.expired_at), None)
        if expired is not None and not self.rebuilding:
            compatibility = Compatibility("rebuild")
        unfinished = self._context.versions_after(self._name, self.version)
        request = self.rebuild
        may_resume = unfinished and (request.resume if request else not compatibility.continues)
        resumed = self._resume(unfinished[-1]) if may_resume else None
        start = choose_start(
            compatibility,
            query.pipeline.kind,
            rebuilding=self.rebuilding,
            requested=request is not None and (not request.resume or bool(unfinished) or not compatibility.continues),
            interrupted=resumed is not None,
        )
        if start != "rebuild":
            if expired is not None and not compatibility.continues:
                raise _expired_error(query.pipeline, expired)
            require_compatible(query.pipeline, compatibility)
            # An unfinished version may yet continue, and then needs its offsets.
            if not self.rebuilding and not unfinished:
                self._delete_other_offsets([input_.topic.name for input_ in query.built.inputs])
            return query
        # A new version gets a number that no other one had: a process that still runs a discarded version, here or
        # under another driver, shares no file, table or topic with it.
        number = unfinished[-1] if resumed else max((self.version, *unfinished)) + 1
        for version in unfinished:
            if version != number:
                logger.warning("%s: version %d was never finished; it is discarded", query.pipeline, version)
                self._context.discard_version(self._name, version)
        inputs = query.built.inputs
        query = resumed or self._make_query(number, OffsetBounds(self._find_starts(inputs)))
        self.version = number
        self._starts = {input_.topic.name: query.starts[input_.name] for input_ in inputs}
        self._target = self._ends(self._starts)
        return query

    def _resume(self, version: int) -> Query | None:
        """Returns the query of an unfinished version; None if it was built from another definition."""
        query = self._make_query(version, None)
        is_same = query.directory.load_manifest() is not None and _compare_with_last_run(query).continues
        return query if is_same else None

    def _find_starts(self, inputs: Sequence[Input]) -> dict[str, dict[int, int]]:
        since = self.rebuild.since if self.rebuild else "earliest"
        return {
            input_.name: {
                partition: self._context.log.find_offset(input_.topic.name, partition, since)
                for partition in range(input_.topic.partitions)
            }
            for input_ in inputs
        }

    def finish_rebuild(self) -> bool:
        """Make the new version current if it has caught up; returns whether this call did so.

        Call it after each commit, and now and then: without events there is no commit.
        """
        with self._finishing:
            if self._target is None:
                return False
            if self._waits_for_upstream():
                self._read_upstream = True
                return False
            if self._read_upstream:
                self._target, self._read_upstream = self._ends(self._target), False
            if not self._has_read(self._target):
                return False
            self._context.store.make_current(self._name, self.version)
            self._delete_other_offsets(self._target)
            self._target = self.rebuild = None
            return True

    def _ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        return {topic: {end.partition: end.end for end in self._context.log.ends(topic)} for topic in topics}

    def _has_read(self, target: Mapping[str, Mapping[int, int]]) -> bool:
        entry = self._context.store.last_entry(f"{self._name}@{self.version}")
        ends = {read.topic: read.end for read in entry.inputs} if entry else {}
        return all(
            ends.get(topic, self._starts[topic]).get(partition, 0) >= end
            for topic, partitions in target.items()
            for partition, end in partitions.items()
        )

    def _delete_other_offsets(self, topics: Collection[str]) -> None:
        """Delete the offsets on topics that only versions before the current one have read."""
        OffsetReport(self._context.log, self._name).delete_others(topics)


def _expired_error(pipeline: Pipeline, record: PipelineRecord) -> HeadwaterError:
    at = format_moment(datetime.fromtimestamp((record.expired_at or 0) / 1e6, UTC))
    what = f"{pipeline} was missing from its app for more than {EXPIRY.days} days, and cannot continue"
    detail = f"its group and checkpoint were removed at {at}, so unread events may be gone; its rows are kept"
    return rebuild_error(DataGoneError, pipeline, what, detail, expired_at=record.expired_at)


def _compare_with_last_run(query: Query) -> Compatibility:
    return check_compatibility(
        query.directory.load_manifest(),
        query.manifest(),
        stateful=bool(query.built.stateful),
        kind=query.pipeline.kind,
    )
