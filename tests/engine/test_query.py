"""A query does not start over a gap in its input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.engine.query import check_gap
from headwater.errors import DataGoneError
from headwater.pipelines import PipelineKind
from tests.engine.given import pipeline


def check(
    positions: dict[int, int], *ranges: tuple[int, int], ids: dict[str, str] | None = None, **options: Any
) -> None:
    """Check a query at these positions; `ranges` has start and end of each partition."""
    parts = [SimpleNamespace(partition=n, start=start, end=end) for n, (start, end) in enumerate(ranges)]
    log: Any = SimpleNamespace(topic_id=lambda _: "now", ends=lambda _: parts)
    check_gap(log, pipeline(**options), {"orders": "orders.changes"}, {"orders": positions}, ids or {})


@pytest.mark.parametrize("at", [5, 7, 9])
def test_positions_within_the_log_are_right(at: int):
    check({0: at}, (5, 9))
    check({0: at}, (5, 9), ids={"orders": "now"})


def test_a_new_partition_is_read_from_its_start():
    check({0: 5}, (0, 5), (0, 3))
    with pytest.raises(DataGoneError) as caught:
        check({0: 5}, (0, 5), (2, 3))
    assert (caught.value.data["partition"], caught.value.data["first"], caught.value.data["last"]) == (1, 0, 1)


def test_events_that_retention_removed_are_named():
    with pytest.raises(DataGoneError) as caught:
        check({0: 3, 1: 0, 2: 4}, (5, 9), (4, 4), (4, 4))
    data = {"topic": "orders.changes", "partition": 0, "first": 3, "last": 4, "start": 5, "events": 6}
    assert caught.value.data == data | {"pipeline": "big"}
    assert caught.value.fix == "stop the app; headwater run app.py --rebuild big"


@pytest.mark.parametrize("ranges", [[(0, 4)], []])
def test_a_log_that_ends_before_the_position_has_lost_events(ranges: list[tuple[int, int]]):
    with pytest.raises(DataGoneError) as caught:
        check({0: 5}, *ranges, kind=PipelineKind.STREAM)
    assert caught.value.data == {"topic": "orders.changes", "partition": 0, "pipeline": "big"}
    assert caught.value.fix == "give it another name"


def test_a_topic_that_was_created_again_is_another_one():
    with pytest.raises(DataGoneError) as caught:
        check({0: 5}, (5, 9), ids={"orders": "before"})
    assert caught.value.data == {"topic": "orders.changes", "pipeline": "big"}
