"""The search for failing events, over a function of plain rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import headwater as hw
from headwater.engine.quarantine import Candidates, bisect
from headwater.events import ManualClock
from headwater.log import EventLog
from tests.engine.given import orders


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

    def __call__(self, some: Sequence[Candidates]) -> str | None:
        self.calls += 1
        ids = {n for one in some for n in one.batch.values.column("id").to_pylist()}
        fails = self.bad <= ids if self.together else bool(self.bad & ids)
        return f"fails on {min(self.bad & ids)}" if fails and self.bad else None


def found(candidates: list[Candidates], function: Function) -> list[tuple[int, str]]:
    return [(int(one.batch.offsets[0]), reason) for one, reason in bisect(candidates, function)]


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

    def once(some: Sequence[Candidates]) -> str | None:
        reason = function(some)
        if reason and sum(map(len, some)) == 1:
            function.bad.clear()  # the worker was killed from outside
        return reason

    assert list(bisect(candidates, once)) == []


def test_no_events_are_not_tried():
    assert list(bisect([], lambda _: pytest.fail("it was tried"))) == []
