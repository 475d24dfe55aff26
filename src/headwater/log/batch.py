"""A batch as it was read: typed columns, and for each row its offset, clocks, key and whether it was late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.events import (
    Codec,
    Event,
    events_of,
    flags_column,
    integers_of,
    keys_of,
    moments_of,
    times_column,
    values_of,
)
from headwater.log.definition import Topic
from headwater.log.storage.frame import LOWEST_TIME, Frame, Kind
from headwater.log.storage.layout import running_maximum

__all__ = ["LogBatch"]

Times = npt.NDArray[np.int64]
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class LogBatch:
    """Rows of one frame from some offset on.

    `values` has the columns of the topic's current type, whatever type the rows were written under. A time mark is a
    batch without rows. All times are microseconds since 1970.
    """

    topic: Topic
    partition: int
    frame: Frame
    values: pa.RecordBatch
    envelope: dict[str, pa.Array]
    codec: Codec

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.frame.next_offset

    @cached_property
    def offsets(self) -> Times:
        """Offset of each row."""
        return self._column("_hw.offset", lambda: self.frame.base_offset + np.arange(self.values.num_rows))

    @cached_property
    def received(self) -> Times:
        """When the log took each row."""
        return self._column("_hw.received_at", lambda: np.full(self.values.num_rows, self.frame.appended_at))

    @property
    def sent_at(self) -> pa.Array | None:
        """When each row was sent, by its sender's clock; None when no sender said."""
        if "_hw.sent_at" in self.envelope or self.frame.sent_at == LOWEST_TIME:
            return self.envelope.get("_hw.sent_at")
        moment = pa.scalar(self.frame.sent_at, pa.timestamp("us", "UTC"))
        return pa.repeat(moment, self.values.num_rows)

    @cached_property
    def occurred(self) -> Times:
        """Event time of each row: the type's time column, else what the sender said, else arrival."""
        column = (
            self.values.column(self.topic.time) if self.topic.time else self.envelope.get("_hw.occurred_at")
        )
        if column is None:
            return self.received
        times = integers_of(column)
        if not column.null_count:
            return times
        return np.where(column.is_valid().to_pylist(), times, self.received)

    @cached_property
    def running_max(self) -> Times:
        """Highest event time of the partition before each row: a property of the log, the same on every read."""

        def walked() -> Times:
            if self.topic.clocked:
                return np.full(self.values.num_rows, self.frame.running_before)
            ahead = self.topic.ahead // _MICROSECOND
            return running_maximum(self.occurred, self.received, self.frame.running_before, ahead)[:-1]

        return self._column("_hw.running_max", walked)

    def late(self, lateness: timedelta | None = None) -> npt.NDArray[np.bool_]:
        """Which rows came later than the lateness allows (the topic's, unless another is given)."""
        allowed = (self.topic.lateness if lateness is None else lateness) // _MICROSECOND
        if self.frame.lowest >= self.frame.running_max - allowed:  # no row of the batch can be
            return np.zeros(self.values.num_rows, bool)
        late: npt.NDArray[np.bool_] = self.occurred < np.maximum(self.running_max, allowed - 2**62) - allowed
        return late

    @cached_property
    def deleted(self) -> npt.NDArray[np.bool_]:
        """Which rows are tombstones."""
        column = self.envelope.get("_hw.deleted")
        if column is None:
            return np.zeros(self.values.num_rows, bool)
        return np.array(column.fill_null(False).to_pylist(), bool)

    @cached_property
    def bad(self) -> npt.NDArray[np.bool_]:
        """Which rows could not be read under the type: all their columns are null, their bytes are in `_hw.raw`.

        Only a log that others write to as they like has such rows; the embedded one takes none in.
        """
        column = self.envelope.get("_hw.error")
        if column is None:
            return np.zeros(self.values.num_rows, bool)
        return np.array(column.is_valid().to_pylist(), bool)

    @cached_property
    def key_bytes(self) -> pa.Array | None:
        """The rows' keys in their canonical bytes; None when the topic has no key and no row was given one."""
        if self.topic.key:
            return keys_of([self.values.column(name) for name in self.topic.key])
        return self.envelope.get("_hw.key")

    def since(self, offset: int) -> LogBatch:
        """The rows from this offset on."""
        if offset <= self.frame.base_offset:
            return self
        return self.select(self.offsets >= offset)

    def select(self, mask: npt.NDArray[np.bool_]) -> LogBatch:
        """The rows where the mask is true, each with its own offset and times."""
        keep = flags_column(mask)
        sent = self.sent_at
        whole = {
            **self.envelope,
            **({} if sent is None else {"_hw.sent_at": sent}),
            "_hw.received_at": times_column(self.received),
            "_hw.offset": times_column(self.offsets).view(pa.int64()),
            "_hw.running_max": times_column(self.running_max).view(pa.int64()),
        }
        envelope = {name: column.filter(keep) for name, column in whole.items()}
        return LogBatch(
            self.topic, self.partition, self.frame, self.values.filter(keep), envelope, self.codec
        )

    def events(self) -> Iterator[Event]:
        """The rows as Python events, in order."""
        if self.frame.kind is not Kind.EVENTS:
            return iter(())
        rows: list[dict[str, Any] | None] = list(self.codec.rows(self.values))
        keys = self._keys(rows)
        if "_hw.deleted" in self.envelope or "_hw.error" in self.envelope:
            for index in np.flatnonzero(self.deleted | self.bad).tolist():
                rows[index] = None
        return events_of(
            self.topic.name,
            self.partition,
            self.offsets.tolist(),
            rows,
            keys=keys,
            ids=self._ids(),
            occurred_at=moments_of(self.occurred),
            sent_at=self._sent_at(),
            received_at=self._received_at(),
            headers=self._headers(),
            traceparents=self._values("_hw.traceparent"),
            sources=self._values("_hw.source"),
            types=repeat(self.topic.name),
            late=self.late().tolist(),
            errors=self._values("_hw.error"),
            raws=self._values("_hw.raw"),
        )

    def _keys(self, rows: list[dict[str, Any] | None]) -> list[Any] | None:
        names = self.topic.key
        if len(names) == 1:
            return [row[names[0]] for row in rows if row is not None]
        if names:
            return [tuple(row[name] for name in names) for row in rows if row is not None]
        stored = self._values("_hw.key")
        return None if stored is None else [_text(key) for key in stored]

    def _ids(self) -> list[str] | None:
        stored = self._values("_hw.id")
        return None if stored is None else [id_ or "" for id_ in stored]

    def _headers(self) -> list[dict[str, str]] | None:
        stored = self._values("_hw.headers")
        return None if stored is None else [headers or {} for headers in stored]

    def _sent_at(self) -> Any:
        if "_hw.sent_at" in self.envelope or self.frame.sent_at == LOWEST_TIME:
            return self._values("_hw.sent_at")
        return repeat(moments_of(np.array([self.frame.sent_at]))[0])

    def _received_at(self) -> Any:
        if "_hw.received_at" in self.envelope:
            return moments_of(self.received)
        return repeat(moments_of(np.array([self.frame.appended_at]))[0])

    def _values(self, name: str) -> list[Any] | None:
        column = self.envelope.get(name)
        return None if column is None else values_of(column)

    def _column(self, name: str, otherwise: Any) -> Times:
        column = self.envelope.get(name)
        found: Times = otherwise() if column is None else integers_of(column)
        return found


def _text(key: bytes | None) -> str | bytes | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key
