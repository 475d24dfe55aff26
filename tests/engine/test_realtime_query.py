"""What real-time mode cannot run, and how its queries share task slots."""

from __future__ import annotations

import pytest

from headwater.engine.realtime.realtime_query import PlanStep, TaskSlots, find_obstacle
from headwater.errors import BadSettingError
from headwater.pipelines import PipelineKind
from tests.engine.given import pipeline

PLAIN = [PlanStep("Project"), PlanStep("Aggregate"), PlanStep("Filter"), PlanStep("StreamingRelationV2")]


def test_plain_sql_has_no_obstacle():
    assert find_obstacle(PLAIN) is None


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (PlanStep("Join"), "a join"),
        (PlanStep("GlobalLimit"), "limit"),
        (PlanStep("SomethingNew"), "the step SomethingNew"),
        (PlanStep("FlatMapGroupsInPandas"), "a Python function (FlatMapGroupsInPandas)"),
        (PlanStep("Project", ("upper",)), "the Python function upper"),
        (PlanStep("Filter", has_subquery=True), "a query inside an expression"),
    ],
)
def test_the_first_obstacle_is_named(step: PlanStep, named: str):
    obstacle = find_obstacle([*PLAIN, step, PlanStep("Sort")])
    assert obstacle is not None
    assert obstacle["part"] == f"it contains {named}"
    assert ("fix" in obstacle) is ("Python" in named)


def test_slots_are_shared_with_others_and_taken_again_by_the_same_pipeline():
    slots = TaskSlots(spare=1)
    first, second = (pipeline(PipelineKind.STREAM, name=name, latency="realtime") for name in ("first", "second"))
    slots.reserve(first, 2, total=4)
    slots.reserve(first, 3, total=4)
    with pytest.raises(BadSettingError) as caught:
        slots.reserve(second, 1, total=4)
    assert caught.value.data["needed"] == 5
    slots.reserve(second, 1, total=5)
