"""Which version of a pipeline runs: the one that is there, or a new one beside it that will take its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwater.engine.building.inputs import Input
from headwater.engine.fit import compare, require_fit
from headwater.engine.query import Bounds, Query
from headwater.engine.surroundings import Surroundings
from headwater.log import Start
from headwater.pipelines import Kind

__all__ = ["Rebuild", "Versions"]

Making = Callable[[int, Bounds | None], Query]
Goal = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Rebuild:
    """Make a view anew from the log: from its start, or from a moment or offset on."""

    since: Start = "earliest"


class Versions:
    """The versions of one pipeline.

    Args:
        around: Log and store.
        name: The pipeline.
        make: Makes the query of a version.
        rebuild: Given when the view is to be made anew.
    """

    def __init__(self, around: Surroundings, name: str, make: Making, rebuild: Rebuild | None) -> None:
        current = around.store.current(name)
        self.number = current.version if current else 1
        self.rebuild = rebuild
        self._around = around
        self._name = name
        self._make = make
        self._goal: Goal | None = None

    @property
    def rebuilding(self) -> bool:
        """Whether a new version is catching up beside the one that readers see."""
        return self._goal is not None

    def query(self) -> Query:
        """The query to run: one that goes on from what is there, or one that makes the view anew beside it.

        A rebuild that a crash interrupted goes on by itself.

        Raises:
            StateChangedError: What is there does not fit, and nobody asked for a rebuild.
        """
        query = self._make(self.number, None)
        fit = compare(query.home.made(), query.made(), query.built)
        fits = fit.verdict in ("new", "kept")
        if self._goal is not None or fit.verdict == "new" or query.pipeline.kind is not Kind.VIEW:
            require_fit(query.pipeline, fit)
            return query
        begun = self._around.home(self._name, self.number + 1).made()
        if self.rebuild is None and (fits or begun is None):
            require_fit(query.pipeline, fit)
            return query
        return self._beside(query.built.inputs)

    def _beside(self, inputs: tuple[Input, ...]) -> Query:
        log = self._around.log
        since = self.rebuild.since if self.rebuild else "earliest"
        starts = {
            input_.name: {p: log.find(input_.topic.name, p, since) for p in range(input_.topic.partitions)}
            for input_ in inputs
        }
        anew = self._make(self.number + 1, Bounds(starts))
        require_fit(anew.pipeline, compare(anew.home.made(), anew.made(), anew.built))
        self.number += 1
        topics = [input_.topic.name for input_ in inputs]
        self._goal = {topic: {end.partition: end.end for end in log.ends(topic)} for topic in topics}
        return anew

    def committed(self) -> bool:
        """Take note of a commit; True when the new version has just taken the place of the old one."""
        if self._goal is None or not self._reached(self._goal):
            return False
        self._around.store.swap(self._name, self.number)
        self._goal = self.rebuild = None
        return True

    def _reached(self, goal: Goal) -> bool:
        entry = self._around.store.last(f"{self._name}@{self.number}")
        return entry is not None and all(
            read.end.get(partition, 0) >= end
            for read in entry.inputs
            for partition, end in goal[read.topic].items()
        )
