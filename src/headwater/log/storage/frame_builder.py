"""Builds frames from pending batches: assigns offsets and event times, and removes repeated sends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind, encode_frame, envelope_bits
from headwater.log.storage.partition_state import PartitionState
from headwater.log.storage.producers import ProducerState

if TYPE_CHECKING:
    from headwater.log.write_batch import WriteBatch

__all__ = ["AppendResult", "EncodedFrames", "PartitionBatch", "build_frames", "count_duplicates", "max_event_times"]


@dataclass(frozen=True)
class PartitionBatch:
    """Rows for one partition that are appended together.

    `times` are event times in microseconds, `LOWEST_TIME` where a row has none; None means that arrival is
    the event time of all. A `producer` with `sequence` makes the append idempotent: one sequence number per
    row from there, or, with `per_row=False`, one for the whole batch. `unfinished`: the next batch
    continues the same send; a crash that keeps only one of them keeps neither.
    """

    values: pa.RecordBatch
    schema: int
    envelope: dict[str, pa.Array] = field(default_factory=dict)
    times: npt.NDArray[np.int64] | None = None
    producer: str = ""
    sequence: int = -1
    per_row: bool = True
    sent_at: int = LOWEST_TIME
    unfinished: bool = False

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last row."""
        return self.sequence + (self.values.num_rows - 1 if self.producer and self.per_row else 0)

    def slice(self, start: int, count: int) -> PartitionBatch:
        """Returns `count` rows from `start`, with their own sequence numbers."""
        return replace(
            self,
            values=self.values.slice(start, count),
            envelope={name: column.slice(start, count) for name, column in self.envelope.items()},
            times=None if self.times is None else self.times[start : start + count],
            sequence=self.sequence + start if self.producer and self.per_row else self.sequence,
            unfinished=self.unfinished or start + count < self.values.num_rows,
        )


@dataclass(frozen=True)
class AppendResult:
    """The result of an append: the offset of the first new row, and the number of repeats before it."""

    first_offset: int
    count: int
    duplicates: int = 0


@dataclass
class EncodedFrames:
    """Frames ready to be written, in order, with positions counted from the first byte."""

    frames: list[Frame] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    results: list[AppendResult] = field(default_factory=list)


def build_frames(
    batches: list[PartitionBatch], state: PartitionState, now: int, ahead: int | None, producers: ProducerState
) -> EncodedFrames:
    """Assign offsets to the rows and encode them; skips rows that the producer has sent before.

    `ahead`: how far in the future a time may be and still advance the partition's event time; None: no row
    advances it.
    """
    encoded = EncodedFrames()
    offset, max_event_time, position = state.next_offset, state.max_event_time, 0
    last_sequences: dict[str, int] = {}
    for batch in batches:
        duplicates = 0
        if batch.producer:
            last = last_sequences.get(batch.producer, producers.last_sequence(batch.producer))
            duplicates = count_duplicates(batch, last)
            last_sequences[batch.producer] = max(last, batch.last_sequence)
        new = batch.slice(duplicates, batch.values.num_rows - duplicates) if duplicates else batch
        encoded.results.append(AppendResult(offset, new.values.num_rows, duplicates))
        if not new.values.num_rows:
            continue
        frame = _build_header(new, offset, max_event_time, now, ahead, position)
        data = encode_frame(frame, _serialize(new))
        encoded.frames.append(frame)
        encoded.data.append(data)
        position += len(data)
        offset, max_event_time = frame.next_offset, frame.max_event_time
    return encoded


def max_event_times(
    times: npt.NDArray[np.int64], received: int | npt.NDArray[np.int64], before: int, ahead: int
) -> npt.NDArray[np.int64]:
    """Returns the max event time before each row and, as one more element, after the last.

    A time further ahead of its arrival than `ahead` does not count: one wrong clock must not close all
    windows.

    Example:
        >>> max_event_times(np.array([5, 3, 900, 7]), received=10, before=-1, ahead=100).tolist()
        [-1, 5, 5, 5, 7]
    """
    counted = np.where(times <= received + ahead, times, LOWEST_TIME)
    return np.maximum.accumulate(np.concatenate(([before], counted)))


def count_duplicates(batch: PartitionBatch | WriteBatch, last: int) -> int:
    """Returns how many leading rows of a batch the producer had sent before.

    `last` is the producer's last sequence number in the partition.
    """
    if batch.sequence > last:
        return 0
    if not batch.per_row:
        return int(batch.values.num_rows)
    duplicates: int = min(last - batch.sequence + 1, batch.values.num_rows)
    return duplicates


def _build_header(batch: PartitionBatch, offset: int, before: int, now: int, ahead: int | None, position: int) -> Frame:
    rows = batch.values.num_rows
    if batch.times is None:
        lowest = highest = now
        after = before if ahead is None else max(before, now)
    else:
        times = batch.times
        lowest, highest = int(times.min()), int(times.max())
        if lowest == LOWEST_TIME:
            times = np.where(times == LOWEST_TIME, now, times)
            lowest, highest = int(times.min()), int(times.max())
        if ahead is None:
            after = before
        elif highest <= now + ahead:
            after = max(before, highest)
        else:
            after = int(max_event_times(times, now, before, ahead)[-1])
    return Frame(
        FrameKind.EVENTS,
        offset,
        offset + rows,
        count=rows,
        schema=batch.schema,
        columns=envelope_bits(batch.envelope),
        appended_at=now,
        lowest=lowest,
        highest=highest,
        max_event_time_before=before,
        max_event_time=after,
        sent_at=batch.sent_at,
        first_sequence=batch.sequence,
        last_sequence=batch.last_sequence,
        producer=batch.producer,
        follows=position > 0,
        unfinished=batch.unfinished,
        position=position,
    )


def _serialize(batch: PartitionBatch) -> pa.Buffer:
    if not batch.envelope:
        return batch.values.serialize()
    names = [*batch.values.schema.names, *batch.envelope]
    return pa.RecordBatch.from_arrays([*batch.values.columns, *batch.envelope.values()], names).serialize()
