"""A batch as read from the log: typed columns, and per row its offset, times, key and lateness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.events import (
    Codec,
    Event,
    build_events,
    flags_column,
    integers_of,
    keys_of,
    moments_of,
    times_column,
    values_of,
)
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind
from headwater.log.storage.frame_builder import max_event_times
from headwater.log.topic import Topic

__all__ = ["LogBatch"]

Times = npt.NDArray[np.int64]
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class LogBatch:
    """Rows of one frame, from some offset.

    `values` has the columns of the topic's current type, whatever type the rows were written under. An idle
    marker is a batch without rows. All times are microseconds since 1970.
    """

    topic: Topic
    partition: int
    frame: Frame
    values: pa.RecordBatch
    envelope: dict[str, pa.Array]
    codec: Codec

    @property
    def next_offset(self) -> int:
        """The offset to continue reading from."""
        return self.frame.next_offset

    @cached_property
    def offsets(self) -> Times:
        """Offset of each row."""
        return self._column("_hw.offset", lambda: self.frame.base_offset + np.arange(self.values.num_rows))

    @cached_property
    def arrival_times(self) -> Times:
        """The time each row was appended."""
        return self._column("_hw.received_at", lambda: np.full(self.values.num_rows, self.frame.appended_at))

    @property
    def send_times(self) -> pa.Array | None:
        """The time each row was sent by its sender's clock; None when no sender stated it."""
        if "_hw.sent_at" in self.envelope or self.frame.sent_at == LOWEST_TIME:
            return self.envelope.get("_hw.sent_at")
        moment = pa.scalar(self.frame.sent_at, pa.timestamp("us", "UTC"))
        return pa.repeat(moment, self.values.num_rows)

    @cached_property
    def event_times(self) -> Times:
        """The event time of each row: the time column, else what the sender stated, else arrival."""
        column = self.values.column(self.topic.time) if self.topic.time else self.envelope.get("_hw.occurred_at")
        if column is None:
            return self.arrival_times
        times = integers_of(column)
        if not column.null_count:
            return times
        return np.where(column.is_valid().to_pylist(), times, self.arrival_times)

    @cached_property
    def max_event_times(self) -> Times:
        """Max event time of the partition before each row; stored, so the same on every read."""

        def compute() -> Times:
            # The topic's `ahead` may have changed since. A time above the max event time after the frame did not count
            # when the frame was written, and every other time did, or was not above the max event time before it.
            before, after = self.frame.max_event_time_before, self.frame.max_event_time
            return max_event_times(self.event_times, after, before, ahead=0)[:-1]

        return self._column("_hw.running_max", compute)

    def late(self, lateness: timedelta | None = None) -> npt.NDArray[np.bool_]:
        """Returns which rows are later than the allowed lateness (the topic's, unless given)."""
        allowed = (self.topic.lateness if lateness is None else lateness) // _MICROSECOND
        if self.frame.lowest >= self.frame.max_event_time - allowed:  # no row can be late
            return np.zeros(self.values.num_rows, bool)
        # The lower bound keeps `LOWEST_TIME` minus the lateness within 64 bits.
        late: npt.NDArray[np.bool_] = self.event_times < np.maximum(self.max_event_times, allowed - 2**62) - allowed
        return late

    @cached_property
    def tombstones(self) -> npt.NDArray[np.bool_]:
        """Which rows are tombstones."""
        column = self.envelope.get("_hw.deleted")
        return self._flags(None if column is None else column.fill_null(False))

    @cached_property
    def bad(self) -> npt.NDArray[np.bool_]:
        """Which rows cannot be decoded under the type; their columns are null, their bytes are in `_hw.raw`.

        Only Kafka topics with foreign writers have such rows; the embedded log rejects them.
        """
        column = self.envelope.get("_hw.error")
        return self._flags(None if column is None else column.is_valid())

    @cached_property
    def key_bytes(self) -> pa.Array | None:
        """The rows' keys as canonical bytes; None when the topic has no key and no row was given one."""
        if self.topic.key:
            return keys_of([self.values.column(name) for name in self.topic.key])
        return self.envelope.get("_hw.key")

    def from_offset(self, offset: int) -> LogBatch:
        """Returns the rows from this offset on."""
        if offset <= self.frame.base_offset:
            return self
        return self.select(self.offsets >= offset)

    def select(self, mask: npt.NDArray[np.bool_]) -> LogBatch:
        """Returns the rows where the mask is true, each with its own offset and times."""
        keep = flags_column(mask)
        sent = self.send_times
        # What the header says of the whole frame is stored per row: it cannot be computed from a part of the rows.
        whole = {
            **self.envelope,
            **({} if sent is None else {"_hw.sent_at": sent}),
            "_hw.received_at": times_column(self.arrival_times),
            "_hw.offset": times_column(self.offsets).view(pa.int64()),
            "_hw.running_max": times_column(self.max_event_times).view(pa.int64()),
        }
        envelope = {name: column.filter(keep) for name, column in whole.items()}
        return LogBatch(self.topic, self.partition, self.frame, self.values.filter(keep), envelope, self.codec)

    def events(self) -> Iterator[Event]:
        """Yields the rows as Python events, in order."""
        if self.frame.kind is not FrameKind.EVENTS:
            return iter(())
        rows: list[dict[str, Any] | None] = list(self.codec.rows(self.values))
        keys = self._keys(rows)
        if "_hw.deleted" in self.envelope or "_hw.error" in self.envelope:
            for index in np.flatnonzero(self.tombstones | self.bad).tolist():
                rows[index] = None
        return build_events(
            self.topic.name,
            self.partition,
            self.offsets.tolist(),
            rows,
            key=keys,
            id=self._values("_hw.id", str),
            occurred_at=moments_of(self.event_times),
            sent_at=self._datetimes("_hw.sent_at", self.frame.sent_at),
            received_at=self._datetimes("_hw.received_at", self.frame.appended_at),
            headers=self._values("_hw.headers", dict),
            traceparent=self._values("_hw.traceparent"),
            source=self._values("_hw.source"),
            type=repeat(self.topic.name),
            late=self.late().tolist(),
            error=self._values("_hw.error"),
            raw=self._values("_hw.raw"),
        )

    def _keys(self, rows: list[dict[str, Any] | None]) -> list[Any] | None:
        names = self.topic.key
        if len(names) == 1:
            return [row[names[0]] for row in rows if row is not None]
        if names:
            return [tuple(row[name] for name in names) for row in rows if row is not None]
        stored = self._values("_hw.key")
        return None if stored is None else [_decode_key(key) for key in stored]

    def _datetimes(self, name: str, common: int) -> Iterable[datetime | None] | None:
        """Returns the times of an envelope column, or the time that the frame's header states for all rows."""
        if name in self.envelope or common == LOWEST_TIME:
            return self._values(name)
        return repeat(moments_of(np.array([common]))[0])

    def _values(self, name: str, default: type | None = None) -> list[Any] | None:
        """Returns the values of an envelope column, `default()` in place of null; None if there is no such column."""
        column = self.envelope.get(name)
        if column is None:
            return None
        values = values_of(column)
        return values if default is None else [value or default() for value in values]

    def _flags(self, column: pa.Array | None) -> npt.NDArray[np.bool_]:
        return np.zeros(self.values.num_rows, bool) if column is None else np.array(column.to_pylist(), bool)

    def _column(self, name: str, compute: Callable[[], Times]) -> Times:
        column = self.envelope.get(name)
        return compute() if column is None else integers_of(column)


def _decode_key(key: bytes | None) -> str | bytes | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key
