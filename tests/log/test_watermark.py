"""The watermark, by its definition: the last whole millisecond below every event that is not late."""

from __future__ import annotations

import pytest

from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.watermark import watermark_at


@pytest.mark.parametrize(
    ("times", "lateness", "watermark"),
    [
        ([9_999, 7_100], 2_000, 5_000),
        ([7_100, 9_999], 3_000, 4_000),
        ([7_001], 2_000, 5_000),
        ([7_000], 2_000, 4_000),  # an event at 5,000 is not late, so the watermark is below it
        ([-7_000], 2_000, -10_000),
        ([9_999, LOWEST_TIME], 2_000, LOWEST_TIME),
        ([LOWEST_TIME + 2_000], 2_000, LOWEST_TIME),
    ],
)
def test_the_watermark_is_that_of_the_slowest_partition(times: list[int], lateness: int, watermark: int):
    assert watermark_at(times, lateness) == watermark
