"""Builds frames from write batches: drops repeats, assigns offsets, carries the max event time forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headwater.errors import SequenceGapError
from headwater.log.storage.frame import LOWEST_TIME, Frame, FrameKind, encode_frame, envelope_bits, serialize_columns
from headwater.log.storage.partition_state import PartitionState
from headwater.log.storage.producers import ProducerState

if TYPE_CHECKING:
    from headwater.log.write.write_batch import WriteBatch

__all__ = ["AppendResult", "EncodedFrames", "build_frames", "count_duplicates", "find_gap", "max_event_times"]


@dataclass(frozen=True)
class AppendResult:
    """The result of appending a batch: its first `duplicates` rows are repeats, the other `count` are new.

    `first_offset` is the offset of the first new row. `refused` is why nothing of the batch was appended.
    """

    first_offset: int
    count: int
    duplicates: int = 0
    refused: SequenceGapError | None = None


@dataclass
class EncodedFrames:
    """Frames ready to be written, in order, with positions counted from the first byte."""

    frames: list[Frame] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    results: list[AppendResult] = field(default_factory=list)


def build_frames(
    batches: list[WriteBatch], state: PartitionState, now: int, ahead: int | None, producers: ProducerState
) -> EncodedFrames:
    """Assign offsets to the rows and encode them; leaves out rows that their producer has sent before.

    A batch whose predecessor is missing is refused in its result; the others are not affected.

    Args:
        batches: Rows of one partition, with their event times resolved.
        state: The state of the partition before the append.
        now: Arrival time of the rows, in microseconds since 1970.
        ahead: How far a time may be in the future and still advance the max event time, in microseconds; None
            if rows never advance it.
        producers: The sequence numbers known in the partition; not changed here, because the frames may yet fail.
    """
    encoded = EncodedFrames()
    offset, max_event_time, position = state.next_offset, state.max_event_time, 0
    last_sequences: dict[str, int] = {}  # of this append, not yet in `producers`
    for batch in batches:
        duplicates = 0
        if batch.producer:
            last = last_sequences.get(batch.producer, producers.last_sequence(batch.producer))
            duplicates = count_duplicates(batch, last)
            gap = find_gap(batch, last) or _find_hole(batch, last, duplicates, producers)
            if gap is not None:
                encoded.results.append(AppendResult(offset, 0, refused=gap))
                continue
            last_sequences[batch.producer] = max(last, batch.last_sequence)
        new = batch.slice(duplicates, batch.row_count - duplicates) if duplicates else batch
        encoded.results.append(AppendResult(offset, new.row_count, duplicates))
        if not new.row_count:
            continue
        frame = _build_header(new, offset, max_event_time, now, ahead, position)
        data = encode_frame(frame, serialize_columns(new.values, new.envelope))
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


def count_duplicates(batch: WriteBatch, last: int) -> int:
    """Returns how many leading rows of a batch the producer had sent before.

    `last` is the producer's last sequence number in the partition.
    """
    if batch.sequence > last:
        return 0
    return min(last - batch.sequence + 1, batch.row_count) if batch.per_row else batch.row_count


def find_gap(batch: WriteBatch, last: int) -> SequenceGapError | None:
    """Returns the error of a new batch whose producer has sent something before it that is not in the partition.

    `last` is the producer's last sequence number in the partition.
    """
    if batch.previous is None or batch.previous == last or batch.sequence <= last:
        return None
    return _gap_error(batch, batch.sequence, last, f"its producer sent {batch.previous} before it")


def _find_hole(batch: WriteBatch, last: int, duplicates: int, producers: ProducerState) -> SequenceGapError | None:
    """Returns the error of a batch that would count as a repeat, although the log lacks one of its numbers."""
    repeated = batch.sequence + (duplicates if batch.per_row else 1) - 1
    missing = producers.find_missing(batch.producer, batch.sequence, repeated) if duplicates else None
    if missing is None:
        return None
    reason = "the log has later ones, but not this one: its append failed, or the topic's overload policy dropped it"
    return _gap_error(batch, missing, last, reason)


def _gap_error(batch: WriteBatch, sequence: int, last: int, reason: str) -> SequenceGapError:
    return SequenceGapError(
        f"sequence {sequence} of producer {batch.producer!r} does not follow {last}, the last one in the partition",
        detail=f"{reason}; nothing of the batch was appended",
        fix="call flush, then send again everything since the last flush that returned, under the same numbers; "
        "an event that was dropped under a new number",
        producer=batch.producer,
        sequence=sequence,
        previous=batch.previous,
        last=last,
    )


def _build_header(batch: WriteBatch, offset: int, before: int, now: int, ahead: int | None, position: int) -> Frame:
    rows = batch.row_count
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
        schema=batch.version,
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
