"""Event time on Kafka: a partition is walked in order from a running maximum that is known, and each record judged.

Kafka keeps no event times, so a reader carries the running maximum with its offsets. From the same offset and maximum
every walk gives the same answer, in batches of any size: late is a property of the log here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.events import times_column
from headwater.log.batch import LogBatch
from headwater.log.kafka.records import event_times
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.storage.layout import running_maximum

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog

__all__ = ["EventTimeWalk", "walk"]

Times = npt.NDArray[np.int64]
_MICROSECOND = timedelta(microseconds=1)
_AT_ONCE = 4 << 20  # bytes of one read


class EventTimeWalk:
    """Judges batches of one partition in their order.

    Args:
        running_max: Highest event time before the first batch, in microseconds; what `running_max` was after the last
            one of the walk before.
    """

    def __init__(self, running_max: int = LOWEST_TIME) -> None:
        self.running_max = running_max

    def judge(self, batch: LogBatch) -> LogBatch:
        """The batch with its running maxima, so that `late` and `running_max` answer as in the embedded log.

        Rows that cannot be read move no time.
        """
        if not batch.values.num_rows:
            return replace(
                batch,
                frame=replace(batch.frame, running_before=self.running_max, running_max=self.running_max),
            )
        times = event_times(batch)
        ahead = batch.topic.ahead // _MICROSECOND
        if batch.topic.clocked:
            times = times.copy()
            times[:] = LOWEST_TIME
        maxima = running_maximum(times, batch.received, self.running_max, ahead)
        before, self.running_max = self.running_max, int(maxima[-1])
        frame = replace(
            batch.frame,
            lowest=self.running_max - _lag(batch.occurred, maxima[:-1]),
            highest=int(batch.occurred.max()),
            running_before=before,
            running_max=self.running_max,
        )
        column = times_column(maxima[:-1]).view(pa.int64())
        return replace(batch, frame=frame, envelope=batch.envelope | {"_hw.running_max": column})


def _lag(occurred: Times, before: Times) -> int:
    """How far the latest row lies behind the running maximum before it.

    A stretch may span hours of event time and yet hold no late row: what counts is not its lowest time, but this. So
    the lowest time of a stretch is written as if that row had come last, which answers whether any row is late.

    Example:
        >>> _lag(np.array([10, 5, 90]), np.array([LOWEST_TIME, 10, 10]))
        5
    """
    return int(np.where(before == LOWEST_TIME, 0, before - occurred).max())


def walk(
    log: KafkaLog, topic: str, partition: int, start: int, end: int, running_max: int = LOWEST_TIME
) -> Iterator[LogBatch]:
    """The batches of `[start, end)` of a partition, judged from this running maximum on.

    The last batch's `frame.running_max` is what the next range goes on from.
    """
    judging = EventTimeWalk(running_max)
    at = start
    while at < end:
        page = log.page(topic, partition, at)
        if page is not None:
            at, judging.running_max = page.next_offset, page.frame.running_max
            yield page if at <= end else page.select(page.offsets < end)
            continue
        found = log.fetch(topic, {partition: at}, max_bytes=_AT_ONCE, envelope=False)
        if not found:  # what is left below the end are marks of commits
            return
        for batch in found:
            at = batch.next_offset
            kept = batch if at <= end else batch.select(batch.offsets < end)
            yield judging.judge(kept)
