"""From batches that wait to the bytes of frames: offsets, event time and repeated sends are decided here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.log.storage.ends import Slot
from headwater.log.storage.frame import LOWEST_TIME, Frame, Kind, columns_of, encode_frame
from headwater.log.storage.producers import Producers

if TYPE_CHECKING:
    from headwater.log.rows import Rows

__all__ = ["Appended", "Laid", "Part", "lay_out", "repeated_rows", "running_maximum"]


@dataclass(frozen=True)
class Part:
    """Rows for one partition that are appended together.

    `times` are event times in microseconds, `LOWEST_TIME` where a row has none; None means that arrival is the event
    time of all. A `producer` with
    `sequence` makes the append idempotent: one sequence number per row from there on, or, with
    `per_row=False`, one for the whole part. `unfinished`: the next part goes on with the same send; a crash that
    keeps only one of them keeps neither.
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

    def slice(self, start: int, rows: int) -> Part:
        """So many rows from `start` on, under their own sequence numbers."""
        return replace(
            self,
            values=self.values.slice(start, rows),
            envelope={name: column.slice(start, rows) for name, column in self.envelope.items()},
            times=None if self.times is None else self.times[start : start + rows],
            sequence=self.sequence + start if self.producer and self.per_row else self.sequence,
            unfinished=self.unfinished or start + rows < self.values.num_rows,
        )


@dataclass(frozen=True)
class Appended:
    """Where a part went: the offset of its first new row, and how many rows before that were repeats."""

    first_offset: int
    count: int
    duplicates: int = 0


@dataclass
class Laid:
    """Frames ready to be written, in order, with positions counted from the first byte."""

    frames: list[Frame] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    appended: list[Appended] = field(default_factory=list)


def lay_out(parts: list[Part], slot: Slot, now: int, ahead: int | None, producers: Producers) -> Laid:
    """Give offsets to the rows and encode them; rows a producer has sent before are left out.

    `ahead`: how far in the future a time may be and still move the partition's event time; None: no row moves it.
    """
    laid = Laid()
    offset, running, position = slot.next_offset, slot.running_max, 0
    sent: dict[str, int] = {}
    for part in parts:
        again = 0
        if part.producer:
            last = sent.get(part.producer, producers.last(part.producer))
            again = repeated_rows(part, last)
            sent[part.producer] = max(last, part.last_sequence)
        fresh = part.slice(again, part.values.num_rows - again) if again else part
        laid.appended.append(Appended(offset, fresh.values.num_rows, again))
        if not fresh.values.num_rows:
            continue
        frame = _frame(fresh, offset, running, now, ahead, position)
        data = encode_frame(frame, _serialized(fresh))
        laid.frames.append(frame)
        laid.data.append(data)
        position += len(data)
        offset, running = frame.next_offset, frame.running_max
    return laid


def running_maximum(
    times: npt.NDArray[np.int64], received: int | npt.NDArray[np.int64], before: int, ahead: int
) -> npt.NDArray[np.int64]:
    """Highest event time before each row and, as one more element, after the last.

    A time further ahead of its arrival than `ahead` does not count: one wrong clock must not close all windows.

    Example:
        >>> running_maximum(np.array([5, 3, 900, 7]), received=10, before=-1, ahead=100).tolist()
        [-1, 5, 5, 5, 7]
    """
    counted = np.where(times <= received + ahead, times, LOWEST_TIME)
    return np.maximum.accumulate(np.concatenate(([before], counted)))


def repeated_rows(part: Part | Rows, last: int) -> int:
    """How many rows at the beginning of a part were sent before, when `last` was the producer's last number."""
    if part.sequence > last:
        return 0
    if not part.per_row:
        return int(part.values.num_rows)
    repeated: int = min(last - part.sequence + 1, part.values.num_rows)
    return repeated


def _frame(part: Part, offset: int, running: int, now: int, ahead: int | None, position: int) -> Frame:
    rows = part.values.num_rows
    if part.times is None:
        lowest = highest = now
        after = running if ahead is None else max(running, now)
    else:
        times = part.times
        lowest, highest = int(times.min()), int(times.max())
        if lowest == LOWEST_TIME:
            times = np.where(times == LOWEST_TIME, now, times)
            lowest, highest = int(times.min()), int(times.max())
        if ahead is None:
            after = running
        elif highest <= now + ahead:
            after = max(running, highest)
        else:
            after = int(running_maximum(times, now, running, ahead)[-1])
    return Frame(
        Kind.EVENTS,
        offset,
        offset + rows,
        count=rows,
        schema=part.schema,
        columns=columns_of(part.envelope),
        appended_at=now,
        lowest=lowest,
        highest=highest,
        running_before=running,
        running_max=after,
        sent_at=part.sent_at,
        first_sequence=part.sequence,
        last_sequence=part.last_sequence,
        producer=part.producer,
        follows=position > 0,
        unfinished=part.unfinished,
        position=position,
    )


def _serialized(part: Part) -> pa.Buffer:
    if not part.envelope:
        return part.values.serialize()
    names = [*part.values.schema.names, *part.envelope]
    return pa.RecordBatch.from_arrays([*part.values.columns, *part.envelope.values()], names).serialize()
