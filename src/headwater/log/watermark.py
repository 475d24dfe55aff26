"""The watermark: the time up to which all events that are not late have come.

This is the only place that computes it. The batch planner, the ledger, the watermark rows in Spark, the operators, open
windows and the markers of changelogs pass on what it returns; topics that pipelines wait for are raised to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["watermark_at"]

_MILLISECOND: Final = 1_000


def watermark_at(max_event_times: Iterable[int], lateness: int) -> int:
    """Returns the watermark for these max event times: all events at or before it have come, or are late.

    It is the highest whole millisecond below the lowest max event time minus lateness. Spark counts in milliseconds,
    and drops a row that is not above the watermark. An event is late below max event time minus lateness, so the
    watermark is below every event that is not late. All times are in microseconds.

    Args:
        max_event_times: The highest event time so far of each partition.
        lateness: How long late events are waited for.

    Example:
        >>> watermark_at([9_000, 7_100], 2_000), watermark_at([7_000], 2_000)
        (5000, 4000)
    """
    lowest = min(max_event_times)
    if lowest <= LOWEST_TIME + lateness:
        return LOWEST_TIME
    return (lowest - lateness - 1) // _MILLISECOND * _MILLISECOND
