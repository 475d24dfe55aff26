"""Topics without events that pipelines wait for; times are small numbers, checked by hand."""

from __future__ import annotations

import pytest

from headwater.log.maintenance.awaited_topics import InputTime, find_awaited_time
from headwater.log.storage.frame import LOWEST_TIME

LIVE, HISTORY = InputTime(70, True), InputTime(5, False)
WRITTEN = InputTime(60, None)  # by a pipeline
NOT_WRITTEN = InputTime(LOWEST_TIME, None)


@pytest.mark.parametrize(
    ("pipelines", "times", "expected"),
    [
        ({"both": ["empty", "live"]}, {"live": LIVE}, 70),
        ({"both": ["empty", "live", "old"]}, {"live": LIVE, "old": HISTORY}, None),
        # Two topics without events do not wait for each other.
        ({"all": ["empty", "void", "live"]}, {"live": LIVE}, 70),
        # One pipeline further down, and two; a view is read as its changes.
        ({"a": ["empty"], "b": ["a", "live"]}, {"a": NOT_WRITTEN, "live": LIVE}, 70),
        ({"a": ["empty"], "b": ["a.changes.2", "live"]}, {"a.changes.2": NOT_WRITTEN, "live": LIVE}, 70),
        ({"a": ["empty"], "b": ["a"], "c": ["b", "live"]}, {"a": NOT_WRITTEN, "b": NOT_WRITTEN, "live": LIVE}, 70),
        # Pipelines further down do not count while those that read the topic itself have other inputs.
        ({"a": ["empty", "live"], "b": ["a", "old"]}, {"a": WRITTEN, "live": LIVE, "old": HISTORY}, 70),
        # An input that a pipeline writes is as live as what that pipeline reads.
        ({"b": ["empty", "s"], "s": ["live"]}, {"s": WRITTEN, "live": LIVE}, 60),
        ({"b": ["empty", "s"], "s": ["old"]}, {"s": WRITTEN, "old": HISTORY}, None),
        ({"b": ["empty", "s"], "s": ["live"]}, {"s": NOT_WRITTEN, "live": LIVE}, None),
        ({"a": ["empty"]}, {}, None),
        ({"a": ["empty", "void"]}, {}, None),
        ({"a": ["live"]}, {"live": LIVE}, None),
        # Tables do not make a topic live.
        ({"a": ["empty", "table"]}, {"table": WRITTEN}, None),
        # A stream and its own reader: no end.
        ({"a": ["empty", "b"], "b": ["a"]}, {"a": NOT_WRITTEN, "b": NOT_WRITTEN}, None),
    ],
)
def test_a_topic_without_events_follows_the_live_inputs(
    pipelines: dict[str, list[str]], times: dict[str, InputTime], expected: int | None
):
    assert find_awaited_time("empty", pipelines, times.get) == expected
