"""When rows on their way into a topic happened, decided once, so that every reader sees the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.events import UNKNOWN, Clock, ClockOffsets, DeviceClock, integers_of
from headwater.log.definition import Topic
from headwater.log.rows import Rows

__all__ = ["EventTimes"]

Times = np.ndarray[Any, np.dtype[np.int64]]
_COLUMN: Final = "_hw.occurred_at"
_MICROSECOND = timedelta(microseconds=1)
_ZONED = pa.timestamp("us", "UTC")


class EventTimes:
    """Finds the event times of rows: a column of theirs, a device's clock put right, or what the sender said.

    Args:
        clock: What time it is when rows come.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets = ClockOffsets()

    def of(self, topic: Topic, rows: Rows) -> tuple[Times | None, dict[str, pa.Array]]:
        """The rows' times in microseconds, `UNKNOWN` where a row has none, and the envelope to be stored with them.

        No times at all mean that arrival is the event time. Times that were computed are stored in the envelope.
        """
        if topic.device_clock is not None:
            times = self._corrected(topic, topic.device_clock, rows.values)
            stored = pa.array(times, pa.int64(), mask=times == UNKNOWN).cast(_ZONED)
            return times, rows.envelope | {_COLUMN: stored}
        column = rows.values.column(topic.time) if topic.time else rows.envelope.get(_COLUMN)
        return None if column is None else _integers(column), rows.envelope

    def _corrected(self, topic: Topic, clock: DeviceClock, values: pa.RecordBatch) -> Times:
        columns = [values.column(name).to_pylist() for name in clock.device or topic.key]
        devices = [None if None in device else device for device in zip(*columns, strict=True)]
        return self._offsets.corrected(
            devices,
            _integers(values.column(clock.column)),
            _integers(values.column(clock.sent)),
            self._clock.micros(),
            None if clock.limit is None else clock.limit // _MICROSECOND,
        )


def _integers(column: pa.Array) -> Times:
    times = integers_of(column)
    return times if not column.null_count else np.where(column.is_valid().to_pylist(), times, UNKNOWN)
