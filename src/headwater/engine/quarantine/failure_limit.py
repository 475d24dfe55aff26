"""The limit of failing events: above it the user's function is at fault, not the events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headwater.config import FAILURE_PERCENT, FAILURE_WINDOW, MIN_FAILURES
from headwater.engine.quarantine.failure import Failure
from headwater.engine.state.state import LOCATION_MARK
from headwater.errors import TooManyFailuresError
from headwater.pipelines import Pipeline
from headwater.store import LedgerEntry, SideOutput, Store

__all__ = ["FailureLimit", "OperatorFailures", "past_outcomes", "pending_outcomes"]


@dataclass(frozen=True)
class FailureLimit:
    """When a pipeline stops because its function fails on too many events.

    Args:
        window: The number of latest events that count.
        minimum: The number of these that must have failed, at least.
        percent: The share of these that must have failed, in percent; more than this is too many.
    """

    window: int
    minimum: int
    percent: int

    @classmethod
    def of_settings(cls) -> FailureLimit:
        """Returns the limit that the settings declare.

        Raises:
            BadSettingError: A setting is not a number.
        """
        return cls(max(FAILURE_WINDOW.number(), 1), MIN_FAILURES.number(), FAILURE_PERCENT.number())

    def exceeded(self, outcomes: np.ndarray, since: int = 0) -> tuple[int, int] | None:
        """Returns the number of failed events and of all in the first window above the limit; None if there is none.

        Windows end at any event from number `since` on. While there are fewer events than a window has, all count.

        Args:
            outcomes: Whether each event failed, in order.
            since: The number of events that were judged before.

        Example:
            >>> limit = FailureLimit(window=10, minimum=3, percent=50)
            >>> limit.exceeded(np.array([False] * 20 + [True] * 5))
            >>> limit.exceeded(np.array([False] * 20 + [True] * 6 + [False] * 20))
            (6, 10)
        """
        size = min(self.window, len(outcomes))
        if not size:
            return None
        total = np.concatenate(([0], np.cumsum(outcomes)))
        ends = np.arange(max(size, since), len(outcomes) + 1)
        failed = total[ends] - total[ends - size]
        over = np.flatnonzero((failed >= self.minimum) & (failed * 100 > self.percent * size))
        return (int(failed[over[0]]), size) if len(over) else None

    def check(self, pipeline: Pipeline, outcomes: np.ndarray, since: int, failure: Failure) -> None:
        """Refuse to quarantine the events of a batch if too many fail.

        Args:
            pipeline: The pipeline.
            outcomes: See `exceeded`.
            since: See `exceeded`.
            failure: One of the failures.

        Raises:
            TooManyFailuresError: They exceed the limit.
        """
        exceeded = self.exceeded(outcomes, since)
        if exceeded is None:
            return
        failed, events = exceeded
        raise TooManyFailuresError(
            f"{pipeline} fails on {failed} of {events} events: {failure.reason}",
            detail="nothing of this batch was committed; it runs again at the next start",
            fix=f"mend the function, or {FAILURE_PERCENT.variable}=100 to quarantine all such events",
            location=failure.location or pipeline.location,
            pipeline=pipeline.name,
            failed=failed,
            events=events,
        )


class OperatorFailures:
    """The outcomes of the latest events of a query whose operators call the user's functions.

    Args:
        pipeline: The pipeline of the query.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._past = np.zeros(0, bool)

    def check(self, events: int, reasons: Sequence[str]) -> None:
        """Judge a batch before it is committed.

        Args:
            events: The number of its events, with those that an operator rejects.
            reasons: Why it rejects them. A reason without a line of the user's code is no failure of a function.

        Raises:
            TooManyFailuresError: The latest events exceed the limit.
        """
        failures = [reason for reason in reasons if LOCATION_MARK in reason]
        outcomes = np.concatenate((self._past, np.arange(events) >= events - len(failures)))
        limit = FailureLimit.of_settings()
        if failures:
            limit.check(self._pipeline, outcomes, len(self._past) + 1, Failure.of_text(failures[0]))
        self._past = outcomes[-limit.window :]


def past_outcomes(store: Store, query: str, skipped: Collection[SideOutput], events: int) -> np.ndarray:
    """Returns whether the function failed on each of the latest committed events.

    Args:
        store: The store.
        query: The query.
        skipped: The events on which it failed.
        events: The number of events to look back; all of the batch with the earliest of them count.
    """
    found: list[np.ndarray] = []
    for entry in _entries_back(store, query, events):
        used, failed = entry.counts.used, sum(_contains(entry, one) for one in skipped)
        found.append(np.arange(used + failed) >= used)  # the order within a batch is not known
    return np.concatenate(found[::-1]) if found else np.zeros(0, bool)


def pending_outcomes(store: Store, query: str, skipped: Collection[SideOutput]) -> np.ndarray:
    """Returns the outcomes of events that earlier searches in the batch that has failed found: all have failed."""
    last = store.last_entry(query)
    return np.ones(sum(last is None or _is_after(last, one) for one in skipped), bool)


def _entries_back(store: Store, query: str, events: int) -> Iterator[LedgerEntry]:
    """Yields the latest entries of the ledger, up to a number of events or of entries."""
    entry = store.last_entry(query)
    read = seen = 0
    while entry is not None and seen < events and read < events:
        yield entry
        seen, read = seen + entry.counts.in_, read + 1
        entry = store.entry(query, entry.batch - 1)


def _contains(entry: LedgerEntry, event: SideOutput) -> bool:
    """Returns whether an event is in the ranges of an entry."""
    return any(
        read.topic == event.topic
        and read.start.get(event.partition, 0) <= event.offset < read.end.get(event.partition, 0)
        for read in entry.inputs
    )


def _is_after(entry: LedgerEntry, event: SideOutput) -> bool:
    """Returns whether an event comes after the ranges of an entry."""
    ends = [read.end.get(event.partition, 0) for read in entry.inputs if read.topic == event.topic]
    return event.offset >= max(ends, default=0)
