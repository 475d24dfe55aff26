"""The search for failing events, over functions of plain rows, and the limit above which a pipeline stops."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.engine.quarantine.failure import Failure
from headwater.engine.quarantine.failure_limit import FailureLimit, OperatorFailures, past_outcomes
from headwater.engine.quarantine.probed_function import failing_rows
from headwater.engine.quarantine.search import Candidates, SearchBudget, SearchResult, bisect
from headwater.errors import TooManyFailuresError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.store import EventCounts, InputRange, LedgerEntry, SideOutput
from tests.engine.given import orders, pipeline


@pytest.fixture
def candidates(tmp_path: Path) -> Iterator[list[Candidates]]:
    """Three batches: 8, 1 and 4 events."""
    with EventLog(tmp_path, clock=ManualClock()) as log:
        log.create(orders().topic)
        client, at = hw.Client(log, ManualClock()), ManualClock().now()
        for ids in (range(8), range(8, 9), range(9, 13)):
            client.send_many("orders", [{"id": n, "at": at} for n in ids])
        yield [Candidates(orders(), batch) for batch in log.open_topic("orders").batches(0, 0, 13)]


class Function:
    """Fails on any of some ids, or only if all are there."""

    def __init__(self, *bad: int, together: bool = False) -> None:
        self.bad = set(bad)
        self.together = together
        self.calls = 0

    def __call__(self, some: Sequence[Candidates]) -> Failure | None:
        self.calls += 1
        ids = {n for one in some for n in one.batch.values.column("id").to_pylist()}
        fails = self.bad <= ids if self.together else bool(self.bad & ids)
        return Failure(f"fails on {min(self.bad & ids)}") if fails and self.bad else None


def found(candidates: list[Candidates], function: Function) -> list[tuple[int, str]]:
    return [(int(one.batch.offsets[0]), failure.reason) for one, failure in bisect(candidates, function)]


@pytest.mark.parametrize("bad", [[0], [7], [8], [12], [3, 4], [0, 8, 9, 12], list(range(13))])
def test_exactly_the_failing_events_are_found(candidates: list[Candidates], bad: list[int]):
    assert found(candidates, Function(*bad)) == [(n, f"fails on {n}") for n in bad]


def test_a_batch_that_runs_well_is_tried_once(candidates: list[Candidates]):
    function = Function()
    assert (found(candidates, function), function.calls) == ([], 1)


def test_one_event_costs_a_logarithmic_number_of_runs(candidates: list[Candidates]):
    function = Function(5)
    found(candidates, function)
    assert function.calls <= 12


def test_events_that_fail_only_together_are_not_blamed(candidates: list[Candidates]):
    assert found(candidates, Function(1, 6, together=True)) == []


def test_a_failure_that_does_not_repeat_is_not_blamed(candidates: list[Candidates]):
    function = Function(5)

    def once(some: Sequence[Candidates]) -> Failure | None:
        failure = function(some)
        if failure and sum(map(len, some)) == 1:
            function.bad.clear()  # the worker was killed from outside
        return failure

    assert list(bisect(candidates, once)) == []


def test_no_events_are_not_tried():
    assert list(bisect([], lambda _: pytest.fail("it was tried"))) == []


def test_a_search_by_halves_ends_with_its_budget(candidates: list[Candidates]):
    function, budget = Function(*range(13)), SearchBudget(jobs=9)
    failing = list(bisect(candidates, function, budget))
    assert 0 < len(failing) < 13
    assert function.calls <= 9
    assert budget.exhausted


def test_a_search_without_time_left_runs_nothing(candidates: list[Candidates]):
    function, budget = Function(3), SearchBudget(seconds=-1)
    assert (list(bisect(candidates, function, budget)), function.calls, budget.exhausted) == ([], 0, True)


@pytest.mark.parametrize("bad", [set(), {0}, {6}, {2, 3}, set(range(7))])
def test_rows_that_fail_alone_are_found_in_a_worker(bad: set[int]):
    def call(rows: range) -> None:
        if bad & set(rows):
            raise ValueError(min(bad & set(rows)))

    assert {row: error.args[0] for row, error in failing_rows(call, range(7))} == {row: row for row in bad}


def brute_force(limit: FailureLimit, outcomes: list[bool]) -> bool:
    """Looks at every window of the latest events, as the definition says."""
    windows = [outcomes[max(end - limit.window, 0) : end] for end in range(1, len(outcomes) + 1)]
    full = [one for one in windows if len(one) == min(limit.window, len(outcomes))]
    return any(sum(one) >= limit.minimum and sum(one) * 100 > limit.percent * len(one) for one in full)


def test_the_limit_holds_for_every_window_of_the_latest_events():
    limit, chance = FailureLimit(window=20, minimum=4, percent=40), random.Random(18)
    seen = set()
    for _ in range(300):
        rate = chance.random()
        outcomes = [chance.random() < rate for _ in range(chance.randrange(60))]
        exceeded = brute_force(limit, outcomes)
        assert (limit.exceeded(np.array(outcomes, bool)) is not None) == exceeded
        seen.add(exceeded)
    assert seen == {True, False}


def test_few_failures_never_stop_a_pipeline():
    limit = FailureLimit.of_settings()
    assert limit.exceeded(np.ones(19, bool)) is None
    assert limit.exceeded(np.ones(20, bool)) == (20, 20)
    assert limit.exceeded(np.array([True] * 500 + [False] * 500)) is None
    assert limit.exceeded(np.array([True] * 501 + [False] * 499)) == (501, 1000)


def test_outcomes_are_in_the_order_of_arrival(candidates: list[Candidates]):
    first, second, third = candidates
    for number, one in enumerate((third, first, second)):
        one.batch.__dict__["arrival_times"] = np.full(len(one), number)
    assert SearchResult([second], [Failure("fails")], [first, third]).outcomes().tolist() == [False] * 12 + [True]


def entry(batch: int, start: int, end: int, failed: int) -> LedgerEntry:
    counts = EventCounts(in_=end - start, used=end - start - failed, quarantined=failed)
    return LedgerEntry("a@1", batch, 1, (InputRange("orders", {0: start}, {0: end}, counts),), None, 0)


class Entries:
    """A store with some entries."""

    def __init__(self, *entries: LedgerEntry) -> None:
        self.entries = entries

    def last_entry(self, query: str) -> LedgerEntry | None:
        return self.entries[-1] if self.entries else None

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        return next((one for one in self.entries if one.batch == batch), None)


def test_committed_events_count_up_to_the_window():
    store: Any = Entries(entry(0, 0, 8, 4), entry(1, 8, 11, 1), entry(2, 11, 15, 2))
    skipped = [SideOutput("orders", 0, offset, 0, 0, "{}", "fails", b"") for offset in (0, 1, 2, 3, 9, 12, 13)]
    assert past_outcomes(store, "a@1", skipped, 5).tolist() == [False, False, True, False, False, True, True]
    assert past_outcomes(Entries(), "a@1", [], 5).tolist() == []  # type: ignore[arg-type]


def test_operators_whose_function_fails_on_most_events_stop_the_pipeline():
    latest, failure = OperatorFailures(pipeline()), "KeyError: 7\n  at app.py:4  return prices[7]"
    latest.check(100, ["no row for this id"] * 100)  # a rejection that the user asked for
    for _ in range(100):
        latest.check(1, [failure])
    with pytest.raises(TooManyFailuresError) as stopped:
        latest.check(2, [failure] * 2)
    assert stopped.value.data == {"pipeline": "big", "failed": 102, "events": 202}
    assert str(stopped.value.location) == "app.py:4"
