"""Accounting of a batch: the outcome of every event, computed from the log and compared with Spark's counts.

`account_input` finds late and unreadable events of an offset range from the log alone. `BatchAccounting` compares the
result with the number of rows that Spark observed. If the two counts differ, the batch is not committed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.engine.build.build import BuiltQuery
from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import split_partition
from headwater.engine.sink.checkpoint import PlannedInput
from headwater.engine.state.state import OFFSET, PARTITION, QUARANTINE_REASON
from headwater.errors import EngineFailedError
from headwater.events.values import format_moment, moments_of
from headwater.log import LogBatch
from headwater.log.protocol import TimedLog
from headwater.log.storage.frame import LOWEST_TIME, Frame, envelope_bits
from headwater.pipelines import DropLate
from headwater.store import EventCounts, InputRange, SideOutput, StateSize

__all__ = ["BatchAccounting", "InputAccounting", "ObservedRows", "account_input", "to_side_outputs"]

_DELETED = envelope_bits({"_hw.deleted": None})


@dataclass(frozen=True)
class InputAccounting:
    """The outcome of the events of one input of one batch.

    `ready` counts the events that Spark received: not late, not skipped, and no tombstones. `unreadable` are foreign
    messages that do not match the topic's type; `left_out` includes them.
    """

    in_: int = 0
    late: tuple[SideOutput, ...] = ()
    unreadable: tuple[SideOutput, ...] = ()
    left_out: int = 0
    deleted: int = 0

    @property
    def ready(self) -> int:
        """The number of events that Spark must have counted."""
        return self.in_ - len(self.late) - self.left_out - self.deleted


def account_input(
    log: TimedLog, input_: Input, planned: PlannedInput, allowed: timedelta | None, skipped: Collection[tuple[int, int]]
) -> InputAccounting:
    """Count the events of a range; frame headers suffice for most, and only frames with late rows are read.

    Args:
        log: Where the topic is.
        input_: The input.
        planned: Its range.
        allowed: How late an event may be; None when none is ever late.
        skipped: Partition and offset of rows that are left out.
    """
    late: list[SideOutput] = []
    unreadable: list[SideOutput] = []
    counted = left_out = deleted = 0
    for partition, start in planned.start.items():
        skipped_offsets = [offset for number, offset in skipped if number == partition]
        end = planned.end[partition]
        known, unread = _scan_headers(log, input_, partition, (start, end), allowed, skipped_offsets)
        counted += known
        for first, last in unread:
            for read in log.open_topic(input_.topic.name).batches(partition, first, last):
                batch = _select_events(read, input_, start, end)
                is_late = _late_mask(batch, allowed) & ~batch.bad
                is_deleted = np.zeros_like(is_late) if input_.is_table else batch.tombstones & ~is_late
                unreadable.extend(_unreadable_outputs(batch.select(batch.bad)))
                counted += batch.values.num_rows
                late.extend(to_side_outputs(batch.select(is_late), _late_reasons(batch, is_late, allowed)))
                deleted += int(is_deleted.sum())
                left_out += int(((np.isin(batch.offsets, skipped_offsets) & ~is_late & ~is_deleted) | batch.bad).sum())
    return InputAccounting(counted, tuple(late), tuple(unreadable), left_out, deleted)


def _scan_headers(
    log: TimedLog, input_: Input, partition: int, range_: tuple[int, int], allowed: timedelta | None, skipped: list[int]
) -> tuple[int, list[tuple[int, int]]]:
    """Returns the events that frame headers account for, and the offset ranges of all others, merged."""
    start, end = range_
    counted, unread = 0, list[tuple[int, int]]()
    for frame in log.open_topic(input_.topic.name).partitions[partition].frame_headers(start, end):
        whole = start <= frame.base_offset and frame.next_offset <= end
        if whole and not _must_read(frame, input_, allowed, skipped):
            counted += frame.count
        elif unread and unread[-1][1] == frame.base_offset:
            unread[-1] = (unread[-1][0], frame.next_offset)
        else:
            unread.append((frame.base_offset, frame.next_offset))
    return counted, unread


def _must_read(frame: Frame, input_: Input, allowed: timedelta | None, skipped: list[int]) -> bool:
    if not frame.count:
        return False
    if input_.ops or (frame.columns & _DELETED and not input_.is_table):
        return True
    if any(frame.base_offset <= offset < frame.next_offset for offset in skipped):
        return True
    return allowed is not None and frame.lowest < frame.max_event_time - allowed // timedelta(microseconds=1)


def _select_events(batch: LogBatch, input_: Input, start: int, end: int) -> LogBatch:
    """Returns the rows of the range; of a changelog, the changes that are events of this input."""
    mask = (batch.offsets >= start) & (batch.offsets < end)
    if input_.ops:
        mask &= np.isin(np.array(batch.values.column("op").to_pylist()), input_.ops)
    return batch if mask.all() else batch.select(mask)


def _late_mask(batch: LogBatch, allowed: timedelta | None) -> npt.NDArray[np.bool_]:
    return np.zeros(batch.values.num_rows, bool) if allowed is None else batch.late(allowed)


def _late_reasons(batch: LogBatch, late: npt.NDArray[np.bool_], allowed: timedelta | None) -> Iterator[str]:
    border = batch.max_event_times[late] - (allowed or timedelta()) // timedelta(microseconds=1)
    for moment, behind in zip(moments_of(border), border - batch.event_times[late], strict=True):
        yield f"behind {format_moment(moment)} by {behind / 1e6:g} s"


def _unreadable_outputs(batch: LogBatch) -> Iterator[SideOutput]:
    """Returns side outputs for messages that do not match the type, with their bytes."""
    if not batch.values.num_rows:
        return
    errors, raws = (batch.envelope[name].to_pylist() for name in ("_hw.error", "_hw.raw"))
    for offset, received, error, raw in zip(batch.offsets, batch.arrival_times, errors, raws, strict=True):
        text = msgspec.json.encode(raw.decode(errors="replace")).decode()
        at = int(received)
        yield SideOutput(batch.topic.name, batch.partition, int(offset), at, at, text, error, raw)


def to_side_outputs(batch: LogBatch, reasons: Iterator[str], data: bytes = b"") -> Iterator[SideOutput]:
    """Returns the rows of a batch as side outputs."""
    texts = batch.codec.to_json(batch.values)
    rows = zip(batch.offsets, batch.event_times, batch.arrival_times, texts, reasons, strict=True)
    for offset, occurred, received, text, reason in rows:
        yield SideOutput(
            batch.topic.name, batch.partition, int(offset), int(occurred), int(received), text.decode(), reason, data
        )


_ALL_CHANGES = ("insert", "update", "delete")


class ObservedRows:
    """The number of rows that Spark counted after each input, read from the batch that has just run."""

    def __init__(self, query: Any) -> None:
        self._execution = query._jsq.streamingQuery().lastExecution()

    def __call__(self, name: str) -> int | None:
        """Returns the count; None if Spark did not need to read the input."""
        found = self._execution.observedMetrics().get(name)
        return int(found.get().getLong(0)) if found.isDefined() else None

    def rejections(self, names: Sequence[str]) -> tuple[tuple[int, int, str], ...]:
        """Returns the events that operators in Spark rejected: partition, offset and reason."""
        metrics = [self._execution.observedMetrics().get(name) for name in names]
        found = [json.loads(one.get().json())["events"] for one in metrics if one.isDefined()]
        return tuple((one[PARTITION], one[OFFSET], one[QUARANTINE_REASON]) for events in found for one in events)

    def state_sizes(self, names: Sequence[str]) -> tuple[StateSize, ...]:
        """Returns the state sizes of the key groups that the batch touched in Spark."""
        found = [(name, self._execution.observedMetrics().get(name)) for name in names]
        return tuple(
            replace(one, space=f"{one.space}, in Spark, step {name.rpartition('.')[2]}")
            for name, metric in found
            if metric.isDefined()
            for bucket in metric.get().getList(0)
            for one in msgspec.msgpack.decode(bucket, type=list[StateSize])
        )


@dataclass(frozen=True)
class BatchAccounting:
    """The accounting of one batch over all its inputs.

    Args:
        built: The pipeline.
        planned: What Spark planned, by name of the input.
        skipped: Events that are left out because of what they did before.
        log: Where the events are.
        refused: Events that the pipeline rejects: partition (see `split_partition`), offset and reason. They may
            belong to an earlier batch, and counted as used until now.
    """

    built: BuiltQuery
    planned: Mapping[str, PlannedInput]
    skipped: Sequence[SideOutput]
    log: TimedLog
    refused: tuple[tuple[int, int, str], ...] = ()

    def reconcile(self, observed: ObservedRows) -> None:
        """Compare the number of events in the log with the number that Spark counted.

        Raises:
            EngineFailedError: They differ, so something was lost or read twice.
        """
        for read in self.built.source_inputs:
            if read.name not in self.planned:
                continue
            counted, range_ = observed(read.metric_name), self.planned[read.name]
            watermark_rows = int(range_.watermark > LOWEST_TIME and range_.has_progress)
            expected = self._account(read).ready
            if counted is not None and counted - watermark_rows != expected:
                events = counted - watermark_rows
                raise EngineFailedError(
                    f'{self.built.pipeline} counts {events} events of "{read.name}", the log {expected}',
                    detail="nothing of this batch was committed; it will be run again",
                    pipeline=self.built.pipeline.name,
                )

    def input_ranges(self, accounts: Mapping[str, InputAccounting]) -> tuple[InputRange, ...]:
        """Returns the inputs as they are recorded in the ledger."""
        refused = Counter(number for number, _, _, _ in self._rejections)
        return tuple(
            InputRange(input_.topic.name, self.planned[input_.name].start, self.planned[input_.name].end,
                       self._event_counts(accounts[input_.name], refused[number]))
            for number, input_ in enumerate(self.built.inputs)
            if input_.name in accounts
        )  # fmt: skip

    def accounts(self) -> dict[str, InputAccounting]:
        """Returns the outcome of the events by name of the input; for a view over views all changes count."""
        return {
            input_.name: self._account(
                replace(input_, ops=_ALL_CHANGES) if self._counts_all_changes(input_) else input_
            )
            for input_ in self.built.inputs
            if input_.name in self.planned
        }

    def _counts_all_changes(self, input_: Input) -> bool:
        return self.built.has_weights and input_.row_behaviour is not None and not input_.is_table

    def _account(self, read: Input) -> InputAccounting:
        reading = self.built.input_options
        judged = reading.drop_late and not read.is_table
        allowed = timedelta(microseconds=reading.lateness(read)) if judged else None
        topic = read.topic.name
        skipped = {(aside.partition, aside.offset) for aside in self.skipped if aside.topic == topic}
        return account_input(self.log, read, self.planned[read.name], allowed, skipped)

    def _event_counts(self, counted: InputAccounting, refused: int) -> EventCounts:
        late = len(counted.late)
        dropping = isinstance(self.built.pipeline.late, DropLate)
        return EventCounts(
            in_=counted.in_,
            used=counted.ready - refused,
            late=0 if dropping else late,
            quarantined=counted.left_out + refused,
            dropped=counted.deleted + (late if dropping else 0),
        )

    def to_quarantine(self, late: Sequence[SideOutput]) -> tuple[SideOutput, ...]:
        """Returns the skipped events of this batch that would not have been late anyway."""
        too_late = {(aside.topic, aside.partition, aside.offset) for aside in late}
        read = {i.topic.name: self.planned[i.name] for i in self.built.inputs if i.name in self.planned}
        mine = [aside for aside in self.skipped if aside.topic in read and _within(read[aside.topic], aside)]
        kept = tuple(a for a in mine if (a.topic, a.partition, a.offset) not in too_late)
        return (*kept, *self._read_rejections())

    @cached_property
    def _rejections(self) -> list[tuple[int, int, int, str]]:
        """Returns the rejected events, each once: number of the input, partition, offset and reason."""
        by_position = {(*split_partition(partition), offset): reason for partition, offset, reason in self.refused}
        return [(*position, reason) for position, reason in by_position.items()]

    def _read_rejections(self) -> Iterator[SideOutput]:
        """Reads the rejected events from the log."""
        for number, partition, offset, reason in self._rejections:
            topic = self.log.open_topic(self.built.inputs[number].topic.name)
            for batch in topic.batches(partition, offset, offset + 1):
                yield from to_side_outputs(batch.select(batch.offsets == offset), iter([reason]))

    @property
    def watermark(self) -> int | None:
        """Event time up to which the result is complete: no row below it will appear or change without notice.

        Rows that Spark gives only when they are final come one batch after the watermark has passed them. Rows of a
        join may be as old as its range.
        """
        return self.complete - self.built.delay if self.complete > LOWEST_TIME else None

    @property
    def complete(self) -> int:
        """Event time up to which all rows have left Spark, in microseconds since 1970."""
        trailing = self.built.lags_one_batch
        return min(r.watermark_before if trailing else r.watermark for r in self.planned.values())


def _within(planned: PlannedInput, aside: SideOutput) -> bool:
    partition = aside.partition
    return planned.start.get(partition, 0) <= aside.offset < planned.end.get(partition, 0)
